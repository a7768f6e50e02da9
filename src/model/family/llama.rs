//! Llama 2 and 3 (arXiv 2407.21783). Ternary models in this format (Falcon3, Falcon-E, Llama3-8B-1.58) may have norms
//! before their output projections in GGUF files.

use super::{ATTENTION_BIASES, BASE, Bias, Biases, Defaults, Family, KvHeads, Windows};
use crate::ops::RopeStyle;

const LLAMA_BIASES: Biases = Biases { ffn: Bias::key("mlp_bias"), ..ATTENTION_BIASES };

pub(super) const LLAMA: Family = Family {
    gguf: &["llama"],
    hf: Some("llama"),
    hf_whole: &["smolvlm", "idefics3"],
    towers: &["model.vision_model.", "model.connector."],
    optional_norms: &["attn_sub_norm", "ffn_sub_norm"],
    windows: Windows::AllInGguf,
    biases: LLAMA_BIASES,
    gguf_rope: RopeStyle::Interleaved,
    defaults: Defaults { kv_heads: KvHeads::Heads, ..BASE.defaults },
    ..BASE
};
