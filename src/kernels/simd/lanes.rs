//! Sixteen f32 as one value: two registers of AVX2, one of AVX-512 or four of NEON, so that a kernel is written once.
//!
//! Every operation gives each lane the bits of its scalar namesake. All functions need the instructions of their type;
//! they are inlined into functions that have them.

#![allow(clippy::missing_safety_doc)] // said above, once

#[cfg(target_arch = "aarch64")]
pub use super::lanes_neon::Neon;
#[cfg(target_arch = "x86_64")]
pub use super::lanes_x86::{Avx2, Avx512};

pub trait Lanes: Copy {
    /// Values that can be summed at a time beside what is multiplied.
    const SUMS: usize;
    /// Brings a line of memory into the caches, if it can be; any address will do.
    fn fetch(from: *const u8);
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// Of F16.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Of int8.
    unsafe fn load_i8(from: *const i8) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * a + b`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// `if self > other { self } else { other }`: a NaN in `self` is passed over.
    unsafe fn above(self, other: Self) -> Self;
    /// The largest lane; no lane is NaN.
    unsafe fn largest(self) -> f32;
    /// As `kernels::exp::exp`.
    unsafe fn exp(self) -> Self;
    /// Lanes `from..to`, the others `other`'s.
    unsafe fn only(self, from: usize, to: usize, other: Self) -> Self;
}
