//! Names: lookup, new inodes, links, removal, rename, listings, extended attributes.

use crate::api::{CreateArgs, ListedEntry, ReaddirPage, ResolvedInode, SetxattrArgs};
use crate::cache::dirs::Touches;
use crate::client::Client;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Caller, Errno, Fid, FileType, Name, name};
use nacre_wire::mdt::{
    Create, FidLinks, Getattr, Getxattr, Link, Listxattr, Lookup, OpenHow, Readdir, Readlink, Removexattr,
    Rename, Setxattr, Unlink,
};

/// Most entries asked for at a time: a reply has to fit a frame.
const ENTRIES_MAX: u32 = 1024;

impl Client {
    /// Finds a name in a directory.
    pub async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<ResolvedInode, Errno> {
        let _timing = self.stats.time("lookup");
        match name {
            b"." => self.getattr(parent).await,
            b".." => self.parent(parent).await,
            _ => {
                let name = Name::new(name)?;
                let mdt = self.mdt_of(parent).await?;
                if let Some(mut entry) = mdt.held_name(parent, name.as_bytes()) {
                    self.stats.event("dir_attr_cached");
                    self.files.show_atime(&mut entry.attr);
                    return Ok(entry);
                }
                let reply = mdt.lookup_name(&Lookup { parent, name }).await?;
                self.resolve(reply).await
            }
        }
    }

    /// Parent of a directory (for `..` by handle).
    pub async fn parent(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
        let parent = self.parent_fid(fid).await?;
        let reply = self.mdt_of(parent).await?.call(&Getattr { fid: parent }).await?;
        self.resolve(reply).await
    }

    async fn parent_fid(&self, fid: Fid) -> Result<Fid, Errno> {
        if fid == Fid::ROOT {
            return Ok(fid);
        }
        let reply = self.mdt_of(fid).await?.call(&FidLinks { fid, caller: Caller::root() }).await?;
        reply.links.first().map(|(parent, _)| *parent).ok_or(Errno::ENOENT)
    }

    /// Target of a symbolic link.
    pub async fn readlink(&self, fid: Fid) -> Result<Bytes, Errno> {
        let _timing = self.stats.time("readlink");
        Ok(self.mdt_of(fid).await?.call(&Readlink { fid }).await?.target)
    }

    /// mknod, mkdir, symlink: whatever `args.mode` says.
    pub async fn make(&self, args: CreateArgs<'_>) -> Result<ResolvedInode, Errno> {
        let file_type = FileType::of_mode(args.mode).ok_or(Errno::EINVAL)?;
        let _timing = self.stats.time(match file_type {
            FileType::Directory => "mkdir",
            FileType::Symlink => "symlink",
            _ => "mknod",
        });
        self.check_writable()?;
        if args.target.len() > name::SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if file_type == FileType::Symlink && args.target.is_empty() {
            return Err(Errno::ENOENT);
        }
        let mdt = self.mdt_of(args.parent).await?;
        let request = self.create_request(&mdt, CreateArgs { exclusive: true, ..args.clone() }, None).await?;
        let reply = mdt.change_dirs(Touches::dir(args.parent), &request).await?;
        Ok(ResolvedInode::of(&reply.entry))
    }

    /// The request that makes an inode at this MDT, with a FID of ours.
    pub(crate) async fn create_request<'a>(
        &self,
        mdt: &Rc<Mdt>,
        args: CreateArgs<'a>,
        open: Option<OpenHow>,
    ) -> Result<Create<'a>, Errno> {
        Ok(Create {
            parent: args.parent,
            name: Name::new(args.name)?,
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
    ) -> Result<ResolvedInode, Errno> {
        let _timing = self.stats.time("link");
        self.check_writable()?;
        let name = Name::new(name)?;
        let request = Link { fid, parent, name, caller, time: self.now() };
        let reply = self.mdt_of(parent).await?.change_dirs(Touches::dir(parent), &request).await?;
        self.resolve(reply).await
    }

    /// unlink, or rmdir with `directory`.
    pub async fn unlink(
        &self,
        parent: Fid,
        name: &[u8],
        directory: bool,
        caller: Caller,
    ) -> Result<(), Errno> {
        let _timing = self.stats.time(if directory { "rmdir" } else { "unlink" });
        self.check_writable()?;
        let checked = Name::new(name)?;
        let request = Unlink { parent, name: checked, directory, caller, time: self.now() };
        self.mdt_of(parent).await?.change_dirs(Touches::names(&[(parent, name)]), &request).await?;
        Ok(())
    }

    /// Renames, with the flags of renameat2(2).
    pub async fn rename(
        &self,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: u32,
        caller: Caller,
    ) -> Result<(), Errno> {
        let _timing = self.stats.time("rename");
        self.check_writable()?;
        let request = Rename {
            parent: from.0,
            name: Name::new(from.1)?,
            new_parent: to.0,
            new_name: Name::new(to.1)?,
            flags,
            caller,
            time: self.now(),
        };
        self.mdt_of(from.0).await?.change_dirs(Touches::names(&[from, to]), &request).await?;
        Ok(())
    }

    /// Entries after `cookie` (0 = from the start).
    pub async fn readdir(
        &self,
        dir: Fid,
        cookie: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<ReaddirPage, Errno> {
        let _timing = self.stats.time("readdir");
        let mut entries = Vec::new();
        let entries_max = entries_max.clamp(1, ENTRIES_MAX) as usize;
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
        let request = Readdir { dir, cookie: after, entries_max: left, with_attrs };
        let reply = self.mdt_of(dir).await?.call(&request).await?;
        let mut attrs = Vec::with_capacity(reply.entries.len());
        for found in reply.entries {
            entries.push(ListedEntry {
                cookie: found.cookie,
                name: found.name,
                fid: found.fid,
                file_type: found.file_type,
                entry: None,
            });
            attrs.push(found.entry);
        }
        if let Some(file) = self.files.used(dir) {
            self.note_access(&file, self.config.atime.directories);
        }
        let first = entries.len() - attrs.len();
        for (listed, entry) in entries.iter_mut().skip(first).zip(self.resolve_all(attrs).await?) {
            listed.entry = entry;
        }
        Ok(ReaddirPage { entries, eof: reply.eof })
    }

    /// Value of an extended attribute.
    pub async fn getxattr(&self, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let _timing = self.stats.time("getxattr");
        Self::check_xattr_name(name)?;
        Ok(self.mdt_of(fid).await?.call(&Getxattr { fid, name }).await?.value)
    }

    /// Sets an extended attribute.
    pub async fn setxattr(&self, args: SetxattrArgs<'_>) -> Result<(), Errno> {
        let SetxattrArgs { fid, name, value, flags, kill_sgid, caller } = args;
        let _timing = self.stats.time("setxattr");
        self.check_writable()?;
        Self::check_xattr_name(name)?;
        if value.len() > name::XATTR_VALUE_MAX {
            return Err(Errno::E2BIG);
        }
        let request = Setxattr { fid, name, value, flags, kill_sgid, caller, time: self.now() };
        let reply = self.mdt_of(fid).await?.change_dirs(Touches::dir(fid), &request).await?;
        // File capabilities are an attribute too: the next write may have to take them away.
        if let Some(file) = self.files.used(fid) {
            file.learn(&reply);
        }
        Ok(())
    }

    /// Names of the extended attributes.
    pub async fn listxattr(&self, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let _timing = self.stats.time("listxattr");
        Ok(self.mdt_of(fid).await?.call(&Listxattr { fid }).await?.names)
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        let _timing = self.stats.time("removexattr");
        self.check_writable()?;
        Self::check_xattr_name(name)?;
        let request = Removexattr { fid, name, time: self.now() };
        let reply = self.mdt_of(fid).await?.change_dirs(Touches::dir(fid), &request).await?;
        if let Some(file) = self.files.used(fid) {
            file.learn(&reply);
        }
        Ok(())
    }

    fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
        if name.len() > name::XATTR_NAME_MAX || name.is_empty() { Err(Errno::ERANGE) } else { Ok(()) }
    }
}
