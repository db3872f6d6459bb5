//! The inputs that a metadata target decodes besides messages and rows, as a fuzz target (`fuzz/`).

use crate::rows::acl::{Acl, permits};
use alloc::vec::Vec;
use nacre_types::{Attr, Caller, Fid, Timestamp};

/// The value of an ACL's attribute: an accepted value is returned unchanged, and grants no permission that it does not contain.
pub fn acl(bytes: &[u8]) {
    let Ok(Some(mut acl)) = Acl::parse(bytes) else { return };
    assert_eq!(acl.to_bytes(), bytes);
    let inherited = acl.inherited(0o750);
    assert_eq!(inherited.mode_bits() & !0o750, 0);
    assert_eq!(Acl::parse(&inherited.to_bytes()), Ok(Some(inherited)));
    let nobody = Caller { uid: 12, gid: 34, pid: 1, umask: 0, groups: Vec::from([5, 6]) };
    let attr = Attr { uid: 1, gid: 2, ..Attr::new(Fid::ROOT, 0o100755, Timestamp::default()) };
    for want in 0..8 {
        let may = permits(&attr, Some(&acl), &nobody, want);
        assert!(may || want > 0, "nothing may always be done");
        // More is never easier than less.
        assert!(!permits(&attr, Some(&acl), &nobody, 7) || may);
    }
    acl.chmod(0);
    assert_eq!(acl.mode_bits(), 0);
    assert!(!permits(&attr, Some(&acl), &nobody, 4));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay_corpus::{replay, seeds};

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&perm.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    #[test]
    fn access_control_lists() {
        let none = u32::MAX;
        let plain = value(&[(1, 7, none), (4, 5, none), (0x20, 0, none)]);
        let named = value(&[
            (1, 7, none),
            (2, 6, 12),
            (4, 5, none),
            (8, 7, 34),
            (8, 1, 5),
            (0x10, 7, none),
            (0x20, 0, none),
        ]);
        assert!(matches!((Acl::parse(&plain), Acl::parse(&named)), (Ok(Some(_)), Ok(Some(_)))));
        seeds("acl", &[("plain", plain), ("named", named), ("zeros", alloc::vec![0; 28])]);
        replay("acl", acl);
    }
}
