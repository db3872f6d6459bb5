//! Messages of the object target.

use crate::opcode::rpc;
use crate::status::Status;
use crate::target::Empty;
use alloc::vec::Vec;
use nacre_types::{Extent, Fid, LockCookie, ObjectId, Owner, Timestamp, codec_enum, codec_struct};

codec_struct! {
    /// State of an object on its OST; all zero if the object was never written.
    #[derive(Copy, Default)]
    pub struct ObjectState {
        /// Bytes: one more than the last byte written, or set by truncate.
        pub size: u64,
        /// Units of 512 bytes.
        pub blocks: u64,
        /// The latest time of a write (by the writers' clocks).
        pub mtime: Timestamp,
    }
}
codec_struct! {
    /// Reads a range. The reply's bulk ends at the object's end; holes are zeros.
    pub struct Read {
        /// The object; one that does not exist reads as empty.
        pub object: ObjectId,
        /// The number of replacements when the stripe was laid out (`Component::laid`). If the target has a higher
        /// number, a missing object is lost: EIO, here and in every request with this field.
        pub laid: u32,
        /// In the object, in bytes.
        pub offset: u64,
        /// Bytes. The reply has fewer if the object ends before.
        pub len: u32,
        /// An extent lock of this client that covers the range; 0: the server locks for the time of the read.
        pub lock: LockCookie,
    }
}
codec_struct! {
    /// The bytes are the bulk; `state` is that of the object under the lock of the read.
    pub struct ReadReply { pub state: ObjectState }
}
codec_struct! {
    /// Writes the frame's bulk. The first write creates the object. Without a lock (cookie 0) the server locks for the
    /// time of the write, and the write has a tag and a reply record.
    pub struct Write {
        /// The object; created by its first write.
        pub object: ObjectId,
        /// As in [`Read::laid`].
        pub laid: u32,
        /// In the object, in bytes. The length is that of the bulk.
        pub offset: u64,
        /// Charged for the space if this write creates the object; otherwise not used.
        pub owner: Owner,
        /// The writer's clock; the object keeps the latest one.
        pub mtime: Timestamp,
        /// As in [`Read::lock`]; a PR lock does not suffice.
        pub lock: LockCookie,
    }
}
codec_struct! {
    /// Reply to writes, truncates and allocations: the object after the change.
    pub struct WriteReply { pub state: ObjectState }
}
/// Writes in one [`WriteMany`].
pub const WRITES_MAX: usize = 256;
/// Bytes of data in one [`WriteMany`].
pub const WRITE_MANY_BYTES_MAX: u64 = 4 << 20;
codec_struct! {
    /// One of the writes of a [`WriteMany`]; without a lock.
    pub struct ManyWrite {
        /// As in [`Write`].
        pub object: ObjectId,
        /// As in [`Read::laid`].
        pub laid: u32,
        /// In the object, in bytes.
        pub offset: u64,
        /// Bytes; not 0.
        pub len: u32,
        /// As in [`Write::owner`].
        pub owner: Owner,
        /// As in [`Write::mtime`].
        pub mtime: Timestamp,
    }
}
codec_struct! {
    /// Small writes of several objects, in one transaction. Each may fail alone. They are in the order of objects (FID, then
    /// stripe) and offsets, those of one object do not overlap, and the bulk has their bytes in this order.
    pub struct WriteMany { pub writes: Vec<ManyWrite> }
}
codec_struct! {
    /// The result of one of the writes: the object after all of them, or an error.
    pub struct ManyResult { pub status: Status, pub state: ObjectState }
}
codec_struct! {
    /// One result for each write, in their order.
    pub struct WriteManyReply { pub results: Vec<ManyResult> }
}
codec_struct! {
    /// Sets the object's size.
    pub struct Truncate {
        /// The object.
        pub object: ObjectId,
        /// As in [`Read::laid`].
        pub laid: u32,
        /// Of the object afterwards, in bytes; growth makes a hole.
        pub size: u64,
        /// As in [`Write::owner`].
        pub owner: Owner,
        /// The caller's clock; the object keeps the latest one.
        pub mtime: Timestamp,
        /// As in [`Write::lock`].
        pub lock: LockCookie,
    }
}
codec_struct! {
    /// Allocates space; `keep_size` as in fallocate(2).
    pub struct Allocate {
        /// The object.
        pub object: ObjectId,
        /// As in [`Read::laid`].
        pub laid: u32,
        /// In the object, in bytes.
        pub offset: u64,
        /// Bytes.
        pub len: u64,
        /// The size stays, even if the range ends behind it.
        pub keep_size: bool,
        /// As in [`Write::owner`].
        pub owner: Owner,
        /// The caller's clock; the object keeps the latest one.
        pub mtime: Timestamp,
        /// As in [`Write::lock`].
        pub lock: LockCookie,
    }
}
codec_struct! {
    /// Bytes of the range become zeros; the size stays. `frees`: the space of blocks of 4 KiB that lie in the range is free
    /// as well, otherwise it stays allocated.
    pub struct Punch {
        /// The object that is changed.
        pub object: ObjectId,
        /// As in [`Read`].
        pub laid: u32,
        /// First byte in the object.
        pub offset: u64,
        /// Bytes; not 0.
        pub len: u64,
        /// Whether space is freed.
        pub frees: bool,
        /// As in [`Write`]; a punch creates no object.
        pub owner: Owner,
        /// The time of the change, by the client's clock.
        pub mtime: Timestamp,
        /// The client's lock of the range, or 0: the OST locks for the time of the request.
        pub lock: LockCookie,
    }
}
codec_struct! {
    /// Asks for the first byte from an offset on that was written, or is in a hole. Holes have blocks of 4 KiB.
    pub struct Seek {
        /// The object that is searched.
        pub object: ObjectId,
        /// As in [`Read`].
        pub laid: u32,
        /// Where the search begins, in the object.
        pub offset: u64,
        /// Data is searched for; otherwise a hole.
        pub is_data: bool,
    }
}
codec_struct! {
    /// The result of a [`Seek`].
    pub struct SeekReply {
        /// `None`: no data up to the object's end, or the search began there. The end of the object is a hole.
        pub found: Option<u64>,
        /// The object at that moment.
        pub state: ObjectState,
    }
}
codec_struct! {
    /// Asks for size, space and mtime of an object, without a lock.
    pub struct Glimpse { pub object: ObjectId, pub laid: u32 }
}
codec_struct! {
    /// Charges the object to another owner (sent by the MDT after a chown was committed). Idempotent.
    pub struct SetOwner { pub object: ObjectId, pub owner: Owner }
}
codec_struct! {
    /// Removes objects of a file and leaves a tombstone. Idempotent.
    pub struct Destroy { pub fid: Fid, pub stripes: Vec<u32> }
}
codec_struct! {
    /// Bytes and rows of the object are on stable storage when acknowledged.
    pub struct SyncObject { pub object: ObjectId, pub laid: u32 }
}
codec_enum! {
    /// Modes of extent locks in messages.
    pub enum LockMode: u8 { Pr = 1, Pw = 2, Ex = 3 }
}
codec_struct! {
    /// Asks for an extent lock; granted exactly as asked. Idempotent by its cookie.
    pub struct Enqueue {
        /// The object; it need not exist.
        pub object: ObjectId,
        /// As in [`Read::laid`].
        pub laid: u32,
        /// Chosen by the client, unique among its locks at this OST; names the lock in every later message.
        pub cookie: LockCookie,
        /// PR to read; PW to write, truncate or append.
        pub mode: LockMode,
        /// The range, in bytes of the object.
        pub extent: Extent,
        /// The lock persists over a kill of the OST's process.
        pub persistent: bool,
    }
}
codec_struct! {
    /// Reply to [`Enqueue`].
    pub struct EnqueueReply {
        /// False: a `LockGranted` callback with the cookie follows.
        pub granted: bool,
        /// The object under the lock; without meaning while `granted` is false.
        pub state: ObjectState,
    }
}
codec_struct! {
    /// Returns an extent lock, or stops waiting for one. An unknown cookie is no error.
    pub struct Cancel { pub object: ObjectId, pub cookie: LockCookie }
}
codec_struct! {
    /// Room for `objects` more objects, asked by an MDT that runs low. ENOSPC: room for none.
    pub struct Reserve { pub objects: u64 }
}
codec_struct! {
    /// Objects granted now, in addition to earlier grants; at most the requested number. The first write (or the
    /// destroy) of an object consumes one on the OST's side.
    pub struct ReserveReply { pub objects: u64 }
}
/// Space that a write under a grant uses beside its bytes: the rest of its first and last block, and its rows.
pub const EXTENT_TAX: u64 = 8192;
/// From this offset on, long writes are those of a stream: a client in the process of its servers keeps them for a moment, and
/// the OST writes them past its cache.
pub const STREAMS_FROM: u64 = 32 << 20;
codec_struct! {
    /// Asks that space is kept for this client: `bytes` in all from now on, with what earlier grants have left; 0 gives all of
    /// it back. A write with `flags::GRANTED` uses its bytes and [`EXTENT_TAX`] of it. A restart of the OST ends all grants.
    pub struct Grant { pub bytes: u64 }
}
codec_struct! {
    /// The space that is kept for the client, at most the requested one.
    pub struct GrantReply { pub bytes: u64 }
}
codec_struct! {
    /// Frees the space of objects that were truncated or destroyed before this request, and commits the changes on
    /// which that depends. Asks clients before for what they do not need of grants, if these are much.
    pub struct FreeSpace {}
}
codec_struct! {
    /// Whether there was space to free.
    pub struct FreeSpaceReply { pub freed: bool }
}
codec_struct! {
    /// Callback: a waiting lock is granted.
    pub struct LockGranted { pub cookie: LockCookie, pub state: ObjectState }
}
codec_struct! {
    /// Callback: another client waits for this lock.
    pub struct LockBlocking { pub cookie: LockCookie }
}
codec_struct! {
    /// Callback: the OST has no other room left. The client replies with a [`Grant`] for what it needs of its own.
    pub struct ReturnGrant {}
}

rpc! {
    Read => Read, Read, ReadReply;
    Write => Write, Modify, WriteReply;
    WriteMany => WriteMany, Modify, WriteManyReply;
    Truncate => Truncate, Modify, WriteReply;
    Allocate => Allocate, Modify, WriteReply;
    Punch => Punch, Modify, WriteReply;
    Seek => Seek, Read, SeekReply;
    Glimpse => Glimpse, Read, ObjectState;
    SetOwner => SetOwner, Modify, Empty;
    Destroy => Destroy, Modify, Empty;
    SyncObject => SyncObject, Read, Empty;
    Enqueue => Enqueue, Read, EnqueueReply;
    Cancel => Cancel, Callback, Empty;
    Reserve => Reserve, Modify, ReserveReply;
    FreeSpace => FreeSpace, Read, FreeSpaceReply;
    Grant => Grant, Read, GrantReply;
}
