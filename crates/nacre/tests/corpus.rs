//! The fuzz targets over their corpora: `fuzz/`. `NACRE_BLESS=1` writes the seeds anew.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../../fuzz/support/replay.rs"]
mod replay;
#[path = "../../../fuzz/support/targets.rs"]
mod targets;

use nacre_mdt::row::{EntryRow, FlocksRow, Inode, OpenRow, ParentLink, Row as _, Stripes, Unsettled, Xattr};
use nacre_types::*;

fn layout() -> Layout {
    let stripes = vec![OstIndex(0), OstIndex(7)];
    Layout {
        generation: 1,
        dom_bytes: 8192,
        components: vec![Component { extent: Extent::ALL, stripe_bytes: 1 << 20, stripes, laid: vec![] }],
    }
}

fn inode(fid: Fid) -> Inode {
    let time = Timestamp { sec: 1, nsec: 2 };
    Inode {
        attr: Attr {
            fid,
            mode: 0o100644,
            uid: 1000,
            gid: 100,
            projid: 5,
            nlink: 2,
            rdev: 0,
            size: 1 << 40,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            size_state: SizeState::Open,
            version: 77,
        },
        mtime_order: time,
        layout: Some(layout()),
        may_have_objects: true,
        target: "target".into(),
        template: Some(LayoutTemplate::default()),
        entries: 3,
        links: vec![ParentLink { parent: fid, name: "file".into() }],
        links_beyond: 1,
        xattrs: vec![Xattr { name: "user.a".into(), value: Some("b".into()) }],
    }
}

#[test]
fn rows() {
    let fid = Fid::new(Seq(0x400), Oid(9));
    let client = nacre_target::ClientRow {
        secret: nacre_types::Secret::default(),
        uuid: ClientUuid(*b"0123456789abcdef"),
        generation: Generation(3),
        last_transno: Transno(0),
        name: "host:/mnt".into(),
        role: nacre_wire::target::Role::Client,
        features: 3,
        local: false,
        instance: 0,
    };
    let record = nacre_rpc::ReplyRecord {
        transno: Transno(4),
        xid: Xid(5),
        data: 6,
        result: -17,
        generation: Generation(3),
        tag: Tag(2),
        pre_versions: nacre_rpc::PreVersions::default(),
        fid,
        results: vec![nacre_rpc::SubRecord { result: 2, data: 1, fid }],
    };
    let label = nacre_osd::Label {
        uuid: ClientUuid([7; 16]),
        name: "demo-MDT0000".into(),
        mgs_nodes: vec!["10.0.0.1:9988".into()],
        format_version: nacre_osd::FORMAT_VERSION,
    };
    let template = LayoutTemplate::default();
    let inode = inode(fid);
    let entry = EntryRow { name: "file".into(), fid, file_type: FileType::Regular, version: 8 };
    // The numbers are places in the list of `targets.rs`.
    let seeds: Vec<(&str, u8, Vec<u8>)> = vec![
        ("client", 0, client.to_vec()),
        ("reply", 1, record.to_vec()),
        ("label", 4, label.to_vec()),
        ("layout", 7, layout().to_vec()),
        ("template", 8, template.to_vec()),
        ("inode", 10, inode.to_row()),
        ("entry", 11, entry.to_row()),
        ("opened", 12, OpenRow { fid, flags: 2 }.to_row()),
        ("stripes", 13, Stripes { stripes: vec![1, 2, 3] }.to_row()),
        ("flocks", 14, FlocksRow { locks: Vec::new() }.to_row()),
        ("unsettled", 15, Unsettled { pending: vec![Generation(1)], tainted: true }.to_row()),
        ("zeros", 2, vec![0; 200]),
        ("ones", 3, vec![0xff; 200]),
    ];
    let seeds: Vec<(&str, Vec<u8>)> =
        seeds.into_iter().map(|(name, which, bytes)| (name, [vec![which], bytes].concat())).collect();
    replay::seeds("row", &seeds);
    replay::replay("row", targets::row);
}

#[test]
fn rows_of_a_whole_target() {
    let row = |table: u8, key: &[u8], value: &[u8]| {
        let head = [table, key.len() as u8, value.len() as u8, (value.len() >> 8) as u8];
        [&head[..], key, value].concat()
    };
    // The numbers are places in `nacre_mdt::table::ALL`.
    let fid = Fid::new(Seq(0x100), Oid(9));
    let entry = EntryRow { name: "file".into(), fid, file_type: FileType::Regular, version: 8 };
    let rows = [
        row(0, nacre_mdt::table::meta::NEXT_SEQ, &0x101u64.to_row()),
        row(2, &Fid::ROOT.key(), &inode(Fid::ROOT).to_row()),
        row(2, &fid.key(), &inode(fid).to_row()),
        row(3, &[&Fid::ROOT.key()[..], &7u64.to_be_bytes()].concat(), &entry.to_row()),
        row(6, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9], &OpenRow { fid, flags: 2 }.to_row()),
        row(7, &fid.key(), &[]),
        row(8, &[&[0, 0, 0, 1][..], &fid.key()].concat(), &Stripes { stripes: vec![1, 2] }.to_row()),
        row(11, &fid.key(), &Unsettled { pending: vec![Generation(1)], tainted: true }.to_row()),
    ];
    replay::seeds("check", &[("rows", rows.concat()), ("root", rows[1].clone()), ("zeros", vec![0; 64])]);
    replay::replay("check", targets::check);
}

#[test]
fn texts() {
    let seeds = [
        ("host", "10.0.0.1:9988"),
        ("name", "mgs.example.com"),
        ("ipv6", "[fe80::1]:9988"),
        ("unix", "unix:/run/nacre/up.sock"),
        ("pattern", "m*t.*.exports.**\nmdt.demo-MDT0000.exports.a.stats"),
        ("stars", "*a*a*a*a*a*a*b.x\naaaaaaaaaaaaaaaaaaaaaaaa.x"),
        ("fsname-target", "demo-MDT0000"),
        ("ost", "demo-OSTffff"),
        ("fid", "[0x200000401:0x3:0x0]"),
        ("source", "unix:/a b/nacre.sock:/demo/below"),
        ("size", "18446744073709551615T"),
        ("bracket", "[[f]"),
        ("unix-host", "unix"),
    ];
    replay::seeds("text", &seeds.map(|(name, text)| (name, text.as_bytes().to_vec())));
    replay::replay("text", targets::text);
}

#[test]
fn streams() {
    use nacre_wire::{Frame, Header, Kind};
    let frame = |body: &[u8]| {
        let sum = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
        let frame = Frame::new(Header::new(Kind::Request, 3), body.to_vec());
        [frame.encode_header(sum(body), sum).to_vec(), body.to_vec()].concat()
    };
    let seeds = [
        ("one", [vec![255], frame(b"body")].concat()),
        ("bytewise", [vec![0], frame(b"body"), frame(b"")].concat()),
        ("cut", [vec![6], frame(b"body")[..40].to_vec()].concat()),
    ];
    replay::seeds("stream", &seeds);
    replay::replay("stream", targets::stream);
}
