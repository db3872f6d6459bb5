//! The outbox of one direction of a connection: a queue and its send token.
//!
//! Frames are added *inside* the visit that produced them, so their order is the order of visits. The thread that
//! leaves the island takes the token and drains the queue. A second thread that finds the token taken either continues
//! with its own work, because the holder will send its frames, too, or waits until the holder passes the token on.
//!
//! Invariants: (1) at most one holder of the token; (2) items leave in the order in which they came; (3) the token is
//! released only in the same step that found the queue empty or a thread waiting for it, so no item is left without a
//! thread that looks at it; (4) the queued items never cost more than the bound, unless the bound is `usize::MAX`. Not
//! here: the lock around it (the driver's; the simulator needs none), the wait, sockets, the meaning of items.

use alloc::collections::VecDeque;

/// The reason why an item was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The peer does not keep up: close the connection.
    #[error("{queued_bytes} bytes wait to be sent, the limit is {bytes_max}")]
    Full { queued_bytes: usize, bytes_max: usize },
    /// The outbox is closed; the item is dropped.
    #[error("closed")]
    Closed,
}

/// The next step of the holder of the token.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    Item(T),
    /// The queue was empty; the token has been released.
    Released,
}

/// The result of asking for the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The caller holds it.
    Taken,
    /// The caller has nothing to do: the queue is empty, or the holder of the token will see what is in it.
    Nothing,
    /// Another thread holds it; the caller is counted as waiting.
    Waiting,
}

/// A queue with one drainer at a time.
#[derive(Debug)]
pub struct Outbox<T> {
    queue: VecDeque<(T, usize)>,
    bytes: usize,
    bytes_max: usize,
    token_taken: bool,
    /// Threads that wait for the token.
    waiting: u32,
    closed: bool,
}

impl<T> Outbox<T> {
    /// Empty, token free. `bytes_max` bounds the sum of the costs that are queued.
    pub fn new(bytes_max: usize) -> Self {
        Self { queue: VecDeque::new(), bytes: 0, bytes_max, token_taken: false, waiting: 0, closed: false }
    }
    /// Empty, with the token held by the creator: no item leaves before it releases the token (a connection that is
    /// being opened).
    pub fn held(bytes_max: usize) -> Self {
        Self { token_taken: true, ..Self::new(bytes_max) }
    }
    /// Puts an item at the end. Does not look at the token: the caller tries [`Outbox::take_token`] when it has
    /// left the island.
    ///
    /// # Errors
    /// See [`OutboxError`]; the item is dropped. A single item over the bound is accepted if the queue is empty.
    pub fn push(&mut self, item: T, cost_bytes: usize) -> Result<(), OutboxError> {
        if self.closed {
            return Err(OutboxError::Closed);
        }
        let bytes = self.bytes.saturating_add(cost_bytes);
        if bytes > self.bytes_max && !self.queue.is_empty() {
            return Err(OutboxError::Full { queued_bytes: self.bytes, bytes_max: self.bytes_max });
        }
        self.bytes = bytes;
        self.queue.push_back((item, cost_bytes));
        Ok(())
    }
    /// Takes the token if it is free and there is something to do with it.
    #[must_use]
    pub fn take_token(&mut self) -> bool {
        if self.token_taken || self.queue.is_empty() {
            return false;
        }
        self.token_taken = true;
        true
    }
    /// Takes the token as [`Outbox::take_token`] does, or begins to wait for it. A thread that waits calls
    /// [`Outbox::wait_for_token`] again and again, and [`Outbox::end_wait`] if it gives up.
    pub fn take_token_or_wait(&mut self) -> Claim {
        if self.take_token() {
            return Claim::Taken;
        }
        if self.queue.is_empty() {
            return Claim::Nothing;
        }
        self.waiting += 1;
        Claim::Waiting
    }
    /// Whether the wait is over: the token was taken, or others have sent everything.
    pub fn wait_for_token(&mut self) -> Claim {
        if self.token_taken && !self.queue.is_empty() {
            return Claim::Waiting;
        }
        self.end_wait()
    }
    /// Ends a wait. The token is taken if it is free, because its last holder may have left items for this thread.
    pub fn end_wait(&mut self) -> Claim {
        self.waiting -= 1;
        if self.take_token() { Claim::Taken } else { Claim::Nothing }
    }
    /// Releases the token if a thread waits for it and there is something to do with it: that thread takes it.
    pub fn pass_token_on(&mut self) -> bool {
        assert!(self.token_taken, "passed on a token that it did not hold");
        let passed = self.waiting > 0 && !self.queue.is_empty();
        self.token_taken = !passed;
        passed
    }
    /// The next item for the holder of the token; if there is none, releases the token. One step: a later push finds
    /// the token free.
    pub fn take_next(&mut self) -> Next<T> {
        assert!(self.token_taken, "drained without the send token");
        match self.queue.pop_front() {
            Some((item, cost)) => {
                self.bytes -= cost;
                Next::Item(item)
            }
            None => {
                self.token_taken = false;
                Next::Released
            }
        }
    }
    /// The next item for the holder of the token, if there is one and it `fits`.
    pub fn take_next_if(&mut self, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        assert!(self.token_taken, "drained without the send token");
        let (_, cost) = self.queue.front().filter(|(item, _)| fits(item))?;
        self.bytes -= cost;
        self.queue.pop_front().map(|(item, _)| item)
    }
    /// Moves items to `into` until it has `items_max` of them or they cost `bytes_max`; keeps the token, also
    /// when nothing was left.
    pub fn take_batch(&mut self, into: &mut VecDeque<T>, items_max: usize, bytes_max: usize) {
        assert!(self.token_taken, "drained without the send token");
        let mut bytes = 0usize;
        while into.len() < items_max && bytes < bytes_max {
            let Some((item, cost)) = self.queue.pop_front() else { break };
            self.bytes -= cost;
            bytes = bytes.saturating_add(cost);
            into.push_back(item);
        }
    }
    /// Releases the token although items may wait: the caller has arranged that another holder drains them.
    pub fn give_back(&mut self) {
        assert!(self.token_taken, "gave back a token that it did not hold");
        self.token_taken = false;
    }
    /// Drops all items and refuses new ones. The token stays with its holder.
    pub fn close(&mut self) {
        self.closed = true;
        self.queue.clear();
        self.bytes = 0;
    }
    /// Whether no item waits; one that a drainer has taken does not count.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// Sum of the costs of the items that wait, each as given to [`Self::push`].
    pub fn queued_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_returns_only_when_nothing_is_left() {
        let mut o = Outbox::new(100);
        assert!(!o.take_token(), "nothing to send");
        o.push(1, 10).unwrap();
        o.push(2, 10).unwrap();
        assert!(o.take_token());
        assert!(!o.take_token(), "one holder");
        assert_eq!(o.take_next(), Next::Item(1));
        o.push(3, 10).unwrap();
        assert_eq!(
            (o.take_next(), o.take_next(), o.take_next()),
            (Next::Item(2), Next::Item(3), Next::Released)
        );
        assert_eq!(o.queued_bytes(), 0);
        o.push(4, 10).unwrap();
        assert!(o.take_token());
    }

    #[test]
    fn the_token_is_passed_on_to_a_thread_that_waits_and_no_item_is_left_to_nobody() {
        let mut o = Outbox::new(100);
        assert_eq!(o.take_token_or_wait(), Claim::Nothing);
        o.push(1, 1).unwrap();
        assert_eq!((o.take_token_or_wait(), o.take_next()), (Claim::Taken, Next::Item(1)));
        o.push(2, 1).unwrap();
        assert!(!o.pass_token_on(), "nobody waits");
        assert_eq!((o.take_token_or_wait(), o.wait_for_token()), (Claim::Waiting, Claim::Waiting));
        assert!(o.pass_token_on());
        assert_eq!((o.wait_for_token(), o.take_next()), (Claim::Taken, Next::Item(2)));
        // The waiting thread gives up just when the token is passed on.
        o.push(3, 1).unwrap();
        assert_eq!(o.take_token_or_wait(), Claim::Waiting);
        assert!(o.pass_token_on());
        assert_eq!((o.end_wait(), o.take_next()), (Claim::Taken, Next::Item(3)));
        // And before: the holder sees its item.
        o.push(4, 1).unwrap();
        assert_eq!((o.take_token_or_wait(), o.end_wait()), (Claim::Waiting, Claim::Nothing));
        assert!(!o.pass_token_on());
        // Another thread sends its item.
        assert_eq!(o.take_token_or_wait(), Claim::Waiting);
        assert_eq!((o.take_next(), o.wait_for_token()), (Next::Item(4), Claim::Nothing));
        assert_eq!(o.take_next(), Next::Released);
    }

    #[test]
    fn a_peer_that_does_not_keep_up_is_noticed_but_one_large_item_passes() {
        let mut o = Outbox::new(100);
        o.push((), 500).unwrap();
        assert_eq!(o.push((), 1), Err(OutboxError::Full { queued_bytes: 500, bytes_max: 100 }));
        o.close();
        assert_eq!((o.queued_bytes(), o.push((), 1)), (0, Err(OutboxError::Closed)));
    }

    #[test]
    fn a_held_outbox_keeps_everything_until_it_is_released() {
        let mut o = Outbox::held(usize::MAX);
        o.push('a', 1).unwrap();
        assert!(!o.take_token());
        o.give_back();
        assert!(o.take_token());
        let mut batch = VecDeque::new();
        o.push('b', 1).unwrap();
        o.take_batch(&mut batch, 8, 1);
        assert_eq!(batch, ['a'], "the first item fills the bytes");
        o.take_batch(&mut batch, 8, 1);
        assert_eq!((batch.len(), o.take_next()), (2, Next::Released));
    }

    #[test]
    fn an_item_that_does_not_fit_stays_the_next_one() {
        let mut o = Outbox::new(100);
        o.push('a', 10).unwrap();
        o.push('b', 1).unwrap();
        assert!(o.take_token());
        assert_eq!((o.take_next_if(|item| *item == 'b'), o.queued_bytes()), (None, 11));
        assert_eq!((o.take_next_if(|item| *item == 'a'), o.queued_bytes()), (Some('a'), 1));
        assert_eq!((o.take_next(), o.take_next_if(|_| true)), (Next::Item('b'), None));
    }
}
