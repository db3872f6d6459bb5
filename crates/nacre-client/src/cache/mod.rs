//! What this mount caches: names and attributes of the directories that the MDT lets it hold. Nothing else is cached yet.

pub(crate) mod dirs;
pub(crate) mod kernel;
