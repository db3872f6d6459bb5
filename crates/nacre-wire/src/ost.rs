//! Messages of the object target.

use crate::opcode::rpc;
use crate::target::Empty;
use alloc::vec::Vec;
use nacre_types::{Extent, Fid, LockCookie, ObjectId, Owner, Timestamp, codec_enum, codec_struct};

codec_struct! {
    /// State of an object on its OST; all zero if the object was never written.
    #[derive(Copy, Default)]
    pub struct ObjectState {
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
        pub object: ObjectId,
        /// The number of replacements when the stripe was laid out (`Component::laid`). If the target has a higher
        /// number, a missing object is lost: EIO, here and in every request with this field.
        pub laid: u32,
        pub offset: u64,
        pub len: u32,
        pub lock: LockCookie,
    }
}
codec_struct! { pub struct ReadReply { pub state: ObjectState } }
codec_struct! {
    /// Writes the frame's bulk. The first write creates the object. Without a lock (cookie 0) the server locks for the
    /// time of the write, and the write has a tag and a reply record.
    pub struct Write {
        pub object: ObjectId,
        pub laid: u32,
        pub offset: u64,
        pub owner: Owner,
        pub mtime: Timestamp,
        pub lock: LockCookie,
    }
}
codec_struct! { pub struct WriteReply { pub state: ObjectState } }
codec_struct! {
    /// Sets the object's size.
    pub struct Truncate {
        pub object: ObjectId,
        pub laid: u32,
        pub size: u64,
        pub owner: Owner,
        pub mtime: Timestamp,
        pub lock: LockCookie,
    }
}
codec_struct! {
    /// Allocates space; `keep_size` as in fallocate(2).
    pub struct Allocate {
        pub object: ObjectId,
        pub laid: u32,
        pub offset: u64,
        pub len: u64,
        pub keep_size: bool,
        pub owner: Owner,
        pub mtime: Timestamp,
        pub lock: LockCookie,
    }
}
codec_struct! { pub struct Glimpse { pub object: ObjectId, pub laid: u32 } }
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
        pub object: ObjectId,
        pub laid: u32,
        pub cookie: LockCookie,
        pub mode: LockMode,
        pub extent: Extent,
        /// The lock persists over a kill of the OST's process.
        pub persistent: bool,
    }
}
codec_struct! {
    pub struct EnqueueReply {
        /// False: a `LockGranted` callback with the cookie follows.
        pub granted: bool,
        pub state: ObjectState,
    }
}
codec_struct! { pub struct Cancel { pub object: ObjectId, pub cookie: LockCookie } }
codec_struct! {
    /// Room for `objects` more objects, asked by an MDT that runs low. ENOSPC: room for none.
    pub struct Reserve { pub objects: u64 }
}
codec_struct! {
    /// Objects granted now, in addition to earlier grants; at most the requested number. The first write (or the
    /// destroy) of an object consumes one on the OST's side.
    pub struct ReserveReply { pub objects: u64 }
}
codec_struct! {
    /// Frees the space of objects that were truncated or destroyed before this request, and commits the changes on
    /// which that depends.
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

rpc! {
    Read => Read, Read, ReadReply;
    Write => Write, Modify, WriteReply;
    Truncate => Truncate, Modify, WriteReply;
    Allocate => Allocate, Modify, WriteReply;
    Glimpse => Glimpse, Read, ObjectState;
    SetOwner => SetOwner, Modify, Empty;
    Destroy => Destroy, Modify, Empty;
    SyncObject => SyncObject, Read, Empty;
    Enqueue => Enqueue, Read, EnqueueReply;
    Cancel => Cancel, Callback, Empty;
    Reserve => Reserve, Modify, ReserveReply;
    FreeSpace => FreeSpace, Read, FreeSpaceReply;
}
