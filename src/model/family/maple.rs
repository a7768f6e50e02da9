//! DeepGrove's Maple: a ternary mixture of experts. Three of four layers see a window and rotate half of a head; the
//! fourth sees everything and does not rotate.

use super::qwen3::QWEN3;
use super::{BASE, Defaults, ExpertDefaults, Family, NO_BIASES, Rotation, Windows};
use crate::ops::Activation;

pub(super) const MAPLE: Family = Family {
    gguf: &["maple"],
    hf: Some("maple"),
    activation: Activation::ClampedSwiGlu { limit: 7.0 },
    norms: QWEN3.norms,
    // The model was trained with FlashAttention's window_size, which counts the positions before a row's own
    // (vLLM's pull request 51833).
    windows: Windows::AllBut {
        every: 4,
        default: 512,
        rotation: Rotation::WindowedOnly,
        own_beside: true,
        gguf_default: None,
    },
    rotated: Some(1.0),
    experts: Some(ExpertDefaults::SOFTMAX),
    biases: NO_BIASES,
    defaults: Defaults { head_dim: None, ..BASE.defaults },
    ..BASE
};
