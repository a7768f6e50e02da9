//! As `quantized_k_avx2`, with AVX-512 VNNI: sixteen rows a register.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::DType;
use super::quantized::Task;
use super::quantized_k_avx2::{Place, Super, blocks_of, with_super};
use super::quantized_k_panel::{BLOCKS, Block, FOURS, Panel, ROWS};
use super::ternary::Line;
use std::arch::x86_64::*;

/// Tokens that a panel is swept over.
const SWEPT: usize = 128;
/// Tokens that share the loads of a panel.
const TILE: usize = 8;

/// The dot products of `task`, whose type is one of super-blocks.
///
/// # Safety
/// The machine has AVX2, FMA, F16C and AVX-512 F, BW, VL and VNNI.
pub unsafe fn run(task: &Task) {
    // SAFETY: the caller's promise; the lengths are checked.
    with_super!(task.dtype, K => unsafe {
        check::<K>(task);
        // Memory sets the time of few tokens.
        if !few_tokens::<K>(task) {
            sweep::<K>(task);
        }
    })
}

/// All tokens with sixteen rows at a time.
///
/// # Safety
/// The machine has AVX2, FMA, F16C and AVX-512 F, BW, VL and VNNI; the task's lengths were `check`ed.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sweep<K: Super>(task: &Task) {
    let mut panel = Panel::new();
    for first in (0..task.rows).step_by(ROWS) {
        let count = ROWS.min(task.rows - first);
        for start in (0..task.x.tokens()).step_by(SWEPT) {
            let tokens = SWEPT.min(task.x.tokens() - start);
            let mut sums = [[0.0; ROWS]; SWEPT];
            for from in (0..blocks_of(task)).step_by(BLOCKS) {
                let blocks = BLOCKS.min(blocks_of(task) - from);
                panel.fill::<K, true>(task, first, from, blocks);
                for (n, sums) in sums[..tokens].chunks_mut(TILE).enumerate() {
                    let at = Place { task, token: start + n * TILE, block: from, blocks };
                    // SAFETY: the caller's promise; tokens and blocks are some of the task's.
                    unsafe {
                        match sums.len() {
                            1 => tile::<K, 1>(&panel, at, sums),
                            2 => tile::<K, 2>(&panel, at, sums),
                            3 => tile::<K, 3>(&panel, at, sums),
                            4 => tile::<K, 4>(&panel, at, sums),
                            5 => tile::<K, 5>(&panel, at, sums),
                            6 => tile::<K, 6>(&panel, at, sums),
                            7 => tile::<K, 7>(&panel, at, sums),
                            _ => tile::<K, TILE>(&panel, at, sums),
                        }
                    }
                }
            }
            for (t, sums) in sums[..tokens].iter().enumerate() {
                task.write(start + t, first, &sums[..count]);
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

/// Adds the panel's columns of `T` tokens to their sums, block by block.
///
/// # Safety
/// The machine has AVX-512 F, BW and VNNI; `place` is one of a `check`ed task; `sums` has T elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile<K: Super, const T: usize>(panel: &Panel, place: Place, sums: &mut [[f32; ROWS]]) {
    for b in 0..place.blocks {
        let block = panel.block(b);
        // SAFETY: the caller's promise.
        unsafe {
            let mut dots = if K::MINIMA { [_mm512_setzero_si512(); T] } else { lows::<T>(block, place, b) };
            for g in 0..FOURS / K::GROUP {
                let mut group = [_mm512_setzero_si512(); T];
                for line in g * K::GROUP..(g + 1) * K::GROUP {
                    let w = load(&block.codes[line]);
                    for t in 0..T {
                        group[t] = _mm512_dpbusd_epi32(group[t], w, four(place.at(t, b).0.add(4 * line)));
                    }
                }
                let scale = load(&block.scales[g]);
                for t in 0..T {
                    dots[t] = _mm512_add_epi32(dots[t], _mm512_mullo_epi32(group[t], scale));
                }
            }
            add::<T>(block.d, &dots, place, b, sums);
            if K::MINIMA {
                add::<T>(block.min, &lows::<T>(block, place, b), place, b, sums);
            }
        }
    }
}

/// Sums of sixteen columns times their minima, or what stands for them.
///
/// # Safety
/// As for `tile`; block `b` is one of `place`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn lows<const T: usize>(block: Block, place: Place, b: usize) -> [__m512i; T] {
    let mut lows = [_mm512_setzero_si512(); T];
    for (p, line) in block.lows.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let low = load(line);
            for t in 0..T {
                lows[t] = _mm512_dpwssd_epi32(lows[t], low, four(place.at(t, b).2.add(2 * p)));
            }
        }
    }
    lows
}

/// `sums += dots * (d * the token's scale)`.
///
/// # Safety
/// As for `lows`; `sums` has T elements.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add<const T: usize>(
    d: &[f32; ROWS],
    dots: &[__m512i; T],
    place: Place,
    b: usize,
    sums: &mut [[f32; ROWS]],
) {
    for t in 0..T {
        // SAFETY: sixteen floats; the caller's promise.
        unsafe {
            let scale = _mm512_mul_ps(_mm512_loadu_ps(d.as_ptr()), _mm512_set1_ps(*place.at(t, b).1));
            let sum = sums[t].as_mut_ptr();
            _mm512_storeu_ps(sum, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), scale, _mm512_loadu_ps(sum)));
        }
    }
}
