//! SetLayout: the layout of a file before its first byte, or the one that a directory hands down.

use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::osts::allocator::{check_template, resolve};
use crate::rows::read_set::ReadSet;
use crate::rows::state_change::StateChange;
use crate::rows::versions::CHILD;
use crate::rows::view::{Abort, Step, View};
use nacre_types::name::HashKey;
use nacre_types::{Codec, Errno, Fid, Generation, InodeBits, Layout, LayoutTemplate, SizeState};
use nacre_wire::mdt::{EntryReply, SetLayout};

impl Operation for SetLayout {
    fn counter(&self) -> Option<&'static str> {
        None
    }

    fn read_set(&self, _hash: HashKey, _export: Generation) -> ReadSet {
        ReadSet::of_inode(self.fid)
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(1)
    }

    /// EEXIST: the file may have data, so its layout stays.
    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        let mut inode = view.file(self.fid)?;
        view.depends_on(CHILD, &inode)?;
        if self.caller.uid != 0 && self.caller.uid != inode.attr.uid {
            return Err(Errno::EPERM.into());
        }
        check_template(&self.template).map_err(Errno::from)?;
        if inode.attr.is_dir() {
            let nothing = self.template == LayoutTemplate::default();
            inode.template = (!nothing).then_some(self.template);
        } else if inode.is_regular() {
            let pristine = inode.attr.size == 0
                && inode.attr.size_state == SizeState::Exact
                && !inode.may_have_objects
                && view.opens().writers(self.fid) == 0;
            if !pristine {
                // A client that has SIZE may not have sent the close of a writer that changed nothing.
                view.breaks(self.fid, InodeBits::SIZE);
                return Err(Abort::AfterRevoke(Errno::EEXIST));
            }
            let generation = inode.layout.as_ref().map_or(0, |l| l.generation + 1);
            let template = resolve(Some(self.template), None, context.default_layout());
            let layout = context.choose_layout(&template)?;
            for (ost, stripes) in inode.objects() {
                stripes.iter().for_each(|_| view.state_change(StateChange::UnusedReservation(ost)));
            }
            inode.layout = Some(Layout { generation, ..layout });
        } else {
            return Err(Errno::EINVAL.into());
        }
        inode.changed_at(self.time);
        view.put_changed(&mut inode);
        Ok(Applied::entry(&inode.reply()))
    }

    fn replayed_layout(&self, reply: &[u8]) -> Option<Layout> {
        EntryReply::from_slice(reply).ok()?.layout
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}
