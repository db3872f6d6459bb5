//! The status in the header of a reply.

use nacre_types::{Codec, DecodeError, Errno, ProtocolOutcome, Reader, Writer};

/// The result of a request: success, an errno for the program, or an outcome of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The request was executed.
    Success,
    /// The system call fails with this errno.
    Errno(Errno),
    /// The client's protocol handles it.
    Outcome(ProtocolOutcome),
}

impl Status {
    /// The number in the header. A number that this build does not know is taken for an errno.
    pub fn from_number(number: i32) -> Self {
        match (number, ProtocolOutcome::from_number(number)) {
            (0, _) => Self::Success,
            (_, Some(outcome)) => Self::Outcome(outcome),
            (number, None) => Self::Errno(Errno(number)),
        }
    }
    /// 0, an errno, or the number of an outcome.
    pub fn number(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Errno(e) => e.0,
            Self::Outcome(outcome) => Errno::from(outcome).0,
        }
    }
    /// The error, if there is one, with an outcome as [`Errno::from`] carries it.
    pub fn error(self) -> Option<Errno> {
        (self != Self::Success).then(|| Errno(self.number()))
    }
    /// Whether it is this outcome.
    pub fn is(self, outcome: ProtocolOutcome) -> bool {
        self == Self::Outcome(outcome)
    }
}

impl From<Errno> for Status {
    fn from(e: Errno) -> Self {
        Self::from_number(e.0)
    }
}

impl<'a> Codec<'a> for Status {
    fn encode(&self, w: &mut Writer) {
        self.number().encode(w);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        i32::decode(r).map(Self::from_number)
    }
}
