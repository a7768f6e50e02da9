//! The instruction sets: which ones this machine has, and the primitives of each that kernels share.

#[cfg(any(test, target_arch = "x86_64"))]
pub(super) mod amx;
pub mod bytes;
pub(super) mod dispatch;
pub(super) mod ints;
pub mod isa;
pub(super) mod lanes;
#[cfg(target_arch = "aarch64")]
pub(super) mod lanes_neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod lanes_x86;
#[cfg(test)]
pub(super) mod models;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod shorts;
pub(super) use shorts::{double, sixteen};
#[cfg(target_arch = "x86_64")]
mod tiles_here;
#[cfg(target_arch = "x86_64")]
mod vbmi;
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) mod wide;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;
