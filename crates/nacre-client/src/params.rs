//! The parameters of a mount, `llite.*`, `mgc.*`, `mdc.*`, `osc.*`: the arms of the rows in `nacre-wire/src/params/table.rs`.

use crate::api::MountConfig;
use crate::client::Client;
use crate::files::atime::{Atime, AtimePolicy};
use crate::targets::imports;
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_types::{TargetKind, TargetName};
use nacre_wire::params::{Arm, BoundParam, ImportParam, MountParam, NamespaceParam, bind};
use nacre_wire::target::Param;

/// Where a new value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A command.
    Administrator,
    /// It is permanent. It may be more than a server allows today, and holds from the connect on that allows it.
    Mgs,
}

/// The arm of a parameter about access times.
fn arm_of<'a>(now: Atime, set: impl FnOnce(Atime) + 'a) -> Arm<'a> {
    Arm::word(now.word(), |word| {
        set(Atime::of_word(word).ok_or("no such access time")?);
        Ok(())
    })
}

impl Client {
    /// The parameters as messages show them.
    pub fn params(&self) -> Vec<Param> {
        self.bound_params().into_iter().map(BoundParam::into_param).collect()
    }
    /// Sets one parameter; `Err` is the sentence for the user.
    pub fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        match self.bound_params().into_iter().find(|param| param.name() == name) {
            Some(param) => param.set(value),
            None => Err(format!(
                "there is no parameter {name}; hint: list them with `nacre lctl list_param '*.*'`"
            )),
        }
    }
    /// The parameters, to be listed and set.
    pub fn bound_params(&self) -> Vec<BoundParam<'_>> {
        self.params_for(Source::Administrator)
    }
    pub(crate) fn params_for(&self, source: Source) -> Vec<BoundParam<'_>> {
        let mut params = bind(&format!("llite.{}", self.mount_name()), "", |param| self.mount_param(param));
        for mdt in self.mount.mdts() {
            let Some(device) = self.device(mdt.target()) else { continue };
            params
                .extend(bind("ldlm.namespaces", device_name(&device), |param| namespace_param(param, &mdt)));
        }
        for target in self.mount.targets() {
            let Some(device) = self.device(&target) else { continue };
            params.extend(bind(&device, "", |param| self.import_param(param, &target, &device, source)));
        }
        params
    }

    fn mount_param(&self, param: MountParam) -> Arm<'_> {
        match param {
            MountParam::Stats => Arm::counters(self.stats.render(), || self.stats.clear()),
            MountParam::Uuid => Arm::shown(self.mount.uuid()),
            MountParam::ReadOnly => Arm::switch(self.is_read_only(), |on| self.set_read_only(on)),
            MountParam::Atime => {
                let policy = self.atime();
                arm_of(policy.files, move |files| self.set_atime(AtimePolicy { files, ..policy }))
            }
            MountParam::DirAtime => {
                let policy = self.atime();
                arm_of(policy.directories, move |directories| {
                    self.set_atime(AtimePolicy { directories, ..policy });
                })
            }
            MountParam::WriteBack => {
                let dirty = self.mount.dirty_files();
                Arm::switch(dirty.is_on(), |on| dirty.set_on(on))
            }
            MountParam::MaxDirtyMb => {
                let dirty = self.mount.dirty_files();
                Arm::number(dirty.bytes_max() >> 20, |mb: u64| dirty.set_bytes_max(mb << 20))
            }
            MountParam::DirtyBytes => Arm::shown(self.mount.dirty_files().bytes()),
            MountParam::DirAttrCache => Arm::switch(self.mount.caches(), |on| self.mount.set_caches(on)),
        }
    }

    fn import_param(&self, param: ImportParam, target: &Rc<Target>, device: &str, source: Source) -> Arm<'_> {
        let target = target.clone();
        match param {
            ImportParam::Stats => Arm::counters(target.requests.render(), move || target.clear_requests()),
            ImportParam::State => Arm::shown(imports::state(&self.ctx, &target)),
            ImportParam::Import => Arm::shown(imports::import(device_name(device), &target)),
            ImportParam::Active => {
                let active = target.peer.with_import(|import| import.is_active());
                Arm::switch(active, move |active| {
                    target.peer.set_active(active);
                    self.locks.retry_all();
                    tracing::warn!(target_name = %target.name, active, "the administrator set osc.active of a target");
                })
            }
            ImportParam::MdcRpcStats | ImportParam::OscRpcStats => {
                let text = match param {
                    ImportParam::OscRpcStats => target.bulk().render(target.slots_since(), self.ctx.wall()),
                    _ => imports::rpc_stats(&self.ctx, &target),
                };
                Arm::counters(text, move || target.clear_slots(self.ctx.wall()))
            }
            ImportParam::CurGrantBytes => Arm::shown(target.grant().bytes().0),
            ImportParam::CurDirtyBytes => Arm::shown(target.grant().bytes().1),
            ImportParam::MdcMaxModRpcs | ImportParam::OscMaxModRpcs => {
                Arm::checked_number(imports::limits(&target).0, move |limit| {
                    if source == Source::Administrator {
                        imports::check_server_limit(limit, &target)?;
                    }
                    target.peer.set_max_mod_rpcs(limit);
                    Ok(())
                })
            }
            ImportParam::MdcMaxRpcs | ImportParam::OscMaxRpcs => {
                Arm::number(imports::limits(&target).1, move |limit| target.peer.set_max_rpcs(limit))
            }
            ImportParam::MaxPagesPerRpc => {
                Arm::number(target.rpc_pages_max(), move |pages| target.set_rpc_pages_max(pages))
            }
        }
    }

    /// `demo-0011223344556677`: this mount in names of parameters and wherever else it is shown.
    pub fn mount_name(&self) -> String {
        MountConfig::mount_name(&self.config.fs, self.instance())
    }
    fn instance(&self) -> u64 {
        self.mount.uuid().0.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
    }

    /// `mdc.demo-MDT0000-mdc-0011223344556677`.
    fn device(&self, target: &Target) -> Option<String> {
        let (kind, suffix) = match TargetName::parse(&target.name)?.kind() {
            TargetKind::Mdt => ("mdc", "mdc"),
            TargetKind::Ost => ("osc", "osc"),
            TargetKind::Mgs => ("mgc", "mgc"),
        };
        Some(format!("{kind}.{}-{suffix}-{:016x}", target.name, self.instance()))
    }
}

/// `demo-MDT0000-mdc-0011223344556677` of `mdc.demo-MDT0000-mdc-0011223344556677`.
fn device_name(device: &str) -> &str {
    device.split_once('.').map_or(device, |(_, name)| name)
}

/// A parameter of the locks of inodes that an MDT has granted, and of what is kept under them.
fn namespace_param(param: NamespaceParam, mdt: &Rc<Mdt>) -> Arm<'static> {
    let counts = mdt.cache().counts();
    let (hits, misses) = mdt.cache_hits();
    match param {
        NamespaceParam::LruSize => {
            let mdt = mdt.clone();
            Arm::number(counts.limit, move |limit| {
                mdt.cache().set_limit(limit);
                mdt.return_locks();
            })
        }
        NamespaceParam::LockCount => Arm::shown(counts.locks),
        NamespaceParam::Names => Arm::shown(counts.names),
        NamespaceParam::Bytes => Arm::shown(counts.bytes),
        NamespaceParam::Hits => Arm::shown(hits),
        NamespaceParam::Misses => Arm::shown(misses),
        NamespaceParam::Revokes => Arm::shown(counts.revokes),
        NamespaceParam::Cancels => Arm::shown(counts.cancels),
    }
}
