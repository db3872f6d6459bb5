//! The value of an ACL's attribute.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nacre_mdt::hostile::acl(data));
