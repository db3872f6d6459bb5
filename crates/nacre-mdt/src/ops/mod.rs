//! The operations that change metadata. Each is a synchronous function over a [`crate::rows::view::View`].

pub(crate) mod create;
pub(crate) mod open;
pub(crate) mod rename;
pub(crate) mod set_layout;
pub(crate) mod setattr;
pub(crate) mod unlink;
pub(crate) mod xattr;
