//! Holds of directories, as far as requests are concerned (`locks/dir_holds.rs` has the rules).

use crate::locks::dir_holds::HoldClaim;
use crate::mdt::Mdt;
use crate::rows::dir_change::DirChange;
use crate::rows::row::Inode;
use alloc::vec::Vec;
use nacre_target::{ReplyTail, Request};
use nacre_types::{Codec, Fid};
use nacre_wire::flags;
use nacre_wire::mdt::DirTail;

fn reply_tail(tail: &DirTail) -> ReplyTail {
    ReplyTail { flag: flags::DIRS, bytes: tail.to_vec() }
}

impl Mdt {
    /// Claims a hold for the sender of a read, before the read, if the sender wants one and may have it.
    pub(crate) fn claim_hold(&self, request: &Request, fid: Fid) -> Option<HoldClaim> {
        let wanted =
            request.header.has(flags::MAY_HOLD) && self.core().may_have_volatile_locks(request.export);
        wanted.then(|| self.dir_holds().claim(self.core(), request.export, fid))?
    }
    /// The tail of the reply to that read. Nothing may be waited for after this.
    pub(crate) fn grant_hold(&self, claim: Option<HoldClaim>, inode: &Inode) -> Option<ReplyTail> {
        self.dir_holds().grant(claim?, inode).as_ref().map(reply_tail)
    }

    /// Whether a change of these directories has to wait for the holds of other clients.
    pub(crate) fn is_held_by_others(&self, request: Option<&Request>, dirs: &[DirChange]) -> bool {
        !dirs.is_empty() && self.core().former_locks_deadline().is_some()
            || self.dir_holds().is_held_by_others(request.map(|r| r.export), dirs)
    }
    /// Waits until no other client holds them.
    pub(crate) async fn revoke_holds_of_others(&self, request: Option<&Request>, dirs: &[DirChange]) {
        self.core().former_locks_ended().await;
        let fids: Vec<Fid> = dirs.iter().map(DirChange::fid).collect();
        self.dir_holds().revoke_others(self.core(), request.map(|r| r.export), &fids).await;
    }

    /// A change has been applied: its reply has the new state of the directories that its client holds.
    pub(crate) fn set_dir_tail(&self, request: Option<&Request>, dirs: Vec<DirChange>) {
        let Some(request) = request.filter(|_| !dirs.is_empty()) else { return };
        if let Some(tail) = self.dir_holds().tail_of_change(request.export, dirs) {
            request.set_reply_tail(reply_tail(&tail));
        }
    }
}
