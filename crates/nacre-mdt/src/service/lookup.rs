//! Lookup, getattr and the bytes of a small file: the requests that describe one inode.
//!
//! Each is a function over rows in memory, as the operations are. If it misses a row, the row is added to the read set, and the
//! function runs again when the set has been read. So most of these requests are answered in the visit in which they come.
//!
//! Invariant: locks are claimed when all rows are there, so that claim, read and grant are in one visit, in which nothing
//! changes.

use crate::mdt::Mdt;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{BorrowedEntry, InodeRow};
use crate::rows::table::{self, DATA, ENTRY, INODE};
use crate::rows::view::{Abort, Step};
use crate::service::inode_locks::Claims;
use bytes::Bytes;
use nacre_osd::{Pins, Table};
use nacre_target::{Reply, Request};
use nacre_types::name::{DISCRIMINATORS, HashKey, cookie_base};
use nacre_types::{Encoded, Errno, Failure, Fid, Layout, Name};
use nacre_wire::mdt::{EntryReplyWith, Getattr, Lookup, ReadData, ReadDataReply};
use tracing::error;

/// Attempts of one request that find missing rows: each reads at least one more.
const READS_MAX: usize = 64;

/// The rows that the attempts so far have missed.
#[derive(Default)]
struct Missed {
    read_set: ReadSet,
    /// They keep these rows in memory.
    pins: Pins,
}

/// The result of an attempt; `None`: rows have to be read first.
fn finished(step: Step<Reply>) -> Option<Result<Reply, Failure>> {
    match step {
        Ok(reply) => Some(Ok(reply)),
        Err(Abort::Failed(failure)) => Some(Err(failure)),
        Err(Abort::AfterRevoke(errno)) => Some(Err(errno.into())),
        Err(Abort::MissingRows | Abort::MustWait | Abort::NeedsCredits(_)) => None,
    }
}

impl Mdt {
    pub(crate) async fn lookup(&self, request: &Request, args: &Lookup<'_>) -> Result<Reply, Failure> {
        let hash = self.name_hash().wait().await;
        self.with_rows(|missed| self.look_up(request, args, hash, missed)).await
    }
    /// The same, if nothing has to be waited for.
    pub(crate) fn lookup_now(&self, request: &Request, args: &Lookup<'_>) -> Option<Result<Reply, Failure>> {
        let hash = self.name_hash().get()?;
        finished(self.look_up(request, args, hash, &mut Missed::default()))
    }
    pub(crate) async fn getattr(&self, request: &Request, args: &Getattr) -> Result<Reply, Failure> {
        self.with_rows(|missed| self.get_attr(request, args, missed)).await
    }
    /// The same, if nothing has to be waited for.
    pub(crate) fn getattr_now(&self, request: &Request, args: &Getattr) -> Option<Result<Reply, Failure>> {
        finished(self.get_attr(request, args, &mut Missed::default()))
    }
    pub(crate) async fn read_data(&self, args: &ReadData) -> Result<Reply, Failure> {
        let mut is_here = false;
        let done = self.with_rows(|missed| self.data_of(args, missed, &mut is_here)).await;
        if done.is_ok() && !is_here {
            self.data_moves().committed(args.fid).await;
        }
        done
    }
    /// The same, if nothing has to be waited for.
    pub(crate) fn read_data_now(&self, args: &ReadData) -> Option<Result<Reply, Failure>> {
        let mut is_here = false;
        let done = self.data_of(args, &mut Missed::default(), &mut is_here);
        let is_certain = is_here || self.data_moves().of(args.fid).is_none();
        if is_certain { finished(done) } else { None }
    }
    /// Repeats an attempt until it has all its rows.
    async fn with_rows(&self, mut attempt: impl FnMut(&mut Missed) -> Step<Reply>) -> Result<Reply, Failure> {
        let mut missed = Missed::default();
        for _ in 0..READS_MAX {
            match finished(attempt(&mut missed)) {
                Some(done) => return done,
                None => missed.pins = missed.read_set.fetch(&self.core().osd).await?,
            }
        }
        error!(target_name = %self.core().name, "a lookup found new rows to read for ever: a bug");
        Err(Failure::EIO)
    }

    fn look_up(
        &self,
        request: &Request,
        args: &Lookup<'_>,
        hash: HashKey,
        missed: &mut Missed,
    ) -> Step<Reply> {
        let fid = self.find_entry(args.parent, args.name, hash, missed)?;
        let row = match fid {
            Some(fid) => self.inode_row(fid, missed)?,
            None => None,
        };
        if row.is_none() {
            let dir = self.inode_row(args.parent, missed)?.ok_or(Errno::ENOENT)?;
            let dir = InodeRow::of_row(&dir).map_err(|e| self.unreadable(INODE, &args.parent.key(), e))?;
            if !dir.attr.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
        }
        let name = Some((args.parent, args.name.as_bytes()));
        let mut claims = self.begin_claims(request);
        self.claim_inode(&mut claims, args.parent);
        let entry = match fid.zip(row.as_deref()) {
            Some((fid, row)) => Some(self.described(&mut claims, request, fid, row, name)?),
            None => None,
        };
        // The layout stays encoded: a `LookupReply` is such an `Option`.
        let mut reply = Reply::of(&entry);
        reply.tail = self.lock_tail(claims);
        Ok(reply)
    }
    fn get_attr(&self, request: &Request, args: &Getattr, missed: &mut Missed) -> Step<Reply> {
        let row = self.inode_row(args.fid, missed)?.ok_or(Errno::ESTALE)?;
        let mut claims = self.begin_claims(request);
        let mut reply = Reply::of(&self.described(&mut claims, request, args.fid, &row, None)?);
        reply.tail = self.lock_tail(claims);
        Ok(reply)
    }
    /// `is_here` becomes true if this target has the bytes.
    fn data_of(&self, args: &ReadData, missed: &mut Missed, is_here: &mut bool) -> Step<Reply> {
        let key = args.fid.key();
        let row = self.inode_row(args.fid, missed)?.ok_or(Errno::ESTALE)?;
        let layout = InodeRow::of_row(&row).and_then(|inode| Ok((inode.attr, inode.layout.value()?)));
        let (attr, layout) = layout.map_err(|e| self.unreadable(INODE, &key, e))?;
        let mtime = attr.mtime;
        if layout.is_none_or(|layout| layout.dom_bytes == 0) {
            return Ok(Reply::of(&ReadDataReply { data: None, mtime }));
        }
        *is_here = true;
        let data = match attr.size {
            0 => Bytes::new(),
            _ => self.row_now(DATA, &key, missed, |row| row.cloned())?.unwrap_or_default(),
        };
        if data.len() as u64 != attr.size {
            error!(target_name = %self.core().name, fid = %args.fid, size = attr.size, found = data.len(),
                "the bytes of a file are not those of its size: run nacre check on this target");
            return Err(Errno::EIO.into());
        }
        Ok(Reply::of(&ReadDataReply { data: Some(data), mtime }))
    }
    /// Claims the lock of an inode, and describes it.
    fn described<'a>(
        &self,
        claims: &mut Claims,
        request: &Request,
        fid: Fid,
        row: &'a [u8],
        name: Option<(Fid, &[u8])>,
    ) -> Result<EntryReplyWith<Encoded<'a, Option<Layout>>>, Errno> {
        self.claim_inode(claims, fid);
        let reply = self.describe(claims, request.export, row, name);
        reply.map_err(|e| self.unreadable(INODE, &fid.key(), e))
    }

    fn find_entry(&self, dir: Fid, name: Name<'_>, hash: HashKey, missed: &mut Missed) -> Step<Option<Fid>> {
        let (from, to) = table::entries_of_hash(dir, cookie_base(hash, name.as_bytes()));
        let with_name = |key: &[u8], value: &[u8]| {
            let entry = BorrowedEntry::of_row(value).map_err(|e| self.unreadable(ENTRY, key, e))?;
            Ok::<_, Errno>((entry.name == name.as_bytes()).then_some(entry.fid))
        };
        // Nearly every name has the first cookie of its hash; a row costs a fifth of a range.
        let first = self.row_now(ENTRY, &from, missed, |row| row.map(|row| with_name(&from, row)))?;
        if let Some(fid) = first.transpose()?.flatten() {
            return Ok(Some(fid));
        }
        let mut found = Ok(None);
        let mut compare = |key: &[u8], value: &Bytes| {
            if let Ok(None) = found {
                found = with_name(key, value);
            }
        };
        let (osd, limit) = (&self.core().osd, DISCRIMINATORS as u32);
        if !osd.each_row_now(ENTRY, (&from, &to), limit, &missed.pins, &mut compare)? {
            missed.read_set.name(hash, dir, name);
            return Err(Abort::MissingRows);
        }
        Ok(found?)
    }
    fn inode_row(&self, fid: Fid, missed: &mut Missed) -> Step<Option<Bytes>> {
        self.row_now(INODE, &fid.key(), missed, |row| row.cloned())
    }
    /// Passes a row in memory to `read`.
    fn row_now<T>(
        &self,
        table: Table,
        key: &[u8],
        missed: &mut Missed,
        read: impl FnOnce(Option<&Bytes>) -> T,
    ) -> Step<T> {
        self.core().osd.read_now(table, key, read)?.ok_or_else(|| {
            missed.read_set.key(table, key);
            Abort::MissingRows
        })
    }
}
