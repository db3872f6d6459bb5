//! Making, finding and reading sockets. All non-blocking, close-on-exec; TCP without Nagle's delay and with
//! keep-alive, so that a peer whose machine has died is noticed.

use crate::{Address, Decoder, NetError};
use nacre_wire::Frame;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, acceptfrom_with, bind, connect as sys_connect, getsockname, listen as sys_listen, recvmsg,
    socket_with, sockopt,
};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

const BACKLOG: i32 = 256;
/// Room for a Hello. More than that comes from no client: it waits for the reply.
const GREETING_BYTES: usize = 4096;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Room for many small frames in one system call.
const SCRATCH_BYTES: usize = 64 << 10;
/// Bytes that a unix socket holds for its reader. The usual 208 KiB make a writer and its reader wake each other five times
/// per MiB.
const UNIX_SEND_BYTES: usize = 1 << 20;
/// Bytes sent and not acknowledged for so long: the peer is gone.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// A new inbound connection.
#[derive(Debug)]
pub struct Accepted {
    /// Non-blocking, close-on-exec.
    pub fd: OwnedFd,
    /// For people.
    pub peer: String,
    /// Where it is (TCP).
    pub from: Option<IpAddr>,
    /// Bodies are checked (TCP).
    pub sums: bool,
    /// It came over a unix socket, as the user of this process or as root.
    pub administrator: bool,
    /// It is on this machine.
    pub same_host: bool,
}

/// Buffer for received bytes before they are split into frames; one per event loop.
#[derive(Debug)]
pub struct Scratch(Vec<u8>);
impl Default for Scratch {
    fn default() -> Self {
        Self(Vec::with_capacity(SCRATCH_BYTES))
    }
}

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// So many bytes have come; `drained` when the socket had no more.
    Bytes {
        bytes: usize,
        drained: bool,
    },
    Nothing,
    /// The peer has closed.
    End,
}

/// The outcome of a read: the bytes, or why there are none.
fn read(result: rustix::io::Result<usize>) -> Result<Result<usize, Received>, NetError> {
    match result {
        Ok(0) => Ok(Err(Received::End)),
        Ok(n) => Ok(Ok(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Err(Received::Nothing)),
        Err(error) => Err(NetError::io("read", error)),
    }
}

/// One read of a unix socket whose peer has not greeted yet; gives out the frames that it completes, and puts the descriptor
/// that came with them, if there was one, into `passed`.
///
/// # Errors
/// As [`receive`].
pub fn receive_greeting(
    fd: impl AsFd,
    decoder: &mut Decoder,
    passed: &mut Option<OwnedFd>,
    out: &mut impl FnMut(Frame),
) -> Result<Received, NetError> {
    let mut bytes = [0; GREETING_BYTES];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(fd, &mut [IoSliceMut::new(&mut bytes)], &mut attached, flags);
    for message in attached.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            *passed = descriptors.last();
        }
    }
    let count = match read(received.map(|message| message.bytes))? {
        Ok(count) => count,
        Err(ended) => return Ok(ended),
    };
    decoder.feed(&bytes[..count.min(GREETING_BYTES)], out)?;
    Ok(Received::Bytes { bytes: count, drained: count < GREETING_BYTES })
}

/// One read; gives out the frames that it completes.
///
/// # Errors
/// `Io` and `Frame`: the connection is broken.
pub fn receive(
    fd: impl AsFd,
    decoder: &mut Decoder,
    scratch: &mut Scratch,
    out: &mut impl FnMut(Frame),
) -> Result<Received, NetError> {
    let (bytes, room) = if let Some(memory) = decoder.direct() {
        let room = memory.len();
        let bytes = match read(rustix::io::read(fd, memory))? {
            Ok(bytes) => bytes,
            Err(ended) => return Ok(ended),
        };
        decoder.filled(bytes, out)?;
        (bytes, room)
    } else {
        scratch.0.clear();
        let bytes = match read(rustix::io::read(fd, rustix::buffer::spare_capacity(&mut scratch.0)))? {
            Ok(bytes) => bytes,
            Err(ended) => return Ok(ended),
        };
        decoder.feed(&scratch.0, out)?;
        (bytes, scratch.0.capacity())
    };
    Ok(Received::Bytes { bytes, drained: bytes < room })
}

/// Binds and listens. Returns the address as bound (port 0 becomes the real one). A unix socket without a listening
/// process is replaced; only its owner may connect to it.
///
/// # Errors
/// `InUse` and `Io` with the address.
pub fn listen(address: &Address) -> Result<(OwnedFd, Address), NetError> {
    let fail = |e: Errno| match e {
        Errno::ADDRINUSE => NetError::InUse { address: address.clone() },
        e => NetError::io(format!("cannot listen on {address}"), e),
    };
    match address {
        Address::Local => Err(NetError::Handshake("`local` needs no listening".to_owned())),
        Address::Unix(path) => {
            clear_stale(path, address)?;
            let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).map_err(fail)?;
            bind(&fd, &SocketAddrUnix::new(path).map_err(fail)?).map_err(fail)?;
            // Before `listen`, so the process's umask cannot admit another user.
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::chmod(path, mode).map_err(fail)?;
            sys_listen(&fd, BACKLOG).map_err(fail)?;
            Ok((fd, address.clone()))
        }
        Address::Tcp { host, port } => {
            let candidates = resolve(host, *port)?;
            let Some(&to) = candidates.first() else {
                return Err(NetError::io(format!("cannot listen on {address}"), Errno::ADDRNOTAVAIL));
            };
            let fd = socket_with(family(&to), SocketType::STREAM, FLAGS, None).map_err(fail)?;
            sockopt::set_socket_reuseaddr(&fd, true).map_err(fail)?;
            bind(&fd, &to).map_err(fail)?;
            sys_listen(&fd, BACKLOG).map_err(fail)?;
            let bound = SocketAddr::try_from(getsockname(&fd).map_err(fail)?).map_err(fail)?;
            Ok((fd, Address::Tcp { host: host.clone(), port: bound.port() }))
        }
    }
}

/// Removes the socket file of a unix listener.
pub fn unlink(address: &Address) {
    if let Address::Unix(path) = address
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::debug!(%address, %error, "unix socket was not removed");
    }
}

/// A socket file without a listening process was left by a process that was killed.
fn clear_stale(path: &Path, address: &Address) -> Result<(), NetError> {
    let fail = |e: Errno| NetError::io(format!("cannot use {address}"), e);
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).map_err(fail)?;
    match sys_connect(&probe, &SocketAddrUnix::new(path).map_err(fail)?) {
        Err(Errno::CONNREFUSED) => {
            std::fs::remove_file(path).map_err(|e| NetError::io(format!("cannot replace {address}"), e))
        }
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(NetError::InUse { address: address.clone() }),
        Err(e) => Err(fail(e)),
    }
}

/// The next waiting connection; `None` when there is none.
///
/// # Errors
/// `Io`, mostly for want of descriptors: accept again later.
pub fn accept(listener: impl AsFd, address: &Address) -> Result<Option<Accepted>, NetError> {
    let (fd, from) = match acceptfrom_with(listener, FLAGS) {
        Ok(accepted) => accepted,
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
        Err(error) => return Err(NetError::io(format!("accept on {address}"), error)),
    };
    let sums = matches!(address, Address::Tcp { .. });
    let from = from.filter(|_| sums).and_then(|a| SocketAddr::try_from(a).ok());
    let mut same_host = true;
    let (peer, administrator) = if sums {
        tune_tcp(&fd);
        let here = getsockname(&fd).ok().and_then(|a| SocketAddr::try_from(a).ok());
        same_host = from.is_some_and(|a| here.is_some_and(|here| here.ip() == a.ip()));
        (from.map_or_else(|| "tcp".to_owned(), |a| a.to_string()), false)
    } else {
        tune_unix(&fd);
        match sockopt::socket_peercred(&fd) {
            Ok(cred) => {
                let administrator = cred.uid.is_root() || cred.uid == rustix::process::geteuid();
                (format!("unix pid {}", cred.pid.as_raw_nonzero()), administrator)
            }
            Err(_) => ("unix".to_owned(), false),
        }
    };
    Ok(Some(Accepted { fd, peer, from: from.map(|a| a.ip()), sums, administrator, same_host }))
}

/// Begins to connect; the socket becomes writable when it stands or has failed ([`connect_result`]).
///
/// # Errors
/// `Io` with the address when it fails at once.
pub fn connect(to: &Candidate) -> Result<OwnedFd, NetError> {
    let fail = |e: Errno| NetError::io(format!("cannot connect to {to}"), e);
    let (fd, began) = match to {
        Candidate::Unix(path) => {
            let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).map_err(fail)?;
            tune_unix(&fd);
            let began = sys_connect(&fd, &SocketAddrUnix::new(path).map_err(fail)?);
            (fd, began)
        }
        Candidate::Tcp(addr) => {
            let fd = socket_with(family(addr), SocketType::STREAM, FLAGS, None).map_err(fail)?;
            tune_tcp(&fd);
            let began = sys_connect(&fd, addr);
            (fd, began)
        }
    };
    match began {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(fail(error)),
    }
}

/// The outcome of [`connect`] once the socket is writable.
///
/// # Errors
/// `Io` with the address.
pub fn connect_result(fd: impl AsFd, to: &Candidate) -> Result<(), NetError> {
    match sockopt::socket_error(fd) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) | Err(error) => Err(NetError::io(format!("cannot connect to {to}"), error)),
    }
}

/// One place to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidate {
    Unix(std::path::PathBuf),
    Tcp(SocketAddr),
}
impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(addr) => addr.fmt(f),
        }
    }
}
impl Candidate {
    /// Bodies are checked.
    pub fn sums(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }
}

/// The places behind an address, when that needs no name service; else `None`, see [`candidates`].
pub fn local_candidates(address: &Address) -> Option<Vec<Candidate>> {
    match address {
        Address::Local => Some(Vec::new()),
        Address::Unix(path) => Some(vec![Candidate::Unix(path.clone())]),
        Address::Tcp { host, port } => {
            let ip: IpAddr = host.parse().ok()?;
            Some(vec![Candidate::Tcp(SocketAddr::new(ip, *port))])
        }
    }
}

/// The places behind an address. May wait for a name server.
///
/// # Errors
/// `Io` with the name.
pub fn candidates(address: &Address) -> Result<Vec<Candidate>, NetError> {
    match (local_candidates(address), address) {
        (Some(found), _) => Ok(found),
        (None, Address::Tcp { host, port }) => {
            Ok(resolve(host, *port)?.into_iter().map(Candidate::Tcp).collect())
        }
        (None, Address::Local | Address::Unix(_)) => Ok(Vec::new()),
    }
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, NetError> {
    match (host, port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(error) => Err(NetError::io(format!("cannot find the host {host}"), error)),
    }
}

fn family(addr: &SocketAddr) -> AddressFamily {
    match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// A socket that cannot be tuned still works. Root may exceed the limit of the machine (`net.core.wmem_max`).
fn tune_unix(fd: &OwnedFd) {
    let tuned = sockopt::set_socket_send_buffer_size_force(fd, UNIX_SEND_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(fd, UNIX_SEND_BYTES));
    if let Err(error) = tuned {
        tracing::debug!(%error, "the send buffer of a unix socket could not be set");
    }
}

/// A socket that cannot be tuned still works.
fn tune_tcp(fd: &OwnedFd) {
    let tuned = sockopt::set_tcp_nodelay(fd, true)
        .and_then(|()| sockopt::set_socket_keepalive(fd, true))
        .and_then(|()| sockopt::set_tcp_keepidle(fd, Duration::from_secs(10)))
        .and_then(|()| sockopt::set_tcp_keepintvl(fd, Duration::from_secs(5)))
        .and_then(|()| sockopt::set_tcp_keepcnt(fd, 4))
        .and_then(|()| sockopt::set_tcp_user_timeout(fd, UNACKNOWLEDGED_MAX.as_millis() as u32));
    if let Err(error) = tuned {
        tracing::debug!(%error, "a TCP option could not be set");
    }
}
