//! Digests that stand for what they are of: nobody can find two inputs with one digest.

pub type Digest = [u8; 32];

const BLOCK: usize = 128;

const IV: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

/// The order of a block's words in each round.
const SIGMA: [[u8; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// BLAKE2b of 256 bits, without a key (RFC 7693).
pub fn blake2b(bytes: &[u8]) -> Digest {
    let mut state = IV;
    state[0] ^= 0x0101_0000 ^ size_of::<Digest>() as u64;
    // The last block is never empty, unless it is the only one.
    let (before, last) = bytes.split_at(bytes.len().saturating_sub(1) / BLOCK * BLOCK);
    for (n, block) in before.as_chunks().0.iter().enumerate() {
        compress(&mut state, block, (n + 1) * BLOCK, false);
    }
    let mut block = [0; BLOCK];
    block[..last.len()].copy_from_slice(last);
    compress(&mut state, &block, bytes.len(), true);
    let mut digest = Digest::default();
    digest.as_chunks_mut().0.iter_mut().zip(state).for_each(|(to, word)| *to = word.to_le_bytes());
    digest
}

/// `counted`: the number of bytes up to the block's end.
fn compress(state: &mut [u64; 8], block: &[u8; BLOCK], counted: usize, last: bool) {
    let mut words = [0; 16];
    words.iter_mut().zip(block.as_chunks().0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    let mut v = [0; 16];
    v[..8].copy_from_slice(state);
    v[8..].copy_from_slice(&IV);
    v[12] ^= counted as u64;
    v[14] ^= if last { u64::MAX } else { 0 };
    for round in 0..12 {
        let order = &SIGMA[round % SIGMA.len()];
        let word = |at: usize| words[usize::from(order[at])];
        for n in 0..4 {
            mix(&mut v, [n, n + 4, n + 8, n + 12], word(2 * n), word(2 * n + 1));
        }
        for n in 0..4 {
            let lanes = [n, 4 + (n + 1) % 4, 8 + (n + 2) % 4, 12 + (n + 3) % 4];
            mix(&mut v, lanes, word(8 + 2 * n), word(9 + 2 * n));
        }
    }
    for (n, word) in state.iter_mut().enumerate() {
        *word ^= v[n] ^ v[n + 8];
    }
}

fn mix(v: &mut [u64; 16], [a, b, c, d]: [usize; 4], x: u64, y: u64) {
    for (word, turns) in [(x, [32, 24]), (y, [16, 63])] {
        v[a] = v[a].wrapping_add(v[b]).wrapping_add(word);
        v[d] = (v[d] ^ v[a]).rotate_right(turns[0]);
        v[c] = v[c].wrapping_add(v[d]);
        v[b] = (v[b] ^ v[c]).rotate_right(turns[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against Python's hashlib; the second is also the RFC's message.
    #[test]
    fn digests_are_those_of_others() {
        let long: Vec<u8> = (0..1000).map(|i| (i * 7 % 256) as u8).collect();
        let cases: [(&[u8], &str); 5] = [
            (b"", "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"),
            (b"abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"),
            (&long[..128], "14696d2a98d9f8a280da8b132b1045b345e1033759c6b02fcc4ee885c8ae7c37"),
            (&long[..129], "3934215260b1039be9d9d2b073b059bcd50120c327a22af93eb4d98cf821c14c"),
            (&long, "6ac4bea923678eb024090384d6e767b5870f849057dc19b172d8d9f2df30bf8e"),
        ];
        for (bytes, want) in cases {
            let hex: String = blake2b(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, want, "{} bytes", bytes.len());
        }
    }
}
