//! Codes in base 3, five in a byte (`simd::bytes::trit`): TQ1_0 of ggml (github.com/ggml-org/ggml, ggml-quants.c) and
//! PTQ1_0, its form with shorter blocks.
//!
//! A block has three parts: LEN bytes, half as many, and an eighth of them, whose fifth trits are unused. The first trits
//! of a part's bytes are its first columns, their second trits the next columns, and so on. So trit n of four
//! neighboring bytes belongs to four neighboring columns, and activations keep their order.

use crate::kernels::simd::bytes::{Bytes, trit};

/// The code of column `i` of a block.
pub(crate) fn code<const LEN: usize>(mut block: &[u8], mut i: usize) -> u8 {
    for part in [LEN, LEN / 2] {
        if i < 5 * part {
            return trit(block[i % part], i / part);
        }
        (block, i) = (&block[part..], i - 5 * part);
    }
    trit(block[i % (LEN / 8)], i / (LEN / 8))
}

/// Trits `2 N` of four words, and then trits `2 N + 1`.
///
/// # Safety
/// `B`'s instructions are available.
#[inline(always)]
pub(super) unsafe fn pairs_of_four<const N: usize, B: Bytes>([a, b, c, d]: [B; 4]) -> [B; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let ([a, e], [b, f]) = (a.trits::<N>(), b.trits::<N>());
        let ([c, g], [d, h]) = (c.trits::<N>(), d.trits::<N>());
        [a, b, c, d, e, f, g, h]
    }
}

/// The first four trits of the first two bytes of each lane, in the order of columns.
///
/// # Safety
/// `B`'s instructions are available.
#[inline(always)]
pub(super) unsafe fn of_two_bytes<B: Bytes>(word: B) -> [B; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let twice = word.reorder(0x0100_0100);
        let ([a, b], [c, d]) = (twice.trits::<0>(), twice.trits::<1>());
        [a.only(0xffff).or(b.only(0xffff_0000)), c.only(0xffff).or(d.only(0xffff_0000))]
    }
}
