//! What the kernel in front of a mount keeps of files: attributes for as long as they are valid, pages without an end; and
//! of directories: listings, likewise without an end.
//!
//! As naive as the model: a read(2) through a cached handle asks for attributes whose validity has ended, takes the pages
//! that are there, and loads the others; a notification takes effect a moment later, and loads that are under way then
//! fill their pages afterwards or not, as INVAL_INODE leaves it. Programs keep files open for reading for a while, so that
//! there are cached handles while another mount opens the same file for writing.
//!
//! The kernel also keeps listings of directories (`listings.rs`). Not here: single names, the order of notifications and replies (`nacre-fuse`).

mod listings;

use self::listings::Listing;
use crate::execute::read_all;
use nacre_client::{Client, KernelCache, PageUse, ResolvedInode, Stale};
use nacre_node::Ctx;
use nacre_types::{Caller, Failure, Fid, Instant, OpenHandle, Timestamp};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

const PAGE: u64 = 4096;
/// One of so many handles for reading stays open for a while.
const KEPT_ONE_IN: u64 = 2;
const KEPT_MAX: Duration = Duration::from_secs(4);
const NOTIFIED_WITHIN_US: u64 = 2000;

#[derive(Default)]
struct File {
    /// Size and time of modification, valid until then.
    size: u64,
    mtime: Timestamp,
    valid_until: Instant,
    /// Replies to questions from before the latest change or notification tell nothing.
    version: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    /// Loads from before the latest drop of all pages fill nothing.
    drops: u64,
}

impl File {
    fn forget(&mut self) {
        self.valid_until = Instant::default();
        self.version += 1;
    }
}

/// A handle that a program keeps open.
struct Kept {
    handle: OpenHandle,
    users: u32,
    closes: bool,
}

/// The kernel of one mount.
pub struct Kernel {
    ctx: Rc<Ctx>,
    files: RefCell<BTreeMap<Fid, File>>,
    listings: RefCell<BTreeMap<Fid, Listing>>,
    kept: RefCell<BTreeMap<Fid, Kept>>,
    /// Reads and listings that needed no request.
    hits: Cell<u64>,
}

thread_local! {
    /// The kernels of the clients of this thread's worlds, by the address of the client.
    static KERNELS: RefCell<BTreeMap<usize, Weak<Kernel>>> = const { RefCell::new(BTreeMap::new()) };
}

fn address(client: &Client) -> usize {
    std::ptr::from_ref(client).addr()
}

impl Kernel {
    /// Puts a kernel in front of a client.
    pub(crate) fn attach(ctx: &Rc<Ctx>, client: &Rc<Client>) -> Rc<Self> {
        let kernel = Rc::new(Self {
            ctx: ctx.clone(),
            files: RefCell::default(),
            listings: RefCell::default(),
            kept: RefCell::default(),
            hits: Cell::new(0),
        });
        KERNELS.with_borrow_mut(|kernels| {
            kernels.retain(|_, kernel| kernel.strong_count() > 0);
            kernels.insert(address(client), Rc::downgrade(&kernel));
        });
        client.set_kernel_cache(Rc::new(Door(kernel.clone())));
        kernel
    }
    /// The kernel in front of a client.
    pub fn of(client: &Client) -> Rc<Self> {
        let kernel = KERNELS.with_borrow(|kernels| kernels.get(&address(client)).and_then(Weak::upgrade));
        kernel.expect("every mount of the simulator has a kernel")
    }
    /// Reads and listings that needed no request.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }
    fn file<T>(&self, fid: Fid, f: impl FnOnce(&mut File) -> T) -> T {
        f(self.files.borrow_mut().entry(fid).or_default())
    }
    fn drop_pages(&self, fid: Fid) {
        self.file(fid, |file| {
            file.pages.clear();
            file.drops += 1;
        });
    }
    fn later(&self) -> impl Future<Output = ()> + use<> {
        let (ctx, us) = (self.ctx.clone(), self.ctx.random() % NOTIFIED_WITHIN_US);
        async move { ctx.sleep(Duration::from_micros(us)).await }
    }

    /// A program of this mount is about to write a range directly.
    pub fn writes(&self, fid: Fid) {
        self.file(fid, |file| file.pages.clear());
    }
    /// It has written, or truncated: the kernel knows that its attributes have changed.
    pub fn wrote(&self, fid: Fid) {
        self.file(fid, File::forget);
    }

    /// Opens, reads and closes, as a program does; a handle that is still open is used.
    pub(crate) async fn read_file(
        self: &Rc<Self>,
        client: &Rc<Client>,
        fid: Fid,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Failure> {
        if let Some(handle) = self.use_kept(fid) {
            let data = self.read(client, handle, fid, offset, len).await;
            self.unuse_kept(client, fid, false).await;
            if data.is_ok() {
                return data;
            }
        }
        let (handle, is_cached) = self.open(client, fid).await?;
        if !is_cached {
            let data = read_all(client, handle, offset, len).await;
            client.release(handle, None).await?;
            return data;
        }
        let data = self.read(client, handle, fid, offset, len).await;
        let is_kept = self.kept.borrow().contains_key(&fid);
        if is_kept || !self.ctx.random().is_multiple_of(KEPT_ONE_IN) {
            client.release(handle, None).await?;
            return data;
        }
        self.kept.borrow_mut().insert(fid, Kept { handle, users: 0, closes: false });
        let (kernel, client) = (self.clone(), client.clone());
        let end = self.ctx.now() + Duration::from_nanos(self.ctx.random() % KEPT_MAX.as_nanos() as u64);
        self.ctx.spawn(async move {
            kernel.ctx.sleep_until(end).await;
            kernel.unuse_kept(&client, fid, true).await;
        });
        data
    }
    fn use_kept(&self, fid: Fid) -> Option<OpenHandle> {
        let mut all = self.kept.borrow_mut();
        let kept = all.get_mut(&fid).filter(|kept| !kept.closes)?;
        kept.users += 1;
        Some(kept.handle)
    }
    /// A use ends; `closes`: the program closes the handle when nobody uses it.
    async fn unuse_kept(&self, client: &Client, fid: Fid, closes: bool) {
        let last = {
            let mut all = self.kept.borrow_mut();
            let Some(kept) = all.get_mut(&fid) else { return };
            kept.closes |= closes;
            kept.users -= u32::from(!closes);
            if kept.closes && kept.users == 0 { all.remove(&fid) } else { None }
        };
        if let Some(kept) = last {
            // The mount may have been evicted, or is ending.
            let _ = client.release(kept.handle, None).await;
        }
    }

    /// open(2) for reading; whether the handle is cached.
    pub async fn open(&self, client: &Client, fid: Fid) -> Result<(OpenHandle, bool), Failure> {
        let (_, handle) = client.open(fid, 0, Caller::root()).await?;
        let page_use = client.page_use(handle);
        self.later().await;
        if page_use == PageUse::Emptied {
            self.drop_pages(fid);
        }
        Ok((handle, page_use != PageUse::Direct))
    }
    /// Attributes from the mount, with the size that stat(2) shows: one that was valid all the time.
    pub async fn stat(&self, client: &Client, fid: Fid) -> Result<ResolvedInode, Failure> {
        let known = |file: &mut File| (file.valid_until > self.ctx.now(), file.version, file.size);
        let before = self.file(fid, known);
        let mut entry = client.getattr(fid).await?;
        let until = self.ctx.now() + client.validity(None, fid).attr;
        self.file(fid, |file| {
            let (was_valid, version, size) = before;
            if was_valid && known(file) == before {
                entry.attr.size = size;
            } else if file.version == version {
                (file.size, file.mtime, file.valid_until) = (entry.attr.size, entry.attr.mtime, until);
            }
        });
        Ok(entry)
    }
    /// The size of a file, without a request while it is valid.
    pub async fn size(&self, client: &Client, fid: Fid) -> Result<u64, Failure> {
        let valid = self.file(fid, |file| (file.valid_until > self.ctx.now()).then_some(file.size));
        match valid {
            Some(size) => Ok(size),
            None => Ok(self.stat(client, fid).await?.attr.size),
        }
    }
    /// read(2) through a cached handle.
    pub async fn read(
        &self,
        client: &Client,
        handle: OpenHandle,
        fid: Fid,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Failure> {
        let is_asked = self.file(fid, |file| file.valid_until <= self.ctx.now());
        let size = self.size(client, fid).await?;
        if is_asked && client.pages_are_doubtful(fid) {
            // The reply has another time of modification.
            self.drop_pages(fid);
        }
        let mut data = Vec::new();
        let mut is_hit = true;
        let end = size.min(offset + len as u64);
        let pages = if offset < end { offset / PAGE..end.div_ceil(PAGE) } else { 0..0 };
        for page in pages {
            let there = self.file(fid, |file| file.pages.get(&page).cloned());
            let bytes = match there {
                Some(bytes) => bytes,
                None => {
                    is_hit = false;
                    let drops = self.file(fid, |file| file.drops);
                    let mut bytes = read_all(client, handle, page * PAGE, PAGE as usize).await?;
                    bytes.resize(PAGE as usize, 0);
                    self.file(fid, |file| {
                        if file.drops == drops {
                            file.pages.insert(page, bytes.clone());
                        }
                    });
                    bytes
                }
            };
            let (from, to) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            data.extend_from_slice(&bytes[(from - page * PAGE) as usize..(to - page * PAGE) as usize]);
        }
        self.hits.set(self.hits.get() + u64::from(is_hit && !data.is_empty()));
        Ok(data)
    }
}

struct Door(Rc<Kernel>);

impl KernelCache for Door {
    fn forget(&self, stale: Vec<Stale>) -> Pin<Box<dyn Future<Output = ()>>> {
        let (kernel, later) = (self.0.clone(), self.0.later());
        Box::pin(async move {
            later.await;
            for stale in stale {
                match stale {
                    Stale::Name { .. } | Stale::Permissions { .. } | Stale::Acls(_) => {}
                    Stale::Inode(fid) => kernel.wrote(fid),
                    // Loads under way fill their pages.
                    Stale::Pages(fid) => kernel.writes(fid),
                    Stale::Listing(fid) => kernel.drop_listing(fid),
                    Stale::All => {
                        let mut files = kernel.files.borrow_mut();
                        files.values_mut().for_each(File::forget);
                    }
                }
            }
        })
    }
}
