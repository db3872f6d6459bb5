//! The operations that change metadata, one file each.
//!
//! An operation is a message of [`nacre_wire::mdt`] that implements [`Operation`]. To add one: declare the message in
//! `nacre_wire::mdt`, implement the trait in a file of this folder, and add a line to the table at the end of this file.
//! The single request, the batch, the replay, the reconstruction of replies, the counters and the tests all take it from
//! the table.
//!
//! File locks and the grant of sequences are not operations of this kind: they change state of the target that is not the
//! namespace, and cannot be part of a batch.

mod close;
mod create;
pub(crate) mod data;
mod link;
mod open;
mod removexattr;
mod rename;
mod report_size;
mod set_layout;
mod setattr;
mod setxattr;
mod unlink;

pub(crate) mod opening;
pub(crate) mod size;

use crate::rows::inode::entry_of_removed;
use crate::rows::read_set::ReadSet;
use crate::rows::row::Inode;
use crate::rows::view::{Step, View};
use alloc::vec::Vec;
use nacre_target::Request;
use nacre_types::name::HashKey;
use nacre_types::{
    ClientUuid, Codec, Errno, Failure, Fid, Generation, Layout, LayoutTemplate, ProtocolOutcome, mode,
};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    Close, Create, EntryReply, Link, MoveData, Open, Removexattr, Rename, ReportSize, SetLayout, Setattr,
    Setxattr, StoreData, Unlink,
};
use nacre_wire::target::Empty;

/// One operation that changes metadata.
pub(crate) trait Operation {
    /// The name of its counter, in the words of `md_stats`, if it is counted.
    fn counter(&self) -> Option<&'static str>;

    /// Counts the operation with the request that it is part of.
    fn count(&self, request: &Request) {
        self.counter().into_iter().for_each(|name| request.count_operation(name));
    }

    /// The rows that its first attempt reads.
    fn read_set(&self, hash: HashKey, export: Generation) -> ReadSet;

    /// The most that it writes.
    fn bound(&self) -> WriteBound;

    /// Whether it may need space on an OST for a new file.
    fn needs_ost(&self) -> bool {
        false
    }

    /// Executes the operation on the rows of a transaction.
    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied>;

    /// The layout in the reply that a replayed request had: the replay must come to the same layout.
    fn replayed_layout(&self, _reply: &[u8]) -> Option<Layout> {
        None
    }

    /// The inode that a reconstructed reply describes.
    fn described(&self, _record: &Recorded) -> Option<Fid> {
        None
    }

    /// Makes the body of a reply again whose operation was executed before: from its record, and from the inode of
    /// [`Self::described`] as it is now (`None`: it has been removed since). Nothing is executed. Without own code this is
    /// the reply of [`Applied::entry`] if the operation describes an inode, and otherwise that of [`Applied::empty`].
    fn reconstruct(&self, record: &Recorded, inode: Option<Inode>) -> Result<Vec<u8>, Errno> {
        match self.described(record) {
            Some(fid) => reconstruct_entry(fid, record, inode),
            None => Ok(Empty {}.to_vec()),
        }
    }
}

/// The most that an operation writes, beside its reply record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteBound {
    inodes: u32,
    value_bytes: u32,
    frees: bool,
}

impl WriteBound {
    /// So many rows of inodes, and a few small rows for each.
    pub(crate) const fn inodes(inodes: u32) -> Self {
        Self { inodes, value_bytes: 0, frees: false }
    }
    /// The operation frees space, or can be a step towards it: it may use the reserve of a full device.
    pub(crate) const fn freeing(self) -> Self {
        Self { frees: true, ..self }
    }
    /// And a value of an extended attribute.
    pub(crate) const fn with_value(self, bytes: u32) -> Self {
        Self { value_bytes: bytes, ..self }
    }
    pub(crate) fn inode_count(self) -> u32 {
        self.inodes
    }
    pub(crate) fn value_bytes(self) -> u32 {
        self.value_bytes
    }
    pub(crate) fn is_freeing(self) -> bool {
        self.frees
    }
}

/// The sender of an operation, and the parts of the target that an operation uses.
pub(crate) struct Context<'a> {
    export: Generation,
    client: &'a dyn Fn() -> Option<ClientUuid>,
    default_layout: LayoutTemplate,
    choose_layout: &'a mut dyn FnMut(&LayoutTemplate) -> Result<Layout, Failure>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        export: Generation,
        client: &'a dyn Fn() -> Option<ClientUuid>,
        default_layout: LayoutTemplate,
        choose_layout: &'a mut dyn FnMut(&LayoutTemplate) -> Result<Layout, Failure>,
    ) -> Self {
        Self { export, client, default_layout, choose_layout }
    }
    pub(crate) fn export(&self) -> Generation {
        self.export
    }
    /// The UUID of the sender.
    ///
    /// # Errors
    /// [`ProtocolOutcome::ExportGone`]
    pub(crate) fn client(&self) -> Result<ClientUuid, ProtocolOutcome> {
        (self.client)().ok_or(ProtocolOutcome::ExportGone)
    }
    /// The layout template of the file system.
    pub(crate) fn default_layout(&self) -> LayoutTemplate {
        self.default_layout
    }
    /// Chooses OSTs and takes an object of the reservation at each. Called last, when nothing else can fail.
    pub(crate) fn choose_layout(&mut self, template: &LayoutTemplate) -> Result<Layout, Failure> {
        (self.choose_layout)(template)
    }
}

/// The result of an operation.
///
/// The fields are open to the crate because this is a record without rules of its own.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The body of the reply.
    pub(crate) body: Vec<u8>,
    /// Stored in the reply record, so that the reply can be reconstructed.
    pub(crate) record: Recorded,
}

impl Applied {
    /// A reply without contents.
    pub(crate) fn empty() -> Self {
        Self { body: Vec::new(), record: Recorded::default() }
    }
    /// A reply that describes an inode. The record keeps the type of the inode, which may be removed before the reply has to
    /// be reconstructed.
    pub(crate) fn entry(reply: &EntryReply) -> Self {
        let data = ((reply.attr.mode & mode::FMT) >> TYPE_SHIFT) as u8;
        Self { body: reply.to_vec(), record: Recorded { data, fid: Fid::default() } }
    }
}

/// The part of a reply that its record keeps: a plain value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recorded {
    /// A number of the operation's own.
    pub(crate) data: u8,
    pub(crate) fid: Fid,
}

impl Recorded {
    /// The type of the inode that [`Applied::entry`] has kept, as bits of a mode.
    pub(crate) fn file_type_bits(self) -> Option<u32> {
        (self.data != 0).then(|| u32::from(self.data) << TYPE_SHIFT)
    }
}

const TYPE_SHIFT: u32 = mode::FMT.trailing_zeros();

/// Reconstructs a reply of [`Applied::entry`]. An inode that was removed since is described by its type: an error (ESTALE)
/// would make the kernel start the operation again, and execute it twice.
pub(crate) fn reconstruct_entry(fid: Fid, record: &Recorded, inode: Option<Inode>) -> Result<Vec<u8>, Errno> {
    let reply = match inode {
        Some(inode) => inode.reply(),
        None => entry_of_removed(fid, record.file_type_bits().ok_or(Errno::ESTALE)?),
    };
    Ok(reply.to_vec())
}

/// `Operation => its message`, for every operation.
macro_rules! operations {
    ($($opcode:ident => $message:ty;)*) => {
        /// An operation, decoded.
        pub(crate) enum AnyOperation<'a> { $($opcode($message)),* }

        impl<'a> AnyOperation<'a> {
            pub(crate) fn includes(opcode: Opcode) -> bool {
                matches!(opcode, $(Opcode::$opcode)|*)
            }
            /// `None`: the opcode is not an operation.
            pub(crate) fn decode(opcode: Opcode, body: &'a [u8]) -> Result<Option<Self>, Errno> {
                Ok(Some(match opcode {
                    $(Opcode::$opcode => Self::$opcode(<$message>::from_slice(body)?),)*
                    _ => return Ok(None),
                }))
            }
            pub(crate) fn get(&self) -> &dyn Operation {
                match self { $(Self::$opcode(operation) => operation),* }
            }
        }
    };
}

operations! {
    Create => Create<'a>;
    Open => Open;
    Close => Close;
    Link => Link<'a>;
    Unlink => Unlink<'a>;
    Rename => Rename<'a>;
    Setattr => Setattr;
    ReportSize => ReportSize;
    Setxattr => Setxattr<'a>;
    Removexattr => Removexattr<'a>;
    SetLayout => SetLayout;
    StoreData => StoreData<'a>;
    MoveData => MoveData;
}
