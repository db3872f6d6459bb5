//! The word of a loan, which both processes change.

use std::sync::atomic::{AtomicU32, Ordering};

/// The value of a word without a loan.
const NONE: u32 = 0;
/// Serial numbers that the word has room for.
const SERIALS: u32 = 1 << 30;
const OFFERED: u32 = 1;
const TAKEN: u32 = 2;

/// The serial number of a loan: never 0, and not used again for a long time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Serial(u32);

impl Serial {
    pub(super) fn first() -> Self {
        Self(1)
    }
    pub(super) fn next(self) -> Self {
        Self(self.0 % (SERIALS - 1) + 1)
    }
    pub(super) fn number(self) -> u32 {
        self.0
    }
    pub(super) fn from_number(number: u32) -> Option<Self> {
        (1..SERIALS).contains(&number).then_some(Self(number))
    }
    fn word(self, state: u32) -> u32 {
        self.0 << 2 | state
    }
}

/// The owner offers a loan.
pub(super) fn offer(word: &AtomicU32, serial: Serial) {
    word.store(serial.word(OFFERED), Ordering::Release);
}
/// The receiver takes it; `false` if it was revoked.
pub(super) fn take(word: &AtomicU32, serial: Serial) -> bool {
    change(word, serial.word(OFFERED), serial.word(TAKEN))
}
/// The receiver has dropped its last part.
pub(super) fn give_back(word: &AtomicU32, serial: Serial) {
    change(word, serial.word(TAKEN), NONE);
}
/// The owner takes an offer back, unless the receiver has taken it.
pub(super) fn revoke(word: &AtomicU32, serial: Serial) {
    change(word, serial.word(OFFERED), NONE);
}
/// Whether the owner may use the memory again.
pub(super) fn is_returned(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) == NONE
}

/// Orders all accesses to the parts before and behind it.
fn change(word: &AtomicU32, from: u32, to: u32) -> bool {
    word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
