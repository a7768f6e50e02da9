//! Matrix tiles: the int8 and bf16 instructions of Intel's AMX. `models` has a portable model of them.
//!
//! There are eight tiles of 16 rows of up to 64 bytes. Kernels agree on their use. Tiles 0 to 3 hold sums: 16 rows of
//! 16 i32 or f32. Tiles 4 and 5 hold the left matrix: 16 rows of `depth` bytes. Tiles 6 and 7 hold the right matrix:
//! `depth / 4` rows, each with four bytes, or two bf16, of each of 16 columns.

use super::ints::Ints;
use super::lanes::Lanes;
use super::wide::Wide;

/// The tiles of a thread. Tile numbers are constants, as the instructions require.
pub(crate) trait Tiles {
    /// Tiles for products over 64 or 32 bytes (`depth`).
    ///
    /// # Safety
    /// The machine has the instructions that the type stands for. For the processor's tiles, the thread has a
    /// `Configured` of the same depth, which outlives this value.
    unsafe fn new(depth: usize) -> Self;

    fn zero<const T: usize>(&mut self);

    /// Loads tile `T` from rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// The rows can be read.
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize);

    /// Stores tile `T` to rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// The rows can be written.
    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize);

    /// Tile `C` += tile `A` times tile `B`. The bytes of `A` are unsigned, those of `B` signed; sums wrap.
    fn dot_unsigned<const C: usize, const A: usize, const B: usize>(&mut self);

    /// The same with signed bytes in both.
    fn dot_signed<const C: usize, const A: usize, const B: usize>(&mut self);

    /// Tile `C` += tile `A` times tile `B`, of pairs of bf16; sums are f32. The first elements of a row's pairs are
    /// summed by fused multiply-adds from 0, the second ones too, and the sum of both is added. Subnormal numbers are
    /// zeros.
    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self);

    /// Prefetches a cache line into the first-level cache; any address is allowed.
    fn fetch(_: *const u8) {}
}

/// The trait that kernels are generic over: tiles, and the vectors used beside them.
pub(crate) trait Set {
    type Tiles: Tiles;
    type Lanes: Lanes;
    type Wide: Wide;
    type Ints: Ints<Lanes = Self::Lanes>;
}

/// The processor's tiles and vectors.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Processor;

#[cfg(target_arch = "x86_64")]
impl Set for Processor {
    type Tiles = Amx;
    type Lanes = super::lanes::Avx512;
    type Wide = std::arch::x86_64::__m512i;
    type Ints = super::ints::Avx512;
}

/// Cuts f32 into bf16, the largest part first: their sum is the number if it has at most `8 P` bits of significand.
/// Lane i of a part has number i of the first sixteen in its lower half, and that of the other sixteen in the upper
/// half.
///
/// # Safety
/// `L`'s instructions are available.
#[inline(always)]
pub(crate) unsafe fn in_parts<L: Lanes, const P: usize>([mut low, mut high]: [L; 2]) -> [L; P] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut parts = [low; P];
        for part in &mut parts {
            *part = low.pair(high);
            (low, high) = (low.sub(low.cut()), high.sub(high.cut()));
        }
        parts
    }
}

/// Number of rows of tile number `tile`, and bytes per row.
pub(crate) const fn shape(tile: usize, depth: usize) -> (usize, usize) {
    match tile {
        0..4 => (16, 64),
        4..6 => (16, depth),
        _ => (depth / 4, 64),
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use hardware::{Amx, Configured};

#[cfg(target_arch = "x86_64")]
mod hardware {
    use super::{Tiles, shape};
    use crate::kernels::simd::tiles_here::permitted;
    use std::arch::asm;

    /// The memory that `ldtilecfg` reads.
    #[repr(C, align(64))]
    struct Config([u8; 64]);

    const fn config(depth: usize) -> Config {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            let (rows, row_bytes) = shape(tile, depth);
            bytes[16 + 2 * tile] = row_bytes as u8;
            bytes[48 + tile] = rows as u8;
            tile += 1;
        }
        Config(bytes)
    }

    static DEEP: Config = config(64);
    static SHORT: Config = config(32);

    /// Makes the thread's tiles usable until it is dropped. After the drop, the system has no tiles to save while the
    /// thread sleeps. Do not make one for each product: the instruction waits for all earlier instructions of the
    /// thread.
    pub(crate) struct Configured(());

    impl Configured {
        /// # Safety
        /// Tiles `exist`, and this thread has no other `Configured`. Panics if the system does not permit tiles.
        pub(crate) unsafe fn new(depth: usize) -> Self {
            assert!(permitted(), "the system permits no matrix tiles");
            let config = match depth {
                64 => &DEEP,
                32 => &SHORT,
                _ => panic!("tiles of {depth} bytes"),
            };
            // SAFETY: the processor has the instruction, and this is what it reads.
            unsafe { asm!("ldtilecfg [{0}]", in(reg) config, options(readonly, nostack, preserves_flags)) };
            Self(())
        }
    }

    impl Drop for Configured {
        fn drop(&mut self) {
            // SAFETY: as above.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }

    /// The processor's tiles.
    pub(crate) struct Amx(());

    /// An instruction; `nomem` if it neither reads nor writes memory.
    macro_rules! tile {
        ($instruction:literal, [$($operand:tt)*] $(, $option:ident)?) => {
            // SAFETY: the code that made an `Amx` ensured that the machine has the instructions; compilers do not use
            // tiles; the callers promise that the memory can be read or written.
            unsafe { asm!($instruction, $($operand)*, options($($option,)? nostack, preserves_flags)) }
        };
    }

    impl Tiles for Amx {
        #[inline(always)]
        unsafe fn new(_: usize) -> Self {
            Self(())
        }
        #[inline(always)]
        fn zero<const T: usize>(&mut self) {
            tile!("tilezero tmm{0}", [const T], nomem);
        }
        #[inline(always)]
        unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
            tile!("tileloadd tmm{0}, [{1} + {2}*1]", [const T, in(reg) from, in(reg) stride], readonly);
        }
        #[inline(always)]
        unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
            tile!("tilestored [{1} + {2}*1], tmm{0}", [const T, in(reg) to, in(reg) stride]);
        }
        #[inline(always)]
        fn dot_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
            tile!("tdpbusd tmm{0}, tmm{1}, tmm{2}", [const C, const A, const B], nomem);
        }
        #[inline(always)]
        fn dot_signed<const C: usize, const A: usize, const B: usize>(&mut self) {
            tile!("tdpbssd tmm{0}, tmm{1}, tmm{2}", [const C, const A, const B], nomem);
        }
        #[inline(always)]
        fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
            tile!("tdpbf16ps tmm{0}, tmm{1}, tmm{2}", [const C, const A, const B], nomem);
        }
        #[inline(always)]
        fn fetch(from: *const u8) {
            tile!("prefetcht0 [{0}]", [in(reg) from], readonly);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::models::Model;

    /// Loads tiles from `a` and `b`, and returns three tiles of sums of their products.
    fn products<T: Tiles>(depth: usize, a: &[u8], b: &[u8]) -> [[i32; 256]; 3] {
        let mut out = [[7i32; 256]; 3];
        // SAFETY: the caller has the instructions; 16 rows of 80 bytes, and up to 16 of 64; 16 rows of 16 sums.
        unsafe {
            let mut tiles = T::new(depth);
            tiles.load::<4>(a.as_ptr(), 80);
            tiles.load::<5>(a[1..].as_ptr(), 80);
            tiles.load::<6>(b.as_ptr(), 64);
            tiles.load::<7>(b[64..].as_ptr(), 0);
            tiles.load::<3>(b.as_ptr(), 64);
            tiles.dot_unsigned::<0, 4, 6>();
            tiles.dot_unsigned::<0, 5, 7>();
            tiles.dot_signed::<1, 5, 6>();
            tiles.dot_signed::<3, 4, 7>();
            tiles.store::<0>(out[0].as_mut_ptr().cast(), 64);
            tiles.store::<1>(out[1].as_mut_ptr().cast(), 64);
            tiles.store::<3>(out[2].as_mut_ptr().cast(), 64);
            tiles.zero::<1>();
            tiles.dot_signed::<1, 4, 6>();
            tiles.store::<1>(out[1].as_mut_ptr().cast(), 64);
        }
        out
    }

    /// Loads a left tile and two right ones of bf16, and returns the sums of both products.
    fn halves_products<T: Tiles>(a: &[u8], b: &[u8]) -> [f32; 256] {
        let mut out = [7.0f32; 256];
        // SAFETY: as above.
        unsafe {
            let mut tiles = T::new(64);
            tiles.load::<5>(a.as_ptr(), 80);
            tiles.load::<6>(b.as_ptr(), 64);
            tiles.load::<7>(b[64..].as_ptr(), 0);
            tiles.load::<2>(out.as_ptr().cast(), 64);
            tiles.dot_bf16::<2, 5, 6>();
            tiles.dot_bf16::<2, 5, 7>();
            tiles.store::<2>(out.as_mut_ptr().cast(), 64);
        }
        out
    }

    /// Random bf16 between 2^-16 and 2^16, zeros and subnormal numbers.
    fn halves(seed: u32, len: usize) -> Vec<u8> {
        let mut bytes = bytes(seed, len);
        for half in bytes.as_chunks_mut::<2>().0 {
            half[1] = half[1] & 0x80 | if half[0] % 16 == 0 { 0 } else { 0x38 + half[1] % 16 };
        }
        bytes
    }

    fn bytes(seed: u32, len: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn the_model_multiplies_matrices() {
        for depth in [32, 64] {
            let (a, b) = (bytes(1, 80 * 17), bytes(2, 64 * 16));
            let [_, signed, _] = products::<Model>(depth, &a, &b);
            for (n, sum) in signed.iter().enumerate() {
                let (r, c) = (n / 16, n % 16);
                let term = |k: usize| a[80 * r + k] as i8 as i32 * b[k / 4 * 64 + 4 * c + k % 4] as i8 as i32;
                assert_eq!(*sum, (0..depth).map(term).sum::<i32>());
            }
        }
    }

    #[test]
    fn the_model_multiplies_bf16() {
        let (a, b) = (halves(3, 80 * 17), halves(4, 64 * 16));
        let value = |from: &[u8]| f64::from(f32::from_bits(u32::from_le_bytes([0, 0, from[0], from[1]])));
        for (n, sum) in halves_products::<Model>(&a, &b).iter().enumerate() {
            let (r, c) = (n / 16, n % 16);
            let term = |k: usize, line: usize| {
                value(&a[80 * r + 2 * k..]) * value(&b[64 * line + 4 * c + k % 2 * 2..])
            };
            let terms: Vec<f64> = (0..32).flat_map(|k| [term(k, k / 2), term(k, 1)]).collect();
            let size: f64 = terms.iter().map(|term| term.abs()).sum();
            assert!(
                (f64::from(*sum) - 7.0 - terms.iter().sum::<f64>()).abs() < 1e-6 * (size + 7.0),
                "{r} {c}"
            );
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_model_is_the_processor() {
        use crate::kernels::simd::tiles_here::{exist, permitted};
        if !exist() || !permitted() {
            return;
        }
        for (seed, depth) in [(1, 32), (2, 64), (3, 64)] {
            let (a, b) = (bytes(seed, 80 * 17), bytes(seed + 9, 64 * 16));
            // SAFETY: tiles are permitted, and there are no others here.
            let _tiles = unsafe { Configured::new(depth) };
            assert_eq!(products::<Amx>(depth, &a, &b), products::<Model>(depth, &a, &b), "{depth}");
            if depth == 64 {
                let (a, b) = (halves(seed, 80 * 17), halves(seed + 9, 64 * 16));
                let [here, model] = [halves_products::<Amx>(&a, &b), halves_products::<Model>(&a, &b)];
                assert_eq!(here.map(f32::to_bits), model.map(f32::to_bits));
            }
        }
    }
}
