//! fallocate(2): space, holes and zeros in a range of a file.
//!
//! Each object does its part in one request. A range over several objects is locked on all of them, so that other mounts
//! see it changed as a whole; zeros in allocated space are two steps, and others may see the space before the zeros.

use crate::api::{AllocateArgs, AllocateMode};
use crate::client::Client;
use crate::data::io::check_end;
use crate::data::stripes::{self, ObjectRange};
use crate::files::table::Open;
use crate::locks::under_lease::{Change, NO_LOCK};
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::{Codec, Extent, Failure, LockCookie, OpenHandle};
use nacre_wire::Rpc;
use nacre_wire::ost::{Allocate, LockMode, Punch, WriteReply};

impl Client {
    /// Allocates, frees or zeroes a range of an open file.
    ///
    /// # Errors
    /// EINVAL for an empty range, EFBIG beyond the largest file, ENOSPC; EIO if the file locks of the handle are lost, or
    /// bytes that are to be kept.
    pub async fn allocate(&self, handle: OpenHandle, args: AllocateArgs) -> Result<(), Failure> {
        let AllocateArgs { offset, len, mode, kill_suidgid } = args;
        let _timing = self.stats.time("fallocate");
        let open = &*self.handle_under_lease(handle).await?;
        let file = &open.file;
        if len == 0 {
            return Err(Failure::EINVAL);
        }
        check_end(offset, len)?;
        if let Some(caller) = &kill_suidgid {
            self.kill_privileges(open, caller).await?;
        }
        file.long_append.end();
        let mut order = self.exclusive(file, Extent::new(offset, offset + len)).await;
        if file.dom_bytes() > 0 {
            drop(order);
            order = self.exclusive(file, Extent::ALL).await;
            self.move_data(file).await?;
        }
        let component = file.component()?;
        let ranges = stripes::allocation(&component, offset, len);
        if let AllocateMode::Space { keep_size } | AllocateMode::Zeros { keep_size } = mode {
            self.allocate_objects(open, &ranges, keep_size).await?;
        }
        match mode {
            AllocateMode::Space { .. } => {}
            AllocateMode::Zeros { .. } => self.punch_objects(open, &ranges, false).await?,
            AllocateMode::Hole => self.punch_objects(open, &ranges, true).await?,
        }
        drop(order);
        self.check_lease(open).await
    }

    async fn allocate_objects(
        &self,
        open: &Open,
        ranges: &[ObjectRange],
        keep_size: bool,
    ) -> Result<(), Failure> {
        if keep_size {
            open.file.note_preallocated();
        }
        let (fid, owner, mtime) = (open.file.fid, open.file.owner(), self.now());
        self.change_ranges(open, ranges, |range, lock| Allocate {
            object: range.of(fid).object,
            laid: range.laid,
            offset: range.offset,
            len: range.len,
            keep_size,
            owner,
            mtime,
            lock,
        })
        .await
    }

    async fn punch_objects(&self, open: &Open, ranges: &[ObjectRange], frees: bool) -> Result<(), Failure> {
        if frees {
            open.file.note_freed();
        }
        let (fid, owner, mtime) = (open.file.fid, open.file.owner(), self.now());
        self.change_ranges(open, ranges, |range, lock| Punch {
            object: range.of(fid).object,
            laid: range.laid,
            offset: range.offset,
            len: range.len,
            frees,
            owner,
            mtime,
            lock,
        })
        .await
    }

    /// Sends one request per object, under locks if there are several.
    async fn change_ranges<R: Rpc<Reply = WriteReply> + for<'a> Codec<'a>>(
        &self,
        open: &Open,
        ranges: &[ObjectRange],
        request: impl Fn(&ObjectRange, LockCookie) -> R,
    ) -> Result<(), Failure> {
        let file = &open.file;
        let request = &request;
        self.retry_lost_locks(|first| async move {
            let locked = match ranges {
                [_] => Vec::new(),
                _ => self.lock_ranges(file.fid, ranges, LockMode::Pw, first).await?,
            };
            let mut requests = Vec::with_capacity(ranges.len());
            for (i, range) in ranges.iter().enumerate() {
                let lock = locked.get(i).map_or(NO_LOCK, |locked| locked.cookie());
                requests.push((self.ost(range.ost).await?, lock, request(range, lock)));
            }
            let replies = join_all(requests.iter().map(|(ost, lock, request)| async move {
                let _room = if *lock == NO_LOCK { Some(ost.unlocked_write().await) } else { None };
                self.change_object(ost, Change::through(open), *lock, request, Vec::new()).await
            }));
            let replies = replies.await;
            let mut outcome = Ok(());
            for (range, reply) in ranges.iter().zip(replies) {
                match reply {
                    Ok(reply) => file.note_written(range.stripe, reply.state),
                    Err(e) => {
                        file.note_uncertain(range.stripe);
                        outcome = Err(e);
                    }
                }
            }
            outcome
        })
        .await
    }
}
