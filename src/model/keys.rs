//! The metadata keys of a GGUF file's architecture, without its prefix: those that are read, and those that must not
//! change the arithmetic.

/// Keys that change the arithmetic in ways that this decoder does not compute, with the only accepted value.
pub(super) const NEUTRAL: &[(&str, u32)] =
    &[("attention.causal", 1), ("use_parallel_residual", 0), ("rescale_every_n_layers", 0), ("swin_norm", 0)];
/// As `NEUTRAL`, in families whose files do not count shared experts, and groups of experts.
pub(super) const NO_COUNTS: &[(&str, u32)] = &[(SHARED_COUNT, 0), (GROUPS, 0)];
/// The width of the experts that all rows pass through, as a multiple of that of the others.
pub(super) const SHARED_COUNT: &str = "expert_shared_count";
/// The number of groups of experts, and of those that have a row's experts.
pub(super) const GROUPS: &str = "expert_group_count";
pub(super) const USED_GROUPS: &str = "expert_group_used_count";
/// As `NEUTRAL`, in families whose layers have K and V of their own.
pub(super) const NO_SHARED: &[(&str, u32)] = &[(SHARED_KV, 0), (LAYER_INPUTS, 0)];
/// The number of layers, at the end, that attend to K and V of earlier ones.
pub(super) const SHARED_KV: &str = "attention.shared_kv_layers";
/// The tensor with the scale of a layer.
pub(super) const LAYER_SCALE: &str = "layer_output_scale";
/// The width of the inputs of single layers.
pub(super) const LAYER_INPUTS: &str = "embedding_length_per_layer_input";
/// As `NEUTRAL`, in families whose layers are all alike.
pub(super) const NO_DENSE: &[(&str, u32)] = &[(DENSE_FIRST, 0)];
/// The number of dense layers before those with experts.
pub(super) const DENSE_FIRST: &str = "leading_dense_block_count";
/// The function that makes probabilities of a router's logits, in llama.cpp's numbers.
pub(super) const GATING: &str = "expert_gating_func";
pub(super) const GATING_SOFTMAX: u32 = 1;
pub(super) const GATING_LOGISTIC: u32 = 2;
/// The softmax of the chosen logits alone: that of all, divided by the sum of the chosen.
pub(super) const GATING_CHOSEN: u32 = 3;
/// As `NEUTRAL`, in families whose further blocks are not known.
pub(super) const NO_BLOCKS: &[(&str, u32)] = &[(NEXTN, 0)];
/// The number of blocks, at the end, that predict further tokens.
pub(super) const NEXTN: &str = "nextn_predict_layers";
/// The growth of queries with their position.
pub(super) const TEMPERATURE: &str = "attention.temperature_scale";
/// The sections of a rotation by time, height and width. They are equal for text, but in families that need not have
/// them they mean another order of rows.
pub(super) const SECTIONS: &str = "rope.dimension_sections";
/// As `NEUTRAL`, in families without experts.
pub(super) const NO_EXPERTS: &[(&str, u32)] =
    &[("expert_count", 0), ("expert_used_count", 0), (GATING, GATING_SOFTMAX)];
pub(super) const NEUTRAL_FLOATS: &[(&str, f32)] = &[
    ("logit_scale", 1.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    (TEMPERATURE, 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.output_scale", 1.0),
    ("attention.value_scale", 1.0),
    ("expert_weights_scale", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

/// Keys that are read, or that do not affect the arithmetic.
pub(super) const KNOWN: &[&str] = &[
    NEXTN,
    SHARED_KV,
    LAYER_INPUTS,
    DENSE_FIRST,
    GATING,
    SHARED_COUNT,
    GROUPS,
    USED_GROUPS,
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_weights_norm",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    SECTIONS,
    "rope.scale_linear",
    "swiglu_clamp_exp",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "pooling_type",
    "classifier.output_labels",
    "vocab_size",
    "tensor_data_layout",
];
