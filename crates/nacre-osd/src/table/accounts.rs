//! Usage per owner: bytes and objects of each uid, gid and project. All accounts are kept in memory.
//!
//! In log and runs an account is a row of table `ACCOUNTING`: key {kind u8, id u32 big endian}, value {bytes u64,
//! objects u64}, always the absolute value.

use crate::log::segment::u64_at;
use crate::table;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::Owner;

/// Bytes and objects charged to one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes, allocated.
    pub bytes: u64,
    /// Number of objects.
    pub objects: u64,
}

/// Kind of an owner (0 user, 1 group, 2 project) and its id.
pub(crate) type AccountId = (u8, u32);

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    usage: Usage,
    generation: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    by_id: BTreeMap<AccountId, Account>,
    current_gen: u32,
    /// Changes that would have made a value negative: a bug of the caller, counted and reported.
    underflows: u64,
}

pub(crate) fn account_key((kind, id): AccountId) -> [u8; 6] {
    let id = id.to_be_bytes();
    [table::ACCOUNTING.0, kind, id[0], id[1], id[2], id[3]]
}
pub(crate) fn account_value(usage: Usage) -> [u8; 16] {
    let mut v = [0; 16];
    v[..8].copy_from_slice(&usage.bytes.to_le_bytes());
    v[8..].copy_from_slice(&usage.objects.to_le_bytes());
    v
}
/// Decodes a raw key (with its table number) and a value.
pub(crate) fn parse_account(raw: &[u8], value: &[u8]) -> Option<(AccountId, Usage)> {
    let id = u32::from_be_bytes(raw.get(2..6)?.try_into().ok()?);
    Some(((*raw.get(1)?, id), Usage { bytes: u64_at(value, 0)?, objects: u64_at(value, 8)? }))
}
pub(crate) fn ids_of(owner: Owner) -> [AccountId; 3] {
    [(0, owner.uid), (1, owner.gid), (2, owner.projid)]
}

impl Accounts {
    pub(crate) fn underflows(&self) -> u64 {
        self.underflows
    }
    pub(crate) fn usage(&self, id: AccountId) -> Usage {
        self.by_id.get(&id).map(|a| a.usage).unwrap_or_default()
    }
    /// Changes one account and returns its new value.
    pub(crate) fn charge(&mut self, id: AccountId, bytes: i64, objects: i64) -> Usage {
        let account = self.by_id.entry(id).or_default();
        let add = |value: u64, delta: i64, underflows: &mut u64| {
            value.checked_add_signed(delta).unwrap_or_else(|| {
                *underflows += 1;
                0
            })
        };
        account.usage.bytes = add(account.usage.bytes, bytes, &mut self.underflows);
        account.usage.objects = add(account.usage.objects, objects, &mut self.underflows);
        account.generation = self.current_gen;
        account.usage
    }
    /// Sets an account to the value in the log or a run.
    pub(crate) fn set(&mut self, id: AccountId, usage: Usage) {
        self.by_id.insert(id, Account { usage, generation: self.current_gen });
    }
    /// Sets an account to the value in a run, unless the log contained a newer one.
    pub(crate) fn set_if_unknown(&mut self, id: AccountId, usage: Usage) {
        let _ = self.by_id.entry(id).or_insert(Account { usage, generation: 0 });
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AccountId, Usage)> {
        self.by_id.iter().map(|(id, a)| (*id, a.usage))
    }
    /// Sum over all users: bytes and objects of the target.
    pub(crate) fn total(&self) -> Usage {
        self.by_id.range((0, 0)..(1, 0)).fold(Usage::default(), |t, (_, a)| Usage {
            bytes: t.bytes.saturating_add(a.usage.bytes),
            objects: t.objects.saturating_add(a.usage.objects),
        })
    }
    /// Starts a new generation and returns the accounts that changed in the previous one.
    pub(crate) fn freeze(&mut self) -> Vec<(AccountId, Usage)> {
        let frozen = self.current_gen;
        self.current_gen += 1;
        self.by_id.iter().filter(|(_, a)| a.generation == frozen).map(|(id, a)| (*id, a.usage)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_adds_up_and_never_wraps() {
        let mut a = Accounts::default();
        a.charge((0, 7), 100, 1);
        a.charge((0, 8), 50, 2);
        a.charge((1, 7), 9, 9);
        assert_eq!(a.total(), Usage { bytes: 150, objects: 3 });
        assert_eq!(a.charge((0, 7), -101, -1), Usage::default());
        assert_eq!(a.underflows, 1);
        let id = (2, 0x0102_0304);
        let u = Usage { bytes: 1, objects: 2 };
        assert_eq!(parse_account(&account_key(id), &account_value(u)), Some((id, u)));
    }
}
