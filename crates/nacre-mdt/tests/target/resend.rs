//! Every kind of change whose reply is lost (names beside those of `Set`: `empty`, `other`): sent again it gives the same
//! result and has happened once, also when the MDT was killed in between.
//!
//! Each case runs twice in worlds of one seed, the second time with the loss; which replies come and what is there
//! afterwards must be the same. That it was not executed again is seen in the MDT's own counters.

use crate::support::*;
use bytes::Bytes;
use nacre_types::*;
use nacre_wire::Opcode;
use nacre_wire::mdt::*;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

const O_TRUNC: u32 = 0o1000;

/// What the cases find: names in the root.
#[derive(Clone, Copy)]
struct Set {
    dir: Fid,
    file: Fid,
    /// Open for writing, handle 1.
    open: Fid,
    /// Open for writing, handle 2; the MDT keeps its bytes.
    small: Fid,
}

async fn set_up(c: Rc<Client>) -> Set {
    let root = Fid::ROOT;
    c.make(root, b"empty", DIR).await.unwrap();
    c.make(root, b"other", REG).await.unwrap();
    let set = Set {
        dir: c.make(root, b"dir", DIR).await.unwrap(),
        file: c.make(root, b"file", REG).await.unwrap(),
        open: c.make(root, b"open", REG).await.unwrap(),
        small: c.make(root, b"small", REG).await.unwrap(),
    };
    c.open(set.open, 1, O_RDWR).await.unwrap();
    let template = LayoutTemplate { dom_bytes: Some(100), ..LayoutTemplate::default() };
    let small = SetLayout { fid: set.small, template, caller: Caller::root(), time: c.now() };
    c.call(&small).await.unwrap();
    c.open(set.small, 2, O_RDWR).await.unwrap();
    let args = Setxattr {
        fid: set.file,
        name: b"user.old",
        value: b"v",
        flags: 0,
        kill_sgid: false,
        caller: Caller::root(),
        time: c.now(),
    };
    c.call(&args).await.unwrap();
    set
}

fn told<T>(reply: Result<T, Failure>, show: impl Fn(&T) -> String) -> String {
    reply.as_ref().map_or_else(|e| format!("{e:?}"), show)
}
fn attr(a: &Attr) -> String {
    format!("{} {:o} nlink {} size {} {:?}", a.fid, a.mode, a.nlink, a.size, a.size_state)
}
fn entry(reply: &EntryReply) -> String {
    format!("{} {:?}", attr(&reply.attr), reply.layout)
}
fn created(reply: &CreateReply) -> String {
    format!("created {} {}", reply.created, entry(&reply.entry))
}

type Work = Pin<Box<dyn Future<Output = String>>>;
/// Name, the counter that must stand at one, the change.
type Case = (&'static str, &'static str, fn(Rc<Client>, Set) -> Work);

macro_rules! case {
    ($name:literal, $counter:literal, |$c:ident, $s:ident| $work:expr) => {
        ($name, $counter, |$c, $s| {
            let _unused = &$s;
            Box::pin(async move { $work })
        })
    };
}

fn setattr(c: &Client, fid: Fid, set: SetAttr) -> Setattr {
    Setattr { fid, set, caller: Caller::root(), time: c.now() }
}
fn lock(fid: Fid, kind: FlockType) -> Flock {
    let lock = FileLock { family: FlockFamily::Posix, kind, start: 0, end: 9, owner: 9, pid: 77 };
    Flock { fid, lock, wait: false, cookie: LockCookie(3) }
}
const ROOT: Fid = Fid::ROOT;
const CASES: &[Case] = &[
    case!("create", "mknod", |c, s| told(c.make_open(ROOT, b"new", REG, None, true).await, created)),
    case!("create and open", "mknod", |c, s| {
        told(c.make_open(ROOT, b"new", REG, Some((7, O_RDWR)), true).await, created)
    }),
    case!("create of an open name", "mknod", |c, s| {
        told(c.make_open(ROOT, b"file", REG, Some((7, O_RDONLY)), false).await, created)
    }),
    case!("create that cuts", "mknod", |c, s| {
        told(c.make_open(ROOT, b"file", REG, Some((7, O_RDWR | O_TRUNC)), false).await, created)
    }),
    case!("create exclusively of a name that is there", "mknod", |c, s| {
        told(c.make_open(ROOT, b"file", REG, Some((7, O_RDWR)), true).await, created)
    }),
    case!("mkdir", "mkdir", |c, s| told(c.make_open(s.dir, b"sub", DIR, None, true).await, created)),
    case!("symlink", "mknod", |c, s| {
        told(c.make_open(ROOT, b"sym", mode::LNK | 0o777, None, true).await, created)
    }),
    case!("mknod", "mknod", |c, s| {
        told(c.make_open(ROOT, b"fifo", mode::FIFO | 0o600, None, true).await, created)
    }),
    case!("link", "link", |c, s| {
        let args = Link {
            fid: s.file,
            parent: s.dir,
            name: name_of(b"hard"),
            caller: Caller::root(),
            time: c.now(),
        };
        told(c.call(&args).await, entry)
    }),
    case!("unlink", "unlink", |c, s| told(c.unlink(ROOT, b"file", false).await, |()| "gone".into())),
    case!("unlink of an open file", "unlink", |c, s| {
        told(c.unlink(ROOT, b"open", false).await, |()| "gone".into())
    }),
    case!("rmdir", "rmdir", |c, s| told(c.unlink(ROOT, b"empty", true).await, |()| "gone".into())),
    case!("unlink of nothing", "unlink", |c, s| {
        told(c.unlink(ROOT, b"nothing", false).await, |()| "gone".into())
    }),
    case!("rename", "rename", |c, s| {
        told(c.rename((ROOT, b"file"), (s.dir, b"moved"), 0).await, |()| "moved".into())
    }),
    case!("rename over", "rename", |c, s| {
        told(c.rename((ROOT, b"file"), (ROOT, b"other"), 0).await, |()| "moved".into())
    }),
    case!("rename without replacing", "rename", |c, s| {
        told(c.rename((ROOT, b"file"), (ROOT, b"free"), rename_flags::NOREPLACE).await, |()| "moved".into())
    }),
    case!("exchange", "rename", |c, s| {
        told(c.rename((ROOT, b"file"), (ROOT, b"dir"), rename_flags::EXCHANGE).await, |()| "swapped".into())
    }),
    case!("chmod", "setattr", |c, s| {
        let set = SetAttr { mode: Some(0o4711), uid: Some(5), ..SetAttr::default() };
        told(c.call(&setattr(&c, s.file, set)).await, entry)
    }),
    case!("truncate", "setattr", |c, s| {
        let set = SetAttr { size: Some(10), ..SetAttr::default() };
        told(c.call(&setattr(&c, s.open, set)).await, entry)
    }),
    case!("size report", "setattr", |c, s| {
        let written = Written { size: 4000, blocks: 8, mtime: c.now() };
        told(c.call(&ReportSize { fid: s.open, written, truncate: false }).await, entry)
    }),
    case!("setxattr", "setxattr", |c, s| {
        let args = Setxattr {
            fid: s.file,
            name: b"user.new",
            value: b"value",
            flags: 1, // XATTR_CREATE: a second time fails
            kill_sgid: false,
            caller: Caller::root(),
            time: c.now(),
        };
        told(c.call(&args).await, entry)
    }),
    case!("removexattr", "setxattr", |c, s| {
        told(c.call(&Removexattr { fid: s.file, name: b"user.old", time: c.now() }).await, entry)
    }),
    case!("open to read", "open", |c, s| told(c.open(s.file, 8, O_RDONLY).await, entry)),
    case!("open to write", "open", |c, s| told(c.open(s.file, 8, O_RDWR).await, entry)),
    case!("open of a directory", "open", |c, s| told(c.open(s.dir, 8, O_RDONLY).await, entry)),
    case!("close", "close", |c, s| {
        let written = Written { size: 77, blocks: 8, mtime: c.now() };
        told(c.close(s.open, 1, true, Some(written)).await, |()| "closed".into())
    }),
    case!("close with data", "close", |c, s| {
        let written = Written { size: 3, blocks: 8, mtime: c.now() };
        let (fid, handle, data) = (s.small, OpenHandle(2), Some(Bytes::from_static(b"abc")));
        let close = Close { fid, handle, dirty: true, written: Some(written), atime: None, data };
        told(c.call(&close).await, |_| "closed".into())
    }),
    case!("data", "store_data", |c, s| {
        let store = StoreData { fid: s.small, handle: OpenHandle(2), data: b"abc", mtime: c.now() };
        told(c.call(&store).await, entry)
    }),
    case!("end of data", "move_data", |c, s| told(c.call(&MoveData { fid: s.small }).await, entry)),
    case!("layout of a file", "", |c, s| {
        let template = LayoutTemplate {
            stripe_count: 2,
            stripe_bytes: 1 << 20,
            first_ost: 1,
            ..LayoutTemplate::default()
        };
        let args = SetLayout { fid: s.file, template, caller: Caller::root(), time: c.now() };
        told(c.call(&args).await, entry)
    }),
    case!("file lock", "", |c, s| {
        told(c.call(&lock(s.open, FlockType::Write)).await, |r| format!("{:?}", r.outcome))
    }),
    case!("sequence", "", |c, s| told(c.call(&GrantSeq {}).await, |r| format!("{:?}", r.seq))),
    case!("batch", "rename", |c, s| {
        let (caller, time) = (Caller::root(), c.now());
        let name = |parent, name| Unlink {
            parent,
            name,
            directory: false,
            caller: Caller::root(),
            time,
            reported: Fid::default(),
        };
        let new = Create {
            parent: s.dir,
            name: Some(name_of(b"in batch")),
            fid: c.new_fid().await,
            mode: REG,
            rdev: 0,
            target: b"",
            layout: None,
            open: Some(OpenHow { handle: OpenHandle(12), flags: O_RDWR }),
            exclusive: true,
            caller: caller.clone(),
            time,
        };
        let renamed = Rename {
            parent: s.dir,
            name: name_of(b"in batch"),
            new_parent: ROOT,
            new_name: name_of(b"out"),
            flags: 0,
            caller,
            time,
            reported: Fid::default(),
            whiteout: None,
        };
        let operations = vec![
            sub(&new),
            sub(&new),
            sub(&renamed),
            sub(&name(ROOT, name_of(b"other"))),
            sub(&name(ROOT, name_of(b"nothing"))),
            sub(&setattr(&c, s.file, SetAttr { mode: Some(0o600), ..SetAttr::default() })),
            sub(&Close {
                fid: s.open,
                handle: OpenHandle(1),
                dirty: false,
                written: None,
                atime: None,
                data: None,
            }),
        ];
        told(c.call(&Batch { stop_at_error: false, operations }).await, |r| {
            let show = |r: &SubResult| match (r.status.number(), CreateReply::from_slice(&r.body)) {
                (0, Ok(reply)) => created(&reply),
                (0, Err(_)) => EntryReply::from_slice(&r.body).map_or("done".into(), |r| entry(&r)),
                (status, _) => format!("error {status}"),
            };
            r.results.iter().map(show).collect::<Vec<_>>().join("; ")
        })
    }),
];

/// Everything that is there, without times.
async fn tree(c: Rc<Client>, set: Set) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![(ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        for e in c.readdir(dir, 0, 1000).await.entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&e.name));
            found.push(format!("{path} {}", told(c.getattr(e.fid).await, attr)));
            if e.file_type == FileType::Directory {
                todo.push((e.fid, path));
            }
        }
    }
    let data = c.call(&ReadData { fid: set.small }).await.map(|r| r.data);
    found.push(format!("{data:?} {:?}", c.getattr(set.small).await.map(|a| attr(&a))));
    for fid in [set.file, set.open] {
        let names = c.call(&Listxattr { fid }).await.map(|r| r.names);
        found.push(format!("{names:?} {:?}", c.getattr(fid).await.map(|a| attr(&a))));
    }
    let opens = param(&c, "mdt.*.open_files").await;
    found.push(format!("{} opens, {} locks", opens, param(&c, "mdt.*.file_locks").await));
    found.sort();
    found
}
/// How often the MDT has executed what this counter counts, since its start.
async fn executed(c: &Client, counter: &str) -> u64 {
    let stats = param(c, "mdt.*.md_stats").await;
    let line = stats.lines().find(|l| l.split_whitespace().next() == Some(counter));
    line.map_or(0, |l| l.split_whitespace().nth(1).unwrap().parse().unwrap())
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    None,
    /// The client hears nothing until it gives the connection up.
    Reply,
    /// The MDT dies with its reply.
    ReplyAndKill,
}

fn run_case(case: &Case, loss: Loss) -> (String, Vec<String>, u64) {
    let (_, counter, change) = *case;
    let mut c = Cluster::new(77, 2, 1);
    let set = c.run(0, set_up);
    let before = c.run(0, move |c| async move { executed(&c, counter).await });
    let pending = {
        let node = c.client_node(0);
        if loss != Loss::None {
            c.world.deafen(node, true);
        }
        let pending = c.start(0, move |c| change(c, set));
        // A sequence is durable before it is acknowledged.
        c.run_ms(200);
        if loss == Loss::ReplyAndKill {
            c.restart();
        }
        if loss != Loss::None {
            assert!(pending.borrow().is_none(), "the reply has come");
            // Nothing heard for so long: the connection is given up.
            c.run_ms(7500);
            c.world.deafen(node, false);
        }
        pending
    };
    let said = c.wait(&pending);
    let after = c.run(0, move |c| async move { executed(&c, counter).await });
    let there = c.run(0, move |c| tree(c, set));
    c.check();
    (said, there, if loss == Loss::ReplyAndKill { after } else { after - before })
}

#[test]
fn a_change_whose_reply_is_lost_has_happened_once_and_says_the_same() {
    for case in CASES {
        let (name, counter, _) = case;
        let (said, there, _) = run_case(case, Loss::None);
        // What failed changed nothing and has no record: it is executed again, and fails again.
        let failed = said == "EEXIST" || said == "ENOENT";
        for loss in [Loss::Reply, Loss::ReplyAndKill] {
            let (again, then, times) = run_case(case, loss);
            assert_eq!((&again, &then), (&said, &there), "{name}, lost: {loss:?}");
            let expected = match loss {
                Loss::ReplyAndKill => u64::from(failed),
                Loss::None | Loss::Reply => 1 + u64::from(failed),
            };
            assert!(
                counter.is_empty() || times == expected,
                "{name}, lost: {loss:?}: executed {times} times"
            );
        }
    }
    // Nothing was forgotten.
    let modifying = (0..=0xff).filter_map(Opcode::from_number).filter(|o| {
        matches!(o.class(), nacre_wire::Class::Modify | nacre_wire::Class::Close)
            && ((0x20..0x40).contains(&o.number()) || *o == Opcode::MoveData)
    });
    let covered = [
        Opcode::GrantSeq,
        Opcode::Create,
        Opcode::Open,
        Opcode::Close,
        Opcode::Link,
        Opcode::Unlink,
        Opcode::Rename,
        Opcode::Setattr,
        Opcode::ReportSize,
        Opcode::Setxattr,
        Opcode::Removexattr,
        Opcode::Flock,
        Opcode::SetLayout,
        Opcode::StoreData,
        Opcode::MoveData,
        Opcode::Batch,
    ];
    // A cancel is tested with the locks: what it says depends on who was first.
    let missing: Vec<Opcode> =
        modifying.filter(|o| !covered.contains(o) && *o != Opcode::FlockCancel).collect();
    assert_eq!(missing, [], "a kind of change without a case");
}
