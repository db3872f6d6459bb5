//! Databases as SQLite keeps them (a rollback journal beside the file, fcntl locks on its bytes), used by two mounts while
//! mounts stand still for longer than their leases, servers are killed and stores run full. When all is quiet the database is
//! what a transaction has left: never parts of two, and never without one whose COMMIT was acknowledged.

mod support;

use nacre_client::Client;
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;

use nacre_types::{Errno, Failure, Fid, OpenHandle, SetAttr};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use support::{FILE, MDT, MS, OST, SEC, caller, create, on_devices, read, run, write};

const PAGE: u64 = 4096;
const PENDING: u64 = 0x4000_0000;
const RESERVED: u64 = PENDING + 1;
const SHARED: (u64, u64) = (PENDING + 2, PENDING + 511);
const MAGIC: u64 = 0xd9d5_05f9_20a1_63d7;
const JOURNAL: &str = "db-journal";

/// How a journal ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Delete,
    Truncate,
    Persist,
}

/// A transaction: what it was made on, the pages that it writes, and the size that it leaves.
#[derive(Debug, Clone)]
struct Made {
    before: u64,
    pages: Vec<u64>,
    size: u64,
    committed: bool,
}
type History = Arc<Mutex<BTreeMap<u64, Made>>>;

fn page(number: u64, made: u64) -> Vec<u8> {
    let mut bytes = vec![(made ^ number) as u8; PAGE as usize];
    bytes[..8].copy_from_slice(&made.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
}

/// A process with the database open.
struct Process {
    client: Rc<Client>,
    pid: u32,
    mode: Mode,
    database: Fid,
    handle: OpenHandle,
}
impl Process {
    async fn open(client: Rc<Client>, pid: u32, mode: Mode, database: Fid) -> Result<Self, Failure> {
        let (_, handle) = client.open(database, 2, caller()).await?;
        Ok(Self { client, pid, mode, database, handle })
    }
    async fn leave(self) {
        // After an eviction the locks are gone already.
        let _ = self.client.flush(self.handle, u64::from(self.pid)).await;
        let _ = self.client.release(self.handle, None).await;
    }
    fn asked(&self, kind: FlockType, (start, end): (u64, u64)) -> FileLock {
        let (family, owner) = (FlockFamily::Posix, u64::from(self.pid));
        FileLock { family, kind, start, end, owner, pid: self.pid }
    }
    async fn lock(&self, kind: FlockType, range: (u64, u64)) -> Result<bool, Failure> {
        let outcome = self.client.flock(self.handle, self.asked(kind, range), false).await?;
        Ok(outcome == FlockOutcome::Granted)
    }
    async fn unlock(&self) -> Result<(), Failure> {
        self.lock(FlockType::Unlock, (PENDING, SHARED.1)).await.map(drop)
    }
    /// As a front end asks before every change.
    fn may_change(&self) -> Result<(), Failure> {
        Ok(self.client.may_change(self.pid, None)?)
    }
    async fn write(&self, handle: OpenHandle, at: u64, data: Vec<u8>) -> Result<(), Failure> {
        self.may_change()?;
        write(&self.client, handle, at, data).await.map(drop)
    }
    async fn truncate(&self, handle: OpenHandle, fid: Fid, size: u64) -> Result<(), Failure> {
        self.may_change()?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.client.setattr_through(handle, fid, set, caller()).await.map(drop)
    }
    async fn sync(&self, handle: OpenHandle, fid: Fid) -> Result<(), Failure> {
        self.client.fsync(fid, Some(handle)).await
    }
    async fn read(&self, handle: OpenHandle, at: u64, len: u64) -> Result<Vec<u8>, Failure> {
        Ok(self.client.read(handle, at, len as u32).await?.concat())
    }
    async fn size(&self) -> Result<u64, Failure> {
        Ok(self.client.getattr(self.database).await?.attr.size)
    }
    async fn journal(&self) -> Result<Option<Fid>, Failure> {
        match self.client.lookup(Fid::ROOT, JOURNAL.as_bytes()).await {
            Ok(entry) if entry.attr.size > 0 => Ok(Some(entry.attr.fid)),
            Ok(_) | Err(Failure::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
    /// Ends a journal: the moment of a COMMIT, or the end of a rollback.
    async fn end_journal(&self, handle: OpenHandle, fid: Fid) -> Result<(), Failure> {
        match self.mode {
            Mode::Delete => {
                self.may_change()?;
                self.client.unlink(Fid::ROOT, JOURNAL.as_bytes(), false, caller()).await
            }
            Mode::Truncate => self.truncate(handle, fid, 0).await,
            Mode::Persist => {
                self.write(handle, 0, vec![0; 24]).await?;
                self.sync(handle, fid).await
            }
        }
    }
    /// Puts the pages of a journal back: the size first, as SQLite does.
    async fn play_back(&self, journal: OpenHandle) -> Result<bool, Failure> {
        let header = self.read(journal, 0, 24).await?;
        if word(&header, 0) != MAGIC {
            return Ok(false);
        }
        let (count, size) = (word(&header, 8), word(&header, 16));
        self.truncate(self.handle, self.database, size).await?;
        for n in 0..count {
            let record = self.read(journal, 512 + n * (PAGE + 8), PAGE + 8).await?;
            if record.len() as u64 != PAGE + 8 {
                return Err(Failure::EIO);
            }
            self.write(self.handle, word(&record, 0) * PAGE, record[8..].to_vec()).await?;
        }
        self.sync(self.handle, self.database).await?;
        Ok(true)
    }
    /// Rolls a hot journal back, if there is one. `false`: others are at work.
    async fn recover(&self) -> Result<bool, Failure> {
        let Some(fid) = self.journal().await? else { return Ok(true) };
        let reserved = self.asked(FlockType::Write, (RESERVED, RESERVED));
        if self.client.flock_test(self.database, reserved).await?.is_some() {
            return Ok(true); // its owner is alive
        }
        if !self.lock(FlockType::Write, (PENDING, SHARED.1)).await? {
            return Ok(false);
        }
        let Some(now) = self.journal().await?.filter(|now| *now == fid) else { return Ok(false) };
        let (_, handle) = self.client.open(now, 2, caller()).await?;
        let done = async {
            if self.play_back(handle).await? {
                self.end_journal(handle, now).await?;
            }
            Ok(true)
        };
        let done = done.await;
        let _ = self.client.release(handle, None).await; // its writes were synced
        done
    }

    /// One transaction. `Ok(false)`: the database is locked. What follows an error SQLite's pager decides: the journal is
    /// played back, and ended if that succeeds; else it stays hot.
    async fn transact(&self, number: u64, history: &History, random: u64) -> Result<bool, Failure> {
        if !(self.lock(FlockType::Read, (PENDING, PENDING)).await?
            && self.lock(FlockType::Read, SHARED).await?)
        {
            return Ok(false);
        }
        self.lock(FlockType::Unlock, (PENDING, PENDING)).await?;
        if !self.recover().await? {
            return Ok(false);
        }
        if !self.lock(FlockType::Write, (RESERVED, RESERVED)).await? {
            return Ok(false);
        }
        if self.journal().await?.is_some() && self.mode == Mode::Delete {
            return Ok(false); // hot, and its owner was alive a moment ago
        }
        let size = self.size().await?;
        let before = word(&self.read(self.handle, 0, 8).await?, 0);
        let pages = size / PAGE;
        let grown = pages + random % 3;
        let mut changed: Vec<u64> = (0..4).map(|n| (random >> (8 * n)) % pages.max(1)).collect();
        changed.extend(pages..grown);
        changed.push(0);
        changed.sort_unstable();
        changed.dedup();
        let made = Made { before, pages: changed.clone(), size: grown.max(1) * PAGE, committed: false };
        history.lock().expect("one thread").insert(number, made);

        self.may_change()?;
        let args = nacre_client::CreateArgs { exclusive: false, ..support::new(Fid::ROOT, JOURNAL, FILE) };
        let (entry, journal) = self.client.create(args, 2).await?;
        let done = self.write_all(journal, entry.attr.fid, size, number, &changed, grown).await;
        if done.is_err() && self.play_back(journal).await.is_ok() {
            // An error of this leaves the journal hot.
            let _ = self.end_journal(journal, entry.attr.fid).await;
        }
        let _ = self.client.release(journal, None).await;
        done?;
        if let Some(made) = history.lock().expect("one thread").get_mut(&number) {
            made.committed = true;
        }
        Ok(true)
    }
    async fn write_all(
        &self,
        journal: OpenHandle,
        fid: Fid,
        size: u64,
        number: u64,
        changed: &[u64],
        grown: u64,
    ) -> Result<(), Failure> {
        let old: Vec<u64> = changed.iter().copied().filter(|n| n * PAGE < size).collect();
        for (at, n) in (0..).zip(&old) {
            let mut record = n.to_le_bytes().to_vec();
            record.extend(self.read(self.handle, n * PAGE, PAGE).await?);
            self.write(journal, 512 + at * (PAGE + 8), record).await?;
        }
        self.sync(journal, fid).await?;
        let header = [MAGIC, old.len() as u64, size].map(u64::to_le_bytes).concat();
        self.write(journal, 0, header).await?;
        self.sync(journal, fid).await?;
        let mut tries_left = 20;
        while !self.lock(FlockType::Write, (PENDING, SHARED.1)).await? {
            tries_left -= 1;
            if tries_left == 0 {
                return Err(Failure::EAGAIN);
            }
            pause(&self.client, 20).await;
        }
        for n in changed {
            self.write(self.handle, n * PAGE, page(*n, number)).await?;
        }
        assert!(grown * PAGE >= size);
        self.sync(self.handle, self.database).await?;
        self.end_journal(journal, fid).await
    }
}

/// Lets some time pass.
async fn pause(client: &Client, rounds: u32) {
    for _ in 0..rounds {
        let _ = client.statfs().await; // whatever it says
    }
}

/// Transactions one after the other, each of a new process; how many were committed.
async fn work(
    client: Rc<Client>,
    base: u64,
    rounds: u64,
    mode: Mode,
    database: Fid,
    history: History,
) -> u64 {
    let (mut committed, mut random) = (0, nacre_node::Rng::new(base));
    for number in base + 1..=base + rounds {
        let Ok(process) = Process::open(client.clone(), number as u32, mode, database).await else {
            continue;
        };
        let done = process.transact(number, &history, random.next_u64()).await;
        committed += u64::from(done == Ok(true));
        if done.is_ok() {
            let _ = process.unlock().await; // the next use of the handle tells
        }
        process.leave().await;
    }
    committed
}

/// What a database holds against what its transactions have left.
fn check(bytes: &[u8], history: &BTreeMap<u64, Made>) -> Result<(), String> {
    let top = word(bytes, 0);
    let mut state: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut at, mut chain) = (top, Vec::new());
    while at != 0 {
        let made = history.get(&at).ok_or(format!("page 0 is of transaction {at}, which never was"))?;
        chain.push(at);
        made.pages.iter().for_each(|n| {
            state.entry(*n).or_insert(at);
        });
        at = made.before;
    }
    let size = history.get(&top).map_or(PAGE, |made| made.size);
    if bytes.len() as u64 != size {
        return Err(format!("{} bytes, transaction {top} has left {size}", bytes.len()));
    }
    for (n, found) in (0..).zip(bytes.chunks(PAGE as usize)) {
        let of = state.get(&n).copied().unwrap_or(0);
        if found != page(n, of) {
            return Err(format!("page {n} is of transaction {}, not of {of}", word(found, 0)));
        }
    }
    match history.iter().find(|(number, made)| made.committed && !chain.contains(number)) {
        Some((number, _)) => Err(format!("transaction {number} was committed and is not there")),
        None => Ok(()),
    }
}

/// Fills the OST by way of a mount, or gives the room back.
async fn fill(client: Rc<Client>, full: bool) {
    let Ok(entry) = client.lookup(Fid::ROOT, b"filler").await else { return };
    let Ok((_, handle)) = client.open(entry.attr.fid, 2, caller()).await else { return };
    if full {
        let mut at = client.getattr(entry.attr.fid).await.map_or(0, |e| e.attr.size);
        for piece in [1 << 20, 64 << 10, 4096] {
            while write(&client, handle, at, vec![7; piece]).await.is_ok() {
                at += piece as u64;
            }
        }
    } else {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let _ = client.setattr(entry.attr.fid, set, caller()).await; // tried again by the next
    }
    let _ = client.release(handle, None).await;
}

/// One history; gives how many transactions were committed and what is wrong with the database.
fn play(seed: u64, mode: Mode, full: bool) -> (u64, Result<(), String>) {
    let mut c = on_devices(seed, 3);
    let [a, b, third] = [c.mounts[0], c.mounts[1], c.mounts[2]];
    let database = run(&mut c, third, async |client| {
        let (_, handle) = create(&client, "filler").await?;
        client.release(handle, None).await?;
        let (fid, handle) = create(&client, "db").await?;
        write(&client, handle, 0, page(0, 0)).await?;
        client.fsync(fid, Some(handle)).await?;
        client.release(handle, None).await?;
        Ok::<_, Failure>(fid)
    });
    let database = database.expect("made");
    let history = History::default();
    let (mut base, mut committed) = (seed * 1_000_000, 0);
    let mut start = |c: &mut Cluster, mount: NodeId, rounds: u64| {
        base += 100;
        let (history, base) = (history.clone(), base);
        c.jobs.start(&mut c.world, mount, move |client| work(client, base, rounds, mode, database, history))
    };
    for _ in 0..6 {
        let mut jobs = vec![start(&mut c, a, 8), start(&mut c, b, 8)];
        let busy = c.world.rng().below(60 * MS);
        c.world.run_for(busy);
        let [stopped, other] = if c.world.rng().below(2) == 0 { [a, b] } else { [b, a] };
        c.world.pause(stopped, true);
        if full && c.world.rng().below(3) > 0 {
            c.jobs.start(&mut c.world, third, async |client| fill(client, true).await);
        }
        if c.world.rng().below(3) == 0 {
            let server = [MDT, OST][c.world.rng().below(2) as usize];
            let (node, down) = (c.servers[server], 100 * MS + c.world.rng().below(SEC));
            c.world.kill(node);
            c.world.start_later(node, down);
        }
        let stands_still = 9 * SEC + c.world.rng().below(5 * SEC);
        c.world.run_for(stands_still);
        jobs.push(start(&mut c, other, 3)); // rolls back what is hot
        let begun = c.world.rng().below(100 * MS);
        c.world.run_for(begun);
        c.world.pause(stopped, false);
        committed += jobs.into_iter().map(|job| support::wait::<u64>(&mut c, job)).sum::<u64>();
        run(&mut c, third, async |client| fill(client, false).await);
    }
    // Whoever opens it next rolls back what is hot.
    let opened = run(&mut c, third, async move |client| {
        for _ in 0..100 {
            let process = Process::open(client.clone(), 9999, mode, database).await?;
            let done = process.recover().await?;
            process.unlock().await?;
            process.leave().await;
            if done {
                return Ok(());
            }
        }
        Err(Failure::EAGAIN)
    });
    let bytes = read(&mut c, third, database).expect("readable");
    let checked = opened.map_err(|e: Failure| format!("it cannot be opened: {e}"));
    let history = history.lock().expect("nobody else");
    (committed, checked.and_then(|()| check(&bytes, &history)))
}

#[test]
fn a_database_is_what_a_transaction_has_left_whatever_happens_to_mounts_servers_and_space() {
    let mut committed = 0;
    for seed in 1..=2 {
        for mode in [Mode::Delete, Mode::Truncate, Mode::Persist] {
            let (count, whole) = play(seed, mode, seed % 2 == 1);
            assert_eq!(whole, Ok(()), "seed {seed}, {mode:?}");
            committed += count;
        }
    }
    assert!(committed > 50, "{committed} transactions");
}

/// A mount stands still with a hot journal; another takes its locks and makes a journal of its own; the first is back.
#[test]
fn a_journal_of_the_next_holder_is_not_removed_by_who_has_lost_the_locks() {
    for seed in 1..=4 {
        for mode in [Mode::Delete, Mode::Truncate, Mode::Persist] {
            let mut c = on_devices(seed, 2);
            let [sleeper, other] = [c.mounts[0], c.mounts[1]];
            let (database, journal, handles) = run(&mut c, sleeper, async move |client| {
                let (database, first) = create(&client, "db").await?;
                let (journal, second) = create(&client, JOURNAL).await?;
                let process = Process { client, pid: 1, mode, database, handle: first };
                assert!(process.lock(FlockType::Write, (PENDING, SHARED.1)).await?);
                process.write(second, 0, vec![1; 100]).await?;
                Ok::<_, Failure>((database, journal, [first, second]))
            })
            .expect("a transaction has begun");
            c.world.pause(sleeper, true);
            c.world.run_for(15 * SEC);
            run(&mut c, other, async move |client| {
                let process = Process::open(client.clone(), 2, mode, database).await?;
                assert!(process.lock(FlockType::Write, (PENDING, SHARED.1)).await?);
                let (_, handle) = client.open(journal, 2, caller()).await?;
                process.write(handle, 0, vec![2; 100]).await
            })
            .expect("the other has the locks");
            c.world.pause(sleeper, false);
            let [first, second] = handles;
            let (ended, neighbour, child, then) = run(&mut c, sleeper, async move |client| {
                client.getattr(database).await?; // the eviction is known
                let process = Process { client: client.clone(), pid: 1, mode, database, handle: first };
                let ended = process.end_journal(second, journal).await;
                let neighbour = client.may_change(7, Some(&[]));
                let child = client.may_change(8, Some(&[database]));
                client.release(first, None).await?;
                Ok::<_, Failure>((ended, neighbour, child, client.may_change(1, None)))
            })
            .expect("it goes on");
            let refused = Err(Errno::EIO);
            assert_eq!(ended, Err(Failure::EIO), "seed {seed}");
            assert_eq!((neighbour, child, then), (Ok(()), refused, Ok(())), "seed {seed}");
            assert_eq!(read(&mut c, other, journal), Ok(vec![2; 100]), "seed {seed}, {mode:?}");
        }
    }
}
