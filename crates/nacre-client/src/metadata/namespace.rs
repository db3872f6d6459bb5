//! Names: lookup, new inodes, links, removal, rename, listings, extended attributes.

use crate::api::{CreateArgs, ListedEntry, MountConfig, ReaddirPage, ResolvedInode, SetxattrArgs};
use crate::cache::in_flight::Touches;
use crate::cache::kernel::Stale;
use crate::cache::metadata::Changing;
use crate::cache::tables::{Found, NameEffect};
use crate::client::Client;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Caller, Errno, Failure, Fid, FileType, Name, name};
use nacre_wire::mdt::{
    Create, CreateReply, DirEntry, EntryReply, FidLinks, Getxattr, Link, Listxattr, Lookup, OpenHow, Readdir,
    Readlink, Removexattr, Rename, Setxattr, Unlink, rename_flags,
};

impl Client {
    /// Finds a name in a directory.
    pub async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<ResolvedInode, Failure> {
        /// A file that is replaced before its size is known is looked up again so often.
        const REPLACED_MAX: usize = 100;
        let _timing = self.stats.time("lookup");
        let name = match name {
            b"." => return self.getattr(parent).await,
            b".." => return self.parent(parent).await,
            _ => Name::new(name)?,
        };
        let mdt = self.mdt_of(parent).await?;
        for _ in 0..REPLACED_MAX {
            let reply = match mdt.cached_name(parent, name.as_bytes()) {
                Some(Found::Entry(entry)) => entry,
                Some(Found::NotThere) => return Err(Failure::ENOENT),
                None => self.settled(mdt.read_name(&Lookup { parent, name }).await?),
            };
            let without_size = ResolvedInode::of(&reply);
            match self.resolve_settled(reply).await {
                // The file has gone since the name was read. If another file has replaced it, the name has existed all the time.
                Err(Failure::ESTALE) => {}
                // A caller that asks for the size gets the error. The name still leads to the file: it can be removed.
                Err(Failure::EIO) => return Ok(without_size),
                resolved => return resolved,
            }
        }
        Err(Failure::ESTALE)
    }

    /// Parent of a directory (for `..` by handle).
    pub async fn parent(&self, fid: Fid) -> Result<ResolvedInode, Failure> {
        let parent = self.parent_fid(fid).await?;
        self.attributes(parent).await
    }

    async fn parent_fid(&self, fid: Fid) -> Result<Fid, Failure> {
        if fid == Fid::ROOT {
            return Ok(fid);
        }
        let mdt = self.mdt_of(fid).await?;
        if let Some(parent) = mdt.cached_parent(fid) {
            return Ok(parent);
        }
        let reply = mdt.call(&FidLinks { fid, caller: Caller::root() }).await?;
        reply.links.first().map(|(parent, _)| *parent).ok_or(Failure::ENOENT)
    }

    /// Target of a symbolic link.
    pub async fn readlink(&self, fid: Fid) -> Result<Bytes, Failure> {
        let _timing = self.stats.time("readlink");
        let mdt = self.mdt_of(fid).await?;
        if let Some(target) = mdt.cached_target(fid) {
            return Ok(target);
        }
        let target = mdt.call(&Readlink { fid }).await?.target;
        mdt.cache().keep_target(fid, &target);
        Ok(target)
    }

    /// mknod, mkdir, symlink: whatever `args.mode` says.
    pub async fn make(&self, args: CreateArgs<'_>) -> Result<ResolvedInode, Failure> {
        let file_type = FileType::of_mode(args.mode).ok_or(Failure::EINVAL)?;
        let _timing = self.stats.time(match file_type {
            FileType::Directory => "mkdir",
            FileType::Symlink => "symlink",
            _ => "mknod",
        });
        self.check_writable()?;
        if args.target.len() > name::SYMLINK_MAX {
            return Err(Failure::ENAMETOOLONG);
        }
        if file_type == FileType::Symlink && args.target.is_empty() {
            return Err(Failure::ENOENT);
        }
        let mdt = self.mdt_of(args.parent).await?;
        let name = Some(Name::new(args.name)?);
        let exclusive = CreateArgs { exclusive: true, ..args.clone() };
        let request = self.create_request(&mdt, exclusive, name, None).await?;
        let touches = Touches::names(&[(args.parent, args.name)]);
        let reply = mdt.change(touches, &request, created).await?;
        Ok(self.settled_new(&reply.entry))
    }

    /// The request that makes an inode at this MDT, with a FID of ours.
    pub(crate) async fn create_request<'a>(
        &self,
        mdt: &Rc<Mdt>,
        args: CreateArgs<'a>,
        name: Option<Name<'a>>,
        open: Option<OpenHow>,
    ) -> Result<Create<'a>, Failure> {
        Ok(Create {
            parent: args.parent,
            name,
            fid: mdt.new_fid().await?,
            mode: args.mode,
            rdev: args.rdev,
            target: args.target,
            layout: args.layout,
            open,
            exclusive: args.exclusive,
            caller: args.caller,
            time: self.now(),
        })
    }

    /// Adds a name to a file.
    pub async fn link(
        &self,
        fid: Fid,
        parent: Fid,
        name: &[u8],
        caller: Caller,
    ) -> Result<ResolvedInode, Failure> {
        let _timing = self.stats.time("link");
        self.check_writable()?;
        let request = Link { fid, parent, name: Name::new(name)?, caller, time: self.now() };
        let mut touches = Touches::names(&[(parent, name)]);
        touches.add_inode(fid);
        let linked = |entry: &EntryReply| NameEffect::Leads(Some(entry.attr.fid));
        let mdt = self.mdt_of(parent).await?;
        let reply = mdt.change(touches, &request, |entry| (linked(entry), Some(entry), false)).await?;
        self.resolve(reply).await
    }

    /// unlink, or rmdir with `directory`.
    pub async fn unlink(
        &self,
        parent: Fid,
        name: &[u8],
        directory: bool,
        caller: Caller,
    ) -> Result<(), Failure> {
        let _timing = self.stats.time(if directory { "rmdir" } else { "unlink" });
        self.check_writable()?;
        let checked = Name::new(name)?;
        let mdt = self.mdt_of(parent).await?;
        close_before_end(&mdt, parent, name).await;
        let (reported, _ending) = report_before_end(&mdt, parent, name).await;
        let request = Unlink { parent, name: checked, directory, caller, time: self.now(), reported };
        let touches = Touches::names(&[(parent, name)]);
        mdt.change(touches, &request, |_| (NameEffect::Leads(None), None, false)).await?;
        Ok(())
    }

    /// Renames, with the flags of renameat2(2).
    pub async fn rename(
        &self,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: u32,
        caller: Caller,
    ) -> Result<(), Failure> {
        let _timing = self.stats.time("rename");
        self.check_writable()?;
        let (name, new_name) = (Name::new(from.1)?, Name::new(to.1)?);
        let mdt = self.mdt_of(from.0).await?;
        let whiteout = if flags & rename_flags::WHITEOUT != 0 { Some(mdt.new_fid().await?) } else { None };
        let exchanges = flags & rename_flags::EXCHANGE != 0;
        // The old file behind the new name must not be replaced by one whose bytes may be lost.
        match mdt.cache().named(from.0, from.1) {
            Some(renamed) => self.flush_file(renamed).await,
            None => self.flush_files().await, // it may be any of them
        }
        let effect = match whiteout {
            _ if exchanges => NameEffect::Exchanged,
            Some(_) => NameEffect::MovedFromWhiteout,
            None => NameEffect::Moved,
        };
        let (reported, _ending) = if exchanges {
            (Fid::default(), None)
        } else {
            close_before_end(&mdt, to.0, to.1).await;
            report_before_end(&mdt, to.0, to.1).await
        };
        let request = Rename {
            parent: from.0,
            name,
            new_parent: to.0,
            new_name,
            flags: flags & !rename_flags::WHITEOUT,
            caller,
            time: self.now(),
            reported,
            whiteout,
        };
        mdt.change(Touches::names(&[from, to]), &request, |_| (effect, None, false)).await?;
        Ok(())
    }

    /// Entries after `cookie` (0 = from the start).
    pub async fn readdir(
        &self,
        dir: Fid,
        cookie: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<ReaddirPage, Failure> {
        let _timing = self.stats.time("readdir");
        let mut entries = Vec::new();
        let entries_max = entries_max.clamp(1, MountConfig::NAMES_PER_PAGE) as usize;
        let dots = [(name::COOKIE_DOT, &b"."[..]), (name::COOKIE_DOTDOT, &b".."[..])];
        for (dot_cookie, dot) in dots {
            if cookie < dot_cookie && entries.len() < entries_max {
                let fid = if dot == b"." { dir } else { self.parent_fid(dir).await.unwrap_or(dir) };
                entries.push(ListedEntry {
                    cookie: dot_cookie,
                    name: Bytes::from_static(dot),
                    fid,
                    file_type: FileType::Directory,
                    entry: None,
                });
            }
        }
        let left = (entries_max - entries.len()) as u32;
        if left == 0 {
            return Ok(ReaddirPage { entries, eof: false });
        }
        let after = cookie.max(name::COOKIE_DOTDOT);
        let (listed, attrs, eof) = self.names_behind(dir, after, left, with_attrs).await?;
        entries.extend(listed);
        let first = entries.len() - attrs.len();
        for (listed, entry) in entries.iter_mut().skip(first).zip(self.resolve_all(attrs).await?) {
            listed.entry = entry;
        }
        Ok(ReaddirPage { entries, eof })
    }

    /// Names behind a cookie with their attributes, if these are wanted and the inodes still exist, and whether they end the
    /// directory.
    async fn names_behind(
        &self,
        dir: Fid,
        cookie: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<(Vec<ListedEntry>, Vec<Option<EntryReply>>, bool), Failure> {
        let mdt = self.mdt_of(dir).await?;
        if let Some((names, eof)) = mdt.cached_listing(dir, cookie, entries_max as usize) {
            let attrs: Option<Vec<_>> = if with_attrs {
                names.iter().map(|listed| mdt.known_inode(listed.fid).map(Some)).collect()
            } else {
                Some(alloc::vec![None; names.len()])
            };
            if let Some(attrs) = attrs {
                return Ok((names, attrs, eof));
            }
        }
        let keeps = mdt.cache().keeps_listing(dir, cookie);
        let asked = if keeps { self.config.names_per_page } else { entries_max };
        let reply = mdt.read_listing(&Readdir { dir, cookie, entries_max: asked, with_attrs }).await?;
        let eof = reply.eof && reply.entries.len() <= entries_max as usize;
        let (mut names, mut attrs) = (Vec::new(), Vec::new());
        for found in reply.entries.into_iter().take(entries_max as usize) {
            let DirEntry { cookie, name, fid, file_type, entry, .. } = found;
            names.push(ListedEntry { cookie, name, fid, file_type, entry: None });
            attrs.push(entry);
        }
        Ok((names, attrs, eof))
    }

    /// Value of an extended attribute.
    pub async fn getxattr(&self, fid: Fid, name: &[u8]) -> Result<Bytes, Failure> {
        let _timing = self.stats.time("getxattr");
        Self::check_xattr_name(name)?;
        let mdt = self.mdt_of(fid).await?;
        let is_acl = name.starts_with(b"system.posix_acl_");
        if is_acl {
            // Before the request: a revoke that comes meanwhile reaches the kernel's copy, too.
            mdt.cache().give_acls(fid);
        }
        if let Some(value) = mdt.cached_xattr(fid, name) {
            return value.ok_or(Failure::ENODATA);
        }
        let serial = mdt.cache().xattr_serial(fid);
        let value = mdt.call(&Getxattr { fid, name }).await.map(|reply| reply.value);
        match &value {
            Ok(value) => mdt.cache().keep_xattr(fid, serial, name, Some(value)),
            Err(Failure::ENODATA) => mdt.cache().keep_xattr(fid, serial, name, None),
            Err(_) => {}
        }
        if is_acl && !mdt.cache().give_acls(fid) {
            // What the kernel is told to forget while it asks for it is used once and not kept.
            mdt.kernel_forgets(Stale::Acls(fid)).await;
        }
        value
    }

    /// Sets an extended attribute.
    pub async fn setxattr(&self, args: SetxattrArgs<'_>) -> Result<(), Failure> {
        let SetxattrArgs { fid, name, value, flags, kill_sgid, caller } = args;
        let _timing = self.stats.time("setxattr");
        self.check_writable()?;
        Self::check_xattr_name(name)?;
        if value.len() > name::XATTR_VALUE_MAX {
            return Err(Failure::E2BIG);
        }
        let request = Setxattr { fid, name, value, flags, kill_sgid, caller, time: self.now() };
        let reply = self.mdt_of(fid).await?.change_inode(Touches::inode(fid), &request).await?;
        // File capabilities are an attribute too: the next write may have to take them away.
        if let Some(file) = self.files.used(fid) {
            file.learn(&reply);
        }
        Ok(())
    }

    /// Names of the extended attributes.
    pub async fn listxattr(&self, fid: Fid) -> Result<Vec<Bytes>, Failure> {
        let _timing = self.stats.time("listxattr");
        let mdt = self.mdt_of(fid).await?;
        if let Some(names) = mdt.cached_xattr_names(fid) {
            return Ok(names);
        }
        let serial = mdt.cache().xattr_serial(fid);
        let names = mdt.call(&Listxattr { fid }).await?.names;
        mdt.cache().keep_xattr_names(fid, serial, &names);
        Ok(names)
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, fid: Fid, name: &[u8]) -> Result<(), Failure> {
        let _timing = self.stats.time("removexattr");
        self.check_writable()?;
        Self::check_xattr_name(name)?;
        let request = Removexattr { fid, name, time: self.now() };
        let reply = self.mdt_of(fid).await?.change_inode(Touches::inode(fid), &request).await?;
        if let Some(file) = self.files.used(fid) {
            file.learn(&reply);
        }
        Ok(())
    }

    fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
        if name.len() > name::XATTR_NAME_MAX || name.is_empty() { Err(Errno::ERANGE) } else { Ok(()) }
    }
}

/// Sends the kept closes of the inode to which a name leads, before a change that may remove its last name. If the name is not
/// known here, or closes are kept later, the MDT revokes OPEN first.
async fn close_before_end(mdt: &Mdt, parent: Fid, name: &[u8]) {
    if let Some(fid) = mdt.cache().named(parent, name) {
        mdt.no_close_is_kept(fid).await;
    }
}

/// Reports the opens of the inode to which a name leads, before a change that may remove its last name. As long as the
/// second value exists, the inode is not opened without a request; if there is none, there was nothing to wait for, and the
/// change has to begin in this visit. The first value is zero if the name is not known.
async fn report_before_end(mdt: &Rc<Mdt>, parent: Fid, name: &[u8]) -> (Fid, Option<Changing>) {
    let Some(fid) = mdt.cache().named(parent, name) else { return (Fid::default(), None) };
    if !mdt.late_opens().has(fid) {
        return (fid, None);
    }
    let ending = mdt.cache().begin(Touches::attrs(fid));
    mdt.report_opens(&[fid]).await;
    (fid, Some(ending))
}

/// The effect of a create: its name leads to the inode of the reply.
pub(crate) fn created(reply: &CreateReply) -> (NameEffect, Option<&EntryReply>, bool) {
    (NameEffect::Leads(Some(reply.entry.attr.fid)), Some(&reply.entry), reply.created)
}
