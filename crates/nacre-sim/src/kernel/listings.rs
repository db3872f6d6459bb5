//! The listings of directories that the kernel keeps, and serves while the directory has the time of modification that it
//! had when the listing was begun, and no program of this mount has changed its names.

use super::Kernel;
use crate::execute::names;
use nacre_client::{Client, PageUse};
use nacre_types::{Caller, Failure, Fid, OpenHandle, Timestamp};
use std::rc::Rc;
use std::time::Duration;

/// One of so many handles stays open for a while after its listing.
const KEPT_ONE_IN: u64 = 4;
const KEPT_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Listing {
    /// The names, with the time of modification and the number of changes when they were begun.
    names: Option<(Vec<String>, Timestamp, u64)>,
    /// Counts the beginnings and ends of changes by programs of this mount.
    changes: u64,
}

impl Kernel {
    fn listing<T>(&self, dir: Fid, f: impl FnOnce(&mut Listing) -> T) -> T {
        f(self.listings.borrow_mut().entry(dir).or_default())
    }
    pub(super) fn drop_listing(&self, dir: Fid) {
        self.listing(dir, |listing| listing.names = None);
        self.wrote(dir);
    }
    /// A program of this mount is about to change the names of a directory, or has just done so.
    pub fn changes_names(&self, dir: Fid) {
        self.listing(dir, |listing| listing.changes += 1);
        self.wrote(dir);
    }
    /// Opens a directory, lists it and closes it, as a program does.
    pub(crate) async fn list(
        &self,
        client: &Rc<Client>,
        dir: Fid,
        page: u32,
        with_attrs: bool,
    ) -> Result<Vec<String>, Failure> {
        let opened = self.opendir(client, dir).await?;
        let listed = self.list_through(client, opened, dir, (page, with_attrs)).await;
        let end = match self.ctx.random().is_multiple_of(KEPT_ONE_IN) {
            true => self.ctx.now() + Duration::from_nanos(self.ctx.random() % KEPT_MAX.as_nanos() as u64),
            false => self.ctx.now(),
        };
        let (ctx, client) = (self.ctx.clone(), client.clone());
        self.ctx.spawn(async move {
            ctx.sleep_until(end).await;
            // The mount may have been evicted, or is ending.
            let _ = client.release(opened.0, None).await;
        });
        listed
    }
    /// opendir(3); whether the handle is cached.
    pub async fn opendir(&self, client: &Client, dir: Fid) -> Result<(OpenHandle, bool), Failure> {
        let (_, handle) = client.open(dir, 0, Caller::root()).await?;
        let listing_use = client.listing_use(handle, false);
        self.later().await;
        if listing_use == PageUse::Emptied {
            self.listing(dir, |listing| listing.names = None);
        }
        Ok((handle, listing_use != PageUse::Direct))
    }
    /// A listing from its start, through an open handle; in requests of `page` names, with or without attributes.
    pub async fn list_through(
        &self,
        client: &Client,
        (handle, is_cached): (OpenHandle, bool),
        dir: Fid,
        (page, with_attrs): (u32, bool),
    ) -> Result<Vec<String>, Failure> {
        let request = async || {
            client.listed_through(handle);
            names(client, dir, page, with_attrs).await
        };
        if is_cached { self.list_cached(client, dir, request).await } else { request().await }
    }
    async fn list_cached(
        &self,
        client: &Client,
        dir: Fid,
        request: impl AsyncFnOnce() -> Result<Vec<String>, Failure>,
    ) -> Result<Vec<String>, Failure> {
        let valid = self.file(dir, |file| (file.valid_until > self.ctx.now()).then_some(file.mtime));
        let mtime = match valid {
            Some(mtime) => mtime,
            None => {
                let mtime = self.stat(client, dir).await?.attr.mtime;
                if client.pages_are_doubtful(dir) {
                    // The reply has another time of modification.
                    self.listing(dir, |listing| listing.names = None);
                }
                mtime
            }
        };
        let (kept, changes) = self.listing(dir, |listing| (listing.names.clone(), listing.changes));
        if let Some((names, at, then)) = kept
            && (at, then) == (mtime, changes)
        {
            self.hits.set(self.hits.get() + 1);
            return Ok(names);
        }
        let names = request().await?;
        // A notification that came meanwhile has dropped nothing of it.
        self.listing(dir, |listing| listing.names = Some((names.clone(), mtime, changes)));
        Ok(names)
    }
}
