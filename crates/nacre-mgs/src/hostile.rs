//! The rows of an MGS as a fuzz target (`fuzz/`): any content either gives a list or is refused.

use crate::registry::Registry;

/// Rows, each led by what it is and how long its key and its value are: a registry as a start of the MGS reads it.
pub fn registry(mut bytes: &[u8]) {
    let mut registry = Registry::default();
    while let Some((&[kind, key_len, value_len], rest)) = bytes.split_first_chunk::<3>() {
        let Some((key, rest)) = rest.split_at_checked(key_len.into()) else { break };
        let Some((value, rest)) = rest.split_at_checked(value_len.into()) else { break };
        bytes = rest;
        let _read = match kind % 4 {
            0 => registry.load_version(value),
            1 => registry.load_fs(key, value),
            2 => registry.load_target(value),
            _ => registry.load_param(key, value),
        };
    }
    let permanent = registry.permanent();
    for (fs, targets) in registry.file_systems() {
        let list = registry.list(fs).expect("it is there");
        assert_eq!((list.targets.len(), list.params.len()), (targets.count(), permanent.len()));
        for target in list.targets {
            assert!(registry.register_reply(fs, target.kind, target.index).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{FsRow, TargetRow};
    use crate::replay_corpus::{replay, seeds};
    use alloc::string::String;
    use alloc::vec::Vec;
    use nacre_types::{ClientUuid, Codec as _, FsName, Incarnation, Remembered, Secret, TargetKind, Transno};
    use nacre_wire::mgs::Admit;

    #[test]
    fn rows_of_an_mgs() {
        let row = |kind: u8, key: Vec<u8>, value: Vec<u8>| {
            let mut out = Vec::from([kind, key.len() as u8, value.len() as u8]);
            out.extend(key);
            out.extend(value);
            out
        };
        let fs = FsName::parse("demo").expect("a name");
        let fs_row = FsRow { hash_key: (1, 2), settled: true };
        let target = TargetRow {
            fs: fs.clone(),
            kind: TargetKind::Ost,
            index: 3,
            secret: Secret::new([8; 16]),
            known: Remembered {
                uuid: ClientUuid([7; 16]),
                incarnation: Incarnation { number: 2, id: 3, began: Transno(4) },
                committed: Transno(5),
            },
            replaced: 1,
            admitted: Some(Admit::Rollback),
            addresses: Vec::from([String::from("h:9988")]),
        };
        let name = String::from("mdc.*.max_rpcs_in_flight");
        let all = [
            row(0, Vec::new(), 9u64.to_vec()),
            row(1, fs.to_vec(), fs_row.to_vec()),
            row(2, Vec::new(), target.to_vec()),
            row(3, name.to_vec(), String::from("9").to_vec()),
        ];
        seeds(
            "registry",
            &[("rows", all.concat()), ("orphan", all[2].clone()), ("zeros", alloc::vec![0; 64])],
        );
        replay("registry", registry);
    }
}
