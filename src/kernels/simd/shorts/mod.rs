//! Sums of 16 bits, one for each of sixteen or 32 tokens, in as many registers as the instruction set needs.
//!
//! All functions need the instructions of their type, and memory for all lanes; they are inlined into functions that
//! have the instructions.

#![allow(clippy::missing_safety_doc)] // said above, once
#![allow(clippy::needless_range_loop)] // fixed ranges keep sums in registers

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::lanes::Lanes;

/// A register of i16.
pub(crate) trait Register: Copy {
    /// Sixteen f32.
    type Floats: Lanes;
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn load(from: *const i16) -> Self;
    unsafe fn load_i8(from: *const i8) -> Self;
    unsafe fn load_u8(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut i16);
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn up<const N: i32>(self) -> Self;
    unsafe fn down<const N: i32>(self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// Eight fields of each 32 bits: bits 0 to 5, 6 to 10 and 11 to 15, times 32, then 0, and the same of the upper half.
    unsafe fn fields(from: *const u8) -> Self;
    /// Adds to as many i32.
    unsafe fn add_to(self, sums: *mut i32);
    /// Sixteen lanes from `first` on of some registers.
    unsafe fn to_f32(all: &[Self], first: usize) -> Self::Floats;
    /// Sixteen i32 as f32.
    unsafe fn floats(from: *const i32) -> Self::Floats;
}

/// The trait that kernels are generic over: `Many` of some register.
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
    /// As `Register::fields`, of as many bits as there are lanes, four times.
    unsafe fn fields(from: *const u8) -> Self;
    /// Adds to as many i32.
    unsafe fn add_to(self, sums: *mut i32);
    /// Sixteen lanes from `first` on.
    unsafe fn to_f32(self, first: usize) -> Self::Floats;
    /// Sixteen i32 as f32.
    unsafe fn floats(from: *const i32) -> Self::Floats;
}

/// Several registers.
#[derive(Clone, Copy)]
pub(crate) struct Many<R, const N: usize>([R; N]);

macro_rules! each {
    ($($(#[$doc:meta])* fn $name:ident $(<const $n:ident: i32>)? ($($arg:ident: $type:ty),*) = |$i:ident, $lane:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        unsafe fn $name $(<const $n: i32>)? ($($arg: $type),*) -> Self {
            // SAFETY: the caller's promise. No closures, which would not have the instructions.
            unsafe {
                let mut all = [R::zero(); N];
                for $i in 0..N {
                    let $lane = $i * R::LANES;
                    all[$i] = $body;
                }
                Self(all)
            }
        }
    )*};
}

impl<R: Register, const N: usize> Shorts for Many<R, N> {
    type Floats = R::Floats;
    const LANES: usize = N * R::LANES;
    each! {
        fn zero() = |i, _lane| R::zero();
        fn load(from: *const i16) = |i, lane| R::load(from.add(lane));
        fn load_i8(from: *const i8) = |i, lane| R::load_i8(from.add(lane));
        fn load_u8(from: *const u8) = |i, lane| R::load_u8(from.add(lane));
        fn fields(from: *const u8) = |i, lane| R::fields(from.add(lane / 2));
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i16) {
        for i in 0..N {
            // SAFETY: the caller's promise.
            unsafe { self.0[i].store(to.add(i * R::LANES)) }
        }
    }
    #[inline(always)]
    unsafe fn and(mut self, other: Self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].and(other.0[i]) };
        }
        self
    }
    #[inline(always)]
    unsafe fn or(mut self, other: Self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].or(other.0[i]) };
        }
        self
    }
    #[inline(always)]
    unsafe fn up<const BITS: i32>(mut self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].up::<BITS>() };
        }
        self
    }
    #[inline(always)]
    unsafe fn down<const BITS: i32>(mut self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].down::<BITS>() };
        }
        self
    }
    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].add(other.0[i]) };
        }
        self
    }
    #[inline(always)]
    unsafe fn sub(mut self, other: Self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].sub(other.0[i]) };
        }
        self
    }
    #[inline(always)]
    unsafe fn mul(mut self, other: Self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].mul(other.0[i]) };
        }
        self
    }
    #[inline(always)]
    unsafe fn add_to(self, sums: *mut i32) {
        for i in 0..N {
            // SAFETY: the caller's promise.
            unsafe { self.0[i].add_to(sums.add(i * R::LANES)) }
        }
    }
    #[inline(always)]
    unsafe fn to_f32(self, first: usize) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe { R::to_f32(&self.0, first) }
    }
    #[inline(always)]
    unsafe fn floats(from: *const i32) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe { R::floats(from) }
    }
}

/// Sixteen lanes.
pub(crate) mod sixteen {
    use super::Many;
    #[cfg(target_arch = "aarch64")]
    pub(crate) type Neon = Many<super::neon::int16x8_t, 2>;
    #[cfg(target_arch = "x86_64")]
    pub(crate) type Avx2 = Many<super::x86::__m256i, 1>;
    #[cfg(target_arch = "x86_64")]
    pub(crate) type Avx512 = Avx2;
}

/// 32 lanes.
pub(crate) mod double {
    use super::Many;
    #[cfg(target_arch = "aarch64")]
    pub(crate) type Neon = Many<super::neon::int16x8_t, 4>;
    #[cfg(target_arch = "x86_64")]
    pub(crate) type Avx2 = Many<super::x86::__m256i, 2>;
    #[cfg(target_arch = "x86_64")]
    pub(crate) type Avx512 = Many<super::x86::__m512i, 1>;
}
