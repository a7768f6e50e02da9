//! From a rope's configuration to the frequencies that its kernel turns by.
//!
//! As transformers' `modeling_rope_utils` computes them, but in f64 and rounded once.

use super::config::{RopeConfig, RopeScaling};
use std::f64::consts::PI;

impl RopeScaling {
    /// What cos and sin are multiplied by where a file leaves it to the stretch (YaRN, equation 22).
    pub fn yarn_attention(factor: f32) -> f32 {
        if factor <= 1.0 { 1.0 } else { (0.1 * (factor as f64).ln() + 1.0) as f32 }
    }
}

impl RopeConfig {
    /// Radians per position of each pair, `dims / 2` of them.
    pub fn inv_freq(&self) -> Vec<f32> {
        let plain = |i: usize| (self.base as f64).powf(-2.0 * i as f64 / self.dims as f64);
        let pairs = 0..self.dims / 2;
        match self.scaling {
            RopeScaling::None => pairs.map(|i| plain(i) as f32).collect(),
            RopeScaling::Linear { factor } => pairs.map(|i| (plain(i) / factor as f64) as f32).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let (low, high) = (low_freq_factor as f64, high_freq_factor as f64);
                let one = |i| {
                    let freq = plain(i);
                    // Turns within the original context: many are kept, few are stretched, between them both.
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

    /// What cos and sin are multiplied by.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// The pairs between which YaRN goes over from kept to stretched frequencies. llama.cpp's ramp is this one too.
    fn yarn_ramp(&self, context: usize, fast: f32, slow: f32, truncate: bool) -> (f64, f64) {
        let dims = self.dims as f64;
        let pair_of = |turns: f32| {
            dims * (context as f64 / (turns as f64 * 2.0 * PI)).ln() / (2.0 * (self.base as f64).ln())
        };
        let (mut low, mut high) = (pair_of(fast), pair_of(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.clamp(0.0, dims - 1.0), high.clamp(0.0, dims - 1.0));
        // No division by zero where both fall on one pair.
        if low == high { (low, high + 0.001) } else { (low, high) }
    }
}
