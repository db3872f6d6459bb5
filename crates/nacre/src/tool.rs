//! A blocking connection of a tool to one island of a running process: the same public messages as everybody's.

use anyhow::{Context as _, Result, bail};
use nacre_types::{ClientUuid, Codec, ConnEpoch, Errno, Generation, Xid};
use nacre_wire::target::{Connect, Ping, Role};
use nacre_wire::{Frame, HEADER_BYTES, Header, Kind, Rpc};
use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a tool waits for one answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Tool {
    stream: UnixStream,
    island: String,
    next_xid: u64,
}

fn crc32c(bytes: &[u8]) -> u32 {
    // 32 bits of a 32-bit sum.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl Tool {
    /// Connects to the island `island` behind a process's socket.
    pub(crate) fn connect_unix(socket: &Path, island: &str) -> Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("nobody answers at {}", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut tool = Self { stream, island: island.into(), next_xid: 1 };
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
            name: format!("tool, pid {}", std::process::id()),
            features: 0,
            max_mod_rpcs: 1,
            generation: Generation(0),
        })?;
        Ok(tool)
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
        self.stream.write_all(&frame.encode_header(sum, crc32c))?;
        self.stream.write_all(&frame.body)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<Frame> {
        let mut bytes = [0u8; HEADER_BYTES];
        self.stream.read_exact(&mut bytes).with_context(|| format!("{} does not answer", self.island))?;
        let (header, lengths) = Header::decode(&bytes, crc32c)?;
        let mut body = Vec::new();
        let total = u64::from(lengths.body_bytes) + u64::from(lengths.bulk_bytes);
        (&mut self.stream).take(total).read_to_end(&mut body)?;
        body.truncate(lengths.body_bytes as usize);
        Ok(Frame::new(header, body))
    }
}

/// Whether an island answers.
pub(crate) fn ping(socket: &Path, island: &str) -> Result<()> {
    Tool::connect_unix(socket, island)?.call(&Ping {}).map(drop)
}
