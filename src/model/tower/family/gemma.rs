//! Towers of Gemma 3 (arXiv 2503.19786), which is SigLIP, and of Gemma 4.

use super::siglip::{IDEFICS3, IN_LAYER, LAYER, OUTSIDE};
use super::{
    Merge, MergeKey, Names, PositionKey, Positions, Projector, ProjectorNorm, Rotation, Sizes, TowerFamily,
    Width,
};
use crate::ops::Activation;

pub(super) const GEMMA3: TowerFamily = TowerFamily {
    gguf: "gemma3",
    hf: &["gemma3"],
    token_keys: &["image_token_index", "image_token_id"],
    merge: Merge::Average,
    projector: Projector {
        norm: Some(ProjectorNorm::Rms("mm.soft_emb_norm", 1.0)),
        products: &[("mm.input_projection", Width::Model)],
        transposed: true,
        ..IDEFICS3.projector
    },
    folder: Names {
        tower: &[
            "model.vision_tower.vision_model.",
            "vision_tower.vision_model.",
            "model.vision_tower.",
            "vision_tower.",
        ],
        layer: LAYER,
        in_layer: IN_LAYER,
        outside: OUTSIDE,
        projector: &["model.multi_modal_projector.", "multi_modal_projector."],
        in_projector: &[
            ("mm_input_projection_weight", "mm.input_projection.weight"),
            ("mm_soft_emb_norm", "mm.soft_emb_norm"),
        ],
        ignored: &["head."],
    },
    sizes: Sizes {
        hidden: 768,
        heads: 12,
        patch: 16,
        merge: MergeKey::Tokens("mm_tokens_per_image", 256),
        ..IDEFICS3.sizes
    },
    ..IDEFICS3
};

pub(super) const GEMMA4: TowerFamily = TowerFamily {
    gguf: "gemma4v",
    hf: &["gemma4"],
    token_keys: &["image_token_id"],
    rms_norms: true,
    activation: Activation::GeGlu,
    colors_last: true,
    // Its processor gives colors from 0 to 1.
    input: [2.0, -1.0],
    positions: Positions::Sides,
    rotation: Some(Rotation::Apart),
    normed_heads: true,
    last_norm: None,
    merge: Merge::Average,
    projector: Projector {
        norm: Some(ProjectorNorm::Bare),
        root_of_width: true,
        products: &[("mm.input_projection", Width::Model)],
        ..IDEFICS3.projector
    },
    folder: Names {
        tower: &["model.vision_tower.", "vision_tower."],
        layer: LAYER,
        in_layer: &[
            ("input_layernorm", "ln1"),
            ("post_attention_layernorm", "attn_post_norm"),
            ("pre_feedforward_layernorm", "ln2"),
            ("post_feedforward_layernorm", "ffn_post_norm"),
            ("self_attn.q_proj.linear", "attn_q"),
            ("self_attn.k_proj.linear", "attn_k"),
            ("self_attn.v_proj.linear", "attn_v"),
            ("self_attn.o_proj.linear", "attn_out"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("mlp.gate_proj.linear", "ffn_gate"),
            ("mlp.up_proj.linear", "ffn_up"),
            ("mlp.down_proj.linear", "ffn_down"),
            // The bounds of their inputs and outputs.
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_out"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ],
        outside: &[
            ("patch_embedder.input_proj", "v.patch_embd"),
            ("patch_embedder.position_embedding_table", "v.position_embd.weight"),
            ("std_bias", "v.std_bias"),
            ("std_scale", "v.std_scale"),
        ],
        projector: &["model.embed_vision.", "embed_vision."],
        in_projector: &[("embedding_projection", "mm.input_projection")],
        ignored: &[],
    },
    sizes: Sizes {
        hidden: 768,
        ffn: 3072,
        layers: 16,
        heads: 12,
        patch: 16,
        act_key: "hidden_activation",
        eps_key: "rms_norm_eps",
        merge: MergeKey::Vision("pooling_kernel_size", 3),
        positions: PositionKey::Key("position_embedding_size", 10_240),
        rope_base: 100.0,
        ..IDEFICS3.sizes
    },
    ..IDEFICS3
};
