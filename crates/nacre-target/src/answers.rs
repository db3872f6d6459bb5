//! Answers of one client leave in the order of their changes, or what they leave behind is committed first.
//!
//! Why: a client makes again what it was answered, in the order of numbers, and sends the rest anew after that. A change
//! that was answered may build on an earlier one of the same client, of another program, whose answer was lost with its
//! connection or still waits: after the loss of the machine the first would find nothing to build on, and the resend of
//! the second would come too late. On one connection order does it. So what was executed before a connection stood
//! counts as not answered there, and the first answers on a new connection wait for one commit.
//!
//! Bounded by what is uncommitted and by the client's slots. Other clients: acknowledge or commit, in the services.

use alloc::vec::Vec;
use nacre_types::Transno;

/// Changes of one client whose answers have not left on its connection.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Executed on this connection.
    due: Vec<Transno>,
    /// Everything up to this was executed before it.
    before: Transno,
}

impl Answers {
    /// A new connection: answers may have been lost with the one before. `last`: the client's latest change.
    pub(crate) fn connected(&mut self, last: Transno) {
        self.before = last;
    }
    pub(crate) fn made(&mut self, transno: Transno, committed: Transno) {
        self.due.retain(|due| *due > committed);
        self.due.push(transno);
    }
    pub(crate) fn answered(&mut self, transno: Transno) {
        self.due.retain(|due| *due != transno);
    }
    /// Up to where has to be committed before the answer to this change may leave.
    pub(crate) fn missing(&self, transno: Transno, committed: Transno) -> Option<Transno> {
        let due = self.due.iter().copied().filter(|due| *due < transno);
        due.chain([self.before.min(transno)]).max().filter(|missing| *missing > committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_waits_for_what_was_executed_before_it_and_not_answered() {
        let mut answers = Answers::default();
        let missing = |answers: &Answers, transno, committed| {
            answers.missing(Transno(transno), Transno(committed)).map(|t| t.0)
        };
        answers.made(Transno(5), Transno(4));
        answers.made(Transno(7), Transno(4));
        assert_eq!(missing(&answers, 5, 4), None, "the first");
        assert_eq!(missing(&answers, 7, 4), Some(5));
        assert_eq!(missing(&answers, 7, 5), None, "committed");
        answers.answered(Transno(5));
        assert_eq!(missing(&answers, 7, 4), None, "in order");
        answers.answered(Transno(7));
        answers.connected(Transno(7));
        answers.made(Transno(9), Transno(4));
        assert_eq!(missing(&answers, 9, 4), Some(7), "of the connection before");
        assert_eq!(missing(&answers, 6, 4), Some(6), "sent again");
        assert_eq!(missing(&answers, 9, 7), None);
    }
}
