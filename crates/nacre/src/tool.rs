//! A blocking connection of a tool to one island of a running process: the same public messages as everybody's.

use crate::registry::{self, Entry};
use anyhow::{Context as _, Result, bail};
use nacre_types::{ClientUuid, Codec, ConnEpoch, Errno, Generation, Secret, Xid};
use nacre_wire::target::{Connect, Ping, Role};
use nacre_wire::{Frame, HEADER_BYTES, Header, Kind, Rpc};
use std::io::{ErrorKind, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// How long a tool waits for one answer: what is shown is at hand, and a process that is stopped must not hold up the others.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same of a change, or where nothing goes on without the answer.
pub(crate) const PATIENCE_LONG: Duration = Duration::from_secs(10);

pub(crate) struct Tool {
    stream: UnixStream,
    island: String,
    /// Of the process behind the socket.
    pid: i32,
    patience: Duration,
    next_xid: u64,
}

/// A process is there and has said nothing in time.
#[derive(Debug)]
pub(crate) struct NoAnswer {
    island: String,
    pid: i32,
    patience: Duration,
}
impl std::error::Error for NoAnswer {}
impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { island, pid, patience } = self;
        let seconds = patience.as_secs();
        write!(f, "{island}: no answer within {seconds} s: the process may be stopped or busy (pid {pid})")
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    // 32 bits of a 32-bit sum.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl Tool {
    /// Connects to the island `island` behind a process's socket.
    pub(crate) fn connect_unix(socket: &Path, island: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("{island}: nobody answers at {}", socket.display()))?;
        let pid = registry::pid_of(socket).unwrap_or(0);
        let mut tool = Self { stream, island: island.into(), pid, patience: PATIENCE, next_xid: 1 };
        tool.wait_for(PATIENCE)?;
        tool.send(&Frame::new(Header::new(Kind::Hello, 0), island.as_bytes().to_vec()))?;
        let hello = tool.receive()?;
        if hello.header.status != 0 {
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
        })?;
        Ok(tool)
    }

    /// How long it waits from now on.
    pub(crate) fn wait_for(&mut self, patience: Duration) -> Result<()> {
        self.patience = patience;
        self.stream.set_read_timeout(Some(patience))?;
        Ok(self.stream.set_write_timeout(Some(patience))?)
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
            if reply.header.status != 0 {
                bail!("{}: {:?} refused: {}", self.island, R::OPCODE, Errno(reply.header.status));
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
        let Self { island, pid, patience, .. } = self;
        match error.kind() {
            // What a timeout of a socket is.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                NoAnswer { island: island.clone(), pid: *pid, patience: *patience }.into()
            }
            _ => anyhow::Error::new(error).context(format!("{island} (pid {pid}) does not answer")),
        }
    }
}

/// Whether an error is one of time.
pub(crate) fn is_no_answer(error: &anyhow::Error) -> bool {
    error.is::<NoAnswer>()
}

/// Asks every island of these processes, all at once: one that hangs is waited for once, not by each in turn. The answers
/// are in order.
pub(crate) fn ask_all<T: Send>(entries: &[Entry], ask: impl Fn(&Entry, &str) -> T + Sync) -> Vec<Vec<T>> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let of_process = |entry| {
            let Entry { islands, .. }: &Entry = entry;
            islands.iter().map(|island| scope.spawn(move || ask(entry, island))).collect::<Vec<_>>()
        };
        let asked: Vec<_> = entries.iter().map(of_process).collect();
        let answer = |thread: ScopedJoinHandle<'_, T>| thread.join().expect("a question does not panic");
        asked.into_iter().map(|threads| threads.into_iter().map(answer).collect()).collect()
    })
}

/// Whether an island answers.
pub(crate) fn ping(socket: &Path, island: &str) -> Result<()> {
    Tool::connect_unix(socket, island)?.call(&Ping {}).map(drop)
}
