//! The rows that a restart needs of the clients, as Lustre's tool `lr_reader` prints them.
//!
//! Rows are read the same way from a running target (message `RecoveryRows`) and from a stopped store; this file
//! only turns them into text. A client's own `last_*` numbers are those of its row: with reply records they stay 0, as in
//! Lustre.

use crate::clients::rows::ClientRow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use nacre_rpc::ReplyRecord;

/// Set by the first client with several slots: a server that knows one slot must not serve the target.
pub const INCOMPAT_MULTI_RPCS: u32 = 0x400;
/// Every incompatible feature that this build knows.
pub const INCOMPAT_KNOWN: u32 = INCOMPAT_MULTI_RPCS;

/// The header of `last_rcvd`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastRcvd {
    /// Name of the target.
    pub name: String,
    /// Features in use that another server must support.
    pub incompat: u32,
    /// The latest transno.
    pub last_transaction: u64,
    /// Index of the target.
    pub target_index: u32,
    /// Starts of the target.
    pub mount_count: u64,
}

/// Bytes of Lustre's header and of its client record: only printed.
const CLIENT_AREA_START: u32 = 8192;
const CLIENT_AREA_SIZE: u32 = 128;

/// The text of `lr_reader`, with the clients (`-c`) and the reply records (`-r`) that are given.
pub fn render(header: &LastRcvd, clients: Option<&[ClientRow]>, replies: Option<&[ReplyRecord]>) -> String {
    let mut out = String::from("last_rcvd:\n");
    let mut line =
        |args: core::fmt::Arguments<'_>| writeln!(out, "{args}").expect("a string takes everything");
    line(format_args!("  uuid: {}_UUID", header.name));
    line(format_args!("  feature_compat: 0x0"));
    line(format_args!("  feature_incompat: {:#x}", header.incompat));
    line(format_args!("  feature_rocompat: 0x0"));
    line(format_args!("  last_transaction: {}", header.last_transaction));
    line(format_args!("  target_index: {}", header.target_index));
    line(format_args!("  mount_count: {}", header.mount_count));
    if let Some(clients) = clients {
        line(format_args!("  client_area_start: {CLIENT_AREA_START}"));
        line(format_args!("  client_area_size: {CLIENT_AREA_SIZE}"));
        for c in clients {
            line(format_args!("\n  {}:", c.uuid));
            line(format_args!("    generation: {}", c.generation));
            line(format_args!("    last_transaction: {}", c.last_transno));
            line(format_args!("    last_xid: 0\n    last_result: 0\n    last_data: 0"));
        }
    }
    if let Some(replies) = replies {
        line(format_args!("\nreply_data:"));
        for (slot, r) in replies.iter().enumerate() {
            line(format_args!("  {slot}:"));
            line(format_args!("    client_generation: {}", r.generation));
            line(format_args!("    last_transaction: {}", r.transno));
            line(format_args!("    last_xid: {}", r.xid));
            line(format_args!("    last_result: {}", r.result));
            line(format_args!("    last_data: {}\n", r.data));
        }
    }
    out
}

/// Reply records of known clients; the others belong to clients that have ended.
pub fn of_known_clients(replies: Vec<ReplyRecord>, clients: &[ClientRow]) -> Vec<ReplyRecord> {
    replies.into_iter().filter(|r| clients.iter().any(|c| c.generation == r.generation)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use nacre_types::{ClientUuid, Fid, Generation, Secret, Tag, Transno, Xid};
    use nacre_wire::target::Role;

    #[test]
    fn it_prints_the_yaml_of_the_field() {
        let header = LastRcvd {
            name: "demo-MDT0000".to_string(),
            incompat: INCOMPAT_MULTI_RPCS,
            last_transaction: 12_884_901_888,
            target_index: 0,
            mount_count: 3,
        };
        let head = "last_rcvd:\n  uuid: demo-MDT0000_UUID\n  feature_compat: 0x0\n  feature_incompat: 0x400\n  \
                    feature_rocompat: 0x0\n  last_transaction: 12884901888\n  target_index: 0\n  mount_count: 3\n";
        assert_eq!(render(&header, None, None), head);
        let client = ClientRow {
            uuid: ClientUuid(*b"0123456789abcdef"),
            secret: Secret::default(),
            generation: Generation(1),
            last_transno: Transno(0),
            name: "host".to_string(),
            role: Role::Client,
            features: 3,
            local: false,
            instance: 0,
        };
        let with_clients = alloc::format!(
            "{head}  client_area_start: 8192\n  client_area_size: 128\n\n  {}:\n    generation: 1\n    \
             last_transaction: 0\n    last_xid: 0\n    last_result: 0\n    last_data: 0\n",
            client.uuid
        );
        assert_eq!(render(&header, Some(core::slice::from_ref(&client)), None), with_clients);
        let record = |generation| ReplyRecord {
            transno: Transno(12_884_902_911),
            xid: Xid(77),
            data: 1,
            result: 0,
            generation: Generation(generation),
            tag: Tag(1),
            pre_versions: nacre_rpc::PreVersions::default(),
            fid: Fid::ROOT,
            results: Vec::new(),
        };
        let known = of_known_clients(alloc::vec![record(1), record(9)], &[client]);
        let with_replies = alloc::format!(
            "{head}\nreply_data:\n  0:\n    client_generation: 1\n    last_transaction: 12884902911\n    last_xid: 77\n    \
             last_result: 0\n    last_data: 1\n\n"
        );
        assert_eq!(render(&header, None, Some(&known)), with_replies);
    }
}
