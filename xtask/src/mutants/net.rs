//! Connections.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "shared memory is used again although the receiver looks at it",
        "crates/nacre-net/src/shared_memory/owner.rs",
        &[("!word::is_returned(self.mapping.word(*number)) && !has_ended(&loan.to)", "false")],
    )
    .found_by(
        "nacre-net",
        "lib",
        "shared_memory::tests::a_part_is_seen_where_it_is_and_its_buffer_is_used_again_when_it_was_returned",
    ),
    planted(
        "a frame of a broken connection uses a loan that serves another frame",
        "crates/nacre-net/src/shared_memory/word.rs",
        &[(
            "change(word, serial.word(OFFERED), serial.word(TAKEN))",
            "{ let _ = serial; word.load(Ordering::Acquire) != NONE }",
        )],
    )
    .found_by(
        "nacre-net",
        "lib",
        "shared_memory::tests::the_end_of_a_connection_revokes_what_the_peer_has_not_taken_and_nothing_else",
    ),
    planted(
        "an event comes from a connection that the event before has closed",
        "crates/nacre-rt/src/island.rs",
        &[("            if logic.ctx().ends_something() {\n                break;\n            }\n", "")],
    )
    .found_by("nacre-rt", "local", "nothing_comes_from_a_connection_that_the_event_before_has_closed"),
    planted(
        "a loop whose thread has ended keeps its sockets",
        "crates/nacre-rt/src/event_loop.rs",
        &[("    drop(handle.watches.with(|watches| std::mem::take(&mut watches.entries)));\n", "")],
    )
    .found_by("nacre-rt", "descriptors", "a_node_that_has_ended_has_closed_everything"),
    planted(
        "the loop leaves its sockets to leaders that have gone",
        "crates/nacre-rt/src/node.rs",
        &[("self.leaders.fetch_sub(1, Ordering::SeqCst) == 1", "self.leaders.load(Ordering::SeqCst) == 1")],
    )
    .found_by(
        "nacre-rt",
        "leaders",
        "a_thread_that_waits_for_replies_serves_the_sockets_until_it_is_idle",
    ),
    planted(
        "a leader serves nothing",
        "crates/nacre-rt/src/event_loop.rs",
        &[("if event.data.u64() != WAKE_TOKEN {", "if false {")],
    )
    .found_by(
        "nacre-rt",
        "leaders",
        "a_thread_that_waits_for_replies_serves_the_sockets_until_it_is_idle",
    ),
];
