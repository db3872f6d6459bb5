//! A request of the kernel.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_fuse::hostile::request(data));
