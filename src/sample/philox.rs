//! Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Random
//! numbers are a function of a counter, so no draw depends on earlier ones.

/// Returns four words for `counter` under `key`.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let [a, b, c, d] = counter;
        let left = u64::from(a) * 0xD251_1F53;
        let right = u64::from(c) * 0xCD9E_8D57;
        counter =
            [(right >> 32) as u32 ^ b ^ key[0], right as u32, (left >> 32) as u32 ^ d ^ key[1], left as u32];
    }
    counter
}

/// Random number `n` of the token at `position`, for a request with this `seed`. Uniform in [0, 1) with 53 bits.
pub(super) fn uniform(seed: u64, position: u64, n: u32) -> f64 {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let [low, high] = halves(position);
    let [a, b, ..] = philox4x32([low, high, n, 0], halves(seed));
    let bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        let pi = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
        for (counter, key, answer) in [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (pi, [0xa4093822, 0x299f31d0], [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]),
        ] {
            assert_eq!(philox4x32(counter, key), answer);
        }
    }

    #[test]
    fn uniform_is_uniform_and_keyed_by_both() {
        let mut buckets = [0u32; 16];
        for position in 0..16_000 {
            let u = uniform(7, position, 0);
            assert!((0.0..1.0).contains(&u));
            buckets[(u * 16.0) as usize] += 1;
        }
        // 1000 are expected in each, with a standard deviation of 31.
        assert!(buckets.iter().all(|n| (850..1150).contains(n)), "{buckets:?}");
        assert_ne!(uniform(7, 1, 0), uniform(7, 1, 1));
        assert_ne!(uniform(7, 1, 0), uniform(8, 1, 0));
        assert_ne!(uniform(7, 1, 0), uniform(7, 1 + (1 << 32), 0));
        assert_ne!(uniform(7, 1, 0), uniform(7 + (1 << 32), 1, 0));
    }
}
