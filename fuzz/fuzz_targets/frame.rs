//! A frame from anywhere: header, then body as the request and as the reply of its opcode.
#![no_main]

#[path = "../../crates/nacre-wire/tests/support/hostile.rs"]
mod hostile;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/nacre-wire/tests/support/messages.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostile::take_in(data));
