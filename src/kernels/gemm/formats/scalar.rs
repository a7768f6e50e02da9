//! Rows of ggml's block types as f32, with each float operation in the order of ggml's own reference
//! (github.com/ggml-org/ggml, ggml-quants.c; the Python package `gguf`), so that every bit agrees.
//!
//! Loops run over arrays of fixed lengths, which the compiler turns into vector code.

use super::f16_at;

/// Blocks of 32: an f16 scale, 16 bytes of two elements each, j and j + 16; offset 8.
pub fn q4_0(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<32>().0.iter_mut().zip(source.as_chunks::<18>().0) {
        let d = f16_at(block);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), b) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = d * ((b & 15) as i32 - 8) as f32;
            *high = d * ((b >> 4) as i32 - 8) as f32;
        }
    }
}

/// As Q4_0, without the offset, and an f16 minimum behind the scale.
pub fn q4_1(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<32>().0.iter_mut().zip(source.as_chunks::<20>().0) {
        let (d, min) = (f16_at(block), f16_at(&block[2..]));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), b) in low.iter_mut().zip(high).zip(&block[4..]) {
            *low = d * (b & 15) as f32 + min;
            *high = d * (b >> 4) as f32 + min;
        }
    }
}

/// As Q4_0, with the fifth bits of all 32 elements in a u32 behind the scale; offset 16.
pub fn q5_0(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<32>().0.iter_mut().zip(source.as_chunks::<22>().0) {
        let d = f16_at(block);
        let values = five_bits(&block[2..6], &block[6..]);
        for (out, q) in out.iter_mut().zip(values) {
            *out = d * (q as i32 - 16) as f32;
        }
    }
}

/// As Q4_1, with the fifth bits behind the minimum.
pub fn q5_1(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<32>().0.iter_mut().zip(source.as_chunks::<24>().0) {
        let (d, min) = (f16_at(block), f16_at(&block[2..]));
        let values = five_bits(&block[4..8], &block[8..]);
        for (out, q) in out.iter_mut().zip(values) {
            *out = d * q as f32 + min;
        }
    }
}

/// Nibbles j and j + 16 of 16 bytes, with bit j of `high` as fifth.
fn five_bits(high: &[u8], nibbles: &[u8]) -> [u8; 32] {
    let bits = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let mut values = [0; 32];
    for (j, value) in values.iter_mut().enumerate() {
        let nibble = nibbles[j % 16] >> (4 * (j / 16)) & 15;
        *value = nibble | ((bits >> j & 1) as u8) << 4;
    }
    values
}

/// Blocks of 128: an f16 scale, then a bit for each element, low bits first: the scale where it is set, or its negative.
pub fn q1_0(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<128>().0.iter_mut().zip(source.as_chunks::<18>().0) {
        let d = f16_at(block);
        for (out, b) in out.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
            for (k, out) in out.iter_mut().enumerate() {
                *out = if b >> k & 1 == 1 { d } else { -d };
            }
        }
    }
}

/// Blocks of `ELEMENTS`: an f16 scale, then bytes of four elements each, low bits first; offset 1, so that 2 is a value too
/// (ggml-quants.c; a quantizer of ternary weights never writes it).
pub fn q2_0<const ELEMENTS: usize>(source: &[u8], out: &mut [f32]) {
    let blocks = source.chunks_exact(2 + ELEMENTS / 4);
    for (out, block) in out.as_chunks_mut::<ELEMENTS>().0.iter_mut().zip(blocks) {
        let d = f16_at(block);
        for (out, b) in out.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
            for (k, out) in out.iter_mut().enumerate() {
                *out = ((b >> (2 * k) & 3) as i32 - 1) as f32 * d;
            }
        }
    }
}

/// Blocks of 256: 16 bytes of 4-bit scales and minima of 16 elements each, 64 bytes of 2-bit elements, two f16.
pub fn q2_k(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<256>().0.iter_mut().zip(source.as_chunks::<84>().0) {
        let (scales, quants) = block[..80].split_at(16);
        let (d, min) = (f16_at(&block[80..]), f16_at(&block[82..]));
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * (scales[group] & 15) as f32;
            let low = min * (scales[group] >> 4) as f32;
            let at = group / 8 * 32 + group % 2 * 16;
            let shift = group % 8 / 2 * 2;
            for (out, b) in out.iter_mut().zip(&quants[at..at + 16]) {
                *out = scale * (b >> shift & 3) as f32 - low;
            }
        }
    }
}

/// Blocks of 256: 32 bytes of third bits (set: no offset of 4), 64 bytes of 2-bit elements, 12 bytes of 6-bit scales
/// of 16 elements each, an f16.
pub fn q3_k(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<256>().0.iter_mut().zip(source.as_chunks::<110>().0) {
        let (mask, rest) = block.split_at(32);
        let (quants, rest) = rest.split_at(64);
        let d = f16_at(&rest[12..]);
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let low = rest[group % 8] >> (group / 8 * 4) & 15;
            let high = rest[8 + group % 4] >> (group / 4 * 2) & 3;
            let scale = d * ((low | high << 4) as i32 - 32) as f32;
            let half = group % 2 * 16;
            let at = group / 8 * 32 + half;
            let (shift, bit) = (group % 8 / 2 * 2, group / 2);
            for ((out, b), m) in out.iter_mut().zip(&quants[at..at + 16]).zip(&mask[half..half + 16]) {
                let offset = (m >> bit & 1 ^ 1) << 2;
                *out = scale * ((b >> shift & 3) as i32 - offset as i32) as f32;
            }
        }
    }
}

/// Six bits of scale and of minimum of group `i` of 8, as Q4_K and Q5_K pack them in 12 bytes.
fn scale_and_min(packed: &[u8], i: usize) -> (f32, f32) {
    let (scale, min) = if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
    };
    (scale as f32, min as f32)
}

/// Blocks of 256: two f16, 12 bytes of 6-bit scales and minima of 32 elements each, 128 bytes of 4-bit elements.
pub fn q4_k(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<256>().0.iter_mut().zip(source.as_chunks::<144>().0) {
        let (d, min) = (f16_at(block), f16_at(&block[2..]));
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, low) = scale_and_min(&block[4..16], group);
            let (scale, low) = (d * scale, min * low);
            let (at, shift) = (16 + group / 2 * 32, group % 2 * 4);
            for (out, b) in out.iter_mut().zip(&block[at..at + 32]) {
                *out = scale * (b >> shift & 15) as f32 - low;
            }
        }
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the elements.
pub fn q5_k(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<256>().0.iter_mut().zip(source.as_chunks::<176>().0) {
        let (d, min) = (f16_at(block), f16_at(&block[2..]));
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, low) = scale_and_min(&block[4..16], group);
            let (scale, low) = (d * scale, min * low);
            let (at, shift) = (48 + group / 2 * 32, group % 2 * 4);
            for ((out, b), h) in out.iter_mut().zip(&block[at..at + 32]).zip(&block[16..48]) {
                let q = b >> shift & 15 | (h >> group & 1) << 4;
                *out = scale * q as f32 - low;
            }
        }
    }
}

/// Blocks of 256: 128 bytes of low 4 bits, 64 bytes of high 2, 16 int8 scales of 16 elements each, an f16; offset 32.
pub fn q6_k(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<256>().0.iter_mut().zip(source.as_chunks::<210>().0) {
        let (low, rest) = block.split_at(128);
        let (high, rest) = rest.split_at(64);
        let d = f16_at(&rest[16..]);
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * rest[group] as i8 as f32;
            let (half, of_half) = (group / 8, group % 8);
            let low = &low[half * 64 + of_half % 4 * 16..][..16];
            let high = &high[half * 32 + of_half % 2 * 16..][..16];
            let (low_shift, high_shift) = (of_half / 4 * 4, of_half / 2 * 2);
            for ((out, l), h) in out.iter_mut().zip(low).zip(high) {
                let q = l >> low_shift & 15 | (h >> high_shift & 3) << 4;
                *out = scale * (q as i32 - 32) as f32;
            }
        }
    }
}
