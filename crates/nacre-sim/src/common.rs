//! Work in which mounts meet on the same files at the same time.
//!
//! Each mount appends records to one file (each must be there once, whole, a mount's own in order), creates a series of
//! names exclusively (each has one winner), and adds to a counter in a file under flock (none may be lost).

use crate::mount::{JobId, Jobs};
use crate::ops::{Op, read_all, resolve, write_handle};
use crate::world::{NodeId, World};
use nacre_client::{Client, CreateArgs};
use nacre_types::{Caller, Errno, LockCookie, OpenHandle, mode};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::rc::Rc;

const LOG: &str = "/common/log";
const COUNTER: &str = "/common/counter";
const ROUNDS: u32 = 6;
const RECORD: usize = 48;

/// What a mount has done.
struct Deeds {
    mount: usize,
    won: Vec<u32>,
    failed: Option<String>,
}

/// Jobs of all mounts.
#[derive(Default)]
pub struct Common {
    jobs: Vec<JobId>,
    pub since_ns: u64,
}

/// What must be found.
pub struct Expected {
    mounts: usize,
}

/// What a mount sees afterwards.
pub struct Seen {
    log: Vec<u8>,
    counter: Vec<u8>,
    names: usize,
}

impl Common {
    pub fn set_up() -> Vec<Op> {
        let create = |path: &str, stripes| Op::Create { path: path.into(), exclusive: true, stripes };
        vec![Op::Mkdir("/common".into()), create(LOG, -1), create(COUNTER, 1)]
    }
    pub fn start(&mut self, world: &mut World, jobs: &mut Jobs, mount: NodeId) {
        self.since_ns = world.now_ns();
        let number = self.jobs.len();
        self.jobs.push(jobs.start(world, mount, move |client| work(client, number)));
    }
    pub fn is_done(&self, jobs: &Jobs) -> bool {
        self.jobs.iter().all(|&job| jobs.is_done(job))
    }
    /// Checks what the mounts say they did.
    pub fn take(self, jobs: &mut Jobs) -> Result<Expected, String> {
        let mut winners = vec![Vec::new(); ROUNDS as usize];
        for &job in &self.jobs {
            let deeds: Deeds = jobs.take(job).expect("all are done");
            if let Some(why) = deeds.failed {
                return Err(format!("common work of mount{}: {why}", deeds.mount));
            }
            for name in deeds.won {
                winners[name as usize].push(deeds.mount);
            }
        }
        for (name, winners) in winners.iter().enumerate() {
            if winners.len() != 1 {
                return Err(format!("exclusive create of n{name} was won by mounts {winners:?}"));
            }
        }
        Ok(Expected { mounts: self.jobs.len() })
    }
    pub async fn read(client: Rc<Client>) -> Result<Seen, Errno> {
        let mut contents = Vec::new();
        for path in [LOG, COUNTER] {
            let entry = resolve(&client, path).await?;
            let (_, handle) = client.open(entry.attr.fid, 0, Caller::root()).await?;
            let data = read_all(&client, handle, 0, 1 << 20).await;
            client.release(handle, None).await?;
            let data = data?;
            if data.len() as u64 != entry.attr.size {
                return Err(Errno::EIO);
            }
            contents.push(data);
        }
        let dir = resolve(&client, "/common").await?;
        let page = client.readdir(dir.attr.fid, 0, 1000, false).await?;
        let names = page.entries.iter().filter(|e| e.name.starts_with(b"n")).count();
        let counter = contents.pop().unwrap_or_default();
        Ok(Seen { log: contents.pop().unwrap_or_default(), counter, names })
    }
}

impl Expected {
    pub fn check(&self, seen: &Seen) -> Result<(), String> {
        let want = self.mounts * ROUNDS as usize;
        if seen.counter.len() != want {
            return Err(format!(
                "the counter under flock is {}, expected {want}: an update was lost",
                seen.counter.len()
            ));
        }
        if seen.names != ROUNDS as usize {
            return Err(format!("{} names were created, expected {ROUNDS}", seen.names));
        }
        if seen.log.len() != want * RECORD {
            return Err(format!("the log has {} bytes, expected {want} records of {RECORD}", seen.log.len()));
        }
        let mut next = vec![0u32; self.mounts];
        for (at, bytes) in seen.log.chunks(RECORD).enumerate() {
            let found = (0..self.mounts).find(|&m| bytes == record(m, next[m]).as_slice());
            match found {
                Some(mount) => next[mount] += 1,
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

fn record(mount: usize, round: u32) -> Vec<u8> {
    let mut text = format!("mount {mount} round {round} ");
    while text.len() < RECORD - 1 {
        text.push('.');
    }
    text.push('\n');
    text.into_bytes()
}

async fn work(client: Rc<Client>, mount: usize) -> Deeds {
    let mut deeds = Deeds { mount, won: Vec::new(), failed: None };
    if let Err((what, e)) = rounds(&client, mount, &mut deeds.won).await {
        deeds.failed = Some(format!("{what}: {e}"));
    }
    deeds
}

async fn rounds(client: &Client, mount: usize, won: &mut Vec<u32>) -> Result<(), (String, Errno)> {
    let named = |what: &str| {
        let what = what.to_string();
        move |e: Errno| (what.clone(), e)
    };
    let dir = resolve(client, "/common").await.map_err(named("lookup"))?.attr.fid;
    for round in 0..ROUNDS {
        append(client, record(mount, round)).await.map_err(named("append"))?;
        let name = format!("n{round}");
        let args = CreateArgs {
            parent: dir,
            name: name.as_bytes(),
            mode: mode::REG | 0o644,
            rdev: 0,
            target: &[],
            layout: None,
            exclusive: true,
            caller: Caller::root(),
        };
        match client.create(args, 2).await {
            Ok((_, handle)) => {
                won.push(round);
                client.release(handle, None).await.map_err(named("release"))?;
            }
            Err(Errno::EEXIST) => {}
            Err(e) => return Err((format!("create {name}"), e)),
        }
        count(client).await.map_err(named("count under flock"))?;
    }
    Ok(())
}

async fn append(client: &Client, record: Vec<u8>) -> Result<(), Errno> {
    let fid = resolve(client, LOG).await?.attr.fid;
    let (_, handle) = client.open(fid, 1, Caller::root()).await?;
    let written = write_handle(client, handle, None, record, false).await;
    client.release(handle, None).await?;
    written.map(|_| ())
}

/// The counter is the length of the file; it grows by a read and a write at what was read.
async fn count(client: &Client) -> Result<(), Errno> {
    let fid = resolve(client, COUNTER).await?.attr.fid;
    let (_, handle) = client.open(fid, 2, Caller::root()).await?;
    let counted = locked_count(client, handle).await;
    client.release(handle, None).await?;
    counted
}

async fn locked_count(client: &Client, handle: OpenHandle) -> Result<(), Errno> {
    let lock =
        |kind| FileLock { family: FlockFamily::Posix, kind, start: 0, end: u64::MAX, owner: 1, pid: 1 };
    let cookie: LockCookie = client.new_cookie();
    match client.flock(handle, lock(FlockType::Write), Some(cookie)).await? {
        FlockOutcome::Granted => {}
        FlockOutcome::Waiting | FlockOutcome::Conflict | FlockOutcome::Deadlock => {
            return Err(Errno::EDEADLK);
        }
    }
    let length = read_all(client, handle, 0, 1 << 16).await?.len() as u64;
    write_handle(client, handle, Some(length), vec![b'+'], false).await?;
    client.flock(handle, lock(FlockType::Unlock), None).await?;
    Ok(())
}
