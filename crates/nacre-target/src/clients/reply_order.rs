//! Replies to one client leave in the order of its changes; otherwise the earlier changes are committed first.
//!
//! Why: a client replays the changes for which it has replies, in the order of their numbers, and resends the others after
//! that. A change with a reply may build on an earlier one of the same client, made by another program, whose reply was
//! lost with its connection or has not left yet: after the loss of the machine the replay would find nothing to build on,
//! and the resend would come too late. On one connection the order of replies prevents that. Changes that were executed
//! before the present connection count as not replied to, so the first replies on a new connection wait for one commit.
//!
//! Bounded by the uncommitted changes and by the client's slots. Not here: other clients (`locks/uncommitted.rs`).

use alloc::vec::Vec;
use nacre_types::Transno;

/// Changes of one client whose replies have not left on its connection.
#[derive(Debug, Default)]
pub(crate) struct ReplyOrder {
    /// Executed on this connection.
    pending: Vec<Transno>,
    /// Everything up to this was executed on an earlier connection.
    before: Transno,
}

impl ReplyOrder {
    /// A new connection: replies may have been lost with the one before. `last`: the client's latest change.
    pub(crate) fn connected(&mut self, last: Transno) {
        self.before = last;
    }
    /// A change was executed; its reply is pending.
    pub(crate) fn executed(&mut self, transno: Transno, committed: Transno) {
        self.pending.retain(|pending| *pending > committed);
        self.pending.push(transno);
    }
    /// The reply to a change leaves.
    pub(crate) fn replied(&mut self, transno: Transno) {
        self.pending.retain(|pending| *pending != transno);
    }
    /// The transno up to which changes must be committed before the reply to this change may leave.
    pub(crate) fn must_commit(&self, transno: Transno, committed: Transno) -> Option<Transno> {
        let pending = self.pending.iter().copied().filter(|pending| *pending < transno);
        pending.chain([self.before.min(transno)]).max().filter(|earlier| *earlier > committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_waits_for_earlier_changes_that_have_none() {
        let mut order = ReplyOrder::default();
        let must_commit = |order: &ReplyOrder, transno, committed| {
            order.must_commit(Transno(transno), Transno(committed)).map(|t| t.0)
        };
        order.executed(Transno(5), Transno(4));
        order.executed(Transno(7), Transno(4));
        assert_eq!(must_commit(&order, 5, 4), None, "the first");
        assert_eq!(must_commit(&order, 7, 4), Some(5));
        assert_eq!(must_commit(&order, 7, 5), None, "committed");
        order.replied(Transno(5));
        assert_eq!(must_commit(&order, 7, 4), None, "in order");
        order.replied(Transno(7));
        order.connected(Transno(7));
        order.executed(Transno(9), Transno(4));
        assert_eq!(must_commit(&order, 9, 4), Some(7), "of the connection before");
        assert_eq!(must_commit(&order, 6, 4), Some(6), "resent");
        assert_eq!(must_commit(&order, 9, 7), None);
    }
}
