//! Codes in base 3, five in a byte (`simd::bytes::trit`): TQ1_0 of ggml (github.com/ggml-org/ggml, ggml-quants.c) and
//! PTQ1_0, its form with shorter blocks.
//!
//! A block has three parts: LEN bytes, half as many, and an eighth of them, whose fifth trits are unused. The first
//! trits of a part's bytes are its first columns, their second trits the next columns, and so on. So trit n of four
//! neighboring bytes belongs to four neighboring columns, and activations keep their order.

use crate::kernels::simd::bytes::{Bytes, trit};
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::simd::wide::Wide;

/// Bytes of a block of TQ1_0, and the offset of its f16 scale.
pub(crate) const BYTES: usize = 54;
pub(crate) const SCALE: usize = 52;

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

/// Writes `of(code)` for all codes of a block: 256 of TQ1_0, whose LEN is 32, or 128 of PTQ1_0, whose LEN is 16.
#[inline(always)]
pub(in crate::kernels) fn all<const LEN: usize, T>(
    mut block: &[u8],
    mut out: &mut [T],
    of: impl Fn(u8) -> T,
) {
    for (len, count) in [(LEN, 5), (LEN / 2, 5), (LEN / 8, 4)] {
        let (part, columns) = out.split_at_mut(len * count);
        for (n, out) in part.chunks_exact_mut(len).enumerate() {
            out.iter_mut().zip(block).for_each(|(out, byte)| *out = of(trit(*byte, n)));
        }
        (block, out) = (&block[len..], columns);
    }
}

/// Reads the TQ1_0 block at `at` of each of ROWS rows: the words of its codes, and a word whose upper half is the
/// scale.
///
/// # Safety
/// `B`'s instructions are available; the blocks can be read.
#[inline(always)]
pub(crate) unsafe fn words<B: Bytes>(rows: &[*const u8], at: usize) -> ([B; 13], B) {
    // SAFETY: the caller's promise; 54 bytes.
    unsafe {
        let ([a, b, c, d], [e, f, g, h]) = (B::columns(rows, at), B::columns(rows, at + 16));
        let ([i, j, k, l], [.., m, end]) = (B::columns(rows, at + 32), B::columns(rows, at + 38));
        // The last four bytes of codes are in two words.
        let m = m.reorder(0x8080_0302).or(end.up::<16>());
        ([a, b, c, d, e, f, g, h, i, j, k, l, m], end)
    }
}

/// Codes of the `n`-th 64 columns: columns 0 to 3 of each row, columns 4 to 7, and so on.
///
/// # Safety
/// `B`'s instructions are available.
#[inline(always)]
pub(crate) unsafe fn codes<B: Bytes>(words: &[B; 13], n: usize) -> [[B; 8]; 2] {
    let &[a, b, c, d, e, f, g, h, i, j, k, l, m] = words;
    // SAFETY (of all): the caller's promise.
    unsafe {
        match n {
            0 => both(pairs_of_four::<0, B>([a, b, c, d]), pairs_of_four::<0, B>([e, f, g, h])),
            1 => both(pairs_of_four::<1, B>([a, b, c, d]), pairs_of_four::<1, B>([e, f, g, h])),
            2 => {
                let ([a, b, c, d], [e, f, g, h]) = (last_of_four([a, b, c, d]), last_of_four([e, f, g, h]));
                [[a, b, c, d, e, f, g, h], pairs_of_four::<0, B>([i, j, k, l])]
            }
            _ => {
                let ([a, b, c, d], [e, f], [g, h]) =
                    (last_of_four([i, j, k, l]), m.trits::<0>(), m.trits::<1>());
                [pairs_of_four::<1, B>([i, j, k, l]), [a, b, c, d, e, f, g, h]]
            }
        }
    }
}

/// The first halves of two arrays, and the second halves.
#[inline(always)]
fn both<B: Bytes>([a, b, c, d, e, f, g, h]: [B; 8], [i, j, k, l, m, n, o, p]: [B; 8]) -> [[B; 8]; 2] {
    [[a, b, c, d, i, j, k, l], [e, f, g, h, m, n, o, p]]
}

/// The last trits of four words.
#[inline(always)]
unsafe fn last_of_four<B: Bytes>([a, b, c, d]: [B; 4]) -> [B; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let ([a, _], [b, _], [c, _], [d, _]) =
            (a.trits::<2>(), b.trits::<2>(), c.trits::<2>(), d.trits::<2>());
        [a, b, c, d]
    }
}

/// Codes of a whole block of TQ1_0, in the order of `Super::lines`.
///
/// # Safety
/// `W`'s instructions are available; the block can be read.
#[cfg(any(test, target_arch = "x86_64"))]
#[inline(always)]
pub(crate) unsafe fn lines<W: Wide>(block: *const u8) -> [W; 4] {
    let mut codes = [0; 256];
    // SAFETY (of all): the caller's promise; 52 bytes, and 32 codes at each address.
    unsafe {
        all::<32, _>(std::slice::from_raw_parts(block, SCALE), &mut codes, |code| code);
        let at = codes.as_ptr();
        [
            W::two(at, at.add(128)),
            W::two(at.add(32), at.add(160)),
            W::two(at.add(64), at.add(192)),
            W::two(at.add(96), at.add(224)),
        ]
    }
}
