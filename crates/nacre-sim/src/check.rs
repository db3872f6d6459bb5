//! Comparison of the content of a mount with the model, and of the state at rest.

use crate::execute::{read_all, stat_of};
use crate::model::{Kind, Model, ROOT, Stat};
use nacre_client::Client;
use nacre_types::{Caller, Failure, Fid, FileType, OpenHandle};
use std::collections::BTreeMap;

/// Everything that a mount shows, by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Attributes by stat.
    pub stat: Stat,
    /// Content of a file, target of a link.
    pub bytes: Vec<u8>,
    /// Extended attributes by full name; only files and directories have any.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// The entries that are seen, by path.
pub type Tree = BTreeMap<String, Seen>;

/// Everything below a path of the model, the path itself included.
pub fn expected(model: &Model, base: &str) -> Tree {
    let mut all = BTreeMap::new();
    if let Ok(i) = model.resolve(base) {
        expect(model, i, base.trim_end_matches('/').to_string(), &mut all);
    }
    all
}
fn expect(model: &Model, i: usize, path: String, all: &mut Tree) {
    let inode = model.inode(i);
    let bytes = match &inode.kind {
        Kind::File(content) => content.clone(),
        Kind::Symlink(target) => target.clone().into_bytes(),
        Kind::Directory(_) | Kind::Fifo => Vec::new(),
    };
    let mut stat = model.stat_of(i);
    if i == ROOT {
        stat.mode = 0;
    }
    all.insert(path.clone(), Seen { stat, bytes, xattrs: inode.xattrs.clone() });
    if let Some(entries) = model.entries(i) {
        for (name, &child) in entries {
            expect(model, child, format!("{path}/{name}"), all);
        }
    }
}

/// Everything below `base` as a mount shows it.
pub async fn walk(client: &Client, base: &str) -> Result<Tree, Failure> {
    walk_by(client, base, async |handle, size| read_all(client, handle, 0, size + 10).await).await
}
/// The same after a machine was lost: the bytes of a file end where reads begin to fail.
pub(crate) async fn walk_what_is_left(client: &Client, base: &str) -> Result<Tree, Failure> {
    walk_by(client, base, async |handle, size| read_up_to_lost(client, handle, size + 10).await).await
}
async fn read_up_to_lost(client: &Client, handle: OpenHandle, size: usize) -> Result<Vec<u8>, Failure> {
    let (mut bytes, mut len) = (Vec::new(), size);
    while len > 0 {
        match read_all(client, handle, bytes.len() as u64, len).await {
            Ok(read) if read.len() < len => {
                bytes.extend(read);
                break;
            }
            Ok(read) => bytes.extend(read),
            // A read that ends before the first lost byte succeeds.
            Err(Failure::EIO) => len /= 2,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
async fn walk_by(
    client: &Client,
    base: &str,
    read: impl AsyncFn(OpenHandle, usize) -> Result<Vec<u8>, Failure>,
) -> Result<Tree, Failure> {
    let mut all = BTreeMap::new();
    let top = crate::execute::resolve(client, base).await?;
    let mut queue = vec![(base.trim_end_matches('/').to_string(), top.attr.fid)];
    while let Some((path, fid)) = queue.pop() {
        let entry = client.getattr(fid).await?;
        let mut stat = stat_of(&entry);
        if fid == Fid::ROOT {
            stat.mode = 0;
        }
        let mut bytes = Vec::new();
        let mut xattrs = BTreeMap::new();
        match entry.attr.file_type() {
            FileType::Regular => {
                let (_, handle) = client.open(fid, 0, Caller::root()).await?;
                bytes = read(handle, entry.attr.size as usize).await?;
                client.release(handle, None).await?;
            }
            FileType::Symlink => bytes = client.readlink(fid).await?.to_vec(),
            FileType::Directory => {
                let mut cookie = 0;
                loop {
                    let page = client.readdir(fid, cookie, 5, true).await?;
                    for listed in &page.entries {
                        cookie = listed.cookie;
                        if &listed.name[..] != b"." && &listed.name[..] != b".." {
                            let name = String::from_utf8_lossy(&listed.name);
                            queue.push((format!("{path}/{name}"), listed.fid));
                            let attr = listed.entry.as_ref().map(|e| e.attr.fid);
                            if attr.is_some_and(|fid| fid != listed.fid) {
                                return Err(Failure::EIO);
                            }
                        }
                    }
                    if page.eof {
                        break;
                    }
                }
            }
            _ => {}
        }
        if matches!(entry.attr.file_type(), FileType::Regular | FileType::Directory) {
            for name in client.listxattr(fid).await? {
                let value = client.getxattr(fid, &name).await?.to_vec();
                xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value);
            }
        }
        all.insert(path, Seen { stat, bytes, xattrs });
    }
    Ok(all)
}

/// Removes everything below the root.
pub async fn remove_all(client: &Client) -> Result<(), Failure> {
    let all = walk_what_is_left(client, "").await?;
    // Children sort after their parents.
    for (path, seen) in all.iter().rev() {
        let Some((parent, name)) = path.rsplit_once('/') else { continue };
        let dir = crate::execute::resolve(client, parent).await?.attr.fid;
        client.unlink(dir, name.as_bytes(), seen.stat.kind == 'd', Caller::root()).await?;
    }
    Ok(())
}

/// The first few differences, for people; empty when there are none.
pub fn differences(expected: &Tree, seen: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for (path, want) in expected {
        match seen.get(path) {
            None => out.push(format!("{path}: missing, expected {:?}", want.stat)),
            Some(got) if got.stat != want.stat => {
                out.push(format!("{path}: is {:?}, expected {:?}", got.stat, want.stat));
            }
            Some(got) if got.bytes != want.bytes => {
                let at = got.bytes.iter().zip(&want.bytes).position(|(a, b)| a != b);
                let at = at.unwrap_or(got.bytes.len().min(want.bytes.len()));
                out.push(format!(
                    "{path}: contents differ from byte {at}: {:?}, expected {:?} ({} bytes, expected {})",
                    got.bytes.get(at),
                    want.bytes.get(at),
                    got.bytes.len(),
                    want.bytes.len()
                ));
            }
            Some(got) if got.xattrs != want.xattrs => {
                let names = |seen: &Seen| seen.xattrs.keys().cloned().collect::<Vec<_>>();
                out.push(format!("{path}: xattrs {:?}, expected {:?}", names(got), names(want)));
            }
            Some(_) => {}
        }
    }
    out.extend(
        seen.keys()
            .filter(|path| !expected.contains_key(*path))
            .map(|path| format!("{path}: should not be there")),
    );
    out.truncate(8);
    out
}
