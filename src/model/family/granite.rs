//! Granite 3, and dense Granite 4 in GGUF (arXiv 2405.04324): Llama with four factors.

use super::llama::LLAMA;
use super::{BASE, Defaults, Factor, Family, KvHeads, ONE, Scales};

pub(super) const GRANITE: Family = Family {
    gguf: &["granite"],
    hf: Some("granite"),
    scales: Scales {
        embedding: Factor { keys: Some(("embedding_multiplier", "embedding_scale")), ..ONE },
        residual: Factor { keys: Some(("residual_multiplier", "residual_scale")), ..ONE },
        logits: Factor { keys: Some(("logits_scaling", "logit_scale")), ..ONE },
        scores: Factor {
            keys: Some(("attention_multiplier", "attention.scale")),
            of: ONE.of,
            ..BASE.scales.scores
        },
        ..BASE.scales
    },
    biases: LLAMA.biases,
    gguf_rope: LLAMA.gguf_rope,
    may_stand_still: true,
    defaults: Defaults { kv_heads: KvHeads::Heads, ..BASE.defaults },
    ..BASE
};
