//! Registers of AVX-512 whose bytes are looked up with VBMI; all else is as in AVX-512.

use super::bytes::{Bytes, as_within, trit};
use super::dispatch::inlined;
use super::ints::IntRegister;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Vbmi(pub __m512i);

/// The first four trits of each byte, from the low bits up, and the last one.
static TRITS: [[u8; 256]; 2] = {
    let (mut tables, mut byte) = ([[0; 256]; 2], 0);
    while byte < 256 {
        let mut n = 0;
        while n < 5 {
            tables[n / 4][byte] |= trit(byte as u8, n) << (2 * (n % 4));
            n += 1;
        }
        byte += 1;
    }
    tables
};

// No closures: compilers leave them as calls if functions have more target features.

/// 64 entries of a table.
#[inline(always)]
unsafe fn part<const N: usize>(table: &[u8; N], n: usize) -> __m512i {
    // SAFETY: the caller has AVX-512 F, and the entries.
    unsafe { _mm512_loadu_si512(table.as_ptr().add(64 * n).cast()) }
}

/// Replaces each byte with the entry of `table` at that index.
#[inline(always)]
unsafe fn one_of_256(index: __m512i, table: &[u8; 256]) -> __m512i {
    // SAFETY (of all): the caller has AVX-512 BW and VBMI; 64 bytes at each address.
    unsafe {
        let low = _mm512_permutex2var_epi8(part(table, 0), index, part(table, 1));
        let high = _mm512_permutex2var_epi8(part(table, 2), index, part(table, 3));
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high)
    }
}

/// Like `one_of_256`, with two tables: the lowest bit of each byte of `which` selects the table.
#[inline(always)]
unsafe fn one_of_512(index: __m512i, which: __m512i, first: &[u8; 256], second: &[u8; 256]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { by_bit(which, 1, one_of_256(index, first), one_of_256(index, second)) }
}

/// The bytes of `b` where bit `bit` of `which` is set, else those of `a`.
#[inline(always)]
unsafe fn by_bit(which: __m512i, bit: i8, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller has AVX-512 BW.
    unsafe { _mm512_mask_blend_epi8(_mm512_test_epi8_mask(which, _mm512_set1_epi8(bit)), a, b) }
}

// SAFETY of all blocks: the caller has AVX-512 F, BW, VL and VBMI, and the bytes.
impl Bytes for Vbmi {
    as_within!(__m512i);

    const TABLES: bool = true;
    inlined! {
        fn trits<const N: usize>(self) -> [Self; 2] = match N {
            0 => {
                let four = Self(one_of_256(self.0, &TRITS[0]));
                [four.right::<0>(3), four.right::<2>(3)]
            }
            1 => {
                let four = Self(one_of_256(self.0, &TRITS[0]));
                [four.right::<4>(3), four.right::<6>(3)]
            }
            _ => [Self(one_of_256(self.0, &TRITS[1])); 2],
        };
        fn look_up(self, which: Self, tables: &[[u8; 256]]) -> Self = Self(match tables {
            [a] => one_of_256(self.0, a),
            [a, b] => one_of_512(self.0, which.0, a, b),
            [a, b, c, d] => {
                let low = one_of_512(self.0, which.0, a, b);
                by_bit(which.0, 2, low, one_of_512(self.0, which.0, c, d))
            }
            _ => unreachable!("one, two or four"),
        });
        fn pick_of<const N: usize>(self, table: &[u8; N]) -> Self = {
            const { assert!(N == 64 || N == 128) };
            Self(match N {
                64 => _mm512_permutexvar_epi8(self.0, part(table, 0)),
                _ => _mm512_permutex2var_epi8(part(table, 0), self.0, part(table, 1)),
            })
        };
        fn fields(self, at: [u8; 4]) -> Self = {
            // In an element of 64 bits, the second lane begins at bit 32.
            let lane = i32::from_le_bytes(at);
            let order = _mm512_add_epi8(_mm512_set1_epi32(lane), _mm512_set1_epi64(0x2020_2020 << 32));
            Self(_mm512_multishift_epi64_epi8(order, self.0))
        };
        fn take_by_bytes(self, signs: Self, n: usize, whole: u8) -> Self = {
            let set = _mm512_test_epi8_mask(signs.0, _mm512_set1_epi32(0x1001_1001 << n));
            Self(_mm512_mask_sub_epi8(self.0, set, _mm512_set1_epi8(whole as i8), self.0))
        };
    }
}

// SAFETY of all blocks: the caller has AVX-512 F, BW, VL and VNNI.
impl IntRegister for Vbmi {
    type Floats = __m512;
    const NARROW: bool = false;
    const UNSIGNED: bool = true;

    inlined! {
        fn splat(x: i32) -> Self = Self(IntRegister::splat(x));
        fn dot(self, codes: Self, x: Self) -> Self = Self(self.0.dot(codes.0, x.0));
        fn add(self, dots: Self, factor: Self) -> Self = Self(IntRegister::add(self.0, dots.0, factor.0));
        fn factor(self, n: usize) -> Self = Self(self.0.factor(n));
        fn pair(self, a: usize, b: usize, by: i16) -> Self = Self(self.0.pair(a, b, by));
        fn add_pairs(self, pairs: Self, x: Self) -> Self = Self(self.0.add_pairs(pairs.0, x.0));
        fn to_f32(self) -> __m512 = self.0.to_f32();
        fn upper_halves(self) -> __m512 = self.0.upper_halves();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::bytes::Portable;
    use crate::kernels::{Isa, available};

    #[inline(always)]
    unsafe fn all<B: Bytes>(a: &[u8; 64], b: &[u8; 64], tables: &[[u8; 256]; 4]) -> [[u8; 64]; 13] {
        let mut all = [[0; 64]; 13];
        for at in (0..64).step_by(4 * B::ROWS) {
            // SAFETY (of all): the caller has the instructions; whole registers.
            unsafe {
                let (a, b) = (B::load(a.as_ptr().add(at)), B::load(b.as_ptr().add(at)));
                let [[first, second], [third, fourth], [fifth, last]] =
                    [a.trits::<0>(), a.trits::<1>(), a.trits::<2>()];
                let results = [
                    a.look_up(b, &tables[..1]),
                    a.look_up(b, &tables[..2]),
                    a.look_up(b, tables),
                    a.pick_of(tables[0].first_chunk::<64>().unwrap()),
                    a.pick_of(tables[1].first_chunk::<128>().unwrap()),
                    a.fields([0, 7, 14, 21]),
                    a.take_by_bytes(b, 2, 128),
                    first,
                    second,
                    third,
                    fourth,
                    fifth,
                    last,
                ];
                all.iter_mut().zip(results).for_each(|(to, v)| v.store(to.as_mut_ptr().add(at)));
            }
        }
        all
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    fn all_in_registers(a: &[u8; 64], b: &[u8; 64], tables: &[[u8; 256]; 4]) -> [[u8; 64]; 13] {
        // SAFETY: this function has the instructions.
        unsafe { all::<Vbmi>(a, b, tables) }
    }

    #[test]
    fn registers_are_looked_up_as_any_processor_does() {
        if !available().contains(&Isa::Avx512Vbmi) {
            return;
        }
        let byte = |n: usize| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8;
        let tables: [[u8; 256]; 4] = std::array::from_fn(|t| std::array::from_fn(|n| byte(1000 * t + n)));
        for seed in 0..64 {
            let [a, b] = [7, 8].map(|k| std::array::from_fn(|n| byte(10_000 * k + 64 * seed + n)));
            // SAFETY (of both): the machine has the instructions.
            let (want, got) =
                unsafe { (all::<Portable>(&a, &b, &tables), all_in_registers(&a, &b, &tables)) };
            assert_eq!(want, got, "{seed}");
        }
    }
}
