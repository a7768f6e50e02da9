//! See Cargo.toml.
#![allow(dead_code, unused_imports)] // what is above the kernels uses the rest

#[path = "../../../src/base/mod.rs"]
mod base;
#[path = "../../../src/kernels/mod.rs"]
pub mod kernels;

/// Under the emulator the tests would otherwise hold the reference against itself.
#[cfg(target_arch = "aarch64")]
#[test]
fn what_is_tested_is_neon() {
    use kernels::Isa::{Neon, NeonI8mm, Scalar};
    assert_eq!(kernels::available(), [Scalar, Neon, NeonI8mm]);
}
