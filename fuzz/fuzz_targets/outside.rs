//! Tables of the kernel, and what users write into extended attributes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_fuse::hostile::text(data));
