//! POSIX error numbers as a newtype. The numbers are Linux's.

use core::fmt;

/// The highest errno of Linux.
const ERRNO_MAX: u16 = 4095;

/// A POSIX error, as a program sees it: a number from 1 to 4095.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(u16);

macro_rules! constants {
    ($($name:ident = $n:literal, $text:literal;)*) => {
        impl Errno {
            $(pub const $name: Errno = Errno($n);)*
            /// The errno with this number; `None` for a number that no errno has.
            pub fn from_number(n: i32) -> Option<Self> {
                u16::try_from(n).ok().filter(|n| (1..=ERRNO_MAX).contains(n)).map(Self)
            }
            /// The positive number.
            pub fn number(self) -> i32 {
                self.0.into()
            }
            /// The symbol, or `None` for a number that nacre never sends.
            pub fn symbol(self) -> Option<&'static str> {
                match self.0 { $($n => Some(stringify!($name)),)* _ => None }
            }
            /// The meaning, for messages to people.
            pub fn text(self) -> &'static str {
                match self.0 { $($n => $text,)* _ => "error" }
            }
        }
    };
}
/// Passes the table of all errnos with names to a macro.
macro_rules! errnos {
    ($macro:ident) => {
        $macro! {
            EPERM = 1, "operation not permitted";
            ENOENT = 2, "no such file or directory";
            EINTR = 4, "interrupted";
            EIO = 5, "input/output error";
            ENXIO = 6, "no such device or address";
            E2BIG = 7, "argument list too long";
            EBADF = 9, "bad file handle";
            EAGAIN = 11, "try again";
            ENOMEM = 12, "out of memory";
            EACCES = 13, "permission denied";
            EBUSY = 16, "busy";
            EEXIST = 17, "file exists";
            EXDEV = 18, "cross-device link";
            ENODEV = 19, "no such device";
            ENOTDIR = 20, "not a directory";
            EISDIR = 21, "is a directory";
            EINVAL = 22, "invalid argument";
            ENOTTY = 25, "inappropriate ioctl";
            EFBIG = 27, "file too large";
            ENOSPC = 28, "no space left";
            ESPIPE = 29, "illegal seek";
            EROFS = 30, "read-only file system";
            EMLINK = 31, "too many links";
            ERANGE = 34, "out of range";
            EDEADLK = 35, "deadlock would occur";
            ENAMETOOLONG = 36, "name too long";
            ENOLCK = 37, "no locks available";
            ENOSYS = 38, "not implemented";
            ENOTEMPTY = 39, "directory not empty";
            ELOOP = 40, "too many symbolic links";
            ENODATA = 61, "no such attribute";
            ETIME = 62, "too late";
            EPROTO = 71, "protocol error";
            EOVERFLOW = 75, "value too large";
            EOPNOTSUPP = 95, "not supported";
            ENOTCONN = 107, "not connected";
            ESHUTDOWN = 108, "shut down";
            ETIMEDOUT = 110, "timed out";
            EINPROGRESS = 115, "in progress";
            ESTALE = 116, "stale file handle";
            EDQUOT = 122, "quota exceeded";
            ECANCELED = 125, "canceled";
        }
    };
}
pub(crate) use errnos;
errnos!(constants);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.symbol() {
            Some(s) => write!(f, "{} ({s})", self.text()),
            None => write!(f, "error {}", self.0),
        }
    }
}
impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.symbol() {
            Some(s) => f.write_str(s),
            None => write!(f, "Errno({})", self.0),
        }
    }
}
impl core::error::Error for Errno {}

/// Bytes that cannot be decoded are a protocol error of the sender.
impl From<crate::DecodeError> for Errno {
    fn from(_: crate::DecodeError) -> Self {
        Errno::EPROTO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_has_a_number_that_programs_know() {
        for n in [i32::MIN, -3, 0, 4096, 9999, i32::MAX] {
            assert_eq!(Errno::from_number(n), None, "{n}");
        }
        assert_eq!(Errno::from_number(116), Some(Errno::ESTALE));
        assert_eq!(Errno::from_number(4095).map(Errno::number), Some(4095));
    }
}
