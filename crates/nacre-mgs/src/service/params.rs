//! The parameters of the MGS: the arms of the rows in `nacre-wire/src/params/table.rs`.

use crate::registry::{Register, Registry, TargetRow};
use crate::service::Mgs;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_types::{FsName, Remembered, TargetName};
use nacre_wire::params::{Arm, BoundParam, FileSystemParam, MgsParam, bind};

impl Mgs {
    pub(super) fn list_params(&self) -> Vec<BoundParam<'_>> {
        let prefix = self.core.param_prefix();
        let mut params = bind(&prefix, "", |param| match param {
            MgsParam::Register => {
                Arm::word(self.registry.borrow().register().name(), |word| self.set_register(word))
            }
        });
        let registry = self.registry.borrow();
        for (fs, targets) in registry.file_systems() {
            let live = live(&registry, fs, targets);
            params.extend(bind(&prefix, &fs.to_string(), |param| match param {
                FileSystemParam::Live => Arm::shown(&live),
            }));
        }
        drop(registry);
        params
    }

    /// The administrator decides which targets may register; a restart knows it.
    fn set_register(&self, word: &str) -> Result<(), String> {
        let register = Register::parse(word).ok_or_else(|| format!("the MGS does not know {word}"))?;
        self.registry.borrow_mut().set_register(register);
        tracing::info!(register = register.name(), "the administrator set which targets may register");
        let mgs = self.me.clone();
        self.core.ctx.spawn(async move {
            if let Some(mgs) = mgs.upgrade() {
                mgs.keep_register(None).await;
            }
        });
        Ok(())
    }
}

/// The targets of a file system and the permanent parameters.
fn live<'a>(registry: &Registry, fs: &FsName, targets: impl Iterator<Item = &'a TargetRow>) -> String {
    let mut text = format!("fsname: {fs}\nconfig_version: {}\n", registry.version());
    for t in targets {
        let name = TargetName::Of { fs: fs.clone(), kind: t.kind, index: t.index };
        let Remembered { uuid, incarnation, committed } = t.known;
        text.push_str(&format!("{name}: {{ uuid: {uuid}, addresses: [{}]", t.addresses.join(", ")));
        text.push_str(&format!(", opening: {}, committed: {committed}", incarnation.number));
        text.push_str(&format!(", replaced: {}", t.replaced));
        if let Some(admitted) = t.admitted {
            text.push_str(&format!(", admitted: {admitted:?}"));
        }
        text.push_str(" }\n");
    }
    for param in registry.permanent() {
        text.push_str(&format!("kept: {}={}\n", param.name, param.value));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_register_is_known() {
        let words = MgsParam::Register.row().values();
        assert_eq!(
            words,
            Register::ALL.iter().map(|register| register.name()).collect::<Vec<_>>().join(" or ")
        );
    }
}
