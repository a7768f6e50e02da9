//! LFM2's mixtures of experts: its layers, with experts in all but the first feed-forwards. A bias on each expert's
//! probability changes the choice alone.

use super::lfm2::LFM2;
use super::{ExpertDefaults, Family};
use crate::model::layers::short_conv::ConvDefaults;
use crate::ops::Gate;

pub(super) const LFM2MOE: Family = Family {
    gguf: &["lfm2moe"],
    hf: Some("lfm2_moe"),
    experts: Some(ExpertDefaults {
        renormalize: true,
        renormalize_gguf: true,
        gate: Gate::Logistic,
        more: 1e-6,
        bias: Some("feed_forward.expert_bias"),
        dense_first: Some(("num_dense_layers", 2)),
        inside: "feed_forward",
        parts: ["w1", "w3", "w2"],
        ..ExpertDefaults::SOFTMAX
    }),
    recurrent: Some(&ConvDefaults { kernel: 3, rounds_width: false }),
    ..LFM2
};
