//! Fields of a block of the types with codebooks.
//!
//! All functions need the instructions of their type of registers, and the bytes that they read.

#![allow(clippy::missing_safety_doc)] // said above, once

use super::tables::EVEN;
use crate::kernels::simd::bytes::Bytes;

/// Bytes 1 and 3 of each lane of `a`, then of `b`.
#[inline(always)]
pub(super) unsafe fn upper_bytes<B: Bytes>(a: B, b: B) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe { a.reorder(0x8080_0301).or(b.reorder(0x0301_8080)) }
}

/// Eight words at `at` of each row.
///
/// # Safety
/// As for `Book::read`.
#[inline(always)]
pub(super) unsafe fn words<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 8] {
    // SAFETY (of both): the caller's promise.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (B::columns(rows, at), B::columns(rows, at + 16)) };
    [a, b, c, d, e, f, g, h]
}

/// `2 s + 1` for the scales `s` of each sixteen columns, of four bits each, in the eight bytes at `at`, the last ones
/// of a block.
///
/// # Safety
/// As for `Book::scales`.
#[inline(always)]
pub(super) unsafe fn scales_of_sixteens<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4] {
    // SAFETY (of all): the caller's promise; the eight bytes before are read too.
    unsafe {
        let [_, _, a, b] = B::columns(rows, at - 8);
        let ([a, b], [c, d]) = (odd_of_nibbles(a), odd_of_nibbles(b));
        [a, b, c, d]
    }
}

/// Moves byte `n` of each lane to byte `to`; the other bytes are zero.
#[inline(always)]
pub(super) unsafe fn byte<B: Bytes>(lanes: B, n: usize, to: usize) -> B {
    let zeros = 0x8080_8080 & !(0xff << (8 * to));
    // SAFETY: the caller's promise.
    unsafe { lanes.reorder(zeros | (n as u32) << (8 * to)) }
}

#[inline(always)]
pub(super) fn twice<B: Bytes>([a, b, c, d]: [B; 4]) -> [B; 8] {
    [a, b, c, d, a, b, c, d]
}

/// Four bytes of signs from four times seven bits.
#[inline(always)]
pub(super) unsafe fn sevens<B: Bytes>(word: B) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe {
        if B::TABLES {
            return with_parity(word.fields([0, 7, 14, 21]));
        }
        let low = word.only(0x7f).or(word.only(0x3f80).up::<1>());
        with_parity(low.or(word.only(0x1f_c000).up::<2>()).or(word.only(0xfe0_0000).up::<3>()))
    }
}

#[inline(always)]
pub(super) unsafe fn all_sevens<B: Bytes>([a, b, c, d]: [B; 4]) -> [B; 4] {
    // SAFETY: the caller's promise.
    unsafe { [sevens(a), sevens(b), sevens(c), sevens(d)] }
}

/// Each byte has seven signs; the eighth makes the number of negative ones even.
#[inline(always)]
pub(super) unsafe fn with_parity<B: Bytes>(bytes: B) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe {
        if B::TABLES {
            return bytes.pick_of(&EVEN.0);
        }
        let fold = bytes.xor(bytes.right::<4>(15));
        let fold = fold.xor(fold.right::<2>(63));
        let fold = fold.xor(fold.right::<1>(127));
        bytes.or(fold.left::<7>(128))
    }
}

/// `2 s + 1`, with a scale `s` in the upper four bits of each word: the four scales byte by byte.
#[inline(always)]
pub(super) unsafe fn odd_of_words<B: Bytes>([a, b, c, d]: [B; 4]) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe {
        let all = byte(a, 3, 0).or(byte(b, 3, 1)).or(byte(c, 3, 2).or(byte(d, 3, 3)));
        all.right::<3>(30).less(255)
    }
}

/// `2 s + 1` for the eight scales `s` of four bits in each lane, byte by byte.
#[inline(always)]
pub(super) unsafe fn odd_of_nibbles<B: Bytes>(lanes: B) -> [B; 2] {
    // SAFETY (of all): the caller's promise.
    unsafe { [odd_of_two(lanes.reorder(0x0101_0000)), odd_of_two(lanes.reorder(0x0303_0202))] }
}

/// `2 s + 1` for the scales `s` of four bits in two bytes, each of which occurs twice in a lane.
#[inline(always)]
pub(super) unsafe fn odd_of_two<B: Bytes>(two: B) -> B {
    // SAFETY: the caller's promise.
    unsafe { two.left::<1>(30).only(0x00ff_00ff).or(two.right::<3>(30).only(0xff00_ff00)).less(255) }
}
