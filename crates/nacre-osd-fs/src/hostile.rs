//! The content of a store's directory as a fuzz target (`fuzz/`): names of files, the text of the lock file.

use crate::holder::Holder;
use crate::path::{self, parse_blob, parse_number};
use nacre_node::FileId;

/// A name that a directory shows, or the text of a lock file. Nothing that is not written as we write it is ours.
pub fn name(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(object) = parse_blob(&text) {
        assert_eq!(path::path(FileId::Blob(object)).rsplit('/').next(), Some(&*text));
    }
    let _number = parse_number(&text);
    let holder = Holder::from_text(&text);
    assert_eq!(Holder::from_text(&holder.to_text()), holder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay_corpus::{replay, seeds};

    #[test]
    fn names_and_lock_files() {
        let all = [
            ("blob", "1234.ff.3"),
            ("log", "000000000000004d"),
            ("holder", "pid 7\nstart 99\nhost h\nsince 2026-01-01 00:00:00 UTC\ncommand nacre serve a\n"),
            ("chunks", "1234.ff.3.d"),
        ];
        seeds("name", &all.map(|(name, text)| (name, text.as_bytes().to_vec())));
        replay("name", name);
    }
}
