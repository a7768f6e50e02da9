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
pub(crate) use super::lanes_x86::{Avx2, Avx512};

/// One or more f32: a single one, a register of them, or sixteen. Functions of numbers are written once, for all.
pub trait Real: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn load_i8(from: *const i8) -> Self;
    /// The codes whose indices are the low halves of a byte for each lane.
    unsafe fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self;
    /// Like `low_codes`, for the high halves.
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
    /// The bf16 in the upper half of each lane: `self` cut to eight bits of significand.
    unsafe fn cut(self) -> Self;
    /// The upper half of each lane below that of `high`: pairs of bf16.
    unsafe fn pair(self, high: Self) -> Self;
    inlined! {
        fn negative(self) -> Self = self.mul(Self::splat(-1.0));
    }
    /// The polynomial with these coefficients, the highest power first.
    #[inline(always)]
    unsafe fn polynomial(self, coefficients: &[f32]) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = Self::splat(coefficients[0]);
            for c in &coefficients[1..] {
                sum = sum.fma(self, Self::splat(*c));
            }
            sum
        }
    }
}

/// A register of f32.
pub trait Register: Real {
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
    /// Loads the f16 at offset `at` from each of WIDTH addresses.
    unsafe fn halves(rows: &[*const u8], at: usize) -> Self;
    /// Loads the byte at offset `at` from each of WIDTH addresses; returns `half_power` of each.
    unsafe fn half_powers(rows: &[*const u8], at: usize) -> Self;
    /// Lane i is the sum of the lanes of `rows[i]`, of WIDTH rows, in the order of `tree_sum`.
    unsafe fn tree_sums(rows: &[Self]) -> Self;
    /// Lane i of row j and lane j of row i of WIDTH rows change places.
    unsafe fn transpose(rows: &mut [Self]);
    unsafe fn no_ints() -> Self::Ints;
    /// Stores sixteen lanes as int8, rounded as `round` does, and adds them to `sums`. NaN becomes 0; all other lanes
    /// must be within -128 and 127.
    unsafe fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut Self::Ints);
    unsafe fn total(sums: Self::Ints) -> i32;
}

/// Half the number that an E8M0 byte stands for, an exponent of two: `2^(e - 128)`. The two smallest are subnormal.
/// 255, which the standard has for NaN, is a number as in ggml.
pub(crate) fn half_power(e: u8) -> f32 {
    let e = e as i32;
    f32::from_bits(((e - 1) << 23).max((e + 1) << 21) as u32)
}

/// The implementation for any processor, which defines all operations.
impl Real for f32 {
    inlined! {
        fn splat(x: f32) -> Self = x;
        fn load(from: *const f32) -> Self = from.read_unaligned();
        fn load_f16(from: *const u16) -> Self = half::f16::from_bits(from.read_unaligned()).to_f32();
        fn load_bf16(from: *const u16) -> Self = f32::from_bits((from.read_unaligned() as u32) << 16);
        fn load_i8(from: *const i8) -> Self = *from as f32;
        fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self = codes[(*from & 15) as usize] as f32;
        fn high_codes(from: *const u8, codes: &[i8; 16]) -> Self = codes[(*from >> 4) as usize] as f32;
        fn load_split(high: *const i32, low: *const i32) -> Self =
            high.read().wrapping_mul(256).wrapping_add(low.read()) as f32;
        fn store(self, to: *mut f32) = to.write_unaligned(self);
        fn add(self, other: Self) -> Self = self + other;
        fn sub(self, other: Self) -> Self = self - other;
        fn mul(self, other: Self) -> Self = self * other;
        fn div(self, other: Self) -> Self = self / other;
        fn fma(self, a: Self, b: Self) -> Self = self.mul_add(a, b);
        fn above(self, other: Self) -> Self = if self > other { self } else { other };
        fn less(self, bound: Self, yes: Self, no: Self) -> Self = if self < bound { yes } else { no };
        fn abs(self) -> Self = f32::abs(self);
        fn round(self) -> Self = self.round_ties_even();
        fn power_of_two(self) -> Self = f32::from_bits(((self as i32).wrapping_add(127) << 23) as u32);
        fn largest(self) -> f32 = self;
        fn cut(self) -> Self = f32::from_bits(self.to_bits() & 0xffff_0000);
        fn pair(self, high: Self) -> Self = f32::from_bits(self.to_bits() >> 16 | high.cut().to_bits());
    }
}

impl Register for f32 {
    type Ints = i32;
    const WIDTH: usize = 1;
    const COUNT: usize = 16;
    const SUMS: usize = 1;

    #[inline(always)]
    fn fetch(_: *const u8) {}
    inlined! {
        fn halves(rows: &[*const u8], at: usize) -> Self = Self::load_f16(rows[0].add(at).cast());
        fn half_powers(rows: &[*const u8], at: usize) -> Self = half_power(*rows[0].add(at));
        fn tree_sums(rows: &[Self]) -> Self = rows[0];
        fn transpose(_: &mut [Self]) = ();
        fn no_ints() -> i32 = 0;
        fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut i32) =
            for (i, x) in sixteen.iter().enumerate() {
                let whole = x.round_ties_even() as i8;
                *sums += whole as i32;
                *to.add(i) = whole;
            };
        fn total(sums: i32) -> i32 = sums;
    }
}

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen<R, const N: usize>([R; N]);

/// Sixteen lanes for any processor.
pub(crate) type Scalar = Sixteen<f32, 16>;

/// The trait that kernels are generic over: `Sixteen` of some register.
pub(crate) trait Lanes: Real {
    type Register: Register;
    const SUMS: usize = Self::Register::SUMS;
    fn registers(&self) -> &[Self::Register];
    unsafe fn of(make: impl Fn(usize) -> Self::Register) -> Self;

    #[inline(always)]
    fn fetch(from: *const u8) {
        Self::Register::fetch(from);
    }
    inlined! {
        fn store_i8(self, to: *mut i8, sums: &mut <Self::Register as Register>::Ints) =
            Self::Register::store_i8(self.registers(), to, sums);
    }
    /// Stores `tree_sum` of each of sixteen arrays of sixteen.
    #[inline(always)]
    unsafe fn tree_sums(arrays: *const f32, to: *mut f32) {
        // SAFETY: the caller has sixteen arrays, and room for sixteen sums.
        unsafe {
            for first in (0..16).step_by(Self::Register::WIDTH) {
                // No closures, which would not have the instructions.
                let mut rows = [Self::Register::splat(0.0); 16];
                for (i, row) in rows.iter_mut().enumerate().take(Self::Register::WIDTH) {
                    *row = match Self::load(arrays.add(16 * (first + i))).registers() {
                        [a, b, c, d] => a.add(*c).add(b.add(*d)),
                        [a, b] => a.add(*b),
                        [all] => *all,
                        _ => unreachable!("registers of at least four lanes"),
                    };
                }
                Self::Register::tree_sums(&rows[..Self::Register::WIDTH]).store(to.add(first));
            }
        }
    }
    /// Stores lane i of each of sixteen rows at `to + i * stride`.
    #[inline(always)]
    unsafe fn store_columns(rows: &[Self; 16], to: *mut f32, stride: usize) {
        let width = Self::Register::WIDTH;
        for first in (0..16).step_by(width) {
            for part in 0..16 / width {
                // SAFETY: WIDTH rows from `first` on, and WIDTH of their lanes; the caller has room for them.
                unsafe {
                    let mut square = [Self::Register::splat(0.0); 16];
                    for (to, row) in square.iter_mut().zip(&rows[first..first + width]) {
                        *to = row.registers()[part];
                    }
                    Self::Register::transpose(&mut square[..width]);
                    for (lane, column) in square.iter().enumerate().take(width) {
                        column.store(to.add((part * width + lane) * stride + first));
                    }
                }
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
    type Register = R;
    #[inline(always)]
    fn registers(&self) -> &[R] {
        const { assert!(N * R::WIDTH == 16) }
        &self.0
    }
    #[inline(always)]
    unsafe fn of(make: impl Fn(usize) -> R) -> Self {
        Self(std::array::from_fn(make))
    }
}

impl<R: Register, const N: usize> Real for Sixteen<R, N> {
    inlined! {
        fn splat(x: f32) -> Self = Self::of(|_| R::splat(x));
        fn load(from: *const f32) -> Self = Self::of(|i| R::load(from.add(i * R::WIDTH)));
        fn load_f16(from: *const u16) -> Self = Self::of(|i| R::load_f16(from.add(i * R::WIDTH)));
        fn load_bf16(from: *const u16) -> Self = Self::of(|i| R::load_bf16(from.add(i * R::WIDTH)));
        fn load_i8(from: *const i8) -> Self = Self::of(|i| R::load_i8(from.add(i * R::WIDTH)));
        fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            Self::of(|i| R::low_codes(from.add(i * R::WIDTH), codes));
        fn high_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            Self::of(|i| R::high_codes(from.add(i * R::WIDTH), codes));
        fn load_split(high: *const i32, low: *const i32) -> Self =
            Self::of(|i| R::load_split(high.add(i * R::WIDTH), low.add(i * R::WIDTH)));
        fn store(self, to: *mut f32) =
            for (i, part) in self.0.iter().enumerate() {
                part.store(to.add(i * R::WIDTH));
            };
        fn add(self, other: Self) -> Self = Self::of(|i| self.0[i].add(other.0[i]));
        fn sub(self, other: Self) -> Self = Self::of(|i| self.0[i].sub(other.0[i]));
        fn mul(self, other: Self) -> Self = Self::of(|i| self.0[i].mul(other.0[i]));
        fn div(self, other: Self) -> Self = Self::of(|i| self.0[i].div(other.0[i]));
        fn fma(self, a: Self, b: Self) -> Self = Self::of(|i| self.0[i].fma(a.0[i], b.0[i]));
        fn above(self, other: Self) -> Self = Self::of(|i| self.0[i].above(other.0[i]));
        fn less(self, bound: Self, yes: Self, no: Self) -> Self =
            Self::of(|i| self.0[i].less(bound.0[i], yes.0[i], no.0[i]));
        fn abs(self) -> Self = Self::of(|i| self.0[i].abs());
        fn round(self) -> Self = Self::of(|i| self.0[i].round());
        fn power_of_two(self) -> Self = Self::of(|i| self.0[i].power_of_two());
        fn largest(self) -> f32 = self.0[1..].iter().fold(self.0[0], |most, part| most.above(*part)).largest();
        fn cut(self) -> Self = Self::of(|i| self.0[i].cut());
        fn pair(self, high: Self) -> Self = Self::of(|i| self.0[i].pair(high.0[i]));
    }
}

/// The storage type of a number.
pub(crate) trait Element {
    const BYTES: usize;
    /// Loads one element for each lane.
    unsafe fn load<R: Real>(from: *const u8) -> R;
    /// Decodes one element.
    #[inline(always)]
    fn value(bytes: &[u8]) -> f32 {
        // SAFETY: an f32 needs no instructions, and these are the element's bytes.
        unsafe { Self::load(bytes[..Self::BYTES].as_ptr()) }
    }
}

macro_rules! elements {
    ($($name:ident, $load:ident, $bytes:literal;)*) => {
        $(
            pub(crate) struct $name;
            impl Element for $name {
                const BYTES: usize = $bytes;
                inlined! { fn load<R: Real>(from: *const u8) -> R = R::$load(from.cast()); }
            }
        )*
    };
}
elements! {
    F32, load, 4;
    F16, load_f16, 2;
    BF16, load_bf16, 2;
    Int8, load_i8, 1;
}
