//! The page cache of a simulated kernel: what a mount gives it, and when it uses that.
//!
//! As the kernel of Linux: before it reads through a handle without direct I/O it asks for attributes, unless it has valid
//! ones; then it takes the pages that it has, and reads the others, which are locked meanwhile. Attributes of another size or
//! time drop all pages. Notifications take a moment; they skip pages that were locked when they were made, or are.
//! Unlike Linux it does not drop pages before a direct write, so that nothing may rely on it.

use nacre_client::{Client, KernelCache, Stale};
use nacre_node::{Ctx, WaitList};
use nacre_types::{Errno, Extent, Fid, Instant, OpenHandle, Timestamp};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

const PAGE: u64 = 4096;
/// The longest read for the cache.
const FILL_PAGES: u64 = 32;
/// The longest time that a notification takes.
const NOTIFY_MS: u64 = 3;

#[derive(Default)]
struct File {
    /// Attributes, and until when they are valid.
    attrs: Option<(u64, Timestamp, Instant)>,
    /// Raised when attributes are invalidated: those that were asked for before are not taken over.
    version: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    locked: BTreeSet<u64>,
}

/// The cache of one mount.
pub struct Kernel {
    ctx: Rc<Ctx>,
    me: Weak<Kernel>,
    files: RefCell<BTreeMap<Fid, File>>,
    unlocked: WaitList,
}

/// Unlocks the pages of a fill, also if it fails or its caller ends.
struct Locked<'a> {
    kernel: &'a Kernel,
    fid: Fid,
    pages: std::ops::Range<u64>,
}
impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.kernel.files.borrow_mut().get_mut(&self.fid) {
            file.locked.retain(|page| !self.pages.contains(page));
        }
        self.kernel.unlocked.wake_all();
    }
}

impl KernelCache for Kernel {
    fn forget(&self, stale: Vec<Stale>) -> Pin<Box<dyn Future<Output = ()>>> {
        let mut locked = BTreeMap::new();
        for stale in &stale {
            if let Stale::Pages { fid, .. } = stale {
                locked
                    .insert(*fid, self.files.borrow().get(fid).map(|f| f.locked.clone()).unwrap_or_default());
            }
        }
        let (ctx, kernel) = (self.ctx.clone(), self.me.upgrade().expect("the client has it in an Rc"));
        Box::pin(async move {
            ctx.sleep(Duration::from_micros(ctx.random() % (NOTIFY_MS * 1000))).await;
            let mut files = kernel.files.borrow_mut();
            for stale in stale {
                match stale {
                    Stale::Name { .. } => {}
                    Stale::Inode(fid) => files.entry(fid).or_default().forget_attrs(),
                    Stale::All => files.values_mut().for_each(File::forget_attrs),
                    Stale::Pages { fid, range } => {
                        let file = files.entry(fid).or_default();
                        file.forget_attrs();
                        let before = &locked[&fid];
                        file.pages.retain(|page, _| {
                            let at = Extent::new(page * PAGE, (page + 1) * PAGE);
                            !at.overlaps(range) || before.contains(page)
                        });
                    }
                }
            }
        })
    }
}

impl File {
    fn forget_attrs(&mut self) {
        self.attrs = None;
        self.version += 1;
    }
}

impl Kernel {
    /// The kernel in front of a client.
    pub(crate) fn attach(ctx: &Rc<Ctx>, client: &Client) {
        client.set_kernel_cache(Rc::new_cyclic(|me| Self {
            ctx: ctx.clone(),
            me: me.clone(),
            files: RefCell::default(),
            unlocked: ctx.wait_list(),
        }));
    }
    fn of(client: &Client) -> Option<Rc<Self>> {
        let kernel: Rc<dyn Any> = client.kernel_cache()?;
        kernel.downcast().ok()
    }

    async fn read(
        &self,
        client: &Client,
        (fid, handle): (Fid, OpenHandle),
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Errno> {
        let mut end = self.size(client, fid).await?.min(offset + len as u64);
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let page = at / PAGE;
            let (from, to) = ((at % PAGE) as usize, (end - page * PAGE).min(PAGE) as usize);
            let have =
                self.files.borrow().get(&fid).and_then(|f| f.pages.get(&page)).map(|p| p[from..to].to_vec());
            if let Some(bytes) = have {
                at += bytes.len() as u64;
                out.extend(bytes);
                continue;
            }
            let Some(locked) = self.lock(fid, page, end.div_ceil(PAGE)) else {
                self.unlocked.wait().await;
                continue;
            };
            let (start, wanted) = (page * PAGE, (locked.pages.end - page) * PAGE);
            let mut bytes = client.fill(handle, start, wanted as u32).await?.concat();
            if (bytes.len() as u64) < wanted {
                end = end.min(start + bytes.len() as u64);
            }
            bytes.resize(wanted as usize, 0);
            let mut files = self.files.borrow_mut();
            let file = files.entry(fid).or_default();
            for (page, bytes) in locked.pages.clone().zip(bytes.chunks(PAGE as usize)) {
                file.pages.insert(page, bytes.to_vec());
            }
            let copy = at.max(start)..end.min(start + wanted);
            // It copies what it has just read, whatever becomes of the pages.
            out.extend(copy.clone().map(|at| file.pages[&(at / PAGE)][(at % PAGE) as usize]));
            at = copy.end.max(at);
            drop(files);
        }
        Ok(out)
    }
    /// Locks the pages of a fill. `None`: the first one is locked.
    fn lock(&self, fid: Fid, first: u64, end: u64) -> Option<Locked<'_>> {
        let mut files = self.files.borrow_mut();
        let file = files.entry(fid).or_default();
        let is_free = |page: &u64| !file.locked.contains(page) && !file.pages.contains_key(page);
        let count = (first..end.min(first + FILL_PAGES)).take_while(is_free).count() as u64;
        let pages = first..first + count;
        file.locked.extend(pages.clone());
        drop(files);
        (count > 0).then(|| Locked { kernel: self, fid, pages })
    }
    async fn size(&self, client: &Client, fid: Fid) -> Result<u64, Errno> {
        let version = {
            let mut files = self.files.borrow_mut();
            let file = files.entry(fid).or_default();
            if let Some((size, _, until)) = file.attrs
                && self.ctx.now() < until
            {
                return Ok(size);
            }
            file.version
        };
        let attr = client.getattr(fid).await?.attr;
        let until = self.ctx.now() + client.validity(None, fid).attr;
        let mut files = self.files.borrow_mut();
        let file = files.entry(fid).or_default();
        if file.version == version {
            if file.attrs.is_some_and(|(size, mtime, _)| (size, mtime) != (attr.size, attr.mtime)) {
                let File { pages, locked, .. } = file;
                pages.retain(|page, _| locked.contains(page));
            }
            file.attrs = Some((attr.size, attr.mtime, until));
        }
        Ok(attr.size)
    }
    fn truncated(&self, fid: Fid) {
        if let Some(file) = self.files.borrow_mut().get_mut(&fid) {
            file.forget_attrs();
            file.pages.clear();
        }
    }
}

/// A read(2): out of the page cache, if the handle allows that.
pub async fn read(
    client: &Client,
    fid: Fid,
    handle: OpenHandle,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, Errno> {
    match Kernel::of(client).filter(|_| client.is_cached(handle)) {
        Some(kernel) => kernel.read(client, (fid, handle), offset, len).await,
        None => client.read(handle, offset, len as u32).await.map(|bytes| bytes.concat()),
    }
}

/// A write or allocation of this mount is complete: the kernel asks for the attributes again.
pub fn changed(client: &Client, fid: Fid) {
    if let Some(kernel) = Kernel::of(client) {
        kernel.files.borrow_mut().entry(fid).or_default().forget_attrs();
    }
}

/// A truncate of this mount is complete.
pub fn truncated(client: &Client, fid: Fid) {
    if let Some(kernel) = Kernel::of(client) {
        kernel.truncated(fid);
    }
}
