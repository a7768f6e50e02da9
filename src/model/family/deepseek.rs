//! DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437) and GLM-4.7-Flash, which has V3's layers: latent
//! attention, and shared experts beside those that the router chooses. In GGUF all have one architecture, whose files
//! say which router they have.

use super::{BASE, Defaults, ExpertDefaults, Family, GroupDefaults, KvHeads, PRE_NORMS, SharedExpert};
use crate::ops::{Gate, RopeStyle};

const EXPERTS: ExpertDefaults = ExpertDefaults {
    renormalize: false,
    renormalize_gguf: false,
    shared: SharedExpert::Counted,
    count: "n_routed_experts",
    scaled: true,
    by_file: true,
    dense_first: Some(("first_k_dense_replace", 0)),
    groups: Some(GroupDefaults { count: 1, used: 1, method: Some("group_limited_greedy") }),
    ..ExpertDefaults::SOFTMAX
};

pub(super) const DEEPSEEK_V2: Family = Family {
    gguf: &["deepseek2"],
    hf: Some("deepseek_v2"),
    norms: &PRE_NORMS,
    products: &[
        ("self_attn.q_a_proj", "attn_q_a"),
        ("self_attn.q_b_proj", "attn_q_b"),
        ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("self_attn.kv_b_proj", "attn_kv_b"),
        ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ],
    tensors: &[
        ("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"),
        ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"),
    ],
    latent: true,
    mtp: true,
    experts: Some(EXPERTS),
    hf_rope: RopeStyle::Interleaved,
    gguf_rope: RopeStyle::Interleaved,
    defaults: Defaults { kv_heads: KvHeads::Heads, ..BASE.defaults },
    ..BASE
};

/// The logistic function of each logit, and a bias for the choice alone.
const V3_EXPERTS: ExpertDefaults = ExpertDefaults {
    renormalize: true,
    gate: Gate::Logistic,
    bias: Some("mlp.gate.e_score_correction_bias"),
    dense_first: Some(("first_k_dense_replace", 3)),
    groups: Some(GroupDefaults { count: 8, used: 4, method: None }),
    ..EXPERTS
};

pub(super) const DEEPSEEK_V3: Family =
    Family { hf: Some("deepseek_v3"), experts: Some(V3_EXPERTS), ..DEEPSEEK_V2 };

pub(super) const GLM4_MOE_LITE: Family = Family {
    hf: Some("glm4_moe_lite"),
    experts: Some(ExpertDefaults {
        dense_first: Some(("first_k_dense_replace", 1)),
        groups: Some(GroupDefaults { count: 1, used: 1, method: None }),
        ..V3_EXPERTS
    }),
    defaults: Defaults { rms_eps: 1e-5, ..DEEPSEEK_V2.defaults },
    ..DEEPSEEK_V2
};
