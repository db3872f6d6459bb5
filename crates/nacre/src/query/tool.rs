//! A blocking connection of a tool to one island of a running process. It uses the public messages only.

use crate::output;
use crate::process::registry::{self, ProcessEntry};
use anyhow::{Result, bail};
use nacre_types::{ClientUuid, Codec, ConnEpoch, Failure, Generation, Secret, Xid};
use nacre_wire::target::{Connect, Ping, Role};
use nacre_wire::{Frame, HEADER_BYTES, Header, Kind, Opcode, Rpc, Status};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt;
use std::io::{ErrorKind, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// How long a process waits for a reply of its own islands; it cannot go on without one.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT_S: u64 = 5;

/// How long a command waits for a reply. All servers are asked at the same time, so it limits all of them together.
#[derive(clap::Args, Debug, Clone, Copy)]
pub(crate) struct TimeoutArgs {
    /// Seconds to wait for a reply
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_S, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}
impl TimeoutArgs {
    pub(crate) fn limit(self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}
impl Default for TimeoutArgs {
    fn default() -> Self {
        Self { timeout: TIMEOUT_S }
    }
}

pub(crate) struct Tool {
    stream: UnixStream,
    island: String,
    /// Of the process behind the socket.
    pid: i32,
    timeout: Duration,
    next_xid: u64,
}

/// The process exists and has not replied in time.
#[derive(Debug)]
pub(crate) struct NoReply {
    island: String,
    pid: i32,
    timeout: Duration,
}
impl std::error::Error for NoReply {}
impl std::fmt::Display for NoReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { island, pid, timeout } = self;
        let seconds = timeout.as_secs();
        write!(f, "{island}: no reply within {seconds} s: the process may be stopped or busy (pid {pid})")
    }
}

/// A target has refused a request.
#[derive(Debug)]
pub(crate) struct Refused {
    island: String,
    opcode: Opcode,
    failure: Failure,
}
impl Refused {
    pub(crate) fn errno(&self) -> nacre_types::Errno {
        self.failure.for_caller()
    }
}
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} refused: {}", self.island, self.opcode, self.failure)
    }
}
impl std::error::Error for Refused {}

/// The socket of a process may not be opened by this user.
#[derive(Debug)]
pub(crate) struct Forbidden {
    socket: PathBuf,
}
impl std::error::Error for Forbidden {}
impl std::fmt::Display for Forbidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let socket = self.socket.display();
        write!(f, "permission denied: {socket} is open to the user who started the process only")
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    // 32 bits of a 32-bit sum.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl Tool {
    /// Connects to the island `island` behind a process's socket. `timeout`: for each reply.
    pub(crate) fn connect(socket: &Path, island: &str, timeout: Duration) -> Result<Self> {
        let pid = registry::pid_of(socket).unwrap_or(0);
        let stream = match connect(socket) {
            Ok(stream) => stream,
            Err(Errno::ACCESS | Errno::PERM) => return Err(Forbidden { socket: socket.to_path_buf() }.into()),
            // Its queue of connections is full: the process does not accept any more.
            Err(Errno::AGAIN) => return Err(NoReply { island: island.into(), pid, timeout }.into()),
            Err(e) => {
                let what = format!("{island}: no process replies at {}", socket.display());
                return Err(anyhow::Error::new(e).context(what));
            }
        };
        let mut tool = Self { stream, island: island.into(), pid, timeout, next_xid: 1 };
        tool.wait_for(timeout)?;
        tool.send(&Frame::new(Header::new(Kind::Hello, 0), island.as_bytes().to_vec()))?;
        let hello = tool.receive()?;
        if hello.header.status != Status::Success {
            bail!("{}", String::from_utf8_lossy(&hello.body));
        }
        let mut client = [0u8; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut client)?;
        tool.call(&Connect {
            client: ClientUuid(client),
            role: Role::Tool,
            secret: Secret::default(),
            name: format!("tool, pid {}", std::process::id()),
            features: 0,
            max_mod_rpcs: 1,
            generation: Generation(0),
            known: None,
            replaced: 0,
            instance: 0,
        })?;
        Ok(tool)
    }

    fn wait_for(&mut self, timeout: Duration) -> Result<()> {
        self.timeout = timeout;
        self.stream.set_read_timeout(Some(timeout))?;
        Ok(self.stream.set_write_timeout(Some(timeout))?)
    }

    /// One request, one reply.
    pub(crate) fn call<'a, R: Rpc + Codec<'a>>(&mut self, request: &R) -> Result<R::Reply> {
        let mut header = Header::new(Kind::Request, R::OPCODE.number());
        header.xid = Xid(self.next_xid);
        header.last_xid = Xid(self.next_xid - 1);
        header.epoch = ConnEpoch(1);
        self.next_xid += 1;
        self.send(&Frame::new(header, request.to_vec()))?;
        loop {
            let reply = self.receive()?;
            if reply.header.kind != Kind::Reply || reply.header.xid.0 != self.next_xid - 1 {
                continue;
            }
            if let Some(failure) = reply.header.status.failure() {
                return Err(Refused { island: self.island.clone(), opcode: R::OPCODE, failure }.into());
            }
            return R::Reply::from_slice(&reply.body)
                .map_err(|e| anyhow::anyhow!("{}: bad reply: {e}", self.island));
        }
    }

    fn send(&mut self, frame: &Frame) -> Result<()> {
        let sum = crc32c(&frame.body);
        let head = frame.encode_header(sum, crc32c);
        let sent = self.stream.write_all(&head).and_then(|()| self.stream.write_all(&frame.body));
        sent.map_err(|e| self.failed(e))
    }

    fn receive(&mut self) -> Result<Frame> {
        let mut bytes = [0u8; HEADER_BYTES];
        self.stream.read_exact(&mut bytes).map_err(|e| self.failed(e))?;
        let (header, lengths) = Header::decode(&bytes, crc32c)?;
        let mut body = Vec::new();
        let total = u64::from(lengths.body_bytes) + u64::from(lengths.bulk_bytes);
        (&mut self.stream).take(total).read_to_end(&mut body).map_err(|e| self.failed(e))?;
        body.truncate(lengths.body_bytes as usize);
        Ok(Frame::new(header, body))
    }

    fn failed(&self, error: std::io::Error) -> anyhow::Error {
        let Self { island, pid, timeout, .. } = self;
        match error.kind() {
            // A timeout of the socket.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                NoReply { island: island.clone(), pid: *pid, timeout: *timeout }.into()
            }
            _ => anyhow::Error::new(error).context(format!("{island} (pid {pid}) does not reply")),
        }
    }
}

/// Does not wait: the queue of a process that is stopped may be full.
fn connect(socket: &Path) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    rustix::io::ioctl_fionbio(&fd, false)?;
    Ok(fd.into())
}

/// Why an island could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Silent,
    Forbidden,
    Down,
}
pub(crate) fn why_unreachable(error: &anyhow::Error) -> Unreachable {
    match error {
        e if e.is::<NoReply>() => Unreachable::Silent,
        e if e.is::<Forbidden>() => Unreachable::Forbidden,
        _ => Unreachable::Down,
    }
}

/// Prints which islands could not be asked, and why: a line for each, and one line for all that this user may not ask.
pub(crate) fn report_unreachable(errors: &[anyhow::Error]) {
    let (forbidden, others): (Vec<_>, Vec<_>) =
        errors.iter().partition(|error| why_unreachable(error) == Unreachable::Forbidden);
    others.iter().for_each(|error| output::error("nacre", error));
    if let Some(why) = self::forbidden(&forbidden) {
        output::note(&format!("nacre: {why}"));
    }
}

/// One sentence for all devices that this user may not ask.
pub(crate) fn forbidden<E: std::borrow::Borrow<anyhow::Error>>(errors: &[E]) -> Option<String> {
    let first: &anyhow::Error = errors.first()?.borrow();
    let number = errors.len();
    Some(format!(
        "{number} of the devices could not be asked: {first:#}\nhint: run it as that user (root: sudo)"
    ))
}

/// Whether the process did not reply in time.
pub(crate) fn is_no_reply(error: &anyhow::Error) -> bool {
    error.is::<NoReply>()
}

/// Asks every island of these processes, all at the same time, so that a process that hangs delays the command only once. The
/// results are in the order of the islands.
pub(crate) fn ask_all<T: Send>(
    entries: &[ProcessEntry],
    ask: impl Fn(&ProcessEntry, &str) -> T + Sync,
) -> Vec<Vec<T>> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let of_process = |entry| {
            let ProcessEntry { islands, .. }: &ProcessEntry = entry;
            islands.iter().map(|island| scope.spawn(move || ask(entry, island))).collect::<Vec<_>>()
        };
        let asked: Vec<_> = entries.iter().map(of_process).collect();
        let reply = |thread: ScopedJoinHandle<'_, T>| thread.join().expect("a question does not panic");
        asked.into_iter().map(|threads| threads.into_iter().map(reply).collect()).collect()
    })
}

/// Fails unless the island replies.
pub(crate) fn ping(socket: &Path, island: &str, timeout: Duration) -> Result<()> {
    Tool::connect(socket, island, timeout)?.call(&Ping {}).map(drop)
}
