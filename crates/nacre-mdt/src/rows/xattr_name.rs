//! The names of extended attributes: user, trusted, security and the two POSIX ACLs.

use crate::rows::acl;
use nacre_types::Errno;
use nacre_types::name::XATTR_NAME_MAX;

/// Refuses names that have no meaning here. Names of an unknown namespace are EOPNOTSUPP.
pub(crate) fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX || name.contains(&0) {
        return Err(Errno::ERANGE);
    }
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find(|prefix| name.starts_with(prefix)) {
        None => Err(Errno::EOPNOTSUPP),
        Some(prefix) if prefix.len() == name.len() => Err(Errno::EINVAL),
        Some(_) => Ok(()),
    }
}
