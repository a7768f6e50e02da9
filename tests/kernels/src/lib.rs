//! See Cargo.toml.
#![allow(dead_code, unused_imports)] // layers above the kernels use the rest

#[path = "../../../src/base/mod.rs"]
mod base;
#[path = "../../../src/kernels/mod.rs"]
pub mod kernels;

/// Otherwise the tests under the emulator would compare the reference with itself.
#[cfg(target_arch = "aarch64")]
#[test]
fn what_is_tested_is_neon() {
    use kernels::Isa::{Neon, NeonI8mm, Scalar};
    assert_eq!(kernels::available(), [Scalar, Neon, NeonI8mm]);
}
