//! The spelling of addresses: `unix:/path`, `host:port`, `host`, `[v6]:port`, or `local` (the same process).
//!
//! It is in this crate because an MGS stores addresses of others without opening sockets; `nacre-net` opens them.

/// Longest path of a unix socket (`sun_path` without its NUL).
const UNIX_PATH_BYTES_MAX: usize = 107;

/// The parts of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressText<'a> {
    Local,
    Unix(&'a str),
    /// Brackets are not part of the host.
    Tcp {
        host: &'a str,
        port: Option<u16>,
    },
}

impl<'a> AddressText<'a> {
    /// # Errors
    /// Why the text is no address, without its name: the caller has it.
    pub fn parse(text: &'a str) -> Result<Self, &'static str> {
        if text.contains(char::is_control) {
            return Err("it has a control character");
        }
        if text == "local" {
            return Ok(Self::Local);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => Err("the path is empty"),
                n if n > UNIX_PATH_BYTES_MAX => Err("the path of a unix socket has at most 107 bytes"),
                _ => Ok(Self::Unix(path)),
            };
        }
        let (host, port) = split_port(text)?;
        if host.is_empty() {
            return Err("the host is empty");
        }
        if host == "unix" {
            return Err("`unix` is followed by the path of a socket");
        }
        if host.bytes().any(|b| b.is_ascii_whitespace() || matches!(b, b'/' | b'@' | b'[' | b']')) {
            return Err("a host name has no such character");
        }
        let port = match port.map(str::parse) {
            None => None,
            Some(Ok(port)) => Some(port),
            Some(Err(_)) => return Err("the port is not a number below 65536"),
        };
        Ok(Self::Tcp { host, port })
    }

    /// Means something on its own machine only.
    pub fn is_on_one_machine(self) -> bool {
        matches!(self, Self::Local | Self::Unix(_))
    }
}

fn split_port(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    let Some(rest) = text.strip_prefix('[') else {
        return match text.split_once(':') {
            Some((_, port)) if port.contains(':') => Err("an IPv6 address needs brackets"),
            Some((host, port)) => Ok((host, Some(port))),
            None => Ok((text, None)),
        };
    };
    match rest.split_once(']') {
        Some((host, "")) => Ok((host, None)),
        Some((host, port)) => match port.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None => Err("something other than `:PORT` follows the bracket"),
        },
        None => Err("the bracket is not closed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_that_are_addresses_have_parts() {
        assert_eq!(AddressText::parse("unix:/run/a"), Ok(AddressText::Unix("/run/a")));
        assert_eq!(AddressText::parse("[::1]:7"), Ok(AddressText::Tcp { host: "::1", port: Some(7) }));
        assert_eq!(AddressText::parse("mds1"), Ok(AddressText::Tcp { host: "mds1", port: None }));
        for text in ["", "unix:", "unix:/a\nb", "a b", "a:70000", "::1", "[::1", "a\x1b[2J"] {
            assert!(AddressText::parse(text).is_err(), "{text:?}");
        }
    }
}
