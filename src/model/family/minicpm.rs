//! MiniCPM 1, 2 and 4, and BitCPM4 (arXiv 2404.06395, 2506.07900): Llama with factors that keep updates alike at any
//! width and depth.

use super::llama::LLAMA;
use super::{BASE, Defaults, Factor, Family, KvHeads, ONE, ScaleSizes, Scales};

/// `scale_depth` over the square root of the depth.
fn residual(depth: f32, sizes: &ScaleSizes) -> f32 {
    depth / (sizes.layers as f32).sqrt()
}

/// Logits are those of a model whose width is `base`.
fn logits(base: f32, sizes: &ScaleSizes) -> f32 {
    sizes.hidden as f32 / base
}

pub(super) const MINICPM: Family = Family {
    gguf: &["minicpm"],
    hf: Some("minicpm"),
    // GGUF files of 2024 have no such keys, and are of MiniCPM 1 and 2.
    scales: Scales {
        embedding: Factor { keys: Some(("scale_emb", "embedding_scale")), gguf: |_| 12.0, ..ONE },
        residual: Factor {
            keys: Some(("scale_depth", "residual_scale")),
            of: residual,
            gguf: |sizes| residual(1.4, sizes),
            ..ONE
        },
        logits: Factor {
            keys: Some(("dim_model_base", "logit_scale")),
            of: logits,
            gguf: |sizes| logits(256.0, sizes),
            ..ONE
        },
        ..BASE.scales
    },
    gguf_rope: LLAMA.gguf_rope,
    defaults: Defaults { kv_heads: KvHeads::Heads, tied: true, ..BASE.defaults },
    ..BASE
};
