//! Layouts and paths, for `lfs`.

use crate::cache::in_flight::Touches;
use crate::client::Client;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Caller, Failure, Fid, LayoutTemplate};
use nacre_wire::mdt::{FidLinks, GetLayout, LayoutReply, SetLayout};

/// Deepest path that is followed upwards; a loop would be damage.
const DEPTH_MAX: usize = 4096;

impl Client {
    /// Layout of a file, or the template of a directory.
    pub async fn layout(&self, fid: Fid) -> Result<LayoutReply, Failure> {
        self.mdt_of(fid).await?.call(&GetLayout { fid }).await
    }

    /// Sets the layout of an empty file, or the template of a directory.
    pub async fn set_layout(
        &self,
        fid: Fid,
        template: LayoutTemplate,
        caller: Caller,
    ) -> Result<(), Failure> {
        self.check_writable()?;
        let request = SetLayout { fid, template, caller, time: self.now() };
        let mdt = self.mdt_of(fid).await?;
        mdt.no_close_is_kept(fid).await;
        let reply = mdt.change_inode(Touches::inode(fid), &request).await?;
        if let Some(file) = self.files.used(fid) {
            file.learn(&reply);
        }
        Ok(())
    }

    /// Links of an inode, directory and name: those to which a path leads of which `caller` may learn every name. EACCES if
    /// there are others only.
    pub async fn links(&self, fid: Fid, caller: &Caller) -> Result<Vec<(Fid, Bytes)>, Failure> {
        Ok(self.found(fid, caller).await?.into_iter().map(|(link, _)| link).collect())
    }

    /// The paths of these links from the root, without a leading slash.
    pub async fn paths(&self, fid: Fid, caller: &Caller) -> Result<Vec<Bytes>, Failure> {
        if fid == Fid::ROOT {
            return Ok(alloc::vec![Bytes::new()]);
        }
        Ok(self.found(fid, caller).await?.into_iter().map(|(_, path)| path).collect())
    }

    /// Each link with its path.
    async fn found(&self, fid: Fid, caller: &Caller) -> Result<Vec<((Fid, Bytes), Bytes)>, Failure> {
        let links = self.links_in_sight(fid, caller).await?;
        if links.is_empty() && fid != Fid::ROOT {
            return Err(Failure::ENOENT); // open, and without a name
        }
        let closed = !links.is_empty();
        let mut directories: BTreeMap<Fid, (Fid, Bytes)> = BTreeMap::new();
        let mut found = Vec::with_capacity(links.len());
        for (parent, name) in links {
            match self.path_of(parent, name.clone(), caller, &mut directories).await {
                Ok(path) => found.push(((parent, name), path)),
                Err(Failure::EACCES) => {}
                Err(error) => return Err(error),
            }
        }
        if found.is_empty() && closed { Err(Failure::EACCES) } else { Ok(found) }
    }
    /// Links as far as their own directories let `caller` see them.
    async fn links_in_sight(&self, fid: Fid, caller: &Caller) -> Result<Vec<(Fid, Bytes)>, Failure> {
        let request = FidLinks { fid, caller: caller.clone() };
        Ok(self.mdt_of(fid).await?.call(&request).await?.links)
    }
    /// The path of `name` in `parent`; `directories` remembers the links that were asked for.
    async fn path_of(
        &self,
        parent: Fid,
        name: Bytes,
        caller: &Caller,
        directories: &mut BTreeMap<Fid, (Fid, Bytes)>,
    ) -> Result<Bytes, Failure> {
        let mut parts = alloc::vec![name];
        let mut at = parent;
        while at != Fid::ROOT {
            if parts.len() > DEPTH_MAX {
                return Err(Failure::ELOOP);
            }
            let up = match directories.get(&at) {
                Some(up) => up.clone(),
                None => {
                    let up =
                        self.links_in_sight(at, caller).await?.into_iter().next().ok_or(Failure::ENOENT)?;
                    directories.insert(at, up.clone());
                    up
                }
            };
            parts.push(up.1);
            at = up.0;
        }
        parts.reverse();
        Ok(Bytes::from(parts.join(&b'/')))
    }
}
