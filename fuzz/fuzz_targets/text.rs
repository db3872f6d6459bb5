//! A text that a user types.
#![no_main]

#[allow(dead_code, reason = "each target uses a part")]
#[path = "../support/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::text(data));
