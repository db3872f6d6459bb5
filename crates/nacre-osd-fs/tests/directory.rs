//! Opening, locking, formatting; bounds on descriptors; what is foreign stays.

use bytes::Bytes;
use nacre_node::{FileId, Keep, ReadFrom, Store, StoreDone, StoreError, StoreOp, WriteTo};
use nacre_osd_fs::{FsConfig, FsStore, OpenError};
use nacre_testkit::contract::blob;
use std::fs;
use std::path::Path;
use std::process::Command;

fn open(dir: &Path) -> Result<FsStore, OpenError> {
    FsStore::open(dir, &FsConfig::default())
}
fn format(dir: &Path, reformat: bool) -> Result<FsStore, OpenError> {
    FsStore::format(dir, &FsConfig::default(), reformat)
}
fn refusal(result: Result<FsStore, OpenError>) -> String {
    match result {
        Ok(_) => panic!("was not refused"),
        Err(error) => error.to_string(),
    }
}
fn write(store: &FsStore, file: FileId, text: &'static [u8]) {
    let data = vec![Bytes::from_static(text)];
    assert_eq!(store.execute(StoreOp::Write { file, offset: 0, data }), Ok(StoreDone::Unit));
}
fn read(store: &FsStore, file: FileId) -> Result<StoreDone, StoreError> {
    store.execute(StoreOp::Read { file, offset: 0, len: 100 })
}

#[test]
fn the_second_server_is_told_who_the_first_is() {
    let dir = tempfile::tempdir().unwrap();
    let first = format(dir.path(), false).unwrap();
    let text = refusal(open(dir.path()));
    let me = format!("is in use by process {} (`", std::process::id());
    assert!(text.contains(&me), "{text}");
    assert!(text.contains("since 20") && text.contains(" UTC"), "{text}");
    assert!(refusal(format(dir.path(), true)).contains(&me));
    let holder = FsStore::holder(dir.path()).unwrap().unwrap();
    assert!(holder.is_running_here());
    drop(first);
    assert_eq!(FsStore::holder(dir.path()).unwrap(), None);
    drop(open(dir.path()).unwrap());
}

/// Whether the page cache has the second MiB of a blob that was written with one request of 2 MiB.
fn is_cached(store: &FsStore, n: u32, to: WriteTo) -> bool {
    let (file, len) = (blob(n), 2 << 20);
    let memory = Bytes::from(vec![7; len + 4096]);
    let start = memory.as_ptr().align_offset(4096);
    let op = StoreOp::WriteChecksummed {
        file,
        offset: 0,
        data: vec![memory.slice(start..start + len)],
        keep_head: Keep::Nothing,
        keep_tail: Keep::Nothing,
        size: len as u64,
        written_to: Some(0),
        to,
    };
    assert!(matches!(store.execute(op), Ok(StoreDone::Checksums(sums)) if sums.len() == len / 4096));
    let read = StoreOp::ReadWritten { file, offset: 1 << 20, len: 1 << 20, from: ReadFrom::Cache };
    match store.try_execute(read) {
        Ok(read) => matches!(read, Ok(StoreDone::Checksummed(bytes, _)) if bytes == vec![7; 1 << 20]),
        Err(_) => false,
    }
}

#[test]
fn a_long_write_goes_past_the_page_cache_if_the_writer_can_wait() {
    let dir = tempfile::tempdir().unwrap();
    let store = format(dir.path(), false).unwrap();
    if !matches!(&*store.features().file_system, "ext4" | "xfs") {
        return; // others accept such a write, and use the cache
    }
    assert!(is_cached(&store, 1, WriteTo::Cache));
    assert!(!is_cached(&store, 2, WriteTo::PastCache));
}

#[test]
fn bytes_stay_from_one_opening_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let store = format(&dir.path().join("new"), false).unwrap();
    write(&store, blob(1), b"hello");
    store.execute(StoreOp::Replace { file: FileId::Super, data: Bytes::from_static(b"label") }).unwrap();
    store.execute(StoreOp::Sync { file: blob(1) }).unwrap();
    drop(store);
    let store = open(&dir.path().join("new")).unwrap();
    assert_eq!(read(&store, blob(1)), Ok(StoreDone::Bytes(Bytes::from_static(b"hello"))));
    assert_eq!(read(&store, FileId::Super), Ok(StoreDone::Bytes(Bytes::from_static(b"label"))));
}

#[test]
fn what_is_not_ours_is_neither_formatted_nor_deleted() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(open(dir.path())).contains("is not a nacre store; `nacre mkfs` makes one"));
    assert!(refusal(open(&dir.path().join("none"))).contains("opening"));
    fs::write(dir.path().join("thesis"), "years of work").unwrap();
    let text = refusal(format(dir.path(), false));
    assert!(text.contains("is not empty") && text.contains("`thesis`"), "{text}");
    assert_eq!(refusal(format(dir.path(), true)), text, "a directory of others is no store to erase");
    fs::remove_file(dir.path().join("thesis")).unwrap();
    fs::create_dir(dir.path().join("log")).unwrap();
    fs::write(dir.path().join("log/syslog"), "foreign").unwrap();
    let store = format(dir.path(), false).unwrap();
    fs::write(dir.path().join("thesis"), "years of work").unwrap();
    store.execute(StoreOp::Replace { file: FileId::Super, data: Bytes::from_static(b"label") }).unwrap();
    write(&store, blob(1), b"hello");
    let far = StoreOp::Write { file: blob(1), offset: 1 << 50, data: vec![Bytes::from_static(b"far")] };
    store.execute(far).unwrap();
    store.execute(StoreOp::Create { file: FileId::Log(1), len: 5 }).unwrap();
    drop(store);

    // Without its label it is not taken for an empty directory.
    let aside = tempfile::tempdir().unwrap();
    let move_to = |from: &Path, to: &Path| {
        for name in ["super", "thesis"] {
            fs::rename(from.join(name), to.join(name)).unwrap();
        }
    };
    move_to(dir.path(), aside.path());
    for refused in [format(dir.path(), false), open(dir.path())] {
        let text = refusal(refused);
        assert!(text.contains("(`log/0000000000000001`), but not its label"), "{text}");
    }
    move_to(aside.path(), dir.path());

    let text = refusal(format(dir.path(), false));
    assert!(text.contains("holds a nacre store already; --reformat deletes everything in it"), "{text}");
    let store = format(dir.path(), true).unwrap();
    for file in [blob(1), FileId::Log(1), FileId::Super] {
        assert_eq!(store.execute(StoreOp::Len { file }), Ok(StoreDone::Len(None)));
    }
    assert_eq!(fs::read_to_string(dir.path().join("thesis")).unwrap(), "years of work");
    assert_eq!(fs::read_to_string(dir.path().join("log/syslog")).unwrap(), "foreign");
}

#[test]
fn descriptors_stay_within_their_bound() {
    let dir = tempfile::tempdir().unwrap();
    let config = FsConfig { descriptors_max: 16, ..FsConfig::default() };
    let store = FsStore::format(dir.path(), &config, false).unwrap();
    for n in 0..200 {
        write(&store, blob(n), b"x");
    }
    assert_eq!(store.descriptors(), 16);
    for n in 0..200 {
        assert_eq!(store.execute(StoreOp::Sync { file: blob(n) }), Ok(StoreDone::Unit));
    }
    assert_eq!(store.descriptors(), 16);
}

#[test]
fn a_store_takes_few_descriptors_and_gives_up_those_it_only_keeps() {
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let dir = tempfile::tempdir().unwrap();
    let before = open();
    let store = format(dir.path(), false).unwrap();
    // Other tests of this process open files, too.
    assert!(open() < before + 64, "{} and before {before}", open());
    for n in 0..100 {
        // Neighbours lie together: these are in as many directories as there can be.
        write(&store, blob(n * 1024), b"x");
        assert_eq!(store.execute(StoreOp::Sync { file: blob(n * 1024) }), Ok(StoreDone::Unit));
    }
    assert_eq!(store.descriptors(), 100);
}

#[test]
fn a_store_that_is_only_looked_at_is_locked_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let config = FsConfig::default();
    drop(format(dir.path(), false).unwrap());
    let looking = FsStore::open_read_only(dir.path(), &config).unwrap();
    assert!(refusal(open(dir.path())).contains("is in use by process"));
    assert!(refusal(FsStore::open_read_only(dir.path(), &config)).contains("is in use by process"));
    let data = vec![Bytes::from_static(b"x")];
    assert!(looking.execute(StoreOp::Write { file: blob(1), offset: 0, data }).is_err());
    assert_eq!(looking.execute(StoreOp::Len { file: blob(1) }), Ok(StoreDone::Len(None)));
    drop(looking);
    let store = open(dir.path()).unwrap();
    store.execute(StoreOp::Replace { file: FileId::Super, data: Bytes::from_static(b"label") }).unwrap();
    write(&store, blob(1), b"hello");
    drop(store);
    let looking = FsStore::open_read_only(dir.path(), &config).unwrap();
    assert_eq!(read(&looking, blob(1)), Ok(StoreDone::Bytes(Bytes::from_static(b"hello"))));
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let store = format(dir.path(), false).unwrap();
    write(&store, FileId::Run(1), b"x");
    fs::write(dir.path().join("target"), "secret").unwrap();
    let link = dir.path().join("runs/0000000000000002");
    std::os::unix::fs::symlink(dir.path().join("target"), link).unwrap();
    match read(&store, FileId::Run(2)) {
        Err(StoreError::Device(text)) => assert!(text.contains("opening") && text.contains("0002"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_log_segment_has_its_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let store = format(dir.path(), false).unwrap();
    store.execute(StoreOp::Create { file: FileId::Log(1), len: 1 << 20 }).unwrap();
    store.execute(StoreOp::Sync { file: FileId::Log(1) }).unwrap();
    let stat = fs::metadata(dir.path().join("log/0000000000000001")).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&stat);
    assert!(blocks * 512 >= 1 << 20, "{blocks}");
}

/// The directory is removed, or a part of it is moved away, while the store is open.
#[test]
fn what_lost_its_directory_is_told_by_the_next_sync_creation_or_question_for_space() {
    let gone = |result: Result<StoreDone, StoreError>| match result {
        Err(StoreError::Gone(text)) => assert!(text.contains("No such file or directory"), "{text}"),
        other => panic!("{other:?}"),
    };
    let (log, run) = (FileId::Log(1), FileId::Run(1));
    let with_files = |dir: &Path| {
        let store = format(dir, false).unwrap();
        store.execute(StoreOp::Create { file: log, len: 4096 }).unwrap();
        write(&store, run, b"rows");
        for file in [log, run] {
            assert_eq!(store.execute(StoreOp::Sync { file }), Ok(StoreDone::Unit));
        }
        store
    };
    let dir = tempfile::tempdir().unwrap();
    let store = with_files(&dir.path().join("a"));
    fs::remove_dir_all(dir.path().join("a")).unwrap();
    // The open files take it.
    write(&store, log, b"record");
    for file in [log, run] {
        gone(store.execute(StoreOp::Sync { file }));
    }
    gone(store.execute(StoreOp::Create { file: FileId::Log(2), len: 4096 }));
    gone(store.execute(StoreOp::Write { file: blob(1), offset: 0, data: vec![Bytes::from_static(b"x")] }));
    gone(store.execute(StoreOp::Replace { file: FileId::Super, data: Bytes::from_static(b"label") }));
    assert!(
        matches!(store.execute(StoreOp::Space), Err(StoreError::Gone(text)) if text.contains("was removed"))
    );
    // A segment that is not used any more may have been deleted before its first sync.
    assert_eq!(store.execute(StoreOp::SyncAside { file: log }), Ok(StoreDone::Unit));

    let store = with_files(&dir.path().join("b"));
    fs::rename(dir.path().join("b/log"), dir.path().join("b/elsewhere")).unwrap();
    gone(store.execute(StoreOp::Create { file: FileId::Log(2), len: 4096 }));
    assert!(matches!(store.execute(StoreOp::Space), Ok(StoreDone::Space(_))));
    // A directory that is moved as a whole is as good as before.
    fs::rename(dir.path().join("b/elsewhere"), dir.path().join("b/log")).unwrap();
    fs::rename(dir.path().join("b"), dir.path().join("c")).unwrap();
    store.execute(StoreOp::Create { file: FileId::Log(2), len: 4096 }).unwrap();
    assert_eq!(store.execute(StoreOp::Sync { file: FileId::Log(2) }), Ok(StoreDone::Unit));
}

/// Needs root for the mount; without, the test says so and passes.
#[test]
fn blobs_leave_inodes_for_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| Command::new("mount").args(args).arg(dir.path()).status().unwrap().success();
    if !rustix::process::geteuid().is_root() || !mount(&["-t", "tmpfs", "-o", "nr_inodes=4096", "none"]) {
        eprintln!("not root: nothing is tested");
        return;
    }
    let store = format(&dir.path().join("store"), false).unwrap();
    let write = |store: &FsStore, n| {
        let data = vec![Bytes::from_static(b"small")];
        store.execute(StoreOp::Write { file: blob(n), offset: 0, data })
    };
    let full = (1..).find(|n| write(&store, *n).is_err()).unwrap();
    assert_eq!(write(&store, full), Err(StoreError::NoSpace));
    assert!(full > 2000, "{full} blobs");
    let Ok(StoreDone::Space(space)) = store.execute(StoreOp::Space) else { panic!("no space") };
    assert_eq!(space.files_free, Some(0));
    assert_eq!(write(&store, 1), Ok(StoreDone::Unit), "it exists");
    for n in 0..20 {
        store.execute(StoreOp::Create { file: FileId::Log(n), len: 4096 }).unwrap();
    }
    for n in 1..=20 {
        store.execute(StoreOp::Delete { file: blob(n) }).unwrap();
    }
    assert_eq!(
        write(&store, full),
        Err(StoreError::NoSpace),
        "the segments have taken as many from the reserve"
    );
    store.execute(StoreOp::Delete { file: blob(21) }).unwrap();
    assert_eq!(write(&store, full), Ok(StoreDone::Unit));
    drop(store);
    assert!(Command::new("umount").arg(dir.path()).status().unwrap().success());
}
