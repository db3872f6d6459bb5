//! Layouts that users set: what a directory hands down, and that of a file before its first byte.

use crate::ops::open::wants_open;
use crate::osts::allocator::{NoLayout, check_template, resolve};
use crate::rows::versions::CHILD;
use crate::rows::view::{Halt, Note, Step, View, Wants};
use nacre_types::{Errno, Layout, LayoutTemplate, SizeState};
use nacre_wire::mdt::{EntryReply, SetLayout};

pub(crate) fn wants(args: &SetLayout) -> Wants {
    wants_open(args.fid)
}

/// EEXIST: the file may have data, its layout stays.
pub(crate) fn apply(
    view: &mut View<'_>,
    default: LayoutTemplate,
    choose: &mut dyn FnMut(&LayoutTemplate) -> Result<Layout, Errno>,
    args: &SetLayout,
) -> Step<EntryReply> {
    let mut inode = view.file(args.fid)?;
    view.depends_on(CHILD, &inode)?;
    if args.caller.uid != 0 && args.caller.uid != inode.attr.uid {
        return Err(Errno::EPERM.into());
    }
    check_template(&args.template).map_err(|e: NoLayout| Halt::Errno(e.into()))?;
    if inode.attr.is_dir() {
        let nothing = args.template == LayoutTemplate::default();
        inode.template = (!nothing).then_some(args.template);
    } else if inode.is_regular() {
        let pristine = inode.attr.size == 0
            && inode.attr.size_state == SizeState::Exact
            && !inode.may_have_objects
            && view.opens.writers(args.fid) == 0;
        if !pristine {
            return Err(Errno::EEXIST.into());
        }
        let generation = inode.layout.as_ref().map_or(0, |l| l.generation + 1);
        let layout = choose(&resolve(Some(args.template), None, default))?;
        for (ost, stripes) in inode.objects() {
            view.notes.extend(stripes.iter().map(|_| Note::Unused(ost)));
        }
        inode.layout = Some(Layout { generation, ..layout });
    } else {
        return Err(Errno::EINVAL.into());
    }
    inode.changed_at(args.time);
    view.put_changed(&mut inode);
    Ok(inode.reply())
}
