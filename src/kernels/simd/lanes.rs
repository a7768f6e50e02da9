//! Sixteen f32 as one value, in as many registers as the instruction set needs, so that a kernel is written once.
//!
//! Every operation gives each lane the bits of the scalar operation of that name. All functions need the instructions
//! of their type; those that read or write memory need elements for all lanes. They are inlined into functions that
//! have the instructions.

#![allow(clippy::missing_safety_doc)] // said above, once

use super::dispatch::inlined;
#[cfg(target_arch = "aarch64")]
pub use super::lanes_neon::Neon;
#[cfg(target_arch = "x86_64")]
pub use super::lanes_x86::{Avx2, Avx512};

/// A register of f32.
pub trait Register: Copy {
    const WIDTH: usize;
    /// Number of registers.
    const COUNT: usize;
    /// Number of sums of sixteen lanes that fit into the registers beside the operands.
    const SUMS: usize;
    /// A register of integer sums.
    type Ints: Copy;
    /// Prefetches a cache line; any address is allowed.
    fn fetch(from: *const u8);
    /// Prefetches all cache lines of `bytes` bytes, where `from` is the start of a line.
    #[inline(always)]
    fn fetch_lines(from: *const u8, bytes: usize) {
        // A counted loop: compilers do not unroll `step_by`, even if the number of lines is a constant.
        for line in 0..bytes.div_ceil(64) {
            Self::fetch(from.wrapping_add(64 * line));
        }
    }
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Loads the f16 at offset `at` from each of WIDTH addresses.
    unsafe fn halves(rows: &[*const u8], at: usize) -> Self;
    /// Loads the byte at offset `at` from each of WIDTH addresses; returns `half_power` of each.
    unsafe fn half_powers(rows: &[*const u8], at: usize) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn load_i8(from: *const i8) -> Self;
    /// Of WIDTH bytes, the codes that their low halves are the indices of.
    unsafe fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self;
    /// The same of their high halves.
    unsafe fn high_codes(from: *const u8, codes: &[i8; 16]) -> Self;
    /// 256 times the i32 sums at `high` plus the i32 sums at `low`, as f32.
    unsafe fn load_split(high: *const i32, low: *const i32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * a + b`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// `if self > other { self } else { other }`: a NaN in `self` is ignored.
    unsafe fn above(self, other: Self) -> Self;
    /// `if self < bound { yes } else { no }`.
    unsafe fn less(self, bound: Self, yes: Self, no: Self) -> Self;
    unsafe fn abs(self) -> Self;
    /// Rounds to the nearest whole number, halves to even.
    unsafe fn round(self) -> Self;
    /// 2 to the power of each lane. The lanes are whole numbers for which the result is a normal number.
    unsafe fn power_of_two(self) -> Self;
    /// The largest lane; no lane may be NaN.
    unsafe fn largest(self) -> f32;
    /// Lane i is the sum of the lanes of `rows[i]`, of WIDTH rows, in the order of `tree_sum`.
    unsafe fn tree_sums(rows: &[Self]) -> Self;
    unsafe fn no_ints() -> Self::Ints;
    /// Stores sixteen lanes as int8, rounded as `round` does, and adds them to `sums`. NaN becomes 0; all other lanes
    /// must be within -128 and 127.
    unsafe fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut Self::Ints);
    unsafe fn total(sums: Self::Ints) -> i32;
}

/// Half the number that an E8M0 byte stands for, an exponent of two: `2^(e - 128)`. The two smallest are subnormal.
/// 255, which the standard has for NaN, is a number as in ggml.
pub fn half_power(e: u8) -> f32 {
    let e = e as i32;
    f32::from_bits(((e - 1) << 23).max((e + 1) << 21) as u32)
}

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub struct Sixteen<R, const N: usize>([R; N]);

/// The trait that kernels are generic over: `Sixteen` of some register.
pub trait Lanes: Copy {
    type Part: Register;
    const SUMS: usize = Self::Part::SUMS;
    fn parts(&self) -> &[Self::Part];
    unsafe fn of(make: impl Fn(usize) -> Self::Part) -> Self;

    #[inline(always)]
    fn fetch(from: *const u8) {
        Self::Part::fetch(from);
    }
    inlined! {
        fn map(self, f: impl Fn(Self::Part) -> Self::Part) -> Self = Self::of(|i| f(self.parts()[i]));
        fn with(self, other: Self, f: impl Fn(Self::Part, Self::Part) -> Self::Part) -> Self =
            Self::of(|i| f(self.parts()[i], other.parts()[i]));
        fn splat(x: f32) -> Self = Self::of(|_| Self::Part::splat(x));
        fn load(from: *const f32) -> Self = Self::of(|i| Self::Part::load(from.add(i * Self::Part::WIDTH)));
        fn load_f16(from: *const u16) -> Self =
            Self::of(|i| Self::Part::load_f16(from.add(i * Self::Part::WIDTH)));
        fn load_bf16(from: *const u16) -> Self =
            Self::of(|i| Self::Part::load_bf16(from.add(i * Self::Part::WIDTH)));
        fn load_i8(from: *const i8) -> Self =
            Self::of(|i| Self::Part::load_i8(from.add(i * Self::Part::WIDTH)));
        fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            Self::of(|i| Self::Part::low_codes(from.add(i * Self::Part::WIDTH), codes));
        fn high_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            Self::of(|i| Self::Part::high_codes(from.add(i * Self::Part::WIDTH), codes));
    }
    #[inline(always)]
    unsafe fn load_split(high: *const i32, low: *const i32) -> Self {
        let at = |i| i * Self::Part::WIDTH;
        unsafe { Self::of(|i| Self::Part::load_split(high.add(at(i)), low.add(at(i)))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, part) in self.parts().iter().enumerate() {
            unsafe { part.store(to.add(i * Self::Part::WIDTH)) };
        }
    }
    inlined! {
        fn store_i8(self, to: *mut i8, sums: &mut <Self::Part as Register>::Ints) =
            Self::Part::store_i8(self.parts(), to, sums);
        fn add(self, other: Self) -> Self = self.with(other, |a, b| a.add(b));
        fn sub(self, other: Self) -> Self = self.with(other, |a, b| a.sub(b));
        fn mul(self, other: Self) -> Self = self.with(other, |a, b| a.mul(b));
        fn div(self, other: Self) -> Self = self.with(other, |a, b| a.div(b));
        fn fma(self, a: Self, b: Self) -> Self =
            Self::of(|i| self.parts()[i].fma(a.parts()[i], b.parts()[i]));
        fn above(self, other: Self) -> Self = self.with(other, |a, b| a.above(b));
        fn less(self, bound: Self, yes: Self, no: Self) -> Self =
            Self::of(|i| self.parts()[i].less(bound.parts()[i], yes.parts()[i], no.parts()[i]));
        fn abs(self) -> Self = self.map(|a| a.abs());
        fn round(self) -> Self = self.map(|a| a.round());
        fn power_of_two(self) -> Self = self.map(|a| a.power_of_two());
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        let parts = self.parts();
        unsafe { parts[1..].iter().fold(parts[0], |most, part| most.above(*part)).largest() }
    }
    /// Stores `tree_sum` of each of sixteen arrays of sixteen.
    #[inline(always)]
    unsafe fn tree_sums(arrays: *const f32, to: *mut f32) {
        // SAFETY: the caller has sixteen arrays, and room for sixteen sums.
        unsafe {
            for first in (0..16).step_by(Self::Part::WIDTH) {
                // No closures, which would not have the instructions.
                let mut rows = [Self::Part::splat(0.0); 16];
                for (i, row) in rows.iter_mut().enumerate().take(Self::Part::WIDTH) {
                    *row = match Self::load(arrays.add(16 * (first + i))).parts() {
                        [a, b, c, d] => a.add(*c).add(b.add(*d)),
                        [a, b] => a.add(*b),
                        parts => parts[0],
                    };
                }
                Self::Part::tree_sums(&rows[..Self::Part::WIDTH]).store(to.add(first));
            }
        }
    }
    /// Lanes `from..to` of `self`; all other lanes are those of `other`.
    #[inline(always)]
    unsafe fn only(self, from: usize, to: usize, other: Self) -> Self {
        const NUMBERS: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
        unsafe {
            let lanes = Self::load(NUMBERS.as_ptr());
            let before_end = lanes.less(Self::splat(to as f32), self, other);
            lanes.less(Self::splat(from as f32), other, before_end)
        }
    }
}

impl<R: Register, const N: usize> Lanes for Sixteen<R, N> {
    type Part = R;
    #[inline(always)]
    fn parts(&self) -> &[R] {
        const { assert!(N * R::WIDTH == 16) }
        &self.0
    }
    #[inline(always)]
    unsafe fn of(make: impl Fn(usize) -> R) -> Self {
        Self(std::array::from_fn(make))
    }
}

/// The storage type of a number.
pub trait Element {
    const BYTES: usize;
    /// Decodes one element.
    fn value(bytes: &[u8]) -> f32;
    /// Loads sixteen elements.
    unsafe fn load<L: Lanes>(from: *const u8) -> L;
}

macro_rules! elements {
    ($($name:ident, $load:ident, |$bytes:ident: $n:literal| $value:expr;)*) => {
        $(
            pub struct $name;
            impl Element for $name {
                const BYTES: usize = $n;
                #[inline(always)]
                fn value($bytes: &[u8]) -> f32 {
                    $value
                }
                #[inline(always)]
                unsafe fn load<L: Lanes>(from: *const u8) -> L {
                    // SAFETY: the caller's promise.
                    unsafe { L::$load(from.cast()) }
                }
            }
        )*
    };
}
elements! {
    F32, load, |b: 4| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    F16, load_f16, |b: 2| half::f16::from_le_bytes([b[0], b[1]]).to_f32();
    BF16, load_bf16, |b: 2| f32::from_bits((u16::from_le_bytes([b[0], b[1]]) as u32) << 16);
    Int8, load_i8, |b: 1| b[0] as i8 as f32;
}
