//! Sixteen i32, a lane for each of sixteen weight rows, to which products of int8 are added up.
//!
//! Codes lie in lines: four columns of sixteen rows, row by row. They are unsigned, below 128; activations are int8. Sums
//! of integers are exact, whatever their order.

#![allow(clippy::missing_safety_doc)] // as in `lanes`
#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::bytes::Bytes;
use super::lanes::Lanes;
use crate::kernels::pool::buffer::Line;

#[cfg(target_arch = "aarch64")]
pub use aarch64::Neon;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// A group's lines of codes, of four columns each, and what its products are multiplied with.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    /// The first of the lines.
    pub codes: *const Line,
    /// Of each row, as i32 or, unless WIDE, twice as i16.
    pub scale: &'a Line,
}

pub trait Ints: Copy {
    type Lanes: Lanes;
    type Bytes: Bytes;
    /// A group's scales are i32.
    const WIDE: bool;
    /// Sixteens of rows whose sums fit the registers, with four tokens.
    const PANELS: usize;
    /// Codes of eight bits have to be unsigned, 128 more than they stand for, and no others may be signed.
    const UNSIGNED: bool;
    unsafe fn zero() -> Self;
    unsafe fn splat(x: i32) -> Self;
    /// Sixteen.
    unsafe fn load(from: *const i32) -> Self;
    unsafe fn store(self, to: *mut i32);
    /// A number that compilers should not know: they would write out a loop, and run out of registers.
    fn opaque(n: usize) -> usize {
        n
    }
    unsafe fn to_f32(self) -> Self::Lanes;
    /// Adds scale * (codes · x) of `T` tokens and `P` panels. The products of `steps` of the lines fit an i16, two for
    /// each row.
    unsafe fn add_group<const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        lines: usize,
        steps: usize,
        groups: [Group; P],
        x: [*const i8; T],
    );
    /// Adds codes · x of `parts * steps` lines. The products of `steps` of them fit an i16, two for each row.
    unsafe fn add_lines<const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        parts: usize,
        steps: usize,
        codes: [*const Line; P],
        x: [*const i8; T],
    );
    /// The same of `lines` lines of int8, which all count 128 more than they are where UNSIGNED.
    unsafe fn add_signed_lines<const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        lines: usize,
        codes: [*const Line; P],
        x: [*const i8; T],
    );
    /// Adds what two i16 of each row and two i16 of each token multiply to.
    unsafe fn add_pairs<const T: usize, const P: usize>(
        sums: &mut [[Self; P]; T],
        pairs: [&Line; P],
        x: [*const i16; T],
    );
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::{lanes, x86::pinned};
    use super::{Group, Ints, Lanes, Line};
    use std::arch::x86_64::*;

    /// Two registers of AVX2.
    #[derive(Clone, Copy)]
    pub struct Avx2([__m256i; 2]);

    #[inline(always)]
    unsafe fn half(line: &Line, v: usize) -> __m256i {
        // SAFETY: 32 bytes at 32 v of 64.
        unsafe { _mm256_load_si256(line.0.as_ptr().add(32 * v).cast()) }
    }

    /// Four bytes in each lane.
    #[inline(always)]
    unsafe fn four<T>(at: *const T) -> __m256i {
        // SAFETY: the caller has them.
        unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
    }

    /// Pairs of products of `steps` lines from `line` on.
    #[inline(always)]
    unsafe fn narrow<const T: usize>(
        line: usize,
        steps: usize,
        codes: *const Line,
        x: [*const i8; T],
    ) -> [[__m256i; 2]; T] {
        // SAFETY: the caller has the instructions, the lines and the columns.
        unsafe {
            let mut narrow = [[_mm256_setzero_si256(); 2]; T];
            for i in line..line + steps {
                let codes = &*codes.add(i);
                let w = [half(codes, 0), half(codes, 1)];
                for t in 0..T {
                    let x = four(x[t].add(4 * i));
                    for v in 0..2 {
                        let products = _mm256_maddubs_epi16(w[v], x);
                        narrow[t][v] = pinned(_mm256_add_epi16(narrow[t][v], products));
                    }
                }
            }
            narrow
        }
    }

    impl Avx2 {
        #[inline(always)]
        unsafe fn add(&mut self, v: usize, products: __m256i, scale: __m256i) {
            // SAFETY: the caller has the instructions.
            unsafe { self.0[v] = pinned(_mm256_add_epi32(self.0[v], _mm256_madd_epi16(products, scale))) }
        }

        /// Two lines are added before they are widened, in one expression, which compilers keep in registers.
        #[inline(always)]
        unsafe fn add_two<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: usize,
            groups: [Group; P],
            x: [*const i8; T],
        ) {
            // SAFETY: the caller has the instructions and the columns.
            unsafe {
                for line in (0..lines).step_by(2) {
                    for p in 0..P {
                        let Group { codes, scale } = groups[p];
                        let (one, two) = (&*codes.add(line), &*codes.add(line + 1));
                        let w = [[half(one, 0), half(two, 0)], [half(one, 1), half(two, 1)]];
                        for t in 0..T {
                            let x = [four(x[t].add(4 * line)), four(x[t].add(4 * line + 4))];
                            for v in 0..2 {
                                let pair = [
                                    _mm256_maddubs_epi16(w[v][0], x[0]),
                                    _mm256_maddubs_epi16(w[v][1], x[1]),
                                ];
                                sums[t][p].add(v, _mm256_add_epi16(pair[0], pair[1]), half(scale, v));
                            }
                        }
                    }
                }
            }
        }
    }

    // SAFETY of all blocks: the caller has the instructions, the lines and the columns.
    impl Ints for Avx2 {
        type Lanes = lanes::Avx2;
        type Bytes = __m256i;
        const WIDE: bool = false;
        const PANELS: usize = 1;
        const UNSIGNED: bool = false;

        #[inline(always)]
        fn opaque(n: usize) -> usize {
            std::hint::black_box(n)
        }
        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { Self([_mm256_set1_epi32(x); 2]) }
        }
        #[inline(always)]
        unsafe fn load(from: *const i32) -> Self {
            unsafe { Self([_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())]) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut i32) {
            unsafe {
                _mm256_storeu_si256(to.cast(), self.0[0]);
                _mm256_storeu_si256(to.add(8).cast(), self.0[1]);
            }
        }
        #[inline(always)]
        unsafe fn add_lines<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            parts: usize,
            steps: usize,
            codes: [*const Line; P],
            x: [*const i8; T],
        ) {
            for (p, part) in (0..P).flat_map(|p| (0..parts).map(move |part| (p, part))) {
                unsafe {
                    let narrow = narrow(steps * part, steps, codes[p], x);
                    for t in 0..T {
                        for v in 0..2 {
                            sums[t][p].add(v, narrow[t][v], _mm256_set1_epi16(1));
                        }
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn add_signed_lines<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: usize,
            codes: [*const Line; P],
            x: [*const i8; T],
        ) {
            for p in 0..P {
                for line in 0..lines {
                    unsafe {
                        let codes = &*codes[p].add(line);
                        let w = [half(codes, 0), half(codes, 1)];
                        for t in 0..T {
                            let x = four(x[t].add(4 * line));
                            for v in 0..2 {
                                // -128 is 128 as an unsigned number.
                                let products =
                                    _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_sign_epi8(x, w[v]));
                                sums[t][p].add(v, products, _mm256_set1_epi16(1));
                            }
                        }
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self([_mm256_setzero_si256(); 2]) }
        }
        #[inline(always)]
        unsafe fn to_f32(self) -> lanes::Avx2 {
            unsafe { lanes::Avx2::of(|v| _mm256_cvtepi32_ps(self.0[v])) }
        }
        #[inline(always)]
        unsafe fn add_group<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: usize,
            steps: usize,
            groups: [Group; P],
            x: [*const i8; T],
        ) {
            if steps == 2 {
                return unsafe { Self::add_two(sums, lines, groups, x) };
            }
            for p in 0..P {
                for line in (0..lines).step_by(steps) {
                    unsafe {
                        let narrow = narrow(line, steps, groups[p].codes, x);
                        for v in 0..2 {
                            let scale = half(groups[p].scale, v);
                            for t in 0..T {
                                sums[t][p].add(v, narrow[t][v], scale);
                            }
                        }
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn add_pairs<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            pairs: [&Line; P],
            x: [*const i16; T],
        ) {
            for p in 0..P {
                unsafe {
                    let w = [half(pairs[p], 0), half(pairs[p], 1)];
                    for t in 0..T {
                        let x = four(x[t]);
                        for v in 0..2 {
                            sums[t][p].add(v, w[v], x);
                        }
                    }
                }
            }
        }
    }

    /// A register of AVX-512 VNNI.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512i);

    #[inline(always)]
    unsafe fn load(line: &Line) -> __m512i {
        // SAFETY: 64 bytes.
        unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
    }

    /// Four bytes in each lane.
    #[inline(always)]
    unsafe fn wide<T>(at: *const T) -> __m512i {
        // SAFETY: the caller has them.
        unsafe { _mm512_set1_epi32(at.cast::<i32>().read_unaligned()) }
    }

    // SAFETY of all blocks: as above.
    impl Ints for Avx512 {
        type Lanes = lanes::Avx512;
        type Bytes = __m256i;
        const WIDE: bool = true;
        const PANELS: usize = 2;
        const UNSIGNED: bool = true;

        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { Self(_mm512_set1_epi32(x)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const i32) -> Self {
            unsafe { Self(_mm512_loadu_si512(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut i32) {
            unsafe { _mm512_storeu_si512(to.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn add_lines<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            parts: usize,
            steps: usize,
            codes: [*const Line; P],
            x: [*const i8; T],
        ) {
            for line in 0..parts * steps {
                unsafe {
                    let w = codes.map(|codes| load(&*codes.add(line)));
                    for t in 0..T {
                        let x = wide(x[t].add(4 * line));
                        for p in 0..P {
                            sums[t][p].0 = _mm512_dpbusd_epi32(sums[t][p].0, w[p], x);
                        }
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn add_signed_lines<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: usize,
            codes: [*const Line; P],
            x: [*const i8; T],
        ) {
            unsafe {
                let turned = _mm512_set1_epi8(-128);
                for line in 0..lines {
                    let mut w = [turned; P];
                    for p in 0..P {
                        w[p] = _mm512_xor_si512(load(&*codes[p].add(line)), turned);
                    }
                    for t in 0..T {
                        let x = wide(x[t].add(4 * line));
                        for p in 0..P {
                            sums[t][p].0 = _mm512_dpbusd_epi32(sums[t][p].0, w[p], x);
                        }
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm512_setzero_si512()) }
        }
        #[inline(always)]
        unsafe fn to_f32(self) -> lanes::Avx512 {
            unsafe { lanes::Avx512::of(|_| _mm512_cvtepi32_ps(self.0)) }
        }
        #[inline(always)]
        unsafe fn add_group<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: usize,
            _: usize,
            groups: [Group; P],
            x: [*const i8; T],
        ) {
            unsafe {
                let mut own = [[_mm512_setzero_si512(); P]; T];
                for line in 0..lines {
                    let w = groups.map(|group| load(&*group.codes.add(line)));
                    for t in 0..T {
                        let x = wide(x[t].add(4 * line));
                        for p in 0..P {
                            own[t][p] = _mm512_dpbusd_epi32(own[t][p], w[p], x);
                        }
                    }
                }
                for p in 0..P {
                    let scale = load(groups[p].scale);
                    for t in 0..T {
                        let scaled = _mm512_mullo_epi32(own[t][p], scale);
                        sums[t][p].0 = _mm512_add_epi32(sums[t][p].0, scaled);
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn add_pairs<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            pairs: [&Line; P],
            x: [*const i16; T],
        ) {
            unsafe {
                let w = pairs.map(|pair| load(pair));
                for t in 0..T {
                    let x = wide(x[t]);
                    for p in 0..P {
                        sums[t][p].0 = _mm512_dpwssd_epi32(sums[t][p].0, w[p], x);
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::super::neon::dot_lane;
    use super::super::{bytes, lanes};
    use super::{Group, Ints, Lanes, Line};
    use std::arch::aarch64::*;

    /// Four registers of NEON with its dot products.
    #[derive(Clone, Copy)]
    pub struct Neon([int32x4_t; 4]);

    /// Adds the products of lines `4 n ..` of two quarters of the rows, from `v` on.
    #[inline(always)]
    unsafe fn add_lines<const T: usize>(
        own: &mut [[int32x4_t; 2]; T],
        lines: &[Line; 4],
        v: usize,
        x: [int8x16_t; T],
    ) {
        macro_rules! line {
            ($n:literal) => {
                for q in 0..2 {
                    // SAFETY: 16 bytes at 16 (v + q) of 64.
                    unsafe {
                        let w = vld1q_s8(lines[$n].0.as_ptr().add(16 * (v + q)).cast());
                        for t in 0..T {
                            own[t][q] = dot_lane::<$n>(own[t][q], w, x[t]);
                        }
                    }
                }
            };
        }
        line!(0);
        line!(1);
        line!(2);
        line!(3);
    }

    // SAFETY of all blocks: the caller has the instructions, the lines and the columns.
    impl Ints for Neon {
        type Lanes = lanes::Neon;
        type Bytes = bytes::Neon;
        const WIDE: bool = true;
        const PANELS: usize = 1;
        const UNSIGNED: bool = false;

        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { Self([vdupq_n_s32(x); 4]) }
        }
        #[inline(always)]
        unsafe fn load(from: *const i32) -> Self {
            unsafe { Self(std::array::from_fn(|v| vld1q_s32(from.add(4 * v)))) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut i32) {
            (0..4).for_each(|v| unsafe { vst1q_s32(to.add(4 * v), self.0[v]) });
        }
        #[inline(always)]
        unsafe fn add_lines<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            parts: usize,
            steps: usize,
            codes: [*const Line; P],
            x: [*const i8; T],
        ) {
            unsafe { Self::add_signed_lines(sums, parts * steps, codes, x) }
        }
        #[inline(always)]
        unsafe fn add_signed_lines<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: usize,
            codes: [*const Line; P],
            x: [*const i8; T],
        ) {
            for p in 0..P {
                for v in [0, 2] {
                    unsafe {
                        let mut own = [[vdupq_n_s32(0); 2]; T];
                        for t in 0..T {
                            own[t] = [sums[t][p].0[v], sums[t][p].0[v + 1]];
                        }
                        for n in 0..lines / 4 {
                            let lines = &*codes[p].add(4 * n).cast::<[Line; 4]>();
                            add_lines(&mut own, lines, v, x.map(|x| vld1q_s8(x.add(16 * n))));
                        }
                        for t in 0..T {
                            [sums[t][p].0[v], sums[t][p].0[v + 1]] = own[t];
                        }
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self([vdupq_n_s32(0); 4]) }
        }
        #[inline(always)]
        unsafe fn to_f32(self) -> lanes::Neon {
            unsafe { lanes::Neon::of(|v| vcvtq_f32_s32(self.0[v])) }
        }
        #[inline(always)]
        unsafe fn add_group<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            lines: usize,
            _: usize,
            groups: [Group; P],
            x: [*const i8; T],
        ) {
            for p in 0..P {
                let Group { codes, scale } = groups[p];
                // Half of the rows at a time: their products and what is multiplied are all registers.
                for v in [0, 2] {
                    unsafe {
                        let mut own = [[vdupq_n_s32(0); 2]; T];
                        for n in 0..lines / 4 {
                            let lines = &*codes.add(4 * n).cast::<[Line; 4]>();
                            add_lines(&mut own, lines, v, x.map(|x| vld1q_s8(x.add(16 * n))));
                        }
                        for q in 0..2 {
                            let scale = vld1q_s32(scale.0.as_ptr().cast::<i32>().add(4 * (v + q)));
                            for t in 0..T {
                                sums[t][p].0[v + q] = vmlaq_s32(sums[t][p].0[v + q], own[t][q], scale);
                            }
                        }
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn add_pairs<const T: usize, const P: usize>(
            sums: &mut [[Self; P]; T],
            pairs: [&Line; P],
            x: [*const i16; T],
        ) {
            for p in 0..P {
                for v in 0..4 {
                    unsafe {
                        let w = vld1q_s16(pairs[p].0.as_ptr().cast::<i16>().add(8 * v));
                        for t in 0..T {
                            let x = vreinterpretq_s16_s32(vdupq_n_s32(x[t].cast::<i32>().read_unaligned()));
                            let low = vmull_s16(vget_low_s16(w), vget_low_s16(x));
                            let both = vpaddq_s32(low, vmull_high_s16(w, x));
                            sums[t][p].0[v] = vaddq_s32(sums[t][p].0[v], both);
                        }
                    }
                }
            }
        }
    }
}
