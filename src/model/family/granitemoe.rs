//! Granite 3's mixtures of experts: Granite with experts of softmax, and in some files
//! with an expert that every row passes through.

use super::granite::GRANITE;
use super::{ExpertDefaults, Family, Joined, SharedExpert};

/// Gate and up of the shared expert.
pub(super) const SHARED: &[Joined] =
    &[("shared_mlp.input_linear.weight", &["ffn_gate_shexp.weight", "ffn_up_shexp.weight"])];

pub(super) const GRANITEMOE: Family = Family {
    gguf: &["granitemoe"],
    hf: Some("granitemoe"),
    joined: SHARED,
    products: &[("shared_mlp.output_linear", "ffn_down_shexp")],
    experts: Some(ExpertDefaults {
        shared: SharedExpert::Added,
        width: ("intermediate_size", "feed_forward_length"),
        inside: "block_sparse_moe",
        router: "router.layer",
        stacked: ["input_linear.weight", "output_linear.weight"],
        ..ExpertDefaults::SOFTMAX
    }),
    ..GRANITE
};

pub(super) const GRANITEMOESHARED: Family = Family { hf: Some("granitemoeshared"), ..GRANITEMOE };
