//! A sorted run: footer, index, blocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_osd::hostile::run(data));
