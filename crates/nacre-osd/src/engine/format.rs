//! Formatting a store, and reading its label without opening it.

use crate::engine::config::OsdConfig;
use crate::engine::files::list;
use crate::engine::osd::Osd;
use crate::engine::superblock::{FORMAT_VERSION, Label, Super};
use crate::error::OsdError;
use crate::log::mark::Mark;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use nacre_node::{Ctx, FileId, FileKind, StoreError, StoreOp};

impl Osd {
    /// Writes label and empty log into an empty store.
    ///
    /// # Errors
    /// `Format` when the store holds a target already (unless `overwrite`).
    pub async fn format(
        ctx: &Rc<Ctx>,
        label: &Label,
        config: &OsdConfig,
        overwrite: bool,
    ) -> Result<(), OsdError> {
        let found = Super::read(ctx).await;
        if !overwrite {
            match found {
                Ok(None) => {}
                Ok(Some(s)) => {
                    return Err(OsdError::Format(format!(
                        "the store holds target {} (uuid {}) already: choose another place, or erase it with --reformat",
                        s.label.name, s.label.uuid
                    )));
                }
                Err(OsdError::Format(text)) => {
                    return Err(OsdError::Format(format!(
                        "the store is not empty ({text}): choose another place, or erase it with --reformat"
                    )));
                }
                Err(e) => return Err(e),
            }
        }
        // The superblock is deleted first and written last: a store that is half formatted is no target.
        ctx.io(StoreOp::Delete { file: FileId::Super }).await?;
        for kind in [FileKind::Log, FileKind::Run, FileKind::Blob] {
            for (file, _) in list(ctx, kind).await? {
                ctx.io(StoreOp::Delete { file }).await?;
            }
        }
        ctx.io(StoreOp::Delete { file: FileId::Ballast }).await?;
        // An old mark must not be beside the new log, whose record numbers begin again at 1.
        ctx.io(StoreOp::Delete { file: FileId::Mark }).await?;
        match Mark::create(ctx).await {
            Ok(()) | Err(StoreError::NoSpace) => {}
            Err(e) => return Err(e.into()),
        }
        ctx.io(StoreOp::Sync { file: FileId::Mark }).await?;
        match Self::make_ballast(ctx, config).await {
            Ok(()) | Err(OsdError::NoSpace { .. }) => {}
            Err(e) => return Err(e),
        }
        let label = Label { format_version: FORMAT_VERSION, ..label.clone() };
        Super::new(label).write(ctx).await
    }

    /// The label of a store, without opening it.
    ///
    /// # Errors
    /// `Format` for an empty store, a damaged label or another format version.
    pub async fn read_label(ctx: &Rc<Ctx>) -> Result<Label, OsdError> {
        match Super::read(ctx).await? {
            Some(found) => Ok(found.label),
            None => Err(OsdError::Format(String::from(
                "this is not a nacre target (it has no superblock): format it with `nacre mkfs`",
            ))),
        }
    }
}
