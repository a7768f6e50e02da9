//! As `quantized_k_avx2`, with AVX-512 VNNI: sixteen rows a register.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::k_avx2::{Super, with_super};
use super::k_panel::{Block, FOURS, GROUPS, PANELS, Panel, Place, ROWS, Sums, Tiles, sweep};
use super::{Scratch, Task};
use crate::kernels::DType;
use crate::kernels::pool::buffer::Line;
use std::arch::x86_64::*;

/// The dot products of `task`, whose type is one of super-blocks.
///
/// # Safety
/// The machine has AVX2, FMA, F16C and AVX-512 F, BW, VL and VNNI.
pub unsafe fn run(task: &Task, scratch: &mut Scratch) {
    // SAFETY: the caller's promise; the lengths are checked.
    with_super!(task.dtype, K => unsafe {
        check::<K>(task);
        // Memory sets the time of few tokens.
        if !few_tokens::<K>(task) {
            sweep::<K, Vnni>(task, scratch);
        }
    })
}

struct Vnni;

impl Tiles for Vnni {
    const WIDE: bool = true;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn tile<K: Super, const T: usize>(panels: &[Panel; PANELS], place: Place, sums: &mut [Sums]) {
        for b in 0..place.blocks {
            // SAFETY: the caller's promise.
            unsafe {
                place.fetch::<K>(b);
                one::<K, T>(panels.each_ref().map(|panel| panel.block(b)), place, b, sums);
            }
        }
    }
}

/// # Safety
/// None beyond the machine's.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(line: &Line) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

/// Four bytes in each lane.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn four<T>(at: *const T) -> __m512i {
    // SAFETY: the caller's promise.
    _mm512_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// Adds block `b` of `T` tokens to their sums.
///
/// # Safety
/// As for `Tiles::tile`; block `b` is one of `place`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn one<K: Super, const T: usize>(blocks: [Block; PANELS], place: Place, b: usize, sums: &mut [Sums]) {
    let zero = [[_mm512_setzero_si512(); PANELS]; T];
    // SAFETY: the caller's promise.
    unsafe {
        let mut dots = if K::MINIMA { zero } else { lows::<T>(blocks, place, b) };
        for g in 0..FOURS / K::GROUP {
            let mut group = zero;
            for line in g * K::GROUP..(g + 1) * K::GROUP {
                let w = [load(&blocks[0].codes[line]), load(&blocks[1].codes[line])];
                for t in 0..T {
                    let x = four(place.at(t, b).0.add(4 * line));
                    for n in 0..PANELS {
                        group[t][n] = _mm512_dpbusd_epi32(group[t][n], w[n], x);
                    }
                }
            }
            for n in 0..PANELS {
                let scale = load(&blocks[n].scales[g]);
                for t in 0..T {
                    dots[t][n] = _mm512_add_epi32(dots[t][n], _mm512_mullo_epi32(group[t][n], scale));
                }
            }
        }
        add::<T>(blocks.map(|block| block.d), &dots, place, b, sums);
        if K::MINIMA {
            let lows = lows::<T>(blocks, place, b);
            add::<T>(blocks.map(|block| block.min), &lows, place, b, sums);
        }
    }
}

/// Sums of sixteen columns times their minima, or what stands for them.
///
/// # Safety
/// As for `one`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn lows<const T: usize>(blocks: [Block; PANELS], place: Place, b: usize) -> [[__m512i; PANELS]; T] {
    let mut lows = [[_mm512_setzero_si512(); PANELS]; T];
    for p in 0..GROUPS / 2 {
        // SAFETY: the caller's promise.
        unsafe {
            let low = [load(&blocks[0].lows[p]), load(&blocks[1].lows[p])];
            for t in 0..T {
                let sums = four(place.at(t, b).2.add(2 * p));
                for n in 0..PANELS {
                    lows[t][n] = _mm512_dpwssd_epi32(lows[t][n], low[n], sums);
                }
            }
        }
    }
    lows
}

/// `sums += dots * (d * the token's scale)`.
///
/// # Safety
/// As for `one`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add<const T: usize>(
    d: [&[f32; ROWS]; PANELS],
    dots: &[[__m512i; PANELS]; T],
    place: Place,
    b: usize,
    sums: &mut [Sums],
) {
    for t in 0..T {
        for n in 0..PANELS {
            // SAFETY: sixteen floats from ROWS * n on; the caller's promise.
            unsafe {
                let scale = _mm512_mul_ps(_mm512_loadu_ps(d[n].as_ptr()), _mm512_set1_ps(*place.at(t, b).1));
                let sum = sums[t].0.as_mut_ptr().add(ROWS * n);
                let dot = _mm512_cvtepi32_ps(dots[t][n]);
                _mm512_storeu_ps(sum, _mm512_fmadd_ps(dot, scale, _mm512_loadu_ps(sum)));
            }
        }
    }
}
