//! The rows of a metadata target, as the offline check reads them.
#![no_main]

#[allow(dead_code, reason = "each target uses a part")]
#[path = "../support/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::check(data));
