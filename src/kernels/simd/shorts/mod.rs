//! Sums of 16 bits, one for each of sixteen or 32 tokens, in as many registers as the instruction set needs.
//!
//! All functions need the instructions of their type, and memory for all lanes; they are inlined into functions that
//! have the instructions.

#![allow(clippy::missing_safety_doc)] // said above, once

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::dispatch::inlined;
use super::lanes::Lanes;

/// One value of 16 bits for each lane.
pub(crate) trait Shorts: Copy {
    type Floats: Lanes;
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn load(from: *const i16) -> Self;
    unsafe fn load_i8(from: *const i8) -> Self;
    /// Unsigned bytes.
    unsafe fn load_u8(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut i16);
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    /// Shifts each lane left by `N` bits.
    unsafe fn up<const N: i32>(self) -> Self;
    /// Shifts each lane right by `N` bits.
    unsafe fn down<const N: i32>(self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    /// Products, modulo 65536.
    unsafe fn mul(self, other: Self) -> Self;
    /// Eight fields of each 32 bits: bits 0 to 5, 6 to 10 and 11 to 15, times 32, then 0, and the same of the upper
    /// half.
    unsafe fn fields(from: *const u8) -> Self;
    /// Adds to as many i32.
    unsafe fn add_to(self, sums: *mut i32);
    /// Sixteen lanes from `first` on.
    unsafe fn to_f32(self, first: usize) -> Self::Floats;
    /// Sixteen i32 as f32.
    unsafe fn floats(from: *const i32) -> Self::Floats;
}

/// Twice as many lanes.
#[derive(Clone, Copy)]
pub(crate) struct Pair<S>(S, S);

// SAFETY of all blocks: the caller has the instructions and the memory.
impl<S: Shorts> Shorts for Pair<S> {
    type Floats = S::Floats;
    const LANES: usize = 2 * S::LANES;
    inlined! {
        fn zero() -> Self = Self(S::zero(), S::zero());
        fn load(from: *const i16) -> Self = Self(S::load(from), S::load(from.add(S::LANES)));
        fn load_i8(from: *const i8) -> Self = Self(S::load_i8(from), S::load_i8(from.add(S::LANES)));
        fn load_u8(from: *const u8) -> Self = Self(S::load_u8(from), S::load_u8(from.add(S::LANES)));
        fn store(self, to: *mut i16) = {
            self.0.store(to);
            self.1.store(to.add(S::LANES));
        };
        fn and(self, other: Self) -> Self = Self(self.0.and(other.0), self.1.and(other.1));
        fn or(self, other: Self) -> Self = Self(self.0.or(other.0), self.1.or(other.1));
        fn up<const N: i32>(self) -> Self = Self(self.0.up::<N>(), self.1.up::<N>());
        fn down<const N: i32>(self) -> Self = Self(self.0.down::<N>(), self.1.down::<N>());
        fn add(self, other: Self) -> Self = Self(self.0.add(other.0), self.1.add(other.1));
        fn sub(self, other: Self) -> Self = Self(self.0.sub(other.0), self.1.sub(other.1));
        fn mul(self, other: Self) -> Self = Self(self.0.mul(other.0), self.1.mul(other.1));
        fn fields(from: *const u8) -> Self = Self(S::fields(from), S::fields(from.add(S::LANES / 2)));
        fn add_to(self, sums: *mut i32) = {
            self.0.add_to(sums);
            self.1.add_to(sums.add(S::LANES));
        };
        fn to_f32(self, first: usize) -> Self::Floats = match first < S::LANES {
            true => self.0.to_f32(first),
            false => self.1.to_f32(first - S::LANES),
        };
        fn floats(from: *const i32) -> Self::Floats = S::floats(from);
    }
}

/// Sixteen lanes.
pub(crate) mod sixteen {
    #[cfg(target_arch = "aarch64")]
    pub(crate) use super::neon::Neon;
    #[cfg(target_arch = "x86_64")]
    pub(crate) use super::x86::{__m256i as Avx2, __m256i as Avx512};
}

/// 32 lanes.
pub(crate) mod double {
    use super::Pair;
    #[cfg(target_arch = "aarch64")]
    pub(crate) type Neon = Pair<super::neon::Neon>;
    #[cfg(target_arch = "x86_64")]
    pub(crate) type Avx2 = Pair<super::x86::__m256i>;
    #[cfg(target_arch = "x86_64")]
    pub(crate) use super::x86::__m512i as Avx512;
}
