//! Layouts and paths, for `lfs`.

use crate::client::Client;
use crate::dirs::Touches;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Caller, Errno, Fid, LayoutTemplate};
use nacre_wire::mdt::{FidLinks, GetLayout, LayoutReply, SetLayout};

/// Deepest path that is followed upwards; a loop would be damage.
const DEPTH_MAX: usize = 4096;

impl Client {
    pub async fn layout(&self, fid: Fid) -> Result<LayoutReply, Errno> {
        self.mdt().await?.call(&GetLayout { fid }).await
    }

    pub async fn set_layout(&self, fid: Fid, template: LayoutTemplate, caller: Caller) -> Result<(), Errno> {
        self.check_writable()?;
        let request = SetLayout { fid, template, caller, time: self.now() };
        let reply = self.change_dirs(Touches::dir(fid), &request).await?;
        if let Some(file) = self.files.used(fid) {
            file.learn(&reply);
        }
        Ok(())
    }

    /// Every link of an inode: directory and name.
    pub async fn links(&self, fid: Fid) -> Result<Vec<(Fid, Bytes)>, Errno> {
        Ok(self.mdt().await?.call(&FidLinks { fid }).await?.links)
    }

    /// Paths of an inode from the root, without a leading slash; one per hard link.
    pub async fn paths(&self, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let mdt = self.mdt().await?;
        let links = mdt.call(&FidLinks { fid }).await?.links;
        let mut directories: BTreeMap<Fid, (Fid, Bytes)> = BTreeMap::new();
        let mut paths = Vec::with_capacity(links.len());
        for (parent, name) in links {
            let mut parts = alloc::vec![name];
            let mut at = parent;
            while at != Fid::ROOT {
                if parts.len() > DEPTH_MAX {
                    return Err(Errno::ELOOP);
                }
                let up = match directories.get(&at) {
                    Some(up) => up.clone(),
                    None => {
                        let links = mdt.call(&FidLinks { fid: at }).await?.links;
                        let up = links.into_iter().next().ok_or(Errno::ENOENT)?;
                        directories.insert(at, up.clone());
                        up
                    }
                };
                parts.push(up.1);
                at = up.0;
            }
            parts.reverse();
            paths.push(Bytes::from(parts.join(&b'/')));
        }
        if fid == Fid::ROOT {
            paths.push(Bytes::new());
        }
        Ok(paths)
    }
}
