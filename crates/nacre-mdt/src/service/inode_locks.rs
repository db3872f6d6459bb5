//! Locks of inodes, as far as requests are concerned: which locks a reply grants (`locks/inode_locks.rs` has the rules).
//!
//! Rules: bits are claimed before the rows are read, and granted afterwards unless a change has cancelled the claim
//! meanwhile. LOOKUP of an inode is granted with a name only if the inode's own links have that name: it may have been
//! renamed since its entry was read. SIZE is granted only if the reply has the size, or if the sender completes it with
//! its own writes. WRITE_BACK is granted to a client that alone has a file open and alone may open it: no other has OPEN, nor
//! is granted it meanwhile. A restart forgets who has it: every client that had the file open for writing may, and the bit is
//! restored, and revoked, as soon as another client needs the bytes.

use crate::locks::inode_locks::Holders;
use crate::mdt::Mdt;
use crate::rows::lock_changes::LockChanges;
use crate::rows::opens::Opens;
use crate::rows::row::{InodeRow, RowError};
use alloc::vec::Vec;
use nacre_dlm::server::InodeClaim;
use nacre_target::{ExportId, Reply, ReplyTail, Request};
use nacre_types::{Codec, Errno, Fid, FileType, InodeBits, SizeState, Transno};
use nacre_wire::mdt::{
    AwaitInodeLocks, CancelInodeLocks, FormerLocksEnded, INODE_LOCKS_MAX, InodeGrant, LockTail,
};
use nacre_wire::target::{Empty, features};
use nacre_wire::{Class, Opcode, flags};

/// Parts of an inode that a reply with its attributes can grant.
const OF_INODE: InodeBits = InodeBits::ATTRS
    .with(InodeBits::LOOKUP)
    .with(InodeBits::XATTR)
    .with(InodeBits::LAYOUT)
    .with(InodeBits::OPEN);

/// The claims of one reply.
#[derive(Default)]
pub(crate) struct Claims {
    /// `None`: the sender is granted nothing.
    export: Option<ExportId>,
    /// Changes up to this are in the rows that are read from now on.
    seen: Transno,
    claims: Vec<InodeClaim>,
    /// The sender keeps bytes that it writes, if it may.
    write_back: bool,
}

impl Mdt {
    /// Whether the sender takes locks, and a restart would know.
    fn takes_locks(&self, request: &Request) -> bool {
        request.header.has(flags::MAY_LOCK) && self.core().may_have_volatile_locks(request.export)
    }

    // ---- reads

    /// The claims for a reply to this request, before any row is read.
    pub(crate) fn begin_claims(&self, request: &Request) -> Claims {
        let export = self.takes_locks(request).then_some(request.export);
        let write_back = request.header.has(flags::MAY_WRITE_BACK);
        Claims { export, seen: self.core().osd.last_transno(), claims: Vec::new(), write_back }
    }
    /// Claims the lock of an inode whose attributes are read next.
    pub(crate) fn claim_inode(&self, claims: &mut Claims, fid: Fid) {
        self.claim_bits(claims, fid, OF_INODE);
    }
    fn claim_bits(&self, claims: &mut Claims, fid: Fid, bits: InodeBits) {
        let Some(export) = claims.export else { return };
        let opens = self.opens().borrow();
        let is_sole = match (opens.sole_writer(fid), opens.writers(fid)) {
            (Some((writer, _)), _) => writer == export,
            // If there is a writer, it is the last of several, and not known to be the sender.
            (None, writers) => writers == 0,
        };
        let is_sole = is_sole && !opens.is_being_truncated(fid);
        let others_write = !is_sole || opens.writers(fid) > 1;
        let mut bits = bits.grantable(others_write);
        // Several handles of one client are no reason against it: the reply to each open says anew whether it has this bit.
        if claims.write_back
            && opens.writers(fid) > 0
            && is_sole
            && opens.opener(fid) == Some(export)
            && !self.inode_locks().conflicts(Some(export), &[(fid, InodeBits::OPEN)])
            && self.core().former_locks_deadline().is_none()
        {
            bits |= InodeBits::WRITE_BACK;
        }
        drop(opens);
        let claim = self.inode_locks().claim(self.core(), export, fid, bits);
        claims.claims.extend(claim);
    }
    /// Whether another client may have bytes of a file that the OSTs do not have.
    pub(crate) fn may_be_buffered(&self, export: ExportId, fid: Fid) -> bool {
        let locked = self.inode_locks().conflicts(Some(export), &[(fid, InodeBits::WRITE_BACK)]);
        locked
            || self.opens().borrow().has_former_writers(Some(export), fid)
            || self.core().former_locks_deadline().is_some()
    }
    /// Revokes WRITE_BACK of other clients, and waits until they have written their bytes to the OSTs.
    pub(crate) async fn buffered_bytes_written(&self, export: ExportId, fid: Fid) -> Result<(), Errno> {
        self.core().former_locks_ended().await;
        let broken = [(fid, InodeBits::WRITE_BACK)];
        self.restore_write_back(Some(export), &broken);
        if self.inode_locks().conflicts(Some(export), &broken) {
            let waiting = self.inode_locks().enter(Some(export))?;
            waiting.until_free(self.core(), &broken).await?;
        }
        Ok(())
    }
    /// Restores WRITE_BACK of other clients that may have had it before the start, among the bits that a change breaks. Those that
    /// are gone have it no more.
    pub(crate) fn restore_write_back(&self, own: Option<ExportId>, broken: &[(Fid, InodeBits)]) {
        for (fid, _) in broken.iter().filter(|(_, bits)| bits.intersects(InodeBits::WRITE_BACK)) {
            let writers = self.opens().borrow_mut().take_former_writers(own, *fid);
            for writer in writers.into_iter().filter(|writer| self.core().may_have_volatile_locks(*writer)) {
                self.inode_locks().restore(writer, *fid, InodeBits::WRITE_BACK);
            }
        }
    }
    /// The inode of a claim has been read, under this name if there is one. `yours`: as in the reply (`EntryReply::yours`).
    pub(crate) fn inode_read(
        &self,
        claims: &mut Claims,
        inode: &InodeRow<'_>,
        yours: bool,
        name: Option<(Fid, &[u8])>,
    ) -> Result<(), RowError> {
        let attr = &inode.attr;
        let mut of_inode = claims.claims.iter_mut().filter(|claim| claim.fid() == attr.fid).peekable();
        if of_inode.peek().is_none() {
            return Ok(());
        }
        let mut unfit = InodeBits::NONE;
        if attr.file_type() == FileType::Regular && attr.size_state != SizeState::Exact && !yours {
            unfit |= InodeBits::SIZE | InodeBits::WRITE_BACK;
        }
        if let Some((parent, name)) = name
            && !inode.links.value()?.iter().any(|link| link.parent == parent && link.name == name)
        {
            unfit |= InodeBits::LOOKUP;
        }
        if attr.nlink == 0 {
            unfit = InodeBits::ALL;
        }
        if !unfit.is_empty() {
            of_inode.for_each(|claim| *claim = self.inode_locks().take_back(self.core(), *claim, unfit));
        }
        Ok(())
    }
    /// The bits that the claims still give. The caller must not wait for anything afterwards.
    pub(crate) fn grants(&self, claims: Claims) -> (Transno, Vec<InodeGrant>) {
        let granted = claims.claims.into_iter().filter_map(|claim| self.inode_locks().grant(claim));
        (claims.seen, granted.collect())
    }
    /// The tail of the reply to a read.
    pub(crate) fn lock_tail(&self, claims: Claims) -> Option<ReplyTail> {
        claims.export?; // granted nothing
        let (seen, granted) = self.grants(claims);
        reply_tail(LockTail { seen, granted, ..LockTail::default() })
    }

    // ---- changes

    /// The view of the locks that an attempt of a change needs.
    pub(crate) fn lock_holders(&self, request: Option<&Request>) -> Holders<'_> {
        let tells_sender = request.is_some_and(|request| self.takes_locks(request));
        let former = self.core().former_locks_deadline().is_some();
        self.inode_locks().holders(request.map(|request| request.export), tells_sender, former)
    }
    /// Whether a change has to wait for locks of other clients.
    pub(crate) fn has_broken_locks(
        &self,
        request: Option<&Request>,
        opens: &Opens,
        changes: &LockChanges,
    ) -> bool {
        if request.is_some_and(|request| request.replayed_transno().is_some()) {
            return false; // they were returned before it was executed first
        }
        let (own, broken) = (request.map(|request| request.export), changes.broken());
        let is_kept = |(fid, bits): &(Fid, InodeBits)| {
            bits.intersects(InodeBits::WRITE_BACK) && opens.has_former_writers(own, *fid)
        };
        let former = !broken.is_empty() && self.core().former_locks_deadline().is_some();
        conflicts_with_former_locks(request) && (former || broken.iter().any(is_kept))
            || self.inode_locks().conflicts(own, broken)
    }
    /// Whether the sender of a change has to report opens of inodes that lose their last name.
    pub(crate) fn lacks_reports(&self, request: Option<&Request>, changes: &LockChanges) -> bool {
        let is_replay = request.is_some_and(|request| request.replayed_transno().is_some());
        !is_replay && !changes.unreported().is_empty()
    }
    /// A change has been applied: its reply has the new state of inodes of the sender's locks, and grants locks of those
    /// that it describes.
    pub(crate) fn set_lock_tail(
        &self,
        request: Option<&Request>,
        transno: Transno,
        mut changes: LockChanges,
    ) {
        let Some(request) = request.filter(|request| self.takes_locks(request)) else { return };
        let (mut changed, removed) = changes.take_states();
        let described = changes.described();
        for fid in &removed {
            self.inode_locks().forget_inode(self.core(), request.export, *fid);
        }
        changed.retain(|state| !described.contains(&state.attr.fid));
        let in_reply = changed.iter().map(|state| state.attr.fid).chain(described.iter().copied());
        let yours = in_reply.filter(|fid| self.is_sole_writer(request.export, *fid)).collect();
        let write_back = request.header.has(flags::MAY_WRITE_BACK);
        let mut claims =
            Claims { export: Some(request.export), seen: transno, claims: Vec::new(), write_back };
        // A client that makes files in batches removes them likewise, and would have to return OPEN for each batch before.
        let bits = if request.opcode == Opcode::Batch { OF_INODE - InodeBits::OPEN } else { OF_INODE };
        described.iter().for_each(|fid| self.claim_bits(&mut claims, *fid, bits));
        let (seen, granted) = self.grants(claims);
        if let Some(tail) = reply_tail(LockTail { seen, granted, changed, removed, yours }) {
            request.set_reply_tail(tail);
        }
    }

    /// Whether the client of a change knows how to wait for locks without a slot. For the extra slot of a close, too, others
    /// wait: closes that their client has to send before it returns a lock. A replay is in order.
    pub(crate) fn may_be_parked(&self, request: &Request) -> bool {
        let knows = self.core().has_feature(request.export, features::INODE_LOCKS);
        let has_slot = matches!(request.opcode.class(), Class::Modify | Class::Close);
        knows && has_slot && request.replayed_transno().is_none()
    }
    pub(crate) async fn await_inode_locks(&self, request: &Request) -> Result<Reply, Errno> {
        let AwaitInodeLocks { change } = request.args()?;
        // A change that was refused while it waited for them has not asked for anything else yet.
        self.core().former_locks_ended().await;
        self.inode_locks().ready(request.export, change).await;
        Ok(Reply::of(&Empty {}))
    }

    // ---- ends of locks

    pub(crate) fn cancel_inode_locks(&self, request: &Request) -> Result<Reply, Errno> {
        let returned: CancelInodeLocks = request.args()?;
        let longest = returned.acks.len().max(returned.cancels.len()).max(returned.flushing.len());
        if longest > INODE_LOCKS_MAX {
            return Err(Errno::EINVAL);
        }
        if returned.instance == self.core().instance() {
            self.inode_locks().returned(self.core(), request.export, &returned);
        }
        Ok(Reply::of(&Empty {}))
    }
    pub(crate) fn former_locks_have_ended(&self, request: &Request) -> Result<Reply, Errno> {
        let FormerLocksEnded { instance } = request.args()?;
        if instance == self.core().instance() {
            self.core().end_former_locks(request.export);
        }
        Ok(Reply::of(&Empty {}))
    }
}

/// Whether a change may conflict with locks of an earlier start. A report of opens does not: its client had OPEN when it made
/// them, so that no other client had WRITE_BACK. Nor may it wait for the end of such locks: a client says that it does not
/// use its own any more only when all its opens are reported, so that the report would wait for itself until a lease is over.
pub(crate) fn conflicts_with_former_locks(request: Option<&Request>) -> bool {
    request.is_none_or(|request| request.opcode != Opcode::ReportOpens)
}

pub(crate) fn reply_tail(tail: LockTail) -> Option<ReplyTail> {
    let says_something = !(tail.granted.is_empty() && tail.changed.is_empty() && tail.removed.is_empty());
    says_something.then(|| ReplyTail { flag: flags::LOCKS, bytes: tail.to_vec() })
}
