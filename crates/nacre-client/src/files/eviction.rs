//! The effect of an eviction, or of another target in the place of an OST, on the open handles of this mount.
//!
//! Handles of files with file locks are lost, the others are opened again by FID. The rules for processes that have lost file
//! locks are those of `lost`.

use crate::client::Client;
use crate::files::table::Open;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_types::{Caller, Errno, Fid, OpenHandle, OstIndex};
use nacre_wire::mdt::{Close, Open as OpenRequest, OpenHow};

impl Client {
    /// An MDT has forgotten this client. Handles of its files with locks are lost, the others are opened again by FID.
    pub(crate) fn evicted_by_mdt(&self, mdt: &Rc<Mdt>) {
        mdt.note_eviction();
        mdt.kept_closes().evicted();
        mdt.local_flocks().evicted();
        self.mount.dirty_files().evicted(mdt.index());
        let mut opens = self.files.all();
        opens.retain(|open| open.file.fid.mdt() == mdt.index());
        tracing::warn!(
            target_name = %mdt.name,
            handles = opens.len(),
            "evicted by the MDT: handles of files with file locks fail with EIO from now on, the others are opened again"
        );
        mdt.fids().forget();
        mdt.flocks().retry_all();
        let lost: Vec<bool> = opens.iter().map(|open| open.file.flocks().covers(open.handle)).collect();
        for (open, _) in opens.iter().zip(&lost).filter(|(_, lost)| **lost) {
            self.lost.lost(open.handle, open.file.fid, open.file.flocks().processes(open.handle));
        }
        for (open, lost) in opens.into_iter().zip(lost) {
            open.file.evicted();
            mdt.late_opens().remove(&open);
            open.file.flocks().clear();
            if lost {
                open.set_stale();
                continue;
            }
            let (client, mdt) = (self.me(), mdt.clone());
            self.files.begin_reopen(&open);
            self.ctx.spawn(async move {
                let how = OpenHow { handle: open.handle, flags: open.flags() };
                let request = OpenRequest { fid: open.file.fid, how, caller: Caller::root() };
                if let Err(error) = mdt.open(&request).await {
                    tracing::error!(fid = %open.file.fid, %error, "an open file was lost with the eviction: its handle fails with EIO");
                    open.set_stale();
                } else if !client.files.contains(open.handle) {
                    // It was released meanwhile, and its close may have come before this open.
                    let close =
                        Close { fid: open.file.fid, handle: open.handle, dirty: false, written: None, atime: None, data: None };
                    let _ = mdt.send_or_queue_close(close).await; // an error means that it is closed
                }
                client.files.end_reopen(&open);
            });
        }
    }

    /// Another target was admitted in the place of an OST, or an old copy of it. Bytes that were
    /// written there and not synced are lost: handles that may have written there fail at their next use.
    pub(crate) fn lost_with(&self, ost: OstIndex, replaced: u32) {
        let lies_there = |open: &Open| {
            open.file.known_component().is_some_and(|c| {
                (0u32..).zip(&c.stripes).any(|(stripe, on)| *on == ost && c.laid(stripe) < replaced)
            })
        };
        let lost: Vec<_> = self.files.all().into_iter().filter(|o| o.is_writer() && lies_there(o)).collect();
        lost.iter().for_each(|open| open.set_stale());
        tracing::warn!(fs = %self.config.fs, ost = ost.0, handles = lost.len(),
            "another target was admitted in the place of this OST, or an old copy of it: handles that may have written there \
             fail with EIO from now on");
    }

    /// Files with a handle that has lost its locks and is still open. A front end has to call [`Client::may_change`] only while
    /// there are such files, which is after an eviction.
    pub fn files_with_lost_locks(&self) -> Vec<Fid> {
        self.lost.files()
    }

    /// Must be called before every change, by name or through any handle, on behalf of a process (0: the process is not known).
    /// `open`: the files of [`Client::files_with_lost_locks`] that the process has open; `None`: not known.
    ///
    /// # Errors
    /// EIO: the process has a handle that has lost its locks, and has to close it first. The log names both, once.
    pub fn may_change(&self, process: u32, open: Option<&[Fid]>) -> Result<(), Errno> {
        let Some((fid, new)) = self.lost.blocked_by(process, open) else { return Ok(()) };
        if new {
            tracing::warn!(
                process,
                %fid,
                "the locks of this process on this file were lost with the eviction: all its changes fail with EIO until \
                 it closes the file"
            );
        }
        Err(Errno::EIO)
    }

    /// Records that a process has opened a file itself. To be called while there are [`Client::files_with_lost_locks`].
    pub fn opened_by(&self, handle: OpenHandle, fid: Fid, process: u32) {
        self.lost.opened(handle, fid, process);
    }
}
