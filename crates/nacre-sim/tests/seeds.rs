//! Seeds beyond those of every run that have failed once. What each found is in its line.

use nacre_sim::plan::Plan;
use nacre_sim::run::run;

const SEEDS: [(u64, &str); 18] = [
    (1010, "a file lock's row stayed when its unlock had to wait for a commit"),
    (1075, "a recovery did not end: a late copy of a change took the place of the next one in the queue"),
    (1654, "a server that had stood still held an unread acknowledgement against its client"),
    (2034, "a client that lost its connection in the middle of its replay was evicted"),
    (2789, "a lock was used that an OST had granted before its restart"),
    (2861, "a second reply to a replay was taken for that to the call"),
    (3015, "a recovery waited for an export in whose place another had come"),
    (3019, "a doubled enqueue was granted after its cancel, to nobody"),
    (3030, "bytes that a killed OST had left in the kernel's memory counted as stable"),
    (3853, "a close that waited for a connection failed after the eviction"),
    (3944, "a close after an eviction said a size that another mount had changed since"),
    (5067, "bytes were put back under a lock for which another client's locks waited"),
    (5128, "a create failed because the last OST went while its rows were read"),
    (5196, "a change that was replayed twice evicted its client"),
    (10622, "a program got a lock from another of its mount, whose pending unlock was lost with the machine"),
    (
        100_151,
        "a recovery waited for ever for a client whose first connect had not been acknowledged before the loss",
    ),
    (804_733, "the same, when the lock's reply overtook that of the unlock"),
    (17754, "an append was made twice after both its OSTs had lost its locks"),
];

#[test]
fn seeds_that_have_failed_once_pass() {
    for (seed, found) in SEEDS {
        // They were found with the usual slots, and one loss at a time.
        let plan = Plan { one_slot: false, lose_both: 0, ..Plan::of(seed) };
        if let Err(failure) = run(&plan, 60) {
            panic!("seed {seed} ({found}): {}\n{}", failure.what, failure.trace);
        }
    }
}
