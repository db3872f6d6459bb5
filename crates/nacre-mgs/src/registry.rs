//! The list of file systems and their targets, and its rows.
//!
//! Invariants:
//! - An index of a file system belongs to one uuid (with the secret of its first registration) and to one history,
//!   which only grows, until an administrator admits another target or an old copy (docs/targets.md).
//! - An unknown target is accepted while registration is open, or if the administrator registers it.
//! - The key of the name hash is created once and never changes, because cookies of directories depend on it.
//! - The version grows with every change that others must learn of; a registration without news changes nothing.
//! - File systems, targets and addresses are bounded.
//!
//! Rows: `MGS_FIRST` by name holds an [`FsRow`]; `MGS_FIRST + 1` by name, kind and index a [`TargetRow`]; `MGS_FIRST +
//! 2` under `version` the version of the list, under `register` whether new targets are accepted; `MGS_FIRST + 3` by
//! name the permanent parameters.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_node::Origin;
use nacre_osd::{Table, Tx, table};
use nacre_target::{Sender, Whereabouts};
use nacre_types::{
    ClientUuid, Codec, DecodeError, FsName, Identity, Mismatch, Remembered, Secret, TargetKind, TargetName,
    codec_enum, codec_struct,
};
use nacre_wire::AddressText;
use nacre_wire::bounds::{ADDRESS_BYTES_MAX, ADDRESSES_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use nacre_wire::mgs::{
    Admit, AdmitTarget, PermanentParam, RegisterReply, RegisterTarget, SetPermanentParam, TargetEntry,
    TargetList,
};
use nacre_wire::params::check_permanent;
use nacre_wire::target::Role;

pub(crate) const FILE_SYSTEMS: Table = Table(table::MGS_FIRST);
/// Name of a file system, kind and index → [`TargetRow`].
pub const TARGETS: Table = Table(table::MGS_FIRST + 1);
pub(crate) const STATE: Table = Table(table::MGS_FIRST + 2);
/// Name → value of a parameter that was set for good.
pub(crate) const PARAMS: Table = Table(table::MGS_FIRST + 3);
pub(crate) const VERSION_KEY: &[u8] = b"version";
pub(crate) const REGISTER_KEY: &[u8] = b"register";

const FILE_SYSTEMS_MAX: usize = 256;
const PARAMS_MAX: usize = 1024;

codec_struct! {
    /// The values that all targets of a file system share.
    #[derive(Copy)]
    pub struct FsRow {
        /// Key of the name hash.
        pub hash_key: (u64, u64),
        /// Clients have mounted it, and registration was closed for that.
        pub settled: bool,
    }
}
codec_enum! {
    /// Which targets may register (`mgs.MGS.register`).
    pub enum Register: u8 {
        /// Any.
        Open = 1,
        /// Those that the MGS knows; new ones as the administrator of its machine only.
        Known = 2,
    }
}
impl Register {
    /// Value of the parameter.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Known => "known",
        }
    }
    /// `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|register| register.name() == text)
    }
}
codec_struct! {
    /// A target as it last registered.
    pub struct TargetRow {
        /// The file system it belongs to.
        pub fs: FsName,
        /// With `index`, its place in the file system.
        pub kind: TargetKind,
        /// From 0.
        pub index: u32,
        /// A target that registers under this name must be this one, with all changes that were durable.
        pub known: Remembered,
        /// With which it registered first.
        pub secret: Secret,
        /// How often another one was admitted.
        pub replaced: u32,
        /// The replacement that an administrator has admitted for the next registration.
        pub admitted: Option<Admit>,
        /// Where it is served, best first; at most [`nacre_wire::bounds::ADDRESSES_MAX`].
        pub addresses: Vec<String>,
    }
}

/// Why a registration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The whole sentence for the log of the target.
    #[error("{0}")]
    Mismatch(String),
    #[error("{kind:?} {index} of {fs} is known with another secret: this is somebody else in its name")]
    Impostor { fs: FsName, kind: TargetKind, index: u32 },
    #[error(
        "{kind:?} {index} of {fs} is not known and mgs.MGS.register=known\nhint: to add it, on the machine of the MGS: nacre lctl set_param mgs.MGS.register=open"
    )]
    Closed { fs: FsName, kind: TargetKind, index: u32 },
    #[error("address {address:?}: {why}")]
    Address { address: String, why: &'static str },
    #[error("{what}")]
    Invalid { what: &'static str },
    #[error("the MGS keeps at most {FILE_SYSTEMS_MAX} file systems")]
    Full,
}

/// The change that a registration or an admission makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetChange {
    /// Of the list after the change; the same as before if others need not learn of it.
    pub version: u64,
    /// The row afterwards.
    pub target: TargetRow,
    /// The first target of its file system brings the file system.
    pub fs: FsRow,
    /// The news for the log, if any.
    pub news: Option<News>,
}

/// The effect of a registration on others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    New,
    Moved,
    /// It replaced another target, or an earlier identity of itself.
    Admitted(Admit),
}

type TargetKey = (TargetKind, u32);

#[derive(Debug)]
struct FileSystem {
    row: FsRow,
    targets: BTreeMap<TargetKey, TargetRow>,
}

/// The list in memory.
#[derive(Debug, Default)]
pub struct Registry {
    version: u64,
    file_systems: BTreeMap<FsName, FileSystem>,
    params: BTreeMap<String, String>,
    register: Option<Register>,
}

/// The change of the registry that sets or removes a permanent parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamChange {
    version: u64,
    name: String,
    value: Option<String>,
}

impl Registry {
    /// Greater after each change that clients and targets must learn of.
    pub fn version(&self) -> u64 {
        self.version
    }

    // ---- from rows

    pub(crate) fn load_version(&mut self, row: &[u8]) -> Result<(), DecodeError> {
        self.version = u64::from_slice(row)?;
        Ok(())
    }
    pub(crate) fn load_fs(&mut self, key: &[u8], row: &[u8]) -> Result<(), DecodeError> {
        let (fs, row) = (FsName::from_slice(key)?, FsRow::from_slice(row)?);
        self.file_systems.insert(fs, FileSystem { row, targets: BTreeMap::new() });
        Ok(())
    }
    /// After every file system has been loaded; a target of an unknown one is an error.
    pub(crate) fn load_target(&mut self, row: &[u8]) -> Result<(), DecodeError> {
        let row = TargetRow::from_slice(row)?;
        let missing = DecodeError::BadValue { what: "file system of a target", value: u64::from(row.index) };
        let fs = self.file_systems.get_mut(&row.fs).ok_or(missing)?;
        fs.targets.insert((row.kind, row.index), row);
        Ok(())
    }

    pub(crate) fn load_param(&mut self, key: &[u8], row: &[u8]) -> Result<(), DecodeError> {
        self.params.insert(String::from_slice(key)?, String::from_slice(row)?);
        Ok(())
    }

    // ---- parameters

    /// The change that sets a permanent parameter; `None`: it has this value already.
    ///
    /// # Errors
    /// `Invalid` beyond a bound.
    pub fn check_param(&self, new: &SetPermanentParam) -> Result<Option<ParamChange>, Refused> {
        let value_bytes = new.value.as_ref().map_or(0, String::len);
        if new.name.len() > NAME_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err(Refused::Invalid {
                what: "a parameter has at most 255 bytes of name and 1024 of value",
            });
        }
        if self.params.get(&new.name) == new.value.as_ref() {
            return Ok(None);
        }
        if let Some(value) = &new.value
            && check_permanent(&new.name, value).is_err()
        {
            return Err(Refused::Invalid {
                what: "no parameter that could be kept has this name and takes this value",
            });
        }
        if new.value.is_some() && self.params.len() >= PARAMS_MAX {
            return Err(Refused::Invalid { what: "at most 1024 parameters are kept" });
        }
        let (name, value) = (new.name.clone(), new.value.clone());
        Ok(Some(ParamChange { version: self.version + 1, name, value }))
    }
    /// Takes a change in that was written.
    pub fn apply_param(&mut self, change: ParamChange) {
        assert!(change.version > self.version, "the version of the list only grows");
        self.version = change.version;
        match change.value {
            Some(value) => self.params.insert(change.name, value),
            None => self.params.remove(&change.name),
        };
    }
    /// The permanent parameters, by name.
    pub fn permanent(&self) -> Vec<PermanentParam> {
        let param =
            |(name, value): (&String, &String)| PermanentParam { name: name.clone(), value: value.clone() };
        self.params.iter().map(param).collect()
    }

    // ---- registration

    /// The change that a registration makes; `None`: everything is known already. `new_key` is used for the first
    /// target of a file system.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn check(
        &self,
        new: &RegisterTarget,
        sender: &Sender,
        new_key: (u64, u64),
    ) -> Result<Option<TargetChange>, Refused> {
        check_registration(new, sender)?;
        let known = self.file_systems.get(&new.fs);
        if known.is_none() && self.file_systems.len() >= FILE_SYSTEMS_MAX {
            return Err(Refused::Full);
        }
        let is_new = known.is_none_or(|fs| !fs.targets.contains_key(&(new.kind, new.index)));
        if is_new && self.register() == Register::Known && !sender.is_trusted() {
            return Err(Refused::Closed { fs: new.fs.clone(), kind: new.kind, index: new.index });
        }
        let fs = known.map_or(FsRow { hash_key: new_key, settled: false }, |fs| fs.row);
        let mut target = TargetRow {
            fs: new.fs.clone(),
            kind: new.kind,
            index: new.index,
            known: new.identity.remember(new.committed),
            replaced: new.replaced,
            secret: sender.secret,
            admitted: None,
            addresses: new.addresses.clone(),
        };
        let Some(old) = known.and_then(|fs| fs.targets.get(&(new.kind, new.index))) else {
            return Ok(Some(TargetChange { version: self.version + 1, target, fs, news: Some(News::New) }));
        };
        let news = match new.identity.check(&old.known) {
            Ok(()) if old.secret != sender.secret => {
                return Err(Refused::Impostor { fs: new.fs.clone(), kind: new.kind, index: new.index });
            }
            Ok(()) => {
                target.replaced = old.replaced.max(new.replaced);
                let started = target.known.incarnation != old.known.incarnation;
                let mut known = old.known;
                known.learn(&target.known);
                target.known = known;
                // An admission that was not needed after all ends with the next start of the right target.
                target.admitted = old.admitted.filter(|_| !started);
                if target == *old {
                    return Ok(None);
                }
                let has_moved = (&target.addresses, target.replaced) != (&old.addresses, old.replaced);
                has_moved.then_some(News::Moved)
            }
            Err(mismatch) => {
                if !mismatch.is_other() && old.secret != sender.secret {
                    return Err(Refused::Impostor { fs: new.fs.clone(), kind: new.kind, index: new.index });
                }
                let admit = admission(old, new, mismatch).map_err(Refused::Mismatch)?;
                target.replaced = old.replaced.max(new.replaced).saturating_add(1);
                Some(News::Admitted(admit))
            }
        };
        let version = self.version + u64::from(news.is_some());
        Ok(Some(TargetChange { version, target, fs, news }))
    }

    // ---- admissions

    /// The change that admits another target; `None`: it is admitted already.
    ///
    /// # Errors
    /// `Invalid` with the sentence for the administrator.
    pub fn check_admission(&self, new: &AdmitTarget) -> Result<Option<TargetChange>, Refused> {
        let fs = self.file_systems.get(&new.fs);
        let fs = fs.ok_or(Refused::Invalid { what: "the MGS knows no file system of this name" })?;
        let old = fs.targets.get(&(new.kind, new.index));
        let old = old.ok_or(Refused::Invalid {
            what: "no target of this name has registered: a new one needs no admission, serve it",
        })?;
        if new.kind == TargetKind::Mdt && new.admit == Admit::Replacement && !new.revoke {
            return Err(Refused::Invalid {
                what: "an empty MDT cannot replace one that had files: put a copy of it back and admit that with \
                       accept-rollback, or format the whole file system anew",
            });
        }
        let admitted = (!new.revoke).then_some(new.admit);
        let target = TargetRow { admitted, ..old.clone() };
        Ok((target != *old).then_some(TargetChange { version: self.version, target, fs: fs.row, news: None }))
    }

    /// `None` if no such target has registered.
    pub fn target(&self, fs: &FsName, kind: TargetKind, index: u32) -> Option<&TargetRow> {
        self.file_systems.get(fs)?.targets.get(&(kind, index))
    }

    /// Where the target of this uuid is served.
    pub(crate) fn whereabouts(&self, uuid: ClientUuid) -> Option<Whereabouts> {
        let mut targets = self.file_systems.values().flat_map(|fs| fs.targets.values());
        let found = targets.find(|target| target.known.uuid == uuid)?;
        let name = TargetName::Of { fs: found.fs.clone(), kind: found.kind, index: found.index };
        Some(Whereabouts { name, addresses: found.addresses.clone() })
    }

    /// Takes a change in that was written.
    pub fn apply(&mut self, change: TargetChange) {
        assert!(change.version >= self.version, "the version of the list never falls");
        self.version = change.version;
        let (target, row) = (change.target, change.fs);
        let fs = self
            .file_systems
            .entry(target.fs.clone())
            .or_insert_with(|| FileSystem { row, targets: BTreeMap::new() });
        fs.targets.insert((target.kind, target.index), target);
    }

    // ---- who may register

    pub(crate) fn load_register(&mut self, row: &[u8]) -> Result<(), DecodeError> {
        self.register = Some(Register::from_slice(row)?);
        Ok(())
    }
    /// A new MGS takes any target.
    pub fn register(&self) -> Register {
        self.register.unwrap_or(Register::Open)
    }
    pub(crate) fn set_register(&mut self, register: Register) {
        self.register = Some(register);
    }
    pub(crate) fn is_known(&self, target: &RegisterTarget) -> bool {
        let fs = self.file_systems.get(&target.fs);
        fs.is_some_and(|fs| fs.targets.contains_key(&(target.kind, target.index)))
    }
    /// Whether clients have mounted this file system for the first time, and this was not noted yet.
    pub(crate) fn is_unsettled(&self, fs: &FsName) -> bool {
        self.file_systems.get(fs).is_some_and(|fs| !fs.row.settled)
    }
    /// The row of a file system that is mounted from now on.
    pub(crate) fn settle(&mut self, fs: &FsName) -> Option<FsRow> {
        let fs = self.file_systems.get_mut(fs)?;
        fs.row.settled = true;
        Some(fs.row)
    }

    // ---- questions

    /// `None`: no such target.
    pub fn register_reply(&self, fs: &FsName, kind: TargetKind, index: u32) -> Option<RegisterReply> {
        let fs = self.file_systems.get(fs)?;
        Some(RegisterReply {
            config_version: self.version,
            hash_key: fs.row.hash_key,
            replaced: fs.targets.get(&(kind, index))?.replaced,
            refused: String::new(),
        })
    }
    /// `None`: no such file system.
    pub fn list(&self, fs: &FsName) -> Option<TargetList> {
        let fs = self.file_systems.get(fs)?;
        let entry = |t: &TargetRow| TargetEntry {
            kind: t.kind,
            index: t.index,
            known: t.known,
            replaced: t.replaced,
            addresses: t.addresses.clone(),
        };
        Some(TargetList {
            config_version: self.version,
            hash_key: fs.row.hash_key,
            targets: fs.targets.values().map(entry).collect(),
            params: self.permanent(),
        })
    }
    /// All file systems with their targets, by name, kind and index.
    pub fn file_systems(&self) -> impl Iterator<Item = (&FsName, impl Iterator<Item = &TargetRow>)> {
        self.file_systems.iter().map(|(name, fs)| (name, fs.targets.values()))
    }
}

impl ParamChange {
    pub(crate) const ROWS: u32 = 2;
    pub(crate) const BYTES: u32 = (NAME_BYTES_MAX + VALUE_BYTES_MAX) as u32 + 128;

    pub(crate) fn write(&self, tx: &mut Tx<'_>) {
        match &self.value {
            Some(value) => tx.put(PARAMS, &self.name.to_vec(), value.to_vec()),
            None => tx.delete(PARAMS, &self.name.to_vec()),
        }
        tx.put(STATE, VERSION_KEY, self.version.to_vec());
    }
}

impl TargetChange {
    /// Rows and bytes of a change at most.
    pub(crate) const ROWS: u32 = 3;
    pub(crate) const BYTES: u32 = (ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 4)) as u32 + 512;

    pub(crate) fn write(&self, tx: &mut Tx<'_>) {
        tx.put(FILE_SYSTEMS, &self.target.fs.to_vec(), self.fs.to_vec());
        tx.put(TARGETS, &target_key(&self.target), self.target.to_vec());
        tx.put(STATE, VERSION_KEY, self.version.to_vec());
    }
}

/// The rules for a registration that need no look at the registry.
fn check_registration(new: &RegisterTarget, sender: &Sender) -> Result<(), Refused> {
    if (sender.role, sender.uuid) != (Role::Target, new.identity.uuid) {
        return Err(Refused::Invalid { what: "a target registers itself only" });
    }
    if new.kind == TargetKind::Mgs {
        return Err(Refused::Invalid { what: "an MGS does not register" });
    }
    if new.index > new.kind.index_max() {
        return Err(Refused::Invalid { what: "the index of an MDT is at most 03ff, that of an OST ffff" });
    }
    if !(1..=Identity::INCARNATIONS_MAX).contains(&new.identity.incarnations.len()) {
        return Err(Refused::Invalid { what: "a target that registers has 1 to 128 openings" });
    }
    check_addresses(&new.addresses, sender)
}

/// A target that registers from another machine has addresses there.
fn check_addresses(addresses: &[String], sender: &Sender) -> Result<(), Refused> {
    if addresses.len() > ADDRESSES_MAX || addresses.iter().any(|a| a.len() > ADDRESS_BYTES_MAX) {
        return Err(Refused::Invalid { what: "at most 16 addresses of at most 255 bytes" });
    }
    for address in addresses {
        let refused = |why| Refused::Address { address: address.clone(), why };
        let parts = AddressText::parse(address).map_err(refused)?;
        if parts.is_on_one_machine() && sender.origin == Origin::Network {
            return Err(refused("it means something on one machine only, and this target is on another"));
        }
    }
    Ok(())
}

/// Whether an administrator has admitted what registers here instead of the registered target; or the sentence for its log.
fn admission(old: &TargetRow, new: &RegisterTarget, mismatch: Mismatch) -> Result<Admit, String> {
    let name = TargetName::Of { fs: new.fs.clone(), kind: new.kind, index: new.index };
    let wanted = if mismatch.is_other() { Admit::Replacement } else { Admit::Rollback };
    if old.admitted == Some(wanted) {
        if wanted == Admit::Rollback || new.blank {
            return Ok(wanted);
        }
        return Err(format!(
            "the target that was started as {name} {mismatch}; a replacement is admitted, but this one is not empty\n\
             hint: format it (nacre mkfs --reformat) if nothing on it is needed"
        ));
    }
    let Remembered { incarnation, committed, .. } = old.known;
    let registered = format!(
        "registered at the MGS: opening {} of its store, changes durable up to {committed}, at {}",
        incarnation.number,
        old.addresses.iter().take(4).cloned().collect::<Vec<_>>().join(", ")
    );
    let ways = match (wanted, new.kind) {
        (Admit::Replacement, TargetKind::Mdt) => String::from(
            "put the registered target back; all names are on it, so no empty one can replace it",
        ),
        (Admit::Replacement, _) => format!(
            "put the registered target back; or, if it is lost for good and this one is new and empty, admit it where the \
             MGS is served with `nacre target replace {name}`, and start it again (its old files give EIO then)"
        ),
        (Admit::Rollback, _) => format!(
            "put the current copy back; or, if there is none, accept this one and lose what is newer: `nacre target \
             accept-rollback {name}` where the MGS is served, and start it again"
        ),
    };
    let stopped = "(add `--mgs DIR` if the MGS does not run)";
    Err(format!("the target that was started as {name} {mismatch}\n{registered}\nhint: {ways} {stopped}"))
}

fn target_key(target: &TargetRow) -> Vec<u8> {
    let mut key = target.fs.to_vec();
    key.push(target.kind.number());
    key.extend_from_slice(&target.index.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use nacre_types::Transno;

    fn request(fs: &str, index: u32, uuid: u8, address: &str) -> RegisterTarget {
        let mut identity = Identity { uuid: ClientUuid([uuid; 16]), incarnations: Vec::new() };
        identity.open(u64::from(uuid), Transno(0));
        RegisterTarget {
            fs: FsName::parse(fs).expect("a name"),
            kind: TargetKind::Ost,
            index,
            identity,
            committed: Transno(10),
            replaced: 0,
            blank: true,
            addresses: alloc::vec![address.to_string()],
        }
    }
    fn sender(uuid: u8) -> Sender {
        let (uuid, secret) = (ClientUuid([uuid; 16]), Secret::new([uuid; 16]));
        Sender { uuid, secret, role: Role::Target, origin: Origin::Network }
    }
    fn admit(r: &mut Registry, admit: Admit, revoke: bool) {
        let fs = FsName::parse("demo").expect("a name");
        let asked = AdmitTarget { fs, kind: TargetKind::Ost, index: 0, admit, revoke };
        r.check_admission(&asked).expect("it may").into_iter().for_each(|c| r.apply(c));
    }
    fn register(r: &mut Registry, new: &RegisterTarget, key: (u64, u64)) -> Result<bool, Refused> {
        register_as(r, new, &sender(new.identity.uuid.0[0]), key)
    }
    fn register_as(
        r: &mut Registry,
        new: &RegisterTarget,
        sender: &Sender,
        key: (u64, u64),
    ) -> Result<bool, Refused> {
        let change = r.check(new, sender, key)?;
        let changed = change.is_some();
        change.into_iter().for_each(|c| r.apply(c));
        Ok(changed)
    }

    #[test]
    fn the_first_target_brings_its_file_system_and_the_key_stays() {
        let mut r = Registry::default();
        assert_eq!(register(&mut r, &request("demo", 0, 1, "a"), (5, 6)), Ok(true));
        assert_eq!(register(&mut r, &request("demo", 1, 2, "b"), (7, 8)), Ok(true));
        assert_eq!(register(&mut r, &request("demo", 0, 1, "a"), (9, 9)), Ok(false));
        assert_eq!(register(&mut r, &request("demo", 0, 1, "moved"), (9, 9)), Ok(true));
        let list = r.list(&FsName::parse("demo").expect("a name")).expect("it is there");
        assert_eq!((list.hash_key, list.config_version), ((5, 6), 3));
        let places: Vec<_> = list.targets.iter().map(|t| (t.index, t.addresses[0].as_str())).collect();
        assert_eq!(places, [(0, "moved"), (1, "b")]);
        assert!(r.list(&FsName::parse("other").expect("a name")).is_none());
    }

    #[test]
    fn an_index_beyond_the_range_of_its_kind_is_refused() {
        let mut r = Registry::default();
        let mdt = |index| RegisterTarget { kind: TargetKind::Mdt, ..request("demo", index, 1, "a") };
        let refused = register(&mut r, &mdt(0x400), (5, 6)).expect_err("no sequence can carry it");
        assert!(format!("{refused}").contains("at most 03ff"), "{refused}");
        assert_eq!(register(&mut r, &mdt(0x3ff), (5, 6)), Ok(true));
        register(&mut r, &request("demo", 0x1_0000, 2, "b"), (5, 6)).expect_err("four digits name it");
    }

    #[test]
    fn an_index_belongs_to_one_target_until_an_empty_one_is_admitted() {
        let mut r = Registry::default();
        register(&mut r, &request("demo", 0, 1, "a"), (5, 6)).expect("free");
        let refused = register(&mut r, &request("demo", 0, 2, "b"), (5, 6)).expect_err("taken");
        assert!(format!("{refused}").contains("nacre target replace demo-OST0000"), "{refused}");
        admit(&mut r, Admit::Rollback, false);
        register(&mut r, &request("demo", 0, 2, "b"), (5, 6))
            .expect_err("it is another one, and no old copy");
        admit(&mut r, Admit::Replacement, false);
        let full = RegisterTarget { blank: false, ..request("demo", 0, 2, "b") };
        register(&mut r, &full, (5, 6)).expect_err("it has objects");
        admit(&mut r, Admit::Replacement, true);
        register(&mut r, &request("demo", 0, 2, "b"), (5, 6)).expect_err("taken back");
        admit(&mut r, Admit::Replacement, false);
        assert_eq!(register(&mut r, &request("demo", 0, 2, "b"), (5, 6)), Ok(true));
        let fs = FsName::parse("demo").expect("a name");
        assert_eq!(r.register_reply(&fs, TargetKind::Ost, 0).map(|r| r.replaced), Some(1));
        register(&mut r, &request("demo", 0, 1, "a"), (5, 6))
            .expect_err("the former one is the other one now");
        assert_eq!(register(&mut r, &request("else", 0, 2, "b"), (5, 6)), Ok(true), "of another file system");
    }

    #[test]
    fn a_target_that_has_gone_back_is_refused_until_it_is_admitted() {
        let mut r = Registry::default();
        let first = request("demo", 0, 1, "a");
        register(&mut r, &first, (5, 6)).expect("free");
        let version = r.version();
        let opened = |of: &RegisterTarget, id: u64, began: u64| {
            let mut again = of.clone();
            again.identity.open(id, Transno(began));
            again.committed = Transno(began + 5);
            again
        };
        let second = opened(&first, 50, 20);
        assert_eq!(register(&mut r, &second, (5, 6)), Ok(true), "it is started again");
        assert_eq!(r.version(), version, "which nobody needs to hear");
        let later = RegisterTarget { committed: Transno(90), ..second.clone() };
        assert_eq!(register(&mut r, &later, (5, 6)), Ok(true), "numbers are remembered");
        for (bad, what) in [(opened(&first, 60, 20), "not in its history"), (opened(&second, 61, 89), "89")] {
            let refused = register(&mut r, &bad, (5, 6)).expect_err("gone back");
            let text = format!("{refused}");
            assert!(text.contains(what) && text.contains("accept-rollback demo-OST0000"), "{text}");
        }
        assert_eq!(register(&mut r, &opened(&second, 62, 90), (5, 6)), Ok(true));
        admit(&mut r, Admit::Rollback, false);
        assert_eq!(register(&mut r, &first, (5, 6)), Ok(true));
        let fs = FsName::parse("demo").expect("a name");
        let now = r.target(&fs, TargetKind::Ost, 0).expect("it is there").clone();
        assert_eq!((now.known, now.replaced), (first.identity.remember(Transno(10)), 1));
        assert_eq!((now.admitted, r.version()), (None, version + 1));
        // What is admitted and not needed ends with the next start of the right one.
        admit(&mut r, Admit::Replacement, false);
        register(&mut r, &first, (5, 6)).expect("it says again what it is");
        assert!(r.target(&fs, TargetKind::Ost, 0).is_some_and(|t| t.admitted.is_some()));
        register(&mut r, &opened(&first, 70, 30), (5, 6)).expect("it is started again");
        assert!(r.target(&fs, TargetKind::Ost, 0).is_some_and(|t| t.admitted.is_none()));
    }

    #[test]
    fn parameters_are_kept_forgotten_and_told_with_the_list() {
        let mut r = Registry::default();
        register(&mut r, &request("demo", 0, 1, "a"), (5, 6)).expect("free");
        let mut keep = |name: &str, value: Option<&str>| {
            let new = SetPermanentParam { name: name.to_string(), value: value.map(str::to_string) };
            let change = r.check_param(&new).expect("within the bounds");
            let changed = change.is_some();
            change.into_iter().for_each(|c| r.apply_param(c));
            let list = r.list(&FsName::parse("demo").expect("a name")).expect("it is there");
            (changed, list.config_version, list.params.len())
        };
        assert_eq!(keep("mdc.*.max_rpcs_in_flight", Some("16")), (true, 2, 1));
        assert_eq!(keep("mdc.*.max_rpcs_in_flight", Some("16")), (false, 2, 1));
        assert_eq!(keep("mdc.*.max_rpcs_in_flight", None), (true, 3, 0));
        for (name, value) in
            [("mdc.*.max_rpcs_in_flight", "0"), ("mdc.*.max_rpcs", "8"), ("mdc.*.stats", "0")]
        {
            let bad = SetPermanentParam { name: name.into(), value: Some(value.into()) };
            assert!(matches!(r.check_param(&bad), Err(Refused::Invalid { .. })), "{name}={value}");
            // One that an earlier version has kept can be forgotten.
            assert!(r.check_param(&SetPermanentParam { value: None, ..bad }).is_ok());
        }
        let long = SetPermanentParam { name: "x".repeat(256), value: None };
        assert!(matches!(r.check_param(&long), Err(Refused::Invalid { .. })));
    }

    #[test]
    fn hostile_registrations_are_refused() {
        let mut r = Registry::default();
        let mut many = request("demo", 0, 1, "a");
        many.addresses = alloc::vec![String::from("a"); 17];
        for bad in [request("demo", 0x10000, 1, "a"), request("demo", 0, 1, &"x".repeat(256)), many] {
            assert!(matches!(register(&mut r, &bad, (0, 0)), Err(Refused::Invalid { .. })));
        }
        let good = request("demo", 0, 1, "a");
        let (other, client) = (sender(2), Sender { role: Role::Client, ..sender(1) });
        for sender in [other, client] {
            let refused = register_as(&mut r, &good, &sender, (0, 0)).expect_err("not by itself");
            assert!(matches!(refused, Refused::Invalid { .. }));
        }
    }

    #[test]
    fn addresses_are_addresses_and_those_of_one_machine_come_from_it() {
        let mut r = Registry::default();
        for bad in ["", "a b", "a:70000", "unix:/etc/passwd", "local", "h\u{1b}[2J"] {
            let refused = register(&mut r, &request("demo", 0, 1, bad), (0, 0)).expect_err(bad);
            assert!(matches!(refused, Refused::Address { .. }), "{bad}: {refused}");
        }
        let here = Sender { origin: Origin::Host, ..sender(1) };
        assert_eq!(register_as(&mut r, &request("demo", 0, 1, "unix:/data/s"), &here, (0, 0)), Ok(true));
    }

    #[test]
    fn a_known_target_registers_with_its_secret_only() {
        let mut r = Registry::default();
        assert_eq!(register(&mut r, &request("demo", 0, 1, "a"), (5, 6)), Ok(true));
        let impostor = Sender { secret: Secret::new([9; 16]), ..sender(1) };
        let refused =
            register_as(&mut r, &request("demo", 0, 1, "b"), &impostor, (0, 0)).expect_err("refused");
        assert!(matches!(refused, Refused::Impostor { .. }));
        assert_eq!(register(&mut r, &request("demo", 0, 1, "b"), (5, 6)), Ok(true));
    }

    #[test]
    fn once_registration_is_closed_new_targets_come_as_the_administrator_only() {
        let mut r = Registry::default();
        assert_eq!(register(&mut r, &request("demo", 0, 1, "a"), (5, 6)), Ok(true));
        r.set_register(Register::Known);
        let refused = register(&mut r, &request("demo", 1, 2, "b"), (5, 6)).expect_err("closed");
        assert!(refused.to_string().contains("set_param mgs.MGS.register=open"), "{refused}");
        assert_eq!(register(&mut r, &request("demo", 0, 1, "moved"), (5, 6)), Ok(true), "it is known");
        let here = Sender { origin: Origin::Administrator, ..sender(3) };
        assert_eq!(register_as(&mut r, &request("demo", 2, 3, "c"), &here, (0, 0)), Ok(true));
    }
}
