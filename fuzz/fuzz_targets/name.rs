//! A name in a store's directory, or the text of its lock file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_osd_fs::hostile::name(data));
