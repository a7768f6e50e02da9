//! Pixtral's tower (arXiv 2410.07073), with the projector of Mistral Small 3.1 and Ministral 3.

use super::siglip::IDEFICS3;
use super::{MergeKey, Names, PositionKey, Positions, Projector, Rotation, Sizes, TowerFamily, Width};
use crate::ops::Activation;

pub(super) const PIXTRAL: TowerFamily = TowerFamily {
    gguf: "pixtral",
    hf: &["mistral3"],
    token_keys: &["image_token_index", "image_token_id"],
    rms_norms: true,
    activation: Activation::GeGluErf,
    positions: Positions::None,
    rotation: Some(Rotation::Alternating),
    eps: 1e-5,
    last_norm: Some("mm.input_norm"),
    projector: Projector {
        products: &[("mm.patch_merger", Width::Hidden), ("mm.1", Width::Model), ("mm.2", Width::Model)],
        by_element: true,
        ..IDEFICS3.projector
    },
    folder: Names {
        tower: &["model.vision_tower.", "vision_tower."],
        layer: "transformer.layers.",
        in_layer: &[
            ("attention_norm", "ln1"),
            ("ffn_norm", "ln2"),
            ("attention.q_proj", "attn_q"),
            ("attention.k_proj", "attn_k"),
            ("attention.v_proj", "attn_v"),
            ("attention.o_proj", "attn_out"),
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
        ],
        outside: &[("patch_conv", "v.patch_embd"), ("ln_pre", "v.pre_ln")],
        projector: &["model.multi_modal_projector.", "multi_modal_projector."],
        in_projector: &[
            ("norm", "mm.input_norm"),
            ("patch_merger.merging_layer", "mm.patch_merger"),
            ("linear_1", "mm.1"),
            ("linear_2", "mm.2"),
        ],
        ignored: &["patch_positional_embedding."],
    },
    sizes: Sizes {
        hidden: 1024,
        ffn: 4096,
        layers: 24,
        heads: 16,
        patch: 16,
        image: 1024,
        merge: MergeKey::Model("spatial_merge_size", 2),
        positions: PositionKey::None,
        projector_act: Some("projector_hidden_act"),
        model_eps: true,
        ..IDEFICS3.sizes
    },
    ..IDEFICS3
};
