//! Towers of SigLIP (arXiv 2303.15343): Idefics 3 and SmolVLM (arXiv 2504.05299), and LFM2-VL.

use super::{
    Merge, MergeKey, Names, Order, PositionKey, Positions, Projector, ProjectorNorm, Sizes, TowerFamily,
    Width,
};
use crate::ops::Activation;

pub(super) const LAYER: &str = "encoder.layers.";
pub(super) const IN_LAYER: &[(&str, &str)] = &[
    ("layer_norm1", "ln1"),
    ("layer_norm2", "ln2"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];
pub(super) const OUTSIDE: &[(&str, &str)] = &[
    ("embeddings.patch_embedding", "v.patch_embd"),
    ("embeddings.position_embedding", "v.position_embd"),
    ("post_layernorm", "v.post_ln"),
];

pub(super) const IDEFICS3: TowerFamily = TowerFamily {
    gguf: "idefics3",
    hf: &["idefics3", "smolvlm"],
    token_keys: &["image_token_id"],
    rms_norms: false,
    activation: Activation::Gelu,
    order: Order::Rows,
    colors_last: false,
    input: [1.0, 0.0],
    positions: Positions::Nearest,
    rotation: None,
    eps: 1e-6,
    normed_heads: false,
    last_norm: Some("v.post_ln"),
    merge: Merge::Beside,
    projector: Projector {
        norm: None,
        root_of_width: false,
        products: &[("mm.model.fc", Width::Model)],
        activation: Activation::GeluErf,
        by_element: false,
        transposed: false,
    },
    folder: Names {
        tower: &["model.vision_model.", "vision_model."],
        layer: LAYER,
        in_layer: IN_LAYER,
        outside: OUTSIDE,
        projector: &["model.connector.", "connector."],
        in_projector: &[("modality_projection.proj", "mm.model.fc")],
        ignored: &[],
    },
    sizes: Sizes {
        hidden: 1152,
        ffn: 3072,
        layers: 12,
        heads: 16,
        patch: 32,
        image: 224,
        act_key: "hidden_act",
        eps_key: "layer_norm_eps",
        older_keys: &[],
        frames: None,
        merge: MergeKey::Model("scale_factor", 2),
        positions: PositionKey::Image,
        rope_base: 10_000.0,
        inner: None,
        projector_act: None,
        model_eps: false,
    },
};

pub(super) const LFM2: TowerFamily = TowerFamily {
    gguf: "lfm2",
    hf: &["lfm2_vl"],
    colors_last: true,
    positions: Positions::Resized,
    projector: Projector {
        norm: Some(ProjectorNorm::Layer("mm.input_norm", 1e-5)),
        products: &[("mm.1", Width::Inner), ("mm.2", Width::Model)],
        ..IDEFICS3.projector
    },
    folder: Names {
        tower: &["model.vision_tower.vision_model.", "model.vision_tower.", "vision_tower."],
        layer: LAYER,
        in_layer: IN_LAYER,
        outside: OUTSIDE,
        projector: &["model.multi_modal_projector.", "multi_modal_projector."],
        in_projector: &[("layer_norm", "mm.input_norm"), ("linear_1", "mm.1"), ("linear_2", "mm.2")],
        ignored: &["head."],
    },
    sizes: Sizes {
        hidden: 768,
        heads: 12,
        patch: 16,
        merge: MergeKey::Model("downsample_factor", 2),
        positions: PositionKey::Key("num_patches", 256),
        inner: Some(("projector_hidden_size", 2560)),
        projector_act: Some("projector_hidden_act"),
        ..IDEFICS3.sizes
    },
    ..IDEFICS3
};
