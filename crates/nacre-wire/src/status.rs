//! The status in the header of a reply.

use nacre_types::{Codec, DecodeError, Errno, Failure, ProtocolOutcome, Reader, Writer};

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The request was executed.
    Success,
    /// The request failed, or the protocol of its client has to handle an outcome.
    Failed(Failure),
}

impl Status {
    /// The status with this number in the header. A number that is no errno, and that this build does not know as an
    /// outcome, is EIO.
    pub fn from_number(number: i32) -> Self {
        match (number, ProtocolOutcome::from_number(number)) {
            (0, _) => Self::Success,
            (_, Some(outcome)) => outcome.into(),
            (number, None) => Errno::from_number(number).unwrap_or(Errno::EIO).into(),
        }
    }
    /// 0, an errno, or the number of an outcome.
    pub fn number(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Failed(Failure::Errno(errno)) => errno.number(),
            Self::Failed(Failure::Outcome(outcome)) => outcome as i32,
        }
    }
    /// The failure, if it is one.
    pub fn failure(self) -> Option<Failure> {
        match self {
            Self::Success => None,
            Self::Failed(failure) => Some(failure),
        }
    }
    /// Whether it is this outcome.
    pub fn is(self, outcome: ProtocolOutcome) -> bool {
        self == outcome.into()
    }
}

impl<F: Into<Failure>> From<F> for Status {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
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
