//! The rows of an MGS.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_mgs::hostile::registry(data));
