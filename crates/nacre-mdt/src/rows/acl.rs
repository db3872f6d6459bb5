//! POSIX access control lists: the kernel's xattr format, mode ↔ ACL, inheritance, the access check.
//!
//! Invariants: an [`Acl`] that exists has passed [`Acl::parse`]: one owner, one group and one other entry, a mask when
//! there are named entries, entries in the kernel's order. An ACL that is equivalent to the mode is never stored.
//! Specification: acl(5), `linux/posix_acl_xattr.h` (version 2).

use alloc::vec::Vec;
use nacre_types::{Attr, Caller, Errno};

/// Names of the attributes.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// Entries of one ACL; more than any file system of the kernel stores.
const ENTRIES_MAX: usize = 1024;

mod tag {
    pub(super) const USER_OBJ: u16 = 0x01;
    pub(super) const USER: u16 = 0x02;
    pub(super) const GROUP_OBJ: u16 = 0x04;
    pub(super) const GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// From the value of the attribute; `None` for one that says "no ACL".
    ///
    /// # Errors
    /// EINVAL, EOPNOTSUPP for another version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if !rest.len().is_multiple_of(8) || rest.len() / 8 > ENTRIES_MAX {
            return Err(Errno::EINVAL);
        }
        let entries: Vec<AclEntry> = rest
            .chunks_exact(8)
            .map(|e| AclEntry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                perm: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self(entries);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::EINVAL) }
    }
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.0.len() * 8);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for e in &self.0 {
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&e.id.to_le_bytes());
        }
        out
    }
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let known = tag::USER_OBJ | tag::USER | tag::GROUP_OBJ | tag::GROUP | tag::MASK | tag::OTHER;
        let named = count(tag::USER) + count(tag::GROUP) > 0;
        self.0.iter().all(|e| e.perm <= 7 && e.tag.count_ones() == 1 && e.tag & known != 0)
            && self.0.windows(2).all(|w| match w {
                [a, b] => a.tag < b.tag || a.tag == b.tag && a.tag & (tag::USER | tag::GROUP) != 0,
                _ => true,
            })
            && count(tag::USER_OBJ) == 1
            && count(tag::GROUP_OBJ) == 1
            && count(tag::OTHER) == 1
            && count(tag::MASK) <= 1
            && (!named || count(tag::MASK) == 1)
    }
    fn find(&mut self, tag: u16) -> Option<&mut AclEntry> {
        self.0.iter_mut().find(|e| e.tag == tag)
    }
    fn perm(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }
    /// The nine permission bits that `stat` shows: the group bits are the mask when there is one.
    pub(crate) fn mode_bits(&self) -> u32 {
        let owner = self.perm(tag::USER_OBJ).unwrap_or(0);
        let group = self.perm(tag::MASK).or(self.perm(tag::GROUP_OBJ)).unwrap_or(0);
        let other = self.perm(tag::OTHER).unwrap_or(0);
        u32::from(owner) << 6 | u32::from(group) << 3 | u32::from(other)
    }
    /// Says more than nine bits can.
    pub(crate) fn is_extended(&self) -> bool {
        self.0.len() > 3
    }
    /// chmod(2): owner, mask (or group) and other take the new bits.
    pub(crate) fn chmod(&mut self, mode: u32) {
        let bits = |shift: u32| ((mode >> shift) & 7) as u16;
        let group = if self.perm(tag::MASK).is_some() { tag::MASK } else { tag::GROUP_OBJ };
        for (tag, perm) in [(tag::USER_OBJ, bits(6)), (group, bits(3)), (tag::OTHER, bits(0))] {
            if let Some(e) = self.find(tag) {
                e.perm = perm;
            }
        }
    }
    /// This default ACL as the access ACL of a new inode asked for with `mode`: no entry gets more than `mode` says.
    pub(crate) fn inherited(&self, mode: u32) -> Self {
        let mut acl = self.clone();
        let bits = |shift: u32| ((mode >> shift) & 7) as u16;
        let group = if acl.perm(tag::MASK).is_some() { tag::MASK } else { tag::GROUP_OBJ };
        for (tag, limit) in [(tag::USER_OBJ, bits(6)), (group, bits(3)), (tag::OTHER, bits(0))] {
            if let Some(e) = acl.find(tag) {
                e.perm &= limit;
            }
        }
        acl
    }
    /// The access check of acl(5) for a user who is not root.
    fn permits(&self, attr: &Attr, caller: &Caller, want: u16) -> bool {
        let mask = self.perm(tag::MASK).unwrap_or(7);
        let mut in_group = false;
        for e in &self.0 {
            match e.tag {
                tag::USER_OBJ if caller.uid == attr.uid => return e.perm & want == want,
                tag::USER if caller.uid == e.id => return e.perm & mask & want == want,
                tag::GROUP_OBJ | tag::GROUP => {
                    let gid = if e.tag == tag::GROUP_OBJ { attr.gid } else { e.id };
                    if caller.in_group(gid) {
                        if e.perm & mask & want == want {
                            return true;
                        }
                        in_group = true;
                    }
                }
                tag::OTHER => return !in_group && e.perm & want == want,
                _ => {}
            }
        }
        false
    }
}

/// Whether the caller may read (4), write (2), execute (1) as far as its uid, gid and the groups in the request
/// decide. The kernel's check comes first; this one is for what the kernel could not see.
pub(crate) fn permits(attr: &Attr, acl: Option<&Acl>, caller: &Caller, want: u16) -> bool {
    if caller.uid == 0 {
        return true;
    }
    if let Some(acl) = acl {
        return acl.permits(attr, caller, want);
    }
    let shift = if caller.uid == attr.uid {
        6
    } else if caller.in_group(attr.gid) {
        3
    } else {
        0
    };
    (attr.mode >> shift) & u32::from(want) == u32::from(want)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }).collect()).to_bytes()
    }
    const FULL: &[(u16, u16, u32)] =
        &[(1, 7, 0), (2, 6, 1000), (4, 5, 0), (8, 7, 2000), (0x10, 6, 0), (0x20, 4, 0)];

    #[test]
    fn a_valid_acl_comes_back_and_shows_its_mask_as_group_bits() {
        let parsed = Acl::parse(&acl(FULL)).unwrap().unwrap();
        assert_eq!(parsed.to_bytes(), acl(FULL));
        assert_eq!((parsed.mode_bits(), parsed.is_extended()), (0o764, true));
        assert_eq!(Acl::parse(&[]), Ok(None));
        assert_eq!(Acl::parse(&acl(&[])), Ok(None));
    }

    #[test]
    fn invalid_acls_are_refused() {
        let bad: Vec<Vec<u8>> = vec![
            acl(&[(1, 7, 0), (4, 5, 0)]),
            acl(&[(1, 7, 0), (2, 6, 1000), (4, 5, 0), (0x20, 4, 0)]),
            acl(&[(1, 9, 0), (4, 5, 0), (0x20, 4, 0)]),
            acl(&[(4, 5, 0), (1, 7, 0), (0x20, 4, 0)]),
            acl(&[(1, 7, 0), (4, 5, 0), (0x20, 4, 0), (0x40, 4, 0)]),
            vec![2, 0, 0, 0, 1],
            vec![2, 0],
        ];
        for bytes in bad {
            assert_eq!(Acl::parse(&bytes), Err(Errno::EINVAL), "{bytes:?}");
        }
        assert_eq!(Acl::parse(&[3, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn chmod_moves_the_mask_and_inheritance_only_takes_away() {
        let mut a = Acl::parse(&acl(FULL)).unwrap().unwrap();
        let child = a.inherited(0o640);
        assert_eq!(child.mode_bits(), 0o640);
        a.chmod(0o700);
        assert_eq!((a.mode_bits(), a.perm(tag::GROUP_OBJ)), (0o700, Some(5)));
    }

    #[test]
    fn the_access_check_follows_acl_5() {
        let a = Acl::parse(&acl(FULL)).unwrap().unwrap();
        let attr = crate::testing::attr(0o100764, 1, 2);
        let who = |uid, gid| Caller { uid, gid, ..Caller::root() };
        for (caller, want, ok) in [
            (who(0, 0), 7, true),
            (who(1, 0), 7, true),
            (who(1000, 9), 6, true),
            (who(1000, 9), 1, false),
            (who(5, 2), 4, true),
            (who(5, 2), 2, false),
            (who(5, 2000), 6, true),
            (who(5, 2000), 1, false),
            (who(5, 5), 4, true),
            (who(5, 5), 2, false),
        ] {
            assert_eq!(permits(&attr, Some(&a), &caller, want), ok, "{caller:?} {want}");
        }
        assert!(permits(&attr, None, &who(5, 2), 6));
        assert!(!permits(&attr, None, &who(5, 5), 2));
    }
}
