#![no_main]

// Each target runs one function of it.
#[allow(dead_code)]
#[path = "../../tests/adversary/mod.rs"]
mod adversary;

libfuzzer_sys::fuzz_target!(|data: &[u8]| adversary::extensions(data));
