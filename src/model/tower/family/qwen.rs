//! Qwen 3.5's tower, which is Qwen3-VL's (arXiv 2511.21631) without features of earlier layers.

use super::{
    Merge, MergeKey, Names, Order, PositionKey, Positions, Projector, Rotation, Sizes, TowerFamily, Width,
};
use crate::ops::Activation;

pub(super) const QWEN35: TowerFamily = TowerFamily {
    gguf: "qwen3vl_merger",
    hf: &["qwen3_5", "qwen3_5_moe"],
    token_keys: &["image_token_id"],
    rms_norms: false,
    activation: Activation::Gelu,
    order: Order::Tokens,
    colors_last: false,
    input: [1.0, 0.0],
    positions: Positions::Corners,
    rotation: Some(Rotation::Halves),
    eps: 1e-6,
    normed_heads: false,
    last_norm: Some("v.post_ln"),
    merge: Merge::Beside,
    projector: Projector {
        norm: None,
        root_of_width: false,
        products: &[("mm.0", Width::Same), ("mm.2", Width::Model)],
        activation: Activation::GeluErf,
        by_element: false,
        transposed: false,
    },
    folder: Names {
        tower: &["model.visual.", "visual."],
        layer: "blocks.",
        in_layer: &[
            ("norm1", "ln1"),
            ("norm2", "ln2"),
            ("attn.qkv", "attn_qkv"),
            ("attn.proj", "attn_out"),
            ("mlp.linear_fc1", "ffn_up"),
            ("mlp.linear_fc2", "ffn_down"),
        ],
        outside: &[
            ("patch_embed.proj", "v.patch_embd"),
            ("pos_embed", "v.position_embd"),
            ("merger.norm", "v.post_ln"),
            ("merger.linear_fc1", "mm.0"),
            ("merger.linear_fc2", "mm.2"),
        ],
        projector: &[],
        in_projector: &[],
        ignored: &[],
    },
    sizes: Sizes {
        hidden: 1152,
        ffn: 4304,
        layers: 27,
        heads: 16,
        patch: 16,
        image: 0,
        act_key: "hidden_act",
        // The class has a constant.
        eps_key: "layer_norm_eps",
        older_keys: &[("num_hidden_layers", "depth"), ("num_attention_heads", "num_heads")],
        frames: Some("temporal_patch_size"),
        merge: MergeKey::Vision("spatial_merge_size", 2),
        positions: PositionKey::Key("num_position_embeddings", 2304),
        rope_base: 10_000.0,
        inner: None,
        projector_act: None,
        model_eps: false,
    },
};
