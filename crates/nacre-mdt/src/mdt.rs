//! A served metadata target: its parts. The behaviour is in `service`, the rules of each part in its own file.
//!
//! Invariant: the state in memory (opens, file locks, reservations at OSTs) follows the rows. It is changed in the visit of a
//! transaction, after the transaction has succeeded.

use crate::locks::change_order::ChangeOrder;
use crate::locks::flocks::Flocks;
use crate::locks::inode_locks::InodeLockTable;
use crate::osts::Osts;
use crate::osts::data_moves::DataMoves;
use crate::rows::name_hash::NameHash;
use crate::rows::opens::Opens;
use crate::rows::state_change::StateChange;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use nacre_node::Gate;
use nacre_target::TargetCore;
use nacre_types::{Instant, LayoutTemplate, MdtIndex};

/// The index of a served metadata target.
pub(crate) fn index_of(core: &TargetCore) -> MdtIndex {
    MdtIndex(core.name.index())
}

/// A served metadata target.
pub struct Mdt {
    core: Rc<TargetCore>,
    name_hash: NameHash,
    default_layout: Cell<LayoutTemplate>,
    data_moves: DataMoves,
    opens: RefCell<Opens>,
    flocks: RefCell<Flocks>,
    osts: Rc<Osts>,
    change_order: ChangeOrder,
    /// Directories move to another parent one at a time.
    moves: Gate,
    inode_locks: InodeLockTable,
    /// When the log has last said that the target is full.
    said_full_at: Cell<Option<Instant>>,
}

impl Mdt {
    /// A target whose rows have been read.
    pub(crate) fn new(
        core: &Rc<TargetCore>,
        name_hash: NameHash,
        default_layout: LayoutTemplate,
        opens: Opens,
        flocks: Flocks,
    ) -> Rc<Self> {
        Rc::new(Self {
            core: core.clone(),
            name_hash,
            default_layout: Cell::new(default_layout),
            data_moves: DataMoves::new(&core.ctx),
            opens: RefCell::new(opens),
            flocks: RefCell::new(flocks),
            osts: Osts::new(core),
            change_order: ChangeOrder::new(&core.ctx),
            moves: Gate::new(&core.ctx, 1),
            inode_locks: InodeLockTable::new(&core.ctx),
            said_full_at: Cell::new(None),
        })
    }
    pub(crate) fn said_full_at(&self) -> Option<Instant> {
        self.said_full_at.get()
    }
    pub(crate) fn set_said_full_at(&self, at: Instant) {
        self.said_full_at.set(Some(at));
    }
    pub(crate) fn core(&self) -> &Rc<TargetCore> {
        &self.core
    }
    /// The index of this MDT, which the sequences that it grants carry.
    pub(crate) fn index(&self) -> MdtIndex {
        index_of(&self.core)
    }
    pub(crate) fn name_hash(&self) -> &NameHash {
        &self.name_hash
    }
    /// The layout template of the file system.
    pub(crate) fn default_layout(&self) -> LayoutTemplate {
        self.default_layout.get()
    }
    /// Sets the most bytes of a new file that this target keeps.
    pub(crate) fn set_default_dom_bytes(&self, dom_bytes: u32) {
        let dom_bytes = Some(dom_bytes);
        self.default_layout.set(LayoutTemplate { dom_bytes, ..self.default_layout.get() });
    }
    /// Files whose bytes are on their way to objects.
    pub(crate) fn data_moves(&self) -> &DataMoves {
        &self.data_moves
    }
    pub(crate) fn opens(&self) -> &RefCell<Opens> {
        &self.opens
    }
    pub(crate) fn flocks(&self) -> &RefCell<Flocks> {
        &self.flocks
    }
    pub(crate) fn osts(&self) -> &Rc<Osts> {
        &self.osts
    }
    pub(crate) fn change_order(&self) -> &ChangeOrder {
        &self.change_order
    }
    /// The gate of directories that move to another parent.
    pub(crate) fn moves(&self) -> &Gate {
        &self.moves
    }
    pub(crate) fn inode_locks(&self) -> &InodeLockTable {
        &self.inode_locks
    }

    /// Does what follows from a change of the opens that a successful transaction has listed.
    pub(crate) fn follow_state_change(&self, change: StateChange) {
        match change {
            StateChange::Opened { opened, .. } if opened.writes() => self.osts.sizes().disturb(opened.fid),
            StateChange::Opened { .. }
            | StateChange::Closed { .. }
            | StateChange::TruncateEnded { .. }
            | StateChange::WriterLost(_) => {}
            StateChange::TruncateStarted { fid, .. } => self.osts.sizes().disturb(fid),
            StateChange::SizeUnknown(fid) => self.osts.sizes().push(fid),
            StateChange::OstWork(ost) => self.osts.kick(ost),
            StateChange::MovedTo(ost) => self.osts.note_moved(ost),
            StateChange::UnusedReservation(ost) => self.osts.give_back(ost),
            StateChange::InodeRemoved(fid) => self.flocks.borrow_mut().forget(fid),
        }
    }
}
