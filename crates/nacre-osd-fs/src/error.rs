//! Errors of opening or formatting a store, as sentences for the operator.

use crate::holder::Holder;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path} is in use by {holder}; stop that first")]
    Busy { path: String, holder: Holder },
    #[error(
        "{path} is not empty and not a nacre store (it holds `{example}`): nothing in it was changed; choose another \
         directory, or empty this one"
    )]
    NotEmpty { path: String, example: String },
    #[error("{path} holds a nacre store already; --reformat deletes everything in it")]
    HoldsStore { path: String },
    #[error(
        "{path} holds the files of a nacre store (`{example}`), but not its label, the file `super`: put that back from a \
         copy of the store; to give the data up, `nacre mkfs --reformat` deletes everything in it"
    )]
    NoLabel { path: String, example: String },
    #[error("{path} is not a nacre store; `nacre mkfs` makes one")]
    NotAStore { path: String },
    #[error(
        "{what} {path}: {source}\nhint: after an error of its device a file system becomes read-only: unmount it, check it \
         (fsck), and mount it again"
    )]
    ReadOnly { what: &'static str, path: String, source: std::io::Error },
    #[error("{what} {path}: {source}")]
    Io { what: &'static str, path: String, source: std::io::Error },
}

impl OpenError {
    pub(crate) fn io(what: &'static str, path: &str) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = String::from(path);
        move |e| match e {
            rustix::io::Errno::ROFS => Self::ReadOnly { what, path, source: std::io::Error::from(e) },
            _ => Self::Io { what, path, source: std::io::Error::from(e) },
        }
    }
}
