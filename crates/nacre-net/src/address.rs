//! Address of an island: `unix:/path`, `host:port`, `host`, `[v6]:port`, or `local` (this process).

use nacre_wire::AddressText;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// 988, the field's port, is privileged.
pub const DEFAULT_PORT: u16 = 9988;

/// A transport address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Islands of the same process, without a socket.
    Local,
    Unix(PathBuf),
    /// Name or number; brackets are not part of the host.
    Tcp {
        host: String,
        port: u16,
    },
}

/// The reason why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address: {why}\nhint: HOST[:PORT], [IPV6]:PORT or unix:/PATH")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        match AddressText::parse(text) {
            Ok(AddressText::Local) => Ok(Self::Local),
            Ok(AddressText::Unix(path)) => Ok(Self::Unix(PathBuf::from(path))),
            Ok(AddressText::Tcp { host, port }) => {
                Ok(Self::Tcp { host: host.to_owned(), port: port.unwrap_or(DEFAULT_PORT) })
            }
            Err(why) => Err(AddressError { text: text.to_owned(), why }),
        }
    }
}

impl Address {
    /// Makes the path absolute, so that the address is valid in any working directory.
    ///
    /// # Errors
    /// An absolute path that is too long for a socket.
    pub fn absolute(self) -> Result<Self, AddressError> {
        match self {
            Self::Unix(path) => {
                let path = std::path::absolute(&path).unwrap_or(path);
                format!("unix:{}", path.display()).parse()
            }
            other => Ok(other),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were_written() {
        for text in ["local", "unix:/run/nacre/a.sock", "mds1:1234", "10.0.0.1:9988", "[fe80::1]:77"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("mds1".parse::<Address>().unwrap().to_string(), "mds1:9988");
        assert_eq!("[::1]".parse::<Address>().unwrap().to_string(), "[::1]:9988");
    }

    #[test]
    fn a_relative_socket_becomes_absolute() {
        let here = std::env::current_dir().unwrap();
        let absolute = |text: &str| text.parse::<Address>().unwrap().absolute().unwrap().to_string();
        assert_eq!(absolute("unix:a/b.sock"), format!("unix:{}/a/b.sock", here.display()));
        for text in ["unix:/a/b.sock", "local", "mds1:1234"] {
            assert_eq!(absolute(text), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for text in [
            "", "unix:", ":1", "a:b", "a:70000", "::1", "[::1", "[::1]x", "a b", "a/b", "unix", "[unix]:1",
            "[[f]",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("hint:"), "{text}: {error}");
        }
        assert!(format!("unix:/{}", "x".repeat(200)).parse::<Address>().is_err());
    }
}
