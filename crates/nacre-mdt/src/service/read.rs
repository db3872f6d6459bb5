//! Requests that change nothing: they read rows directly, without a transaction. (Lookup and getattr: `lookup.rs`.)
//!
//! Rule: a listing is in cookie order and every page starts behind a cookie, so entries that are created and removed
//! meanwhile neither duplicate nor hide others.

use crate::mdt::Mdt;
use crate::rows::acl::{self, Acl};
use crate::rows::row::{EntryRow, Inode, InodeRow, Row, RowError};
use crate::rows::table::{self, ENTRY, INODE, LINK, XATTR};
use crate::rows::xattr_name::check_xattr_name;
use crate::service::inode_locks::{Claims, reply_tail};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_osd::{OsdError, Table};
use nacre_target::{ExportId, Reply, Request};
use nacre_types::{Caller, Encoded, Errno, Failure, Fid, FileType, Layout, SizeState};
use nacre_wire::mdt::{
    DirEntry, EntryReply, EntryReplyWith, FidLinks, FidLinksReply, GetLayout, Getattr, Getxattr, LayoutReply,
    Listxattr, ListxattrReply, LockTail, Readdir, ReaddirReply, Readlink, ReadlinkReply, Settle, XattrReply,
};
use nacre_wire::target::StatfsReply;
use tracing::error;

/// Bytes of one page of a listing, about.
const PAGE_BYTES: usize = 1 << 20;
/// Entries read at a time within a page; other tasks run in between.
const SLICE: u32 = 256;
/// Entries of one page.
const PAGE_ENTRIES_MAX: u32 = 16 << 10;

impl Mdt {
    pub(crate) async fn read_row<R: Row>(&self, table: Table, key: &[u8]) -> Result<Option<R>, Errno> {
        let Some(bytes) = self.core().osd.get(table, key).await? else { return Ok(None) };
        R::from_row(&bytes).map(Some).map_err(|e| self.unreadable(table, key, e))
    }
    /// A damaged row, which is named in the log.
    pub(crate) fn unreadable(&self, table: Table, key: &[u8], error: RowError) -> Errno {
        error!(target_name = %self.core().name, table = table.0, ?key, %error,
            "a row cannot be read: run nacre check on this target");
        Errno::EIO
    }
    pub(crate) async fn read_inode(&self, fid: Fid) -> Result<Inode, Errno> {
        self.read_row(INODE, &fid.key()).await?.ok_or(Errno::ESTALE)
    }

    /// The description of an inode that was read under a claim, by this name if there is one, for a client.
    pub(crate) fn describe<'a>(
        &self,
        claims: &mut Claims,
        export: ExportId,
        row: &'a [u8],
        name: Option<(Fid, &[u8])>,
    ) -> Result<EntryReplyWith<Encoded<'a, Option<Layout>>>, RowError> {
        let inode = InodeRow::of_row(row)?;
        let fid = inode.attr.fid;
        let yours = inode.attr.size_state == SizeState::Open && self.is_sole_writer(export, fid);
        self.inode_read(claims, &inode, yours, name)?;
        let mut reply = inode.reply()?;
        reply.yours = yours;
        reply.buffered = reply.buffered && !yours && self.may_be_buffered(export, fid);
        Ok(reply)
    }
    /// Whether only this client can have changed a file since its size was exact, if that is not known now.
    pub(crate) fn is_sole_writer(&self, export: ExportId, fid: Fid) -> bool {
        let opens = self.opens().borrow();
        opens.sole_writer(fid).is_some_and(|(writer, _)| writer == export) && !opens.is_being_truncated(fid)
    }

    pub(crate) fn entry(&self, key: &[u8], value: &[u8]) -> Result<EntryRow, Errno> {
        EntryRow::from_row(value).map_err(|e| self.unreadable(ENTRY, key, e))
    }

    /// Waits until no other client has bytes that the OSTs do not have.
    pub(crate) async fn getattr_settled(&self, request: &Request, args: &Settle) -> Result<Reply, Failure> {
        self.buffered_bytes_written(request.export, args.fid).await?;
        self.getattr(request, &Getattr { fid: args.fid }).await
    }

    pub(crate) async fn readdir(&self, request: &Request, args: &Readdir) -> Result<Reply, Errno> {
        let mut claims = self.begin_claims(request);
        self.claim_inode(&mut claims, args.dir);
        let dir: Inode = self.read_row(INODE, &args.dir.key()).await?.ok_or(Errno::ENOENT)?;
        if !dir.attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let (_, end) = table::range_of(&args.dir.key());
        let mut left = args.entries_max.clamp(1, PAGE_ENTRIES_MAX);
        let mut bytes = 0;
        let mut reply = ReaddirReply { entries: Vec::new(), eof: false };
        let mut after = args.cookie;
        while left > 0 && bytes < PAGE_BYTES {
            let Some(next) = after.checked_add(1) else {
                reply.eof = true;
                break;
            };
            let limit = left.min(SLICE);
            let from = table::entry(args.dir, next);
            let rows = self.core().osd.scan(ENTRY, &from, &end, limit).await?;
            let last = rows.len() < limit as usize;
            for (key, value) in rows {
                let cookie = table::cookie_of(&key).ok_or(Errno::EIO)?;
                let entry = self.entry(&key, &value)?;
                let attrs = match args.with_attrs {
                    true => self.entry_attrs(&mut claims, request, args.dir, &entry).await?,
                    false => None,
                };
                after = cookie;
                left -= 1;
                bytes += 64 + entry.name.len() + attrs.as_ref().map_or(0, reply_bytes);
                reply.entries.push(DirEntry {
                    cookie,
                    name: entry.name,
                    fid: entry.fid,
                    file_type: entry.file_type,
                    entry: attrs,
                    granted: None,
                });
                if bytes >= PAGE_BYTES {
                    break;
                }
            }
            if last && bytes < PAGE_BYTES {
                reply.eof = true;
                break;
            }
            self.core().ctx.yield_now().await;
        }
        let (seen, granted) = self.grants(claims);
        let (of_dir, of_entries): (Vec<_>, Vec<_>) =
            granted.into_iter().partition(|grant| grant.fid == args.dir);
        let of_entries: BTreeMap<Fid, _> = of_entries.into_iter().map(|grant| (grant.fid, grant)).collect();
        for entry in &mut reply.entries {
            entry.granted = of_entries.get(&entry.fid).copied();
        }
        let granted = of_dir;
        let tail = LockTail { seen, granted, ..LockTail::default() };
        let mut reply = Reply::of(&reply);
        reply.tail = reply_tail(tail);
        Ok(reply)
    }
    /// `None` for an inode that has gone since its entry was read, or that cannot be read.
    async fn entry_attrs(
        &self,
        claims: &mut Claims,
        request: &Request,
        dir: Fid,
        entry: &EntryRow,
    ) -> Result<Option<EntryReply>, Errno> {
        self.claim_inode(claims, entry.fid);
        let key = entry.fid.key();
        // One inode that cannot be read does not hide the names of its directory: it has no attributes here, and the
        // request for it fails.
        let row = match self.core().osd.get(INODE, &key).await {
            Ok(Some(row)) => row,
            Ok(None) | Err(OsdError::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let described = self.describe(claims, request.export, &row, Some((dir, &entry.name)));
        let reply = described.and_then(|reply| Ok(reply.map_layout(|layout| layout.value())?));
        reply.map(Some).map_err(|e| self.unreadable(INODE, &key, e))
    }

    pub(crate) async fn readlink(&self, args: &Readlink) -> Result<Reply, Errno> {
        let inode = self.read_inode(args.fid).await?;
        if inode.attr.file_type() != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        Ok(Reply::of(&ReadlinkReply { target: inode.target }))
    }

    pub(crate) async fn getxattr(&self, args: &Getxattr<'_>) -> Result<Reply, Errno> {
        check_xattr_name(args.name)?;
        let inode = self.read_inode(args.fid).await?;
        let value = self.xattr_of(&inode, args.name).await?.ok_or(Errno::ENODATA)?;
        Ok(Reply::of(&XattrReply { value }))
    }
    async fn xattr_of(&self, inode: &Inode, name: &[u8]) -> Result<Option<Bytes>, Errno> {
        let Some(found) = inode.xattrs.iter().find(|x| x.name == name) else { return Ok(None) };
        match &found.value {
            Some(value) => Ok(Some(value.clone())),
            None => Ok(self.core().osd.get(XATTR, &table::xattr(inode.attr.fid, name)).await?),
        }
    }
    pub(crate) async fn listxattr(&self, args: &Listxattr) -> Result<Reply, Errno> {
        let inode = self.read_inode(args.fid).await?;
        let names = inode.xattrs.into_iter().map(|x| x.name).collect();
        Ok(Reply::of(&ListxattrReply { names }))
    }

    pub(crate) async fn get_layout(&self, args: &GetLayout) -> Result<Reply, Errno> {
        let inode = self.read_inode(args.fid).await?;
        let default = self.default_layout();
        Ok(Reply::of(&LayoutReply { layout: inode.layout, template: inode.template, default }))
    }

    pub(crate) async fn fid_links(&self, args: &FidLinks) -> Result<Reply, Errno> {
        let inode = self.read_inode(args.fid).await?;
        let mut links: Vec<(Fid, Bytes)> = inode.links.into_iter().map(|l| (l.parent, l.name)).collect();
        if inode.links_beyond > 0 {
            let (from, to) = table::range_of(&args.fid.key());
            let mut pages = self.core().osd.pages(LINK, SLICE).within(&from, &to);
            while let Some(rows) = pages.next().await? {
                links.extend(rows.iter().filter_map(|(key, _)| {
                    Some((Fid::from_key(key.get(12..)?)?, Bytes::copy_from_slice(key.get(24..)?)))
                }));
                self.core().ctx.yield_now().await;
            }
        }
        let known = links.len();
        let own = args.caller.uid == inode.attr.uid;
        let mut told: BTreeMap<Fid, bool> = BTreeMap::new();
        for (parent, _) in &links {
            if !told.contains_key(parent) {
                told.insert(*parent, self.tells_names(*parent, own, &args.caller).await?);
            }
        }
        links.retain(|(parent, _)| told.get(parent) == Some(&true));
        if links.is_empty() && known > 0 {
            return Err(Errno::EACCES);
        }
        Ok(Reply::of(&FidLinksReply { links }))
    }
    /// Whether a caller may learn a name in a directory by asking for its FID: only a name that it could have found by
    /// itself. It must be able to search the directory, and to list it as well, because FIDs are small consecutive
    /// numbers and need not be guessed as names must be. The name of its `own` inode is no secret from the owner.
    async fn tells_names(&self, dir: Fid, own: bool, caller: &Caller) -> Result<bool, Errno> {
        const SEARCH: u16 = 1;
        const LIST: u16 = 4;
        if caller.uid == 0 {
            return Ok(true);
        }
        let Some(inode) = self.read_row::<Inode>(INODE, &dir.key()).await? else { return Ok(false) };
        let acl = match self.xattr_of(&inode, acl::ACCESS).await? {
            Some(bytes) => Acl::parse(&bytes)?,
            None => None,
        };
        let want = if own { SEARCH } else { SEARCH | LIST };
        Ok(acl::permits(&inode.attr, acl.as_ref(), caller, want))
    }

    /// Space of this target's store.
    pub(crate) async fn space(&self) -> Result<StatfsReply, Errno> {
        let space = self.core().osd.space().await?;
        // Every inode belongs to project 0 until project ids can be set.
        let (_, files_used) = self.core().osd.usage(PROJECT, 0).await?;
        let files_free = space.files_free.unwrap_or(space.bytes_avail / BYTES_PER_INODE);
        Ok(StatfsReply {
            bytes_total: space.bytes_total,
            bytes_free: space.bytes_free,
            bytes_avail: space.bytes_avail,
            files_used,
            files_free: files_free.min(space.bytes_avail / BYTES_PER_INODE),
            device: space.device,
        })
    }
}

/// Kind of owner in the engine's accounts.
const PROJECT: u8 = 2;
/// Estimate of the space that an inode takes in the tables with its entry and links.
const BYTES_PER_INODE: u64 = 1024;

fn reply_bytes(reply: &EntryReply) -> usize {
    let stripes =
        reply.layout.as_ref().map_or(0, |l| l.components.iter().map(|c| 32 + c.stripes.len() * 4).sum());
    160 + stripes
}
