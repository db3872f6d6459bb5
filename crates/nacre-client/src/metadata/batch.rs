//! Several changes of the namespace in one request: one transaction, one round trip, a result each.
//!
//! Rules: changes are applied in order, and each sees those before it; a change that fails leaves nothing behind. More
//! than [`BATCH_MAX`] changes, or changes at several MDTs, are sent in several requests, one after the other. A target
//! without batches gets the changes one by one.

use crate::api::{CreateArgs, ResolvedInode};
use crate::cache::in_flight::Touches;
use crate::cache::tables::NameEffect;
use crate::client::Client;
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Caller, Codec, Failure, Fid, Name, SetAttr};
use nacre_wire::Rpc;
use nacre_wire::mdt::{
    BATCH_MAX, Batch, BatchReply, CreateReply, EntryReply, Link, Rename, Setattr, SubOperation, SubResult,
    Unlink,
};
use nacre_wire::target::features;

/// One change of a batch.
#[derive(Debug, Clone)]
pub enum MetadataChange<'a> {
    /// mknod, mkdir, symlink: whatever the mode says. Fails when the name is there.
    Make(CreateArgs<'a>),
    Link {
        fid: Fid,
        parent: Fid,
        name: &'a [u8],
    },
    /// unlink, or rmdir with `directory`.
    Unlink {
        parent: Fid,
        name: &'a [u8],
        directory: bool,
    },
    Rename {
        from: (Fid, &'a [u8]),
        to: (Fid, &'a [u8]),
        flags: u32,
    },
    /// Attributes without the size.
    Setattr {
        fid: Fid,
        set: SetAttr,
    },
}

impl MetadataChange<'_> {
    /// The directory or inode whose MDT executes the change.
    fn sent_to(&self) -> Fid {
        match self {
            MetadataChange::Make(args) => args.parent,
            MetadataChange::Link { parent, .. } | MetadataChange::Unlink { parent, .. } => *parent,
            MetadataChange::Rename { from, .. } => from.0,
            MetadataChange::Setattr { fid, .. } => *fid,
        }
    }
    fn touch(&self, touches: &mut Touches) {
        match self {
            MetadataChange::Make(args) => touches.add_name(args.parent, args.name),
            MetadataChange::Link { fid, parent, name } => {
                touches.add_inode(*fid);
                touches.add_name(*parent, name);
            }
            MetadataChange::Unlink { parent, name, .. } => touches.add_name(*parent, name),
            MetadataChange::Rename { from, to, .. } => {
                touches.add_name(from.0, from.1);
                touches.add_name(to.0, to.1);
            }
            MetadataChange::Setattr { fid, .. } => touches.add_inode(*fid),
        }
    }
}

/// The result of a change: the inode that was created, linked or changed. Its size is the one that the MDT knows.
pub type Changed = Result<Option<ResolvedInode>, Failure>;

pub(crate) fn knows_batches(mdt: &Target) -> bool {
    mdt.peer.with_import(|import| import.features() & features::BATCH != 0)
}

pub(crate) fn encoded<'a, R: Rpc + Codec<'a>>(request: &R) -> SubOperation {
    SubOperation { opcode: R::OPCODE.number(), body: Bytes::from(request.to_vec()) }
}

impl Client {
    /// Makes the changes in order; as many results. With `stop_at_error` those after a failed one of the same
    /// request end with ECANCELED.
    ///
    /// # Errors
    /// EINVAL for a size. Those of a request as a whole: none of its changes was made, those of requests before it were.
    pub async fn batch(
        &self,
        changes: &[MetadataChange<'_>],
        caller: &Caller,
        stop_at_error: bool,
    ) -> Result<Vec<Changed>, Failure> {
        let _timing = self.stats.time("batch");
        self.check_writable()?;
        if changes
            .iter()
            .any(|change| matches!(change, MetadataChange::Setattr { set, .. } if set.size.is_some()))
        {
            return Err(Failure::EINVAL);
        }
        let mut all = Vec::with_capacity(changes.len());
        let same_mdt =
            |a: &MetadataChange<'_>, b: &MetadataChange<'_>| a.sent_to().mdt() == b.sent_to().mdt();
        for some in changes.chunk_by(same_mdt).flat_map(|some| some.chunks(BATCH_MAX)) {
            let mdt = self.mdt_of(some.first().map_or(Fid::ROOT, MetadataChange::sent_to)).await?;
            mdt.peer.connected().await;
            if !knows_batches(&mdt) {
                for change in some {
                    all.push(self.apply(change, caller).await);
                }
                continue;
            }
            let (mut operations, mut touches) = (Vec::with_capacity(some.len()), Touches::default());
            for change in some {
                operations.push(self.operation(&mdt, change, caller).await?);
                change.touch(&mut touches);
            }
            let request = Batch { stop_at_error, operations };
            let BatchReply { results } =
                mdt.change(touches, &request, |_| (NameEffect::Unknown, None, false)).await?;
            if results.len() != some.len() {
                return Err(Failure::EPROTO);
            }
            all.extend(some.iter().zip(results).map(|(change, result)| changed(change, &result)));
        }
        Ok(all)
    }

    async fn operation(
        &self,
        mdt: &Rc<Mdt>,
        change: &MetadataChange<'_>,
        caller: &Caller,
    ) -> Result<SubOperation, Failure> {
        let (caller, time) = (caller.clone(), self.now());
        Ok(match change {
            MetadataChange::Make(args) => {
                let args = CreateArgs { exclusive: true, caller, ..args.clone() };
                {
                    let name = Some(Name::new(args.name)?);
                    encoded(&self.create_request(mdt, args, name, None).await?)
                }
            }
            MetadataChange::Link { fid, parent, name } => {
                encoded(&Link { fid: *fid, parent: *parent, name: Name::new(name)?, caller, time })
            }
            MetadataChange::Unlink { parent, name, directory } => encoded(&Unlink {
                parent: *parent,
                name: Name::new(name)?,
                directory: *directory,
                caller,
                time,
                reported: Fid::default(),
            }),
            MetadataChange::Rename { from, to, flags } => encoded(&Rename {
                parent: from.0,
                name: Name::new(from.1)?,
                new_parent: to.0,
                new_name: Name::new(to.1)?,
                flags: *flags,
                caller,
                time,
                reported: Fid::default(),
                whiteout: None,
            }),
            MetadataChange::Setattr { fid, set } => {
                encoded(&Setattr { fid: *fid, set: set.clone(), caller, time })
            }
        })
    }

    /// Makes one change in a request of its own.
    pub async fn apply(&self, change: &MetadataChange<'_>, caller: &Caller) -> Changed {
        let caller = caller.clone();
        match change {
            MetadataChange::Make(args) => self.make(CreateArgs { caller, ..args.clone() }).await.map(Some),
            MetadataChange::Link { fid, parent, name } => {
                self.link(*fid, *parent, name, caller).await.map(Some)
            }
            MetadataChange::Unlink { parent, name, directory } => {
                self.unlink(*parent, name, *directory, caller).await.map(|()| None)
            }
            MetadataChange::Rename { from, to, flags } => {
                self.rename(*from, *to, *flags, caller).await.map(|()| None)
            }
            MetadataChange::Setattr { fid, set } => self.setattr(*fid, set.clone(), caller).await.map(Some),
        }
    }
}

fn changed(change: &MetadataChange<'_>, result: &SubResult) -> Changed {
    if let Some(error) = result.status.failure() {
        return Err(error);
    }
    let entry = match change {
        MetadataChange::Make(_) => CreateReply::from_slice(&result.body)?.entry,
        MetadataChange::Link { .. } | MetadataChange::Setattr { .. } => EntryReply::from_slice(&result.body)?,
        MetadataChange::Unlink { .. } | MetadataChange::Rename { .. } => return Ok(None),
    };
    Ok(Some(ResolvedInode::of(&entry)))
}
