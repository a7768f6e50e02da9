//! Sixteen rows of super-blocks, unpacked: what the sweeps of AVX2 and AVX-512 read.

use super::quantized::Task;
use super::quantized_k_avx2::Super;
use super::ternary::Line;
use super::ternary_avx2::transpose;
use std::arch::x86_64::*;

/// Blocks of a row that a panel holds: it fills two thirds of the first cache.
pub const BLOCKS: usize = 4;
/// Weight rows of a panel.
pub const ROWS: usize = 16;
/// Lines of four columns of a block, and of sixteen columns.
pub const FOURS: usize = 64;
pub const GROUPS: usize = 16;

/// Some blocks of sixteen rows; each line holds one thing of each row, row by row.
#[repr(C, align(64))]
pub struct Panel {
    /// Four columns' codes.
    codes: [Line; FOURS * BLOCKS],
    /// The scale of a group of columns: twice as i16, or once as i32 where the panel is `WIDE`.
    scales: [Line; GROUPS * BLOCKS],
    /// Two i16 of two times sixteen columns: minima, or scales times the negative offset.
    lows: [Line; GROUPS / 2 * BLOCKS],
    /// The scales of the blocks.
    d: [[f32; ROWS]; BLOCKS],
    /// The negated ones of their minima.
    min: [[f32; ROWS]; BLOCKS],
}

/// One block of a panel.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    pub codes: &'a [Line; FOURS],
    pub scales: &'a [Line; GROUPS],
    pub lows: &'a [Line; GROUPS / 2],
    pub d: &'a [f32; ROWS],
    pub min: &'a [f32; ROWS],
}

impl Panel {
    pub fn new() -> Self {
        Self {
            codes: [Line([0; 64]); FOURS * BLOCKS],
            scales: [Line([0; 64]); GROUPS * BLOCKS],
            lows: [Line([0; 64]); GROUPS / 2 * BLOCKS],
            d: [[0.0; ROWS]; BLOCKS],
            min: [[0.0; ROWS]; BLOCKS],
        }
    }

    #[inline]
    pub fn block(&self, b: usize) -> Block<'_> {
        Block {
            codes: &self.codes.as_chunks().0[b],
            scales: &self.scales.as_chunks().0[b],
            lows: &self.lows.as_chunks().0[b],
            d: &self.d[b],
            min: &self.min[b],
        }
    }

    /// Blocks `from..from + count` of sixteen rows of the task from row `first` on; the last row stands for those behind it.
    #[target_feature(enable = "avx2,f16c")]
    pub fn fill<K: Super, const WIDE: bool>(&mut self, task: &Task, first: usize, from: usize, count: usize) {
        assert!(
            first < task.rows
                && (from + count) * K::BYTES <= task.row_bytes
                && task.packed.len() >= task.rows * task.row_bytes
        );
        let start = task.packed.as_ptr();
        for b in 0..count {
            // As much of the next rows as is used of these: memory is fastest in its own order.
            let next = start.wrapping_add((first + ROWS) * task.row_bytes + ROWS * (from + b) * K::BYTES);
            for line in 0..(ROWS * K::BYTES).div_ceil(64) {
                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(64 * line).cast());
            }
            for half in 0..ROWS / 8 {
                let mut blocks = [start; 8];
                for (r, block) in blocks.iter_mut().enumerate() {
                    let row = (first + 8 * half + r).min(task.rows - 1);
                    *block = start.wrapping_add(row * task.row_bytes + (from + b) * K::BYTES);
                }
                // SAFETY: each block lies in its row, as just checked.
                unsafe {
                    self.fill_codes::<K>(blocks, b, half);
                    self.fill_scales::<K, WIDE>(blocks, b, half);
                }
            }
        }
    }

    /// # Safety
    /// The machine has AVX2; `K::BYTES` bytes can be read at each of `blocks`; block `b` is one of BLOCKS, `half` 0 or 1.
    #[target_feature(enable = "avx2")]
    unsafe fn fill_codes<K: Super>(&mut self, blocks: [*const u8; 8], b: usize, half: usize) {
        let mut columns = [[_mm256_setzero_si256(); 8]; 6];
        for (columns, at) in columns.iter_mut().zip(K::PACKED) {
            for r in 0..8 {
                // SAFETY: the caller's promise.
                columns[r] = unsafe { _mm256_loadu_si256(blocks[r].add(*at).cast()) };
            }
            *columns = transpose(*columns);
        }
        for j in 0..8 {
            let mut vectors = [_mm256_setzero_si256(); 6];
            for (vector, columns) in vectors.iter_mut().zip(&columns).take(K::PACKED.len()) {
                *vector = columns[j];
            }
            // SAFETY: the caller's promise.
            let codes = unsafe { K::codes(vectors) };
            for k in 0..8 {
                put(&mut self.codes[FOURS * b + 8 * k + j], half, codes[k]);
            }
        }
    }

    /// # Safety
    /// As for `fill_codes`, and the machine has F16C.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn fill_scales<K: Super, const WIDE: bool>(
        &mut self,
        blocks: [*const u8; 8],
        b: usize,
        half: usize,
    ) {
        let (mut scales, mut lows) = ([_mm256_setzero_si256(); 8], [_mm256_setzero_si256(); 8]);
        let (mut d, mut min) = ([0u16; 8], [0u16; 8]);
        for r in 0..8 {
            // SAFETY: the caller's promise.
            unsafe {
                [scales[r], lows[r]] = K::scales(blocks[r]);
                d[r] = blocks[r].add(K::D).cast::<u16>().read_unaligned();
                min[r] = blocks[r].add(K::MIN).cast::<u16>().read_unaligned();
            }
        }
        let (scales, lows) = (transpose(scales), transpose(lows));
        let order =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13));
        for p in 0..8 {
            put(&mut self.lows[GROUPS / 2 * b + p], half, lows[p]);
            let odd = _mm256_srai_epi32::<16>(scales[p]);
            if K::GROUP == 8 {
                put(&mut self.scales[GROUPS * b + p], half, if WIDE { odd } else { scales[p] });
                continue;
            }
            let even = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(scales[p]));
            let twice = |v| if WIDE { v } else { _mm256_shuffle_epi8(v, order) };
            put(&mut self.scales[GROUPS * b + 2 * p], half, twice(even));
            put(&mut self.scales[GROUPS * b + 2 * p + 1], half, twice(odd));
        }
        // SAFETY: eight u16 each, and eight floats from 8 * half on of sixteen.
        unsafe {
            let d = _mm256_cvtph_ps(_mm_loadu_si128(d.as_ptr().cast()));
            _mm256_storeu_ps(self.d[b].as_mut_ptr().add(8 * half), d);
            let min = _mm_xor_si128(_mm_loadu_si128(min.as_ptr().cast()), _mm_set1_epi16(i16::MIN));
            _mm256_storeu_ps(self.min[b].as_mut_ptr().add(8 * half), _mm256_cvtph_ps(min));
        }
    }
}

/// Half of a line.
#[inline]
#[target_feature(enable = "avx2")]
fn put(line: &mut Line, half: usize, v: __m256i) {
    let half = &mut line.0.as_chunks_mut::<32>().0[half];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(half.as_mut_ptr().cast(), v) };
}
