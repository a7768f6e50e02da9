#![no_main]

#[path = "../inputs.rs"]
#[allow(dead_code)]
mod inputs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = inputs::mmproj(bytes);
});
