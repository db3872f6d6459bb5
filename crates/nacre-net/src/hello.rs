//! The handshake of a connection: the client names an island, and the server accepts or refuses it.

use crate::{NetError, decoder::Limits};
use nacre_types::{Errno, Failure};
use nacre_wire::bounds::NAME_BYTES_MAX;
use nacre_wire::{Frame, Header, Kind, flags};

/// Longest name or sentence in the first frames; a peer that sends more is not a nacre process.
pub const HELLO_BODY_BYTES_MAX: u32 = 1024;

/// Longest body of a Connect.
const CONNECT_BODY_BYTES_MAX: u32 = 4096;

impl Limits {
    /// Limits before the Hello.
    pub fn hello() -> Self {
        Self { body_bytes_max: HELLO_BODY_BYTES_MAX, bulk_bytes_max: 0 }
    }
    /// Limits before the peer has connected as a client.
    pub fn connect() -> Self {
        Self { body_bytes_max: CONNECT_BODY_BYTES_MAX, bulk_bytes_max: 0 }
    }
}

/// The Hello that asks for `island`.
pub fn hello(island: &str) -> Frame {
    Frame::new(Header::new(Kind::Hello, 0), island.as_bytes().to_vec())
}
/// The HelloReply that accepts.
pub fn hello_reply() -> Frame {
    Frame::new(Header::new(Kind::HelloReply, 0), Vec::new())
}
/// The same Hello, with which memory for bulk is passed; or the same HelloReply: that memory is mapped.
pub fn sharing(mut greeting: Frame) -> Frame {
    greeting.header.flags |= flags::SHARED_BULK;
    greeting
}
/// The HelloReply that refuses with `sentence`. The connection is closed after it.
pub fn hello_refused(errno: Errno, sentence: &str) -> Frame {
    let mut header = Header::new(Kind::HelloReply, 0);
    header.status = errno.into();
    let mut end = sentence.len().min(HELLO_BODY_BYTES_MAX as usize);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    Frame::new(header, sentence.as_bytes()[..end].to_vec())
}

/// The name of the island in a peer's Hello.
///
/// # Errors
/// `Handshake` if the frame is not a Hello with a valid name.
pub fn read_hello(frame: &Frame) -> Result<&str, NetError> {
    if frame.header.kind != Kind::Hello {
        return Err(NetError::Handshake(format!("first frame is a {:?}, not a Hello", frame.header.kind)));
    }
    match std::str::from_utf8(&frame.body) {
        Ok(name) if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control) => {
            Ok(name)
        }
        _ => Err(NetError::Handshake("the first frame names no island".to_owned())),
    }
}

/// Checks that the server accepts the connection.
///
/// # Errors
/// `NoSuchIsland` or `Handshake`, with its sentence, when not.
pub fn read_hello_reply(frame: &Frame) -> Result<(), NetError> {
    let h = &frame.header;
    if h.kind != Kind::HelloReply {
        return Err(NetError::Handshake(format!("reply to Hello is a {:?}", h.kind)));
    }
    let Some(failure) = h.status.failure() else { return Ok(()) };
    let sentence: String =
        String::from_utf8_lossy(&frame.body).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let sentence = match sentence.is_empty() {
        true => format!("refused: {failure}"),
        false => sentence,
    };
    Err(match failure {
        Failure::ENOENT => NetError::NoSuchIsland(sentence),
        _ => NetError::Handshake(sentence),
    })
}
