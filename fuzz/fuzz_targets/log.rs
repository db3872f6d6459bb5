//! A segment of the log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_osd::hostile::log(data));
