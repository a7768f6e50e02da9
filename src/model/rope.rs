//! From a rope's configuration to the frequencies of its kernel.
//!
//! Computed like transformers' `modeling_rope_utils`, but in f64 and rounded once. llama.cpp's YaRN has the same
//! frequencies. The `attn_factor` of its files is multiplied by 1 + 0.1 ln(factor), while transformers'
//! `attention_factor` replaces it.

use super::config::{RopeConfig, RopeScaling};
use crate::ops::Axes;
use std::f64::consts::PI;

/// The axes of time, height and width that pairs turn by in turns. GGUF has a fourth section, which is empty.
pub(super) fn axes(sections: &[usize]) -> Option<Axes> {
    const MOST: usize = 1 << 10;
    match *sections {
        [time, height, width] | [time, height, width, 0] if time.max(height).max(width) <= MOST => {
            Some(Axes::new([time, height, width], true))
        }
        _ => None,
    }
}

impl RopeScaling {
    /// Factor on cos and sin if a file does not give one (YaRN, equation 22).
    pub fn yarn_attention(factor: f32) -> f32 {
        if factor <= 1.0 { 1.0 } else { (0.1 * (factor as f64).ln() + 1.0) as f32 }
    }

    /// Factor on cos and sin of LongRoPE if a file does not give one, for a context of `times` the original one.
    pub fn long_attention(times: f64, original: usize) -> f32 {
        let original = original as f64;
        if times <= 1.0 || original <= 1.0 { 1.0 } else { (1.0 + times.ln() / original.ln()).sqrt() as f32 }
    }
}

impl RopeConfig {
    fn plain(&self, pair: usize) -> f64 {
        (self.base as f64).powf(-2.0 * pair as f64 / self.dims as f64)
    }

    /// The frequencies of contexts above a length, and that length, if they differ from `inv_freq`.
    pub fn long(&self) -> Option<(usize, Vec<f32>)> {
        let RopeScaling::Long { long, original_context, .. } = &self.scaling else { return None };
        Some((*original_context, self.divided(long)))
    }

    fn divided(&self, by: &[f32]) -> Vec<f32> {
        by.iter().enumerate().map(|(i, by)| (self.plain(i) / f64::from(*by)) as f32).collect()
    }

    /// Radians per position of each pair; `dims / 2` numbers.
    pub fn inv_freq(&self) -> Vec<f32> {
        let plain = |i: usize| self.plain(i);
        let pairs = 0..self.dims / 2;
        match self.scaling {
            RopeScaling::Long { ref short, .. } => self.divided(short),
            RopeScaling::None => pairs.map(|i| plain(i) as f32).collect(),
            RopeScaling::Linear { factor } => pairs.map(|i| (plain(i) / factor as f64) as f32).collect(),
            RopeScaling::Proportional { pairs: turning, factor } => {
                pairs.map(|i| if i < turning { (plain(i) / factor as f64) as f32 } else { 0.0 }).collect()
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let (low, high) = (low_freq_factor as f64, high_freq_factor as f64);
                let one = |i| {
                    let freq = plain(i);
                    // Turns within the original context: pairs with many turns are kept, those with few are
                    // stretched, with a transition between them.
                    let turns = original_context as f64 * freq / (2.0 * PI);
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (freq * (kept + (1.0 - kept) / factor as f64)) as f32
                };
                pairs.map(one).collect()
            }
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
                let (low, high) = self.yarn_ramp(original_context, beta_fast, beta_slow, truncate);
                let one = |i| {
                    let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    (plain(i) * (1.0 - stretched + stretched / factor as f64)) as f32
                };
                pairs.map(one).collect()
            }
        }
    }

    /// Factor on cos and sin.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }

    /// The pairs between which YaRN changes from kept to stretched frequencies.
    fn yarn_ramp(&self, context: usize, fast: f32, slow: f32, truncate: bool) -> (f64, f64) {
        let dims = self.dims as f64;
        let pair_of = |turns: f32| {
            dims * (context as f64 / (turns as f64 * 2.0 * PI)).ln() / (2.0 * (self.base as f64).ln())
        };
        // With a base of 1, all pairs have the same frequency, so there is no such pair.
        let finite = |pair: f64| if pair.is_finite() { pair } else { 0.0 };
        let (mut low, mut high) = (finite(pair_of(fast)), finite(pair_of(slow)));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.clamp(0.0, dims - 1.0), high.clamp(0.0, dims - 1.0));
        // Avoids a division by zero if both are the same pair.
        if low == high { (low, high + 0.001) } else { (low, high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with `ROPE_INIT_FUNCTIONS` of transformers 5.23, which is in f32.
    fn check(base: f32, dims: usize, scaling: RopeScaling, factor: f32, want: &[(usize, f64)]) {
        let rope = RopeConfig { base, dims, scaling };
        let got = rope.inv_freq();
        assert_eq!(got.len(), dims / 2);
        for &(pair, want) in want {
            assert!(
                (got[pair] as f64 - want).abs() <= 1e-6 * want,
                "{rope:?}, pair {pair}: {} for {want}",
                got[pair]
            );
        }
        assert!((rope.attention_factor() - factor).abs() <= 1e-6, "{}", rope.attention_factor());
    }

    fn yarn(factor: f32, attention_factor: f32, truncate: bool) -> RopeScaling {
        let (beta_fast, beta_slow) = (32.0, 1.0);
        let original_context = 32768;
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate }
    }

    #[test]
    fn frequencies_are_those_of_transformers() {
        check(
            10000.0,
            64,
            RopeScaling::Linear { factor: 4.0 },
            1.00000000,
            &[
                (0, 2.500000000e-01),
                (5, 5.928434059e-02),
                (12, 7.905694656e-03),
                (20, 7.905694656e-04),
                (31, 3.333803761e-05),
            ],
        );
        check(
            500000.0,
            64,
            RopeScaling::Llama3 {
                factor: 32.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 8192,
            },
            1.00000000,
            &[
                (0, 1.000000000e+00),
                (13, 4.839421250e-03),
                (15, 1.290548011e-03),
                (17, 9.708286234e-05),
                (18, 1.946163866e-05),
                (31, 9.418306490e-08),
            ],
        );
        check(
            1000000.0,
            128,
            yarn(4.0, RopeScaling::yarn_attention(4.0), true),
            1.138_629_4,
            &[
                (0, 1.000000000e+00),
                (20, 1.333521493e-02),
                (25, 4.131738096e-03),
                (30, 1.064360957e-03),
                (38, 9.262301319e-05),
                (41, 3.582531644e-05),
                (63, 3.102344408e-07),
            ],
        );
        check(
            1000000.0,
            128,
            yarn(4.0, 0.8, false),
            0.8,
            &[
                (0, 1.000000000e+00),
                (20, 1.333521493e-02),
                (25, 4.234358203e-03),
                (30, 1.079237671e-03),
                (38, 8.957924729e-05),
                (41, 3.582531644e-05),
                (63, 3.102344408e-07),
            ],
        );
    }

    #[test]
    fn a_stretch_by_less_than_one_turns_attention_by_nothing() {
        assert_eq!(RopeScaling::yarn_attention(0.5), 1.0);
    }

    /// Values that pass the check but make no sense still give numbers.
    #[test]
    fn the_edges_are_finite() {
        for (base, context, fast, slow) in
            [(1.0, 1, 1e6, 1e-3), (1.0, 1 << 24, 1.0, 1.0), (1e12, 1, 1e-3, 1e-3)]
        {
            let (factor, attention_factor, truncate) = (1e-3, 1.0, true);
            let scaling = RopeScaling::Yarn {
                factor,
                original_context: context,
                beta_fast: fast,
                beta_slow: slow,
                attention_factor,
                truncate,
            };
            let inv_freq = RopeConfig { base, dims: 64, scaling }.inv_freq();
            assert!(inv_freq.iter().all(|f| f.is_finite()), "{inv_freq:?}");
        }
    }
}
