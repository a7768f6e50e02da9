//! Pseudo-random numbers, determined by a seed.

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The next number; advances `state`.
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    finish(*state)
}

/// A hash of both.
pub fn mix(a: u64, b: u64) -> u64 {
    finish(finish(a.wrapping_add(STEP)) ^ b.wrapping_add(STEP))
}

impl Rng {
    pub fn next(&mut self) -> u64 {
        draw(&mut self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
