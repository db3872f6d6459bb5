//! Rows of clients.
//!
//! `CLIENT` by generation (big-endian) holds a [`ClientRow`]; `REPLY` by generation and tag holds the record of the latest
//! change under that tag, so that the records of a client are bounded by its tags and the one with its highest transno is
//! only ever replaced by a newer one. Generations are never reused.

use alloc::string::String;
use nacre_types::{ClientUuid, Generation, Secret, Tag, Transno, codec_struct};
use nacre_wire::target::Role;

/// An export: the generation of its client record.
pub type ExportId = Generation;

codec_struct! {
    /// The state of a client that a restart needs.
    pub struct ClientRow {
        /// The client's uuid.
        pub uuid: ClientUuid,
        /// Given by the client at its first connect, required at every later one.
        pub secret: Secret,
        /// Its generation.
        pub generation: Generation,
        /// When the row was written; the reply records have later changes.
        pub last_transno: Transno,
        /// Its name, for people.
        pub name: String,
        /// Its role.
        pub role: Role,
        /// Features agreed at its first connect.
        pub features: u64,
        /// A mount or target in the server's own process: it ends with that process.
        pub local: bool,
        /// See [`nacre_wire::target::Connect::instance`].
        pub instance: u64,
    }
}

/// Key of a client's row.
pub(crate) fn client_key(id: ExportId) -> [u8; 4] {
    id.0.to_be_bytes()
}
/// Key of a reply record.
pub(crate) fn reply_key(id: ExportId, tag: Tag) -> [u8; 6] {
    let [a, b, c, d] = id.0.to_be_bytes();
    let [e, f] = tag.0.to_be_bytes();
    [a, b, c, d, e, f]
}
/// First key after those of a client's reply records.
pub(crate) fn reply_end(id: ExportId) -> [u8; 6] {
    reply_key(Generation(id.0 + 1), Tag(0))
}
