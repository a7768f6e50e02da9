//! Sums of products of int8, with one i32 lane per weight row.
//!
//! Codes are registers of `Bytes`: four columns of each row. They are either unsigned and below 128, or int8;
//! activations are int8. Integer sums are exact in any order.

#![allow(clippy::missing_safety_doc)] // as in `lanes`
#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::bytes::{Bytes, put};
use super::dispatch::inlined;
use super::lanes::{Lanes, Register};
use crate::kernels::pool::buffer::Line;
use std::ops::Range;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{Neon, NeonI8mm};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

/// A register of sums or of codes.
pub(crate) trait IntRegister: Bytes {
    type Floats: Register;
    /// Whether `dot` adds up in i16, two for each row, which `add` then widens.
    const NARROW: bool;
    /// Whether 8-bit codes must be unsigned, stored with an offset of 128.
    const UNSIGNED: bool;
    /// Number of registers of the instruction set.
    const REGISTERS: usize = <Self::Floats as Register>::COUNT;
    /// The factor 1 for `add`, used only to widen.
    const ONE: i32 = 0x0001_0001;
    unsafe fn splat(x: i32) -> Self;
    /// Adds unsigned codes times four values; the four values are the same in all lanes.
    unsafe fn dot(self, codes: Self, x: Self) -> Self;
    /// The same with int8 codes, for sets that are not UNSIGNED.
    unsafe fn dot_signed(self, _codes: Self, _x: Self) -> Self {
        unreachable!("codes are made unsigned")
    }
    /// Adds `dots`, which `dot` made from zero, times a `factor`.
    unsafe fn add(self, dots: Self, factor: Self) -> Self;
    /// Byte `n` of each lane, an int8, as a factor for `add`.
    unsafe fn factor(self, n: usize) -> Self;
    /// Bytes `a` and `b` of each lane, int8, times `by`, as the two i16 of the lane.
    unsafe fn pair(self, a: usize, b: usize, by: i16) -> Self;
    /// Adds the two i16 of each row times the two i16 of `x`.
    unsafe fn add_pairs(self, pairs: Self, x: Self) -> Self;
    unsafe fn to_f32(self) -> Self::Floats;
    /// The f16 in the upper half of each lane.
    unsafe fn upper_halves(self) -> Self::Floats;
}

/// A register of floats, with as many rows as a register of sums.
pub(crate) type Floats<I> = <<I as Ints>::Register as IntRegister>::Floats;

/// Reads four bytes as one number.
#[inline(always)]
pub(crate) unsafe fn four<T>(from: *const T) -> i32 {
    // SAFETY: the caller has them.
    unsafe { from.cast::<i32>().read_unaligned() }
}

/// The lines of codes of one group, of four columns each, and the factor of its products.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    /// The first of the lines.
    pub codes: *const Line,
    /// `IntRegister::factor` of each row.
    pub scale: &'a Line,
}

/// The codes of `P` panels and the values of `T` tokens, from the first of the lines on.
pub(crate) type Operands<const T: usize, const P: usize> = ([*const Line; P], [*const i8; T]);

/// Sixteen rows. If PAIRED, `dots` needs the lines of codes in pairs.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen<P, const N: usize, const PAIRED: bool = false>([P; N]);

/// The trait that kernels are generic over: `Sixteen` of some register. Codes are stored in lines: four columns of
/// sixteen rows, row by row.
pub(crate) trait Ints: Copy {
    type Register: IntRegister;
    type Lanes: Lanes<Register = <Self::Register as IntRegister>::Floats>;
    /// Number of panels (sixteen rows each) whose sums fit into the registers with four tokens.
    const PANELS: usize;
    fn registers(&self) -> &[Self::Register];
    fn registers_mut(&mut self) -> &mut [Self::Register];
    unsafe fn splat(x: i32) -> Self;
    /// Hides a number from compilers that would unroll a loop with it and run out of registers.
    #[inline(always)]
    fn opaque(n: usize) -> usize {
        if Self::Register::NARROW { std::hint::black_box(n) } else { n }
    }

    // SAFETY of all blocks: the caller has the instructions, the lines and the columns.

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Self::splat(0) }
    }
    /// Loads sixteen i32.
    #[inline(always)]
    unsafe fn load(from: *const i32) -> Self {
        unsafe {
            let mut all = Self::zero();
            for (v, part) in all.registers_mut().iter_mut().enumerate() {
                *part = Self::Register::load(from.add(v * Self::Register::ROWS).cast());
            }
            all
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        for (v, part) in self.registers().iter().enumerate() {
            unsafe { part.store(to.add(v * Self::Register::ROWS).cast()) }
        }
    }
    #[inline(always)]
    unsafe fn to_f32(self) -> Self::Lanes {
        unsafe { Self::Lanes::of(|v| self.registers()[v].to_f32()) }
    }

    /// Writes part of line `n` of a panel as `dots` reads it. Even lines come first.
    #[inline(always)]
    unsafe fn put(lines: &mut [Line], n: usize, part: usize, v: Self::Register) {
        unsafe { put(&mut lines[n], part, v) }
    }

    /// Adds up `dot` (or `dot_signed` if SIGNED and not UNSIGNED) of some lines, for `P` panels and `T` tokens.
    #[inline(always)]
    unsafe fn dots<const SIGNED: bool, const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        lines: Range<usize>,
        (codes, x): Operands<T, P>,
    ) {
        unsafe {
            for i in lines {
                let mut w = [Self::zero(); P];
                for p in 0..P {
                    w[p] = Self::load(codes[p].add(i).cast());
                    if SIGNED && Self::Register::UNSIGNED {
                        w[p].registers_mut().iter_mut().for_each(|part| *part = part.flip());
                    }
                }
                for t in 0..T {
                    let x = Self::Register::splat(four(x[t].add(4 * i)));
                    for p in 0..P {
                        for v in 0..16 / Self::Register::ROWS {
                            let (sum, w) = (&mut sums[t][p].registers_mut()[v], w[p].registers()[v]);
                            *sum = if SIGNED && !Self::Register::UNSIGNED {
                                sum.dot_signed(w, x)
                            } else {
                                sum.dot(w, x)
                            };
                        }
                    }
                }
            }
        }
    }

    /// Adds codes · x over `parts * steps` lines. The products of `steps` lines must fit an i16, two for each row. If
    /// SIGNED, codes are int8; an UNSIGNED set multiplies codes + 128 instead.
    #[inline(always)]
    unsafe fn add_lines<const SIGNED: bool, const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        parts: usize,
        steps: usize,
        codes: [*const Line; P],
        x: [*const i8; T],
    ) {
        unsafe {
            if !Self::Register::NARROW {
                return Self::dots::<SIGNED, T, P>(sums, 0..parts * steps, (codes, x));
            }
            let one = [Self::splat(Self::Register::ONE); P];
            for part in 0..parts {
                let from = steps * part;
                Self::add_dots::<SIGNED, T, P>(sums, from..from + steps, (codes, x), one, SIGNED);
            }
        }
    }

    /// Adds scale * (codes · x) for `T` tokens and `P` panels. The products of `steps` lines must fit an i16, two for
    /// each row. SIGNED is as for `dots`.
    #[inline(always)]
    unsafe fn add_group<const SIGNED: bool, const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        lines: usize,
        steps: usize,
        groups: [Group; P],
        x: [*const i8; T],
    ) {
        unsafe {
            let (mut codes, mut scales) = ([std::ptr::null(); P], [Self::zero(); P]);
            for p in 0..P {
                (codes[p], scales[p]) =
                    (groups[p].codes, Self::load((groups[p].scale as *const Line).cast()));
            }
            let steps = if Self::Register::NARROW { steps } else { lines };
            for from in (0..lines).step_by(steps) {
                Self::add_dots::<SIGNED, T, P>(sums, from..from + steps, (codes, x), scales, steps <= 2);
            }
        }
    }

    /// Adds the result of `dots`, times factors. `by_token` handles one token after another, for
    /// cases where the registers hold the codes of these lines but not also the dots of all tokens.
    #[inline(always)]
    unsafe fn add_dots<const SIGNED: bool, const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        lines: Range<usize>,
        (codes, x): Operands<T, P>,
        factors: [Self; P],
        by_token: bool,
    ) {
        unsafe {
            let mut own = [[Self::zero(); P]; T];
            if !by_token {
                Self::dots::<SIGNED, T, P>(&mut own, lines.clone(), (codes, x));
            }
            for t in 0..T {
                if by_token {
                    let own = own[t..].first_chunk_mut::<1>().expect("of this token");
                    Self::dots::<SIGNED, 1, P>(own, lines.clone(), (codes, [x[t]]));
                }
                for p in 0..P {
                    for v in 0..16 / Self::Register::ROWS {
                        let sum = &mut sums[t][p].registers_mut()[v];
                        *sum = sum.add(own[t][p].registers()[v], factors[p].registers()[v]);
                    }
                }
            }
        }
    }

    /// Adds the products of two i16 of each row and two i16 of each token.
    #[inline(always)]
    unsafe fn add_pairs<const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        pairs: [&Line; P],
        x: [*const i16; T],
    ) {
        unsafe {
            for p in 0..P {
                let w = Self::load((pairs[p] as *const Line).cast());
                for t in 0..T {
                    let x = Self::Register::splat(four(x[t]));
                    for v in 0..16 / Self::Register::ROWS {
                        let sum = &mut sums[t][p].registers_mut()[v];
                        *sum = sum.add_pairs(w.registers()[v], x);
                    }
                }
            }
        }
    }
}

macro_rules! sixteen {
    ($name:ident, $part:ty, $n:literal, $panels:literal $(, $paired:literal { $($own:tt)* })?) => {
        pub(crate) type $name = super::Sixteen<$part, $n $(, $paired)?>;
        impl super::Ints for $name {
            type Register = $part;
            type Lanes = super::super::lanes::Sixteen<<$part as super::IntRegister>::Floats, $n>;
            const PANELS: usize = $panels;
            $($($own)*)?
            #[inline(always)]
            fn registers(&self) -> &[$part] {
                &self.0
            }
            #[inline(always)]
            fn registers_mut(&mut self) -> &mut [$part] {
                &mut self.0
            }
            #[inline(always)]
            unsafe fn splat(x: i32) -> Self {
                // SAFETY: the caller has the instructions.
                unsafe { super::Sixteen([<$part as super::IntRegister>::splat(x); $n]) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::bytes::as_within;
    use super::super::vbmi::Vbmi;
    use super::super::x86::pinned;
    use super::{Bytes, IntRegister, inlined};
    use std::arch::x86_64::*;

    sixteen!(Avx2, __m256i, 2, 1);
    sixteen!(AvxVnni, Vnni<false>, 2, 1);
    sixteen!(Avx512, __m512i, 1, 2);
    sixteen!(Avx512Vbmi, Vbmi, 1, 2);
    // The code of AVX-VNNI in AVX-512's encoding: for tests on machines that have only AVX-512.
    #[cfg(test)]
    sixteen!(AvxVnniAsAvx512, Vnni<true>, 2, 1);

    /// A register of AVX-VNNI, or of the same instructions in AVX-512's encoding.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub(crate) struct Vnni<const EVEX: bool>(pub __m256i);

    /// An order for `shuffle_epi8` in each lane: each of two bytes becomes the upper byte of an i16, with 0 below.
    #[inline(always)]
    unsafe fn words(first: usize, second: usize) -> __m128i {
        unsafe {
            let lane = i32::from_le_bytes([0x80, first as u8, 0x80, second as u8]);
            let fours = _mm_setr_epi8(0, 0, 0, 0, 0, 4, 0, 4, 0, 8, 0, 8, 0, 12, 0, 12);
            _mm_add_epi8(_mm_set1_epi32(lane), fours)
        }
    }

    // SAFETY of all blocks: the caller has AVX2.
    impl IntRegister for __m256i {
        type Floats = __m256;
        const NARROW: bool = true;
        const UNSIGNED: bool = false;

        inlined! {
            fn splat(x: i32) -> Self = _mm256_set1_epi32(x);
            fn dot(self, codes: Self, x: Self) -> Self =
                pinned(_mm256_add_epi16(self, _mm256_maddubs_epi16(codes, x)));
            // The magnitude of -128 is 128 as an unsigned number.
            fn dot_signed(self, codes: Self, x: Self) -> Self = _mm256_add_epi16(
                self,
                _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)),
            );
            fn add(self, dots: Self, factor: Self) -> Self =
                pinned(_mm256_add_epi32(self, _mm256_madd_epi16(dots, factor)));
            fn factor(self, n: usize) -> Self = self.pair(n, n, 1);
            fn pair(self, a: usize, b: usize, by: i16) -> Self = {
                let order = _mm256_broadcastsi128_si256(words(a, b));
                let pair = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(self, order));
                _mm256_mullo_epi16(pair, _mm256_set1_epi16(by))
            };
            fn add_pairs(self, pairs: Self, x: Self) -> Self = self.add(pairs, x);
            fn to_f32(self) -> __m256 = _mm256_cvtepi32_ps(self);
            fn upper_halves(self) -> __m256 = {
                let halves = _mm256_srli_epi32::<16>(self);
                let halves = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(halves, halves));
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves))
            };
        }
    }

    // SAFETY of all blocks: the caller has AVX2, and the bytes.
    impl<const EVEX: bool> Bytes for Vnni<EVEX> {
        as_within!(__m256i);
        inlined! {
            fn trits<const N: usize>(self) -> [Self; 2] = {
                let [first, second] = self.0.trits::<N>();
                [Self(first), Self(second)]
            };
        }
    }

    // SAFETY of all blocks: the caller has AVX2, and AVX-VNNI; if EVEX, AVX-512 VL and VNNI.
    impl<const EVEX: bool> IntRegister for Vnni<EVEX> {
        type Floats = __m256;
        const NARROW: bool = false;
        const UNSIGNED: bool = true;

        inlined! {
            fn splat(x: i32) -> Self = Self(_mm256_set1_epi32(x));
            fn dot(self, codes: Self, x: Self) -> Self = Self(match EVEX {
                false => _mm256_dpbusd_avx_epi32(self.0, codes.0, x.0),
                true => _mm256_dpbusd_epi32(self.0, codes.0, x.0),
            });
            fn add(self, dots: Self, factor: Self) -> Self =
                Self(_mm256_add_epi32(self.0, _mm256_mullo_epi32(dots.0, factor.0)));
            fn factor(self, n: usize) -> Self = {
                let order = _mm256_broadcastsi128_si256(words(n, n));
                Self(_mm256_srai_epi32::<24>(_mm256_shuffle_epi8(self.0, order)))
            };
            fn pair(self, a: usize, b: usize, by: i16) -> Self = Self(self.0.pair(a, b, by));
            fn add_pairs(self, pairs: Self, x: Self) -> Self = Self(match EVEX {
                false => _mm256_dpwssd_avx_epi32(self.0, pairs.0, x.0),
                true => _mm256_dpwssd_epi32(self.0, pairs.0, x.0),
            });
            fn to_f32(self) -> __m256 = self.0.to_f32();
            fn upper_halves(self) -> __m256 = self.0.upper_halves();
        }
    }

    // SAFETY of all blocks: the caller has AVX-512 F, BW, VL and VNNI.
    impl IntRegister for __m512i {
        type Floats = __m512;
        const NARROW: bool = false;
        const UNSIGNED: bool = true;

        inlined! {
            fn splat(x: i32) -> Self = _mm512_set1_epi32(x);
            fn dot(self, codes: Self, x: Self) -> Self = _mm512_dpbusd_epi32(self, codes, x);
            fn add(self, dots: Self, factor: Self) -> Self =
                _mm512_add_epi32(self, _mm512_mullo_epi32(dots, factor));
            fn factor(self, n: usize) -> Self = {
                let order = _mm512_broadcast_i32x4(words(n, n));
                _mm512_srai_epi32::<24>(_mm512_shuffle_epi8(self, order))
            };
            fn pair(self, a: usize, b: usize, by: i16) -> Self = {
                let order = _mm512_broadcast_i32x4(words(a, b));
                let pair = _mm512_srai_epi16::<8>(_mm512_shuffle_epi8(self, order));
                _mm512_mullo_epi16(pair, _mm512_set1_epi16(by))
            };
            fn add_pairs(self, pairs: Self, x: Self) -> Self = _mm512_dpwssd_epi32(self, pairs, x);
            fn to_f32(self) -> __m512 = _mm512_cvtepi32_ps(self);
            fn upper_halves(self) -> __m512 =
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(self)));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::super::neon::{dot, dot_pairs, halves};
    use super::{Bytes, IntRegister, Ints, Line, Operands, inlined, put};
    use std::arch::aarch64::*;
    use std::ops::Range;

    sixteen!(Neon, uint8x16_t, 4, 1);
    // In each pair of lines, the first has eight columns of rows 4 n and 4 n + 1, the second those of the next two
    // rows.
    sixteen!(NeonI8mm, uint8x16_t, 4, 1, true {
        #[inline(always)]
        unsafe fn put(lines: &mut [Line], n: usize, part: usize, mut v: uint8x16_t) {
            // SAFETY: the caller's promise.
            unsafe {
                if n % 2 == 1 {
                    let [first, second] = zip([Bytes::load(lines[n - 1].0.as_ptr().add(16 * part)), v]);
                    put(&mut lines[n - 1], part, first);
                    v = second;
                }
                put(&mut lines[n], part, v);
            }
        }

        #[inline(always)]
        unsafe fn dots<const SIGNED: bool, const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: Range<usize>,
            operands: Operands<T, P>,
        ) {
            // SAFETY: the caller's promise.
            unsafe { pair_dots(sums, lines.start / 2..lines.end / 2, operands) }
        }
    });

    /// Interleaves the lanes of two registers.
    #[inline(always)]
    unsafe fn zip(v: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        // SAFETY: every aarch64 that std runs on has NEON.
        unsafe {
            let [a, b] = v.map(|v| vreinterpretq_u32_u8(v));
            [vzip1q_u32(a, b), vzip2q_u32(a, b)].map(|v| vreinterpretq_u8_u32(v))
        }
    }

    /// Undoes `zip`.
    #[inline(always)]
    unsafe fn unzip(v: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        // SAFETY: every aarch64 that std runs on has NEON.
        unsafe {
            let [a, b] = v.map(|v| vreinterpretq_u32_u8(v));
            [vuzp1q_u32(a, b), vuzp2q_u32(a, b)].map(|v| vreinterpretq_u8_u32(v))
        }
    }

    /// `dots` of pairs of lines. A register of sums has two rows with two tokens; an odd last token is paired with
    /// itself.
    #[inline(always)]
    unsafe fn pair_dots<const T: usize, const P: usize>(
        sums: &mut [[NeonI8mm; P]; T],
        pairs: Range<usize>,
        (codes, x): Operands<T, P>,
    ) {
        // Not in steps of two, because compilers would not unroll such a loop.
        let both_of = |t: usize| [2 * t, (2 * t + 1).min(T - 1)];
        // SAFETY: the caller has the instructions, the lines and the columns.
        unsafe {
            let mut tiles = [[[[vdupq_n_u8(0); 2]; 4]; P]; T];
            for t in 0..T.div_ceil(2) {
                let [a, b] = both_of(t);
                for p in 0..P {
                    for v in 0..4 {
                        tiles[t][p][v] = zip([sums[a][p].0[v], sums[b][p].0[v]]);
                    }
                }
            }
            for i in pairs {
                let mut columns = [vdupq_n_s8(0); T];
                for t in 0..T.div_ceil(2) {
                    let [a, b] = both_of(t);
                    columns[t] = vcombine_s8(vld1_s8(x[a].add(8 * i)), vld1_s8(x[b].add(8 * i)));
                }
                for p in 0..P {
                    for n in 0..2 {
                        let w = NeonI8mm::load(codes[p].add(2 * i + n).cast()).0;
                        for v in 0..4 {
                            for t in 0..T.div_ceil(2) {
                                let (tile, w) = (&mut tiles[t][p][v][n], vreinterpretq_s8_u8(w[v]));
                                let sum = dot_pairs(vreinterpretq_s32_u8(*tile), w, columns[t]);
                                *tile = vreinterpretq_u8_s32(sum);
                            }
                        }
                    }
                }
            }
            for t in 0..T.div_ceil(2) {
                let [a, b] = both_of(t);
                for p in 0..P {
                    for v in 0..4 {
                        let both = unzip(tiles[t][p][v]);
                        sums[a][p].0[v] = both[0];
                        sums[b][p].0[v] = both[b - a];
                    }
                }
            }
        }
    }

    /// Byte `n` of each lane, sign-extended to the whole lane.
    #[inline(always)]
    unsafe fn byte(v: uint8x16_t, n: usize) -> int32x4_t {
        unsafe { vshrq_n_s32::<24>(vshlq_s32(vreinterpretq_s32_u8(v), vdupq_n_s32(24 - 8 * n as i32))) }
    }

    // SAFETY of all blocks: the caller has NEON and its dot products.
    impl IntRegister for uint8x16_t {
        type Floats = float32x4_t;
        const NARROW: bool = false;
        const UNSIGNED: bool = false;

        inlined! {
            fn splat(x: i32) -> Self = vreinterpretq_u8_s32(vdupq_n_s32(x));
            fn dot(self, codes: Self, x: Self) -> Self = self.dot_signed(codes, x);
            fn dot_signed(self, codes: Self, x: Self) -> Self = {
                let (codes, x) = (vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(x));
                vreinterpretq_u8_s32(dot(vreinterpretq_s32_u8(self), codes, x))
            };
            fn add(self, dots: Self, factor: Self) -> Self = {
                let [sum, dots, factor] = [self, dots, factor].map(|v| vreinterpretq_s32_u8(v));
                vreinterpretq_u8_s32(vmlaq_s32(sum, dots, factor))
            };
            fn factor(self, n: usize) -> Self = vreinterpretq_u8_s32(byte(self, n));
            fn pair(self, a: usize, b: usize, by: i16) -> Self = {
                let [a, b] = [a, b].map(|n| vreinterpretq_s16_s32(byte(self, n)));
                vreinterpretq_u8_s16(vmulq_n_s16(vtrn1q_s16(a, b), by))
            };
            fn add_pairs(self, pairs: Self, x: Self) -> Self = {
                let [pairs, x] = [pairs, x].map(|v| vreinterpretq_s16_u8(v));
                let low = vmull_s16(vget_low_s16(pairs), vget_low_s16(x));
                let both = vpaddq_s32(low, vmull_high_s16(pairs, x));
                vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(self), both))
            };
            fn to_f32(self) -> float32x4_t = vcvtq_f32_s32(vreinterpretq_s32_u8(self));
            fn upper_halves(self) -> float32x4_t = halves(vshrn_n_u32::<16>(vreinterpretq_u32_u8(self)));
        }
    }
}
