//! Gemma 4, text alone: layers without a window have wider heads, of which a part rotates, and their V may be their K;
//! V is normed, scores have no scale. The last layers of small models attend to K and V of earlier ones, and each layer
//! has an input of its own for each token. The mixture of experts stands beside a dense feed-forward.

use super::gemma3::GEMMA3;
use super::{
    Defaults, ExpertDefaults, Factor, Family, K_NORM, Mutual, ONE, Q_NORM, Rotation, Scales, Windows,
};

pub(super) const GEMMA4: Family = Family {
    gguf: &["gemma4"],
    hf: Some("gemma4_text"),
    hf_whole: &["gemma4"],
    towers: &["model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."],
    mutual: Mutual::Windowed,
    norms: &[
        ("input_layernorm", "attn_norm"),
        Q_NORM,
        K_NORM,
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_per_layer_input_norm", "post_norm"),
    ],
    products: &[("per_layer_input_gate", "inp_gate"), ("per_layer_projection", "proj")],
    tensors: &[
        ("layer_scalar", "layer_output_scale.weight"),
        ("router.proj.weight", "ffn_gate_inp.weight"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
        ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
        ("per_layer_model_projection.weight", "per_layer_model_proj.weight"),
        ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
    ],
    windows: Windows::AllBut {
        every: 6,
        default: 512,
        rotation: Rotation::Local { base: Some(10_000.0) },
        own_beside: false,
        gguf_default: None,
    },
    scales: Scales {
        scores: ONE,
        logit_cap: Factor {
            keys: Some(("final_logit_softcapping", "final_logit_softcapping")),
            default: 0.0,
            gguf: |_| 0.0,
            ..ONE
        },
        ..GEMMA3.scales
    },
    global_heads: true,
    layer_scales: true,
    experts: Some(ExpertDefaults { beside: true, ..ExpertDefaults::SOFTMAX }),
    norm_offset: 0.0,
    defaults: Defaults { sizes: &[], ..GEMMA3.defaults },
    ..GEMMA3
};
