//! Start of a metadata target: loads its state from the rows, makes the root of a new file system, starts background tasks.

use crate::locks::flocks::Flocks;
use crate::mdt::{Mdt, index_of};
use crate::ops::WriteBound;
use crate::osts::Osts;
use crate::rows::name_hash::NameHash;
use crate::rows::opens::Opens;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{FlocksRow, Inode, OpenRow, Row, RowError, Unsettled};
use crate::rows::state_change::SizeBefore;
use crate::rows::table::{self, FLOCK, INODE, META, OPEN, ORPHAN, UNSETTLED, meta};
use crate::service::bounds::credits_of;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_osd::{Credits, Osd, OsdError, Pins, Table};
use nacre_target::{Registration, TargetCore};
use nacre_types::name::HashKey;
use nacre_types::{DEFAULT_STRIPE_BYTES, Fid, LayoutTemplate, MdtIndex, Seq};
use nacre_wire::params::DomParam;
use tracing::{error, info};

/// Rows read at a time.
const SLICE: u32 = 1024;
/// Bytes of a new file that the target keeps, unless its layout says otherwise.
const DOM_BYTES: u32 = DomParam::DomStripesize.row().default_u32();

/// Opens the service over an open engine.
pub(crate) async fn start(core: &Rc<TargetCore>) -> Result<Rc<Mdt>, String> {
    load(core).await.map_err(|e| format!("{}: cannot start: {e}", core.name))
}

async fn load(core: &Rc<TargetCore>) -> Result<Rc<Mdt>, StartError> {
    let osd = &core.osd;
    if index_of(core) > MdtIndex::MAX {
        return Err(StartError::Index);
    }
    make_root(core).await?;
    let default = read(osd, META, meta::TEMPLATE).await?.unwrap_or(LayoutTemplate {
        stripe_count: 1,
        stripe_bytes: DEFAULT_STRIPE_BYTES,
        first_ost: -1,
        dom_bytes: Some(DOM_BYTES),
    });
    let hash: Option<(u64, u64)> = read(osd, META, meta::HASH_KEY).await?;
    let mut opens = Opens::default();
    // It is not known any more which client wrote what: the OSTs will be asked.
    let before = SizeBefore::Open;
    for (key, value) in osd.pages(OPEN, SLICE).all().await? {
        let (generation, handle) = table::open_of(&key).ok_or(StartError::Key(OPEN))?;
        let opened = row::<OpenRow>(OPEN, &value)?;
        opens.insert(generation, handle, opened, before);
        opens.note_former(generation, opened);
    }
    let mut unsettled = Vec::new();
    for (key, value) in osd.pages(UNSETTLED, SLICE).all().await? {
        let fid = Fid::from_key(&key).ok_or(StartError::Key(UNSETTLED))?;
        row::<Unsettled>(UNSETTLED, &value)?
            .pending
            .iter()
            .for_each(|export| opens.start_truncate(*export, fid));
        unsettled.push(fid);
    }
    let mut flocks = Flocks::default();
    for (key, value) in osd.pages(FLOCK, SLICE).all().await? {
        let (fid, generation, _, _) = table::flock_of(&key).ok_or(StartError::Key(FLOCK))?;
        flocks.load(fid, generation, &row::<FlocksRow>(FLOCK, &value)?.locks);
    }
    let stored = Osts::load_reserved(core).await?;
    let name_hash = NameHash::new(&core.ctx, hash.map(|(a, b)| HashKey(a, b)));
    let mdt = Mdt::new(core, name_hash, default, opens, flocks);
    mdt.osts().known().load(core).await?;
    if hash.is_some() {
        mdt.follow_kept_writes().await.map_err(StartError::Refused)?;
    }
    info!(target_name = %core.name, opens = mdt.opens().borrow().len(), "metadata target has read its rows");
    unsettled.into_iter().for_each(|fid| mdt.osts().sizes().push(fid));
    if let Some(registration) = Registration::start(core) {
        let workers = mdt.clone();
        let watch = mdt.osts().clone().watch(registration.clone(), stored, move |ost| {
            workers.core().ctx.spawn(workers.clone().work_for(ost));
        });
        core.ctx.spawn(watch);
        core.ctx.spawn(mdt.clone().learn_hash(registration));
    }
    core.ctx.spawn(mdt.clone().settle_sizes());
    core.ctx.spawn(mdt.clone().end_stray_orphans());
    Ok(mdt)
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{0}")]
    Osd(#[from] OsdError),
    #[error("a row of table {0:?}: {1}")]
    Row(Table, RowError),
    #[error("a key of table {0:?} is damaged: run nacre check on this target")]
    Key(Table),
    #[error("the index of an MDT is at most {:04x}", MdtIndex::MAX.0)]
    Index,
    #[error("{0}")]
    Refused(nacre_types::Errno),
}

fn row<R: Row>(table: Table, bytes: &[u8]) -> Result<R, StartError> {
    R::from_row(bytes).map_err(|e| StartError::Row(table, e))
}
async fn read<R: Row>(osd: &Osd, table: Table, key: &[u8]) -> Result<Option<R>, StartError> {
    osd.get(table, key).await?.map(|bytes| row(table, &bytes)).transpose()
}

/// Makes the root directory and the counter of sequences of a new file system.
async fn make_root(core: &TargetCore) -> Result<(), StartError> {
    let osd = &core.osd;
    if osd.get(INODE, &Fid::ROOT.key()).await?.is_some() {
        return Ok(());
    }
    let mut root = Inode::root(core.ctx.wall());
    (root.attr.uid, root.attr.gid) = core.config.root_owner;
    let room = Credits { rows: 4, row_bytes: 4096, ..Credits::default() };
    let reservation = osd.reserve(room).await?;
    core.transact_local(&Pins::default(), reservation, |tx| {
        tx.put(INODE, &Fid::ROOT.key(), root.to_row());
        tx.put(META, meta::NEXT_SEQ, Seq::first_of(index_of(core)).0.to_row());
        tx.account(root.owner(), 0, 1);
        Ok(())
    })
    .map_err(StartError::Refused)?;
    info!(target_name = %core.name, "a new file system: root directory made");
    Ok(())
}

impl Mdt {
    /// Takes the key of the name hash from the MGS at the first start, and compares it at every other.
    async fn learn_hash(self: Rc<Self>, registration: Rc<Registration>) {
        let (a, b) = registration.registered().await.hash_key;
        match self.name_hash().get() {
            Some(HashKey(x, y)) if (x, y) == (a, b) => {}
            Some(_) => error!(target_name = %self.core().name,
                "the MGS has another name hash than this target: this target belongs to another file system, \
                 or the MGS was formatted anew; names are looked up with the target's own"),
            None => {
                // Also on a full device: nothing is found without it.
                let room = Credits { rows: 1, row_bytes: 64, frees: true, ..Credits::default() };
                let reservation = match self.core().osd.reserve(room).await {
                    Ok(reservation) => reservation,
                    Err(e) => {
                        error!(target_name = %self.core().name, error = %e, "the key of the name hash cannot be stored");
                        return;
                    }
                };
                let stored = self.core().transact_local(&Pins::default(), reservation, |tx| {
                    tx.put(META, meta::HASH_KEY, (a, b).to_row());
                    Ok(())
                });
                if let Err(e) = stored {
                    error!(target_name = %self.core().name, error = %e, "the key of the name hash cannot be stored");
                    return;
                }
                self.name_hash().set(HashKey(a, b));
            }
        }
    }

    /// Ends orphans that no client has open. There are none while rows agree; a damaged row must not keep space.
    async fn end_stray_orphans(self: Rc<Self>) {
        let rows = match self.core().osd.pages(ORPHAN, SLICE).all().await {
            Ok(rows) => rows,
            Err(e) => {
                error!(target_name = %self.core().name, error = %e, "orphans cannot be listed");
                return;
            }
        };
        for (key, _) in rows {
            let Some(fid) = Fid::from_key(&key) else { continue };
            let credits = credits_of(WriteBound::inodes(2).freeing());
            let ended = self
                .execute_local(ReadSet::of_inode(fid), credits, |view| {
                    if view.opens().count(fid) > 0 {
                        return Ok(());
                    }
                    view.delete(ORPHAN, &fid.key());
                    if let Some(inode) = view.inode(fid)?
                        && inode.attr.nlink == 0
                    {
                        view.destroy(&inode);
                    }
                    Ok(())
                })
                .await;
            if let Err(e) = ended {
                error!(target_name = %self.core().name, %fid, error = %e, "an orphan cannot be ended");
            }
        }
    }
}
