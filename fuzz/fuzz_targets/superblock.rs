//! The superblock and the list of runs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_osd::hostile::superblock(data));
