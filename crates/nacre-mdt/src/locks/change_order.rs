//! The order of conflicting changes of different clients: acknowledge or commit (see `nacre_target::Uncommitted`), and turns
//! (`turns.rs`).
//!
//! With `mdt.*.commit_on_sharing` a change also waits for changes of another client that has their replies. Then the
//! simultaneous loss of the machine and of that client removes no change on which a change of a third client depends.

use crate::locks::turns::Turns;
use crate::rows::access::{AccessKey, AccessSet};
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use nacre_node::Ctx;
use nacre_target::{Request, TargetCore, Uncommitted};
use nacre_types::Transno;
use nacre_wire::Opcode;
use nacre_wire::params::MdtParam;

/// The event that a change has to wait for before it is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// The end of the turn of an earlier change with which this change would conflict.
    Turn(u64),
    /// The commit of a change that this one builds on.
    Commit(Transno),
}

/// See the module.
pub(crate) struct ChangeOrder {
    uncommitted: RefCell<Uncommitted<AccessKey>>,
    turns: Turns,
    commit_on_sharing: Cell<bool>,
}

impl ChangeOrder {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        let commit_on_sharing = Cell::new(MdtParam::CommitOnSharing.row().default_switch());
        Self { uncommitted: RefCell::default(), turns: Turns::new(ctx), commit_on_sharing }
    }
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }
    /// Whether a change of another client is committed before a change may build on it, acknowledged or not.
    pub(crate) fn commit_on_sharing(&self) -> bool {
        self.commit_on_sharing.get()
    }
    pub(crate) fn set_commit_on_sharing(&self, on: bool) {
        self.commit_on_sharing.set(on);
    }

    /// The event that a change with these accesses has to wait for.
    pub(crate) fn must_wait_for(
        &self,
        core: &TargetCore,
        request: &Request,
        accesses: &AccessSet,
    ) -> Option<WaitFor> {
        // The change of another client whose turn comes first may wait for this very return of kept bytes.
        let returns_bytes = matches!(request.opcode, Opcode::StoreData | Opcode::MoveData);
        let turn = if returns_bytes { None } else { self.turns.before(request.export, accesses) };
        turn.map(WaitFor::Turn)
            .or_else(|| self.must_be_committed(core, request, accesses).map(WaitFor::Commit))
    }
    /// The latest change that has to be committed first.
    fn must_be_committed(
        &self,
        core: &TargetCore,
        request: &Request,
        accesses: &AccessSet,
    ) -> Option<Transno> {
        let committed = core.osd.last_committed();
        let mut uncommitted = self.uncommitted.borrow_mut();
        uncommitted.prune(|change| change.transno <= committed);
        let conflicts = accesses.all().flat_map(|key| uncommitted.conflicting(*key));
        conflicts
            .filter(|change| change.export != request.export && change.transno > committed)
            .filter(|change| self.commit_on_sharing.get() || !core.is_acknowledged(change))
            .map(|change| change.transno)
            .max()
    }
    /// Records an applied change: until it is committed or its client has the reply, conflicting changes of others wait.
    pub(crate) fn applied(&self, request: &Request, transno: Transno, accesses: &AccessSet) {
        let mut uncommitted = self.uncommitted.borrow_mut();
        accesses.writes().iter().for_each(|key| uncommitted.record(request, *key, transno));
    }
}
