//! Open: opens an inode by its FID.

use crate::ops::opening::open_inode;
use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::rows::read_set::ReadSet;
use crate::rows::view::{Step, View};
use nacre_types::name::HashKey;
use nacre_types::{Codec, Errno, Fid, FileType, Generation};
use nacre_wire::mdt::{EntryReply, Open};

impl Operation for Open {
    fn counter(&self) -> Option<&'static str> {
        Some("open")
    }

    fn read_set(&self, _hash: HashKey, _export: Generation) -> ReadSet {
        ReadSet::of_inode(self.fid)
    }

    fn bound(&self) -> WriteBound {
        // The row is small and goes with the close; without an open a directory cannot be listed and emptied.
        WriteBound::inodes(1).freeing()
    }

    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        let mut inode = view.file(self.fid)?;
        if inode.attr.file_type() == FileType::Symlink {
            return Err(Errno::ELOOP.into());
        }
        if open_inode(view, context.export(), &mut inode, &self.how)? {
            view.put_inode(&inode);
        }
        // The open keeps the inode, so the record need not say anything about it.
        view.describes(&inode);
        // Another client that kept bytes has written them before.
        let reply = EntryReply { buffered: false, ..inode.reply() };
        Ok(Applied { body: reply.to_vec(), record: Recorded::default() })
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}
