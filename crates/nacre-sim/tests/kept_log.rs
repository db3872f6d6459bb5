//! A mount in the process of its servers keeps writes, too, and the process may be killed at any instant: no acknowledged
//! write is missing afterwards, and no write is executed over what another mount has written since.

mod support;

use nacre_client::Client;
use nacre_sim::cluster::Cluster;
use nacre_sim::local_mount::LocalMount;
use nacre_sim::world::NodeId;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr};
use std::rc::Rc;
use support::{MS, SEC, append, caller, cluster, create, read, run, write, write_back};

/// A change of the file, and its effect on the bytes.
#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Append(Vec<u8>),
    Truncate(u64),
    Sync,
}
impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(offset, data) => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(data);
            }
            Self::Append(data) => bytes.extend(data),
            Self::Truncate(size) => bytes.resize(*size as usize, 0),
            Self::Sync => {}
        }
    }
    async fn execute(self, client: Rc<Client>, fid: Fid, handle: OpenHandle) -> Result<(), Failure> {
        match self {
            Self::Write(offset, data) => write(&client, handle, offset, data).await.map(drop),
            Self::Append(data) => append(&client, handle, data).await.map(drop),
            Self::Truncate(size) => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                client.setattr(fid, set, caller()).await.map(drop)
            }
            Self::Sync => client.fsync(fid, Some(handle)).await,
        }
    }
}

fn random_change(c: &mut Cluster, number: u8) -> Change {
    let rng = c.world.rng();
    // Short ones are kept, and so are those that are long enough for a buffer of their own. Others are sent at once.
    let len = [1, 90, 5000, 70_000, 300_000][rng.below(5) as usize];
    match rng.below(10) {
        0 => Change::Truncate(rng.below(20_000)),
        1 => Change::Sync,
        2..=4 => Change::Append(vec![number; len]),
        _ => Change::Write(rng.below(30_000 + len as u64), vec![number; len]),
    }
}
fn open(c: &mut Cluster, mount: NodeId, fid: Fid) -> OpenHandle {
    run(c, mount, async move |client| client.open(fid, 2, caller()).await).expect("opened").1
}
fn start_local(c: &mut Cluster, name: &str) -> LocalMount {
    let mount = c.add_local_mount(name);
    c.world.start(mount.node());
    let ready = run(c, mount.node(), async |client| client.ready().await);
    assert_eq!(ready, Ok(()));
    mount
}

/// Whether a part of the last change has been executed, which nobody has seen: the kill may tear a write that is sent at
/// once. Long ones are, and short ones that cannot be kept because another mount may use the file.
fn is_torn(seen: &[u8], before: &[u8], after: &[u8], last: Option<&Change>) -> bool {
    let is_write = matches!(last, Some(Change::Write(..) | Change::Append(_)));
    let has_length = [before.len(), after.len()].contains(&seen.len());
    let is_one_of = |(at, byte): (usize, &u8)| [before.get(at), after.get(at)].contains(&Some(byte));
    is_write && has_length && seen.iter().enumerate().all(is_one_of)
}

/// The last change, and where the bytes differ: each place, the byte that is there, and those without and with that change.
fn difference(seen: &[u8], before: &[u8], after: &[u8], last: Option<&Change>) -> String {
    let last = match last {
        Some(Change::Write(at, data)) => format!("write of {} bytes {} at {at}", data.len(), data[0]),
        Some(Change::Append(data)) => format!("append of {} bytes {}", data.len(), data[0]),
        other => format!("{other:?}"),
    };
    let mut places: Vec<(usize, [Option<&u8>; 3])> = Vec::new();
    for at in 0..seen.len().max(before.len()).max(after.len()) {
        let bytes = [seen.get(at), before.get(at), after.get(at)];
        let is_same = bytes[0] == bytes[1] && bytes[0] == bytes[2];
        if !is_same && places.last().is_none_or(|(_, earlier)| *earlier != bytes) {
            places.push((at, bytes));
        }
    }
    format!("last: {last}; {} bytes, {places:?}", seen.len())
}

/// The other mount sees everything, and then changes it.
fn change_elsewhere(c: &mut Cluster, fid: Fid, bytes: &mut Vec<u8>, change: &Change) {
    let other = c.mounts[0];
    let seen = read(c, other, fid);
    assert!(seen == Ok(bytes.clone()), "{}", c.world.trace(60));
    let theirs = open(c, other, fid);
    let execute = change.clone();
    let done = run(c, other, async move |client: Rc<Client>| {
        execute.execute(client.clone(), fid, theirs).await?;
        client.release(theirs, None).await
    });
    assert_eq!(done, Ok(()));
    change.apply(bytes);
}

/// Changes the file through both mounts. Returns a change of the local mount that has not ended.
fn live(c: &mut Cluster, local: NodeId, fid: Fid, bytes: &mut Vec<u8>, life: u8) -> Option<Change> {
    let handle = open(c, local, fid);
    for number in 0..=c.world.rng().below(30) {
        let change = random_change(c, life * 50 + number as u8);
        if c.world.rng().below(8) == 0 {
            change_elsewhere(c, fid, bytes, &change);
            continue;
        }
        let execute = change.clone();
        let job = c.jobs.start(&mut c.world, local, async move |client: Rc<Client>| {
            execute.execute(client, fid, handle).await
        });
        let limit = if number % 5 == 4 { c.world.rng().below(3 * MS) } else { 60 * SEC };
        match c.jobs.wait::<Result<(), Failure>>(&mut c.world, job, limit) {
            Some(done) => assert_eq!(done, Ok(())),
            None => return Some(change),
        }
        change.apply(bytes);
        if c.world.rng().below(10) == 0 {
            let pause = c.world.rng().below(700 * MS);
            c.world.run_for(pause);
        }
    }
    None
}

#[test]
fn a_process_that_is_killed_at_any_instant_loses_no_acknowledged_write() {
    let mut executed = 0;
    for seed in 1..=40 {
        let mut c = cluster(seed, 2, 1);
        let other = c.mounts[0];
        let mut local = start_local(&mut c, "local0");
        let made = run(&mut c, local.node(), async |client| create(&client, "file").await);
        let (fid, _) = made.expect("created");
        let mut bytes: Vec<u8> = Vec::new();
        for life in 1..=4u8 {
            let unanswered = live(&mut c, local.node(), fid, &mut bytes, life);
            c.kill_process_with(&local, 50 * MS);
            executed += c.left_writes_given();
            if c.world.rng().below(3) == 0 {
                // The OSTs die once more, in the middle of their start or a moment later.
                let pause = 50 * MS + c.world.rng().below(20 * MS);
                c.world.run_for(pause);
                for &server in &c.servers[2..] {
                    c.world.kill(server);
                    c.world.start(server);
                }
            }
            let seen = read(&mut c, other, fid).expect("the mount returns");
            let mut with_last = bytes.clone();
            if let Some(change) = &unanswered {
                change.apply(&mut with_last);
            }
            let is_whole = seen == bytes || seen == with_last;
            assert!(
                is_whole || is_torn(&seen, &bytes, &with_last, unanswered.as_ref()),
                "seed {seed}, life {life}: {}\n{}",
                difference(&seen, &bytes, &with_last, unanswered.as_ref()),
                c.world.trace(80)
            );
            bytes = seen;
            local = start_local(&mut c, &format!("local{life}"));
        }
    }
    assert!(executed > 5, "only {executed} writes were left to the OSTs");
}

/// The log is given to an OST again, which has executed it: another mount has changed the bytes meanwhile.
#[test]
fn a_log_is_executed_once() {
    for seed in 1..=4 {
        let mut c = cluster(seed, 2, 1);
        let other = c.mounts[0];
        let local = start_local(&mut c, "local");
        let made = run(&mut c, local.node(), async |client| {
            let (fid, handle) = create(&client, "file").await?;
            write(&client, handle, 0, vec![1; 9000]).await?;
            Ok::<_, Failure>(fid)
        });
        let fid = made.expect("written");
        c.kill_process_with(&local, 50 * MS);
        assert!(c.left_writes_given() > 0, "seed {seed}");
        assert_eq!(read(&mut c, other, fid), Ok(vec![1; 9000]), "seed {seed}");
        let theirs = open(&mut c, other, fid);
        let wrote = run(&mut c, other, async move |client| write(&client, theirs, 10, vec![2; 5000]).await);
        assert_eq!(wrote, Ok(5000));
        for &server in &c.servers {
            c.world.kill(server);
            c.world.start(server);
        }
        let mut expected = vec![1; 9000];
        expected[10..5010].fill(2);
        assert!(read(&mut c, other, fid) == Ok(expected), "seed {seed}");
    }
}

/// The same for a file whose bytes are at the MDT, or on their way to the objects.
#[test]
fn a_killed_process_loses_no_acknowledged_write_of_a_small_file() {
    for seed in 1..=32 {
        let mut c = cluster(seed, 2, 1);
        c.keep_data_at_mdt(1000).expect("the root has a layout");
        let other = c.mounts[0];
        let mut local = start_local(&mut c, "local0");
        for life in 1..=4u8 {
            let name = format!("file{life}");
            let made = run(&mut c, local.node(), async move |client| create(&client, &name).await);
            let (fid, handle) = made.expect("created");
            let (mut bytes, mut last) = (Vec::new(), None);
            for number in 1..=c.world.rng().below(8) as u8 {
                let rng = c.world.rng();
                let data = vec![number; [1, 90, 300][rng.below(3) as usize]];
                let change = match rng.below(8) {
                    0 => Change::Truncate(rng.below(800)),
                    1 => Change::Sync,
                    2..=4 => Change::Append(data),
                    _ => Change::Write(rng.below(800), data),
                };
                let execute = change.clone();
                let job = c.jobs.start(&mut c.world, local.node(), async move |client: Rc<Client>| {
                    execute.execute(client, fid, handle).await
                });
                let limit = if number == 7 { c.world.rng().below(2 * MS) } else { 60 * SEC };
                match c.jobs.wait::<Result<(), Failure>>(&mut c.world, job, limit) {
                    Some(done) => assert_eq!(done, Ok(())),
                    None => {
                        last = Some(change);
                        break;
                    }
                }
                change.apply(&mut bytes);
                let pause = [0, 0, c.world.rng().below(700 * MS)][usize::from(number % 3)];
                c.world.run_for(pause);
            }
            if last.is_none() && c.world.rng().below(3) == 0 {
                let closed =
                    run(&mut c, local.node(), async move |client| client.release(handle, None).await);
                assert_eq!(closed, Ok(()));
                let pause = c.world.rng().below(200 * MS);
                c.world.run_for(pause);
            }
            c.kill_process_with(&local, 50 * MS);
            if c.world.rng().below(3) == 0 {
                // The MDT dies once more, in the middle of its start or a moment later.
                let pause = 50 * MS + c.world.rng().below(20 * MS);
                c.world.run_for(pause);
                c.world.kill(c.servers[1]);
                c.world.start(c.servers[1]);
            }
            let seen = read(&mut c, other, fid).expect("the mount returns");
            let mut with_last = bytes.clone();
            last.iter().for_each(|change| change.apply(&mut with_last));
            assert!(
                seen == bytes || seen == with_last,
                "seed {seed}, life {life}: {} bytes, expected {} or {}, after {last:?}\n{}",
                seen.len(),
                bytes.len(),
                with_last.len(),
                c.world.trace(80)
            );
            local = start_local(&mut c, &format!("local{life}"));
        }
    }
}

/// The OSTs are in other processes: nobody executes the kept writes there.
#[test]
fn a_killed_process_without_osts_loses_no_acknowledged_write_of_a_small_file() {
    for seed in 1..=12 {
        let mut c = cluster(seed, 2, 1);
        write_back(&mut c);
        c.keep_data_at_mdt(1000).expect("the root has a layout");
        let other = c.mounts[0];
        let local = start_local(&mut c, "local");
        let made = run(&mut c, local.node(), async move |client| {
            let (fid, handle) = create(&client, "file").await?;
            write(&client, handle, 0, vec![1; 500]).await?;
            client.fsync(fid, Some(handle)).await?;
            append(&client, handle, vec![2; 10]).await?;
            Ok::<_, Failure>(fid)
        });
        let fid = made.expect("written");
        let servers = c.servers[..2].to_vec();
        c.kill_process_of(&local, &servers, 50 * MS);
        assert!(c.left_writes_given() > 0, "seed {seed}");
        let mut expected = vec![1; 500];
        expected.extend([2; 10]);
        let killed_at = c.world.now_ns();
        assert!(read(&mut c, other, fid) == Ok(expected.clone()), "seed {seed}\n{}", c.world.trace(60));
        // The MDT waits one lease for the clients of the killed process, and not one more for their locks before that.
        let took = c.world.now_ns() - killed_at;
        assert!(took < 15 * SEC, "seed {seed}: {} ms", took / MS);

        // The log is given to the MDT again, after another mount has changed the file.
        let theirs = open(&mut c, other, fid);
        let wrote = run(&mut c, other, async move |client| {
            write(&client, theirs, 10, vec![3; 20]).await?;
            client.fsync(fid, Some(theirs)).await?;
            client.release(theirs, None).await
        });
        assert_eq!(wrote, Ok(()));
        let layout = run(&mut c, other, async move |client| client.layout(fid).await).expect("told").layout;
        assert_eq!(layout.expect("a file").dom_bytes, 1000, "seed {seed}: the MDT has the bytes");
        c.world.kill(servers[1]);
        c.world.start(servers[1]);
        expected[10..30].fill(3);
        assert!(read(&mut c, other, fid) == Ok(expected.clone()), "seed {seed}");
        let theirs = open(&mut c, other, fid);
        let grown = run(&mut c, other, async move |client| append(&client, theirs, vec![4; 600]).await);
        assert_eq!(grown, Ok(600));
        expected.extend([4; 600]);
        assert!(read(&mut c, other, fid) == Ok(expected), "seed {seed}");
    }
}

/// The log is given to an MDT again that has executed it: another mount has changed the file meanwhile, and it has moved.
#[test]
fn a_log_of_small_files_is_executed_once() {
    for seed in 1..=4 {
        let mut c = cluster(seed, 2, 1);
        c.keep_data_at_mdt(1000).expect("the root has a layout");
        let other = c.mounts[0];
        let local = start_local(&mut c, "local");
        let made = run(&mut c, local.node(), async |client| {
            let (fid, handle) = create(&client, "file").await?;
            write(&client, handle, 0, vec![1; 900]).await?;
            Ok::<_, Failure>(fid)
        });
        let fid = made.expect("written");
        c.kill_process_with(&local, 50 * MS);
        assert!(c.left_writes_given() > 0, "seed {seed}");
        assert_eq!(read(&mut c, other, fid), Ok(vec![1; 900]), "seed {seed}");
        let truncate = |size| {
            async move |client: Rc<Client>| {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                client.setattr(fid, set, caller()).await.map(|entry| entry.attr.size)
            }
        };
        assert_eq!(run(&mut c, other, truncate(100)), Ok(100));
        for &server in &c.servers {
            c.world.kill(server);
            c.world.start(server);
        }
        assert_eq!(read(&mut c, other, fid), Ok(vec![1; 100]), "seed {seed}");
        // What the OST has executed of the log is cut.
        assert_eq!(run(&mut c, other, truncate(5000)), Ok(5000));
        let mut expected = vec![1; 100];
        expected.resize(5000, 0);
        assert!(read(&mut c, other, fid) == Ok(expected), "seed {seed}");
    }
}

/// The MDT does not wait for locks of an earlier start before it serves anyone: others have none of a file that a mount keeps.
#[test]
fn a_start_that_stores_kept_bytes_does_not_wait_for_leases() {
    let mut c = cluster(1, 2, 1);
    c.keep_data_at_mdt(1000).expect("the root has a layout");
    let other = c.mounts[0];
    let local = start_local(&mut c, "local");
    let made = run(&mut c, local.node(), async |client| {
        let (_, handle) = create(&client, "file").await?;
        write(&client, handle, 0, vec![1; 300]).await.map(drop)
    });
    assert_eq!(made, Ok(()));
    c.kill_process_with(&local, 50 * MS);
    assert!(c.left_writes_given() > 0);
    let asked = c
        .jobs
        .start(&mut c.world, other, async |client: Rc<Client>| client.getattr(Fid::ROOT).await.map(drop));
    // One lease is that of the mount that is gone: the recovery waits for it.
    let replied: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, asked, 15 * SEC);
    assert_eq!(replied, Some(Ok(())), "{}", c.world.trace(60));
}
