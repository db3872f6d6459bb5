//! Work in which mounts meet on the same files at the same time. Several workers run on each mount.
//!
//! Each worker appends records to one file (every record must be in the file once and whole, and the records of one worker
//! in order); creates a series of names exclusively (each name has one winner); adds to a counter in a file under a file
//! lock (no addition may be lost); and fills a board over several stripes in one write (a read in one request sees one
//! fill, never a mixture).

use crate::execute::{names, read_all, resolve, write_handle};
use crate::mount::{JobId, Jobs};
use crate::ops::Op;
use crate::world::{NodeId, World};
use nacre_client::{Client, CreateArgs};
use nacre_types::{Caller, Failure, mode};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::rc::Rc;

const LOG: &str = "/common/log";
const COUNTER: &str = "/common/counter";
const BOARD: &str = "/common/board";
/// Over three stripes of the board, and less than a request of the kernel.
const BOARD_BYTES: usize = 150_000;
const ROUNDS: u32 = 4;
const WORKERS_PER_MOUNT: usize = 2;
const RECORD: usize = 48;

/// The operations that a worker has completed.
struct Deeds {
    worker: usize,
    won: Vec<u32>,
    failed: Option<String>,
}

/// Jobs of all workers.
pub struct Common {
    jobs: Vec<JobId>,
    family: FlockFamily,
    /// Servers will be killed.
    kills: bool,
    /// Virtual time of the latest start of workers.
    pub since_ns: u64,
}

/// The expected state.
pub struct Expected {
    workers: usize,
}

/// The state that a mount sees afterwards.
pub struct Seen {
    log: Vec<u8>,
    counter: Vec<u8>,
    board: Vec<u8>,
    names: usize,
}

impl Common {
    /// No workers yet. `family` is the kind of the lock around the counter.
    pub fn new(family: FlockFamily, kills: bool) -> Self {
        Self { jobs: Vec::new(), family, kills, since_ns: 0 }
    }
    /// Operations that create the common files, before any worker starts.
    pub fn set_up() -> Vec<Op> {
        let create = |path: &str, stripes| Op::Create { path: path.into(), exclusive: true, stripes };
        vec![Op::Mkdir("/common".into()), create(LOG, -1), create(COUNTER, 1), create(BOARD, 2)]
    }
    /// Operations that make the common files durable, before a loss that must not change them.
    pub fn sync() -> Vec<Op> {
        [LOG, COUNTER, BOARD].map(|path| Op::Fsync(path.into())).into()
    }
    /// Starts the workers of a mount.
    pub fn start(&mut self, world: &mut World, jobs: &mut Jobs, mount: NodeId) {
        self.since_ns = world.now_ns();
        for _ in 0..WORKERS_PER_MOUNT {
            let (number, family, kills) = (self.jobs.len(), self.family, self.kills);
            self.jobs.push(jobs.start(world, mount, move |client| work(client, number, family, kills)));
        }
    }
    /// Whether all workers have ended.
    pub fn is_done(&self, jobs: &Jobs) -> bool {
        self.jobs.iter().all(|&job| jobs.is_done(job))
    }
    /// Checks what the mounts say they did.
    pub fn take(self, jobs: &mut Jobs) -> Result<Expected, String> {
        let mut winners = vec![Vec::new(); ROUNDS as usize];
        for &job in &self.jobs {
            let deeds: Deeds = jobs.take(job).expect("all are done");
            if let Some(why) = deeds.failed {
                return Err(format!("common work of worker {}: {why}", deeds.worker));
            }
            for name in deeds.won {
                winners[name as usize].push(deeds.worker);
            }
        }
        for (name, winners) in winners.iter().enumerate() {
            if winners.len() != 1 {
                return Err(format!("exclusive create of n{name} was won by workers {winners:?}"));
            }
        }
        Ok(Expected { workers: self.jobs.len() })
    }
    /// Reads the common files through a mount, when all workers have ended.
    pub async fn read(client: Rc<Client>) -> Result<Seen, Failure> {
        let mut contents = Vec::new();
        for path in [LOG, COUNTER, BOARD] {
            let entry = resolve(&client, path).await?;
            let (_, handle) = client.open(entry.attr.fid, 0, Caller::root()).await?;
            let data = read_all(&client, handle, 0, 1 << 20).await;
            client.release(handle, None).await?;
            let data = data?;
            if data.len() as u64 != entry.attr.size {
                return Err(Failure::EIO);
            }
            contents.push(data);
        }
        let dir = resolve(&client, "/common").await?;
        let names = names(&client, dir.attr.fid, 1000, false).await?;
        let names = names.iter().filter(|name| name.starts_with('n')).count();
        let board = contents.pop().unwrap_or_default();
        let counter = contents.pop().unwrap_or_default();
        Ok(Seen { log: contents.pop().unwrap_or_default(), counter, board, names })
    }
}

impl Expected {
    /// Fails if an update was lost, torn or applied twice; the text says which.
    pub fn check(&self, seen: &Seen) -> Result<(), String> {
        let want = self.workers * ROUNDS as usize;
        if seen.counter.len() != want {
            return Err(format!(
                "the counter under flock is {}, expected {want}: an update was lost",
                seen.counter.len()
            ));
        }
        is_one_colour(&seen.board)?;
        if seen.names != ROUNDS as usize {
            return Err(format!("{} names were created, expected {ROUNDS}", seen.names));
        }
        if seen.log.len() != want * RECORD {
            return Err(format!("the log has {} bytes, expected {want} records of {RECORD}", seen.log.len()));
        }
        let mut next = vec![0u32; self.workers];
        for (at, bytes) in seen.log.chunks(RECORD).enumerate() {
            let found = (0..self.workers).find(|&m| bytes == record(m, next[m]).as_slice());
            match found {
                Some(worker) => next[worker] += 1,
                None => {
                    let text = String::from_utf8_lossy(bytes);
                    return Err(format!(
                        "record {at} of the log is torn, doubled or out of order: {text:?}, next {next:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn record(worker: usize, round: u32) -> Vec<u8> {
    let mut text = format!("worker {worker} round {round} ");
    while text.len() < RECORD - 1 {
        text.push('.');
    }
    text.push('\n');
    text.into_bytes()
}

async fn work(client: Rc<Client>, worker: usize, family: FlockFamily, kills: bool) -> Deeds {
    let mut deeds = Deeds { worker, won: Vec::new(), failed: None };
    if let Err((what, e)) = rounds(&client, worker, family, kills, &mut deeds.won).await {
        deeds.failed = Some(format!("{what}: {e}"));
    }
    deeds
}

async fn rounds(
    client: &Client,
    worker: usize,
    family: FlockFamily,
    kills: bool,
    won: &mut Vec<u32>,
) -> Result<(), (String, Failure)> {
    let named = |what: &str| {
        let what = what.to_string();
        move |e: Failure| (what.clone(), e)
    };
    let dir = resolve(client, "/common").await.map_err(named("lookup"))?.attr.fid;
    for round in 0..ROUNDS {
        append(client, record(worker, round)).await.map_err(named("append"))?;
        let name = format!("n{round}");
        let args = CreateArgs::new(dir, name.as_bytes(), mode::REG | 0o644, Caller::root());
        match client.create(args, 2).await {
            Ok((_, handle)) => {
                won.push(round);
                client.release(handle, None).await.map_err(named("release"))?;
            }
            Err(Failure::EEXIST) => {}
            Err(e) => return Err((format!("create {name}"), e)),
        }
        count(client, worker, family).await.map_err(named("count under a file lock"))?;
        let seen = paint(client, worker).await.map_err(named("paint"))?;
        if !kills {
            is_one_colour(&seen).map_err(|what| (what, Failure::EIO))?;
        }
    }
    Ok(())
}

async fn append(client: &Client, record: Vec<u8>) -> Result<(), Failure> {
    let fid = resolve(client, LOG).await?.attr.fid;
    let (_, handle) = client.open(fid, 1, Caller::root()).await?;
    let written = write_handle(client, handle, None, record, false).await;
    client.release(handle, None).await?;
    written.map(|_| ())
}

/// Reads the board, then fills it; what was read.
async fn paint(client: &Client, worker: usize) -> Result<Vec<u8>, Failure> {
    let fid = resolve(client, BOARD).await?.attr.fid;
    let (_, handle) = client.open(fid, 2, Caller::root()).await?;
    let seen = client.read(handle, 0, BOARD_BYTES as u32).await?.concat();
    let colour = b'A' + worker as u8;
    write_handle(client, handle, Some(0), vec![colour; BOARD_BYTES], false).await?;
    client.release(handle, None).await?;
    Ok(seen)
}

fn is_one_colour(seen: &[u8]) -> Result<(), String> {
    let cut = seen.windows(2).position(|two| two[0] != two[1]);
    if !seen.is_empty() && (seen.len() != BOARD_BYTES || cut.is_some()) {
        return Err(format!(
            "a read of the board saw half a write: {} bytes, another colour after {cut:?}",
            seen.len()
        ));
    }
    Ok(())
}

/// The counter is the length of the file; it grows by a read and a write at what was read.
async fn count(client: &Client, worker: usize, family: FlockFamily) -> Result<(), Failure> {
    let fid = resolve(client, COUNTER).await?.attr.fid;
    let (_, handle) = client.open(fid, 2, Caller::root()).await?;
    let lock = |kind| FileLock { family, kind, start: 0, end: u64::MAX, owner: worker as u64, pid: 1 };
    match client.flock(handle, lock(FlockType::Write), true).await? {
        FlockOutcome::Granted => {}
        FlockOutcome::Waiting | FlockOutcome::Conflict | FlockOutcome::Deadlock => {
            return Err(Failure::EDEADLK);
        }
    }
    let length = read_all(client, handle, 0, 1 << 16).await?.len() as u64;
    write_handle(client, handle, Some(length), vec![b'+'], false).await?;
    if worker.is_multiple_of(2) {
        client.flock(handle, lock(FlockType::Unlock), false).await?;
    }
    // Otherwise the close drops the lock.
    if family == FlockFamily::Posix {
        client.flush(handle, worker as u64).await?;
    }
    client.release(handle, (family == FlockFamily::Flock).then_some(worker as u64)).await
}

/// A mount that will be killed: it holds the counter's lock, keeps a file without a name open and writes to it.
pub async fn victim(client: Rc<Client>, family: FlockFamily) -> Result<(), Failure> {
    let fid = resolve(&client, COUNTER).await?.attr.fid;
    let (_, counter) = client.open(fid, 2, Caller::root()).await?;
    let dir = resolve(&client, "/common").await?.attr.fid;
    let name = b"victim";
    let args = CreateArgs::new(dir, name, mode::REG | 0o644, Caller::root());
    let (_, handle) = client.create(args, 2).await?;
    write_handle(&client, handle, Some(0), vec![b'v'; 1000], false).await?;
    client.unlink(dir, name, false, Caller::root()).await?;
    let lock = FileLock { family, kind: FlockType::Write, start: 0, end: u64::MAX, owner: 99, pid: 1 };
    client.flock(counter, lock, true).await?;
    Ok(())
}
