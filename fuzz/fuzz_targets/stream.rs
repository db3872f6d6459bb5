//! Frames from a socket, in pieces.
#![no_main]

#[allow(dead_code, reason = "each target uses a part")]
#[path = "../support/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::stream(data));
