//! 1bitLLM's reproductions of BitNet b1.58 (bitnet_b1_58-large, -3B; arXiv 2402.17764). Their folders come with a class
//! of their own and call themselves `llama`: weights become ternary at every step by mean |w|, sub-norms have older
//! names (gguf's tensor_mapping.py), and the activation is silu, while the 2B-4T has relu².

use super::{BASE, Defaults, Family, KvHeads, PRE_NORMS};

/// Name of the class in `architectures`.
pub(crate) const CLASS: &str = "BitnetForCausalLM";

pub(crate) const BITNET_1BITLLM: Family = Family {
    gguf: &["bitnet"],
    ternary: true,
    norms: &[
        PRE_NORMS[0],
        ("self_attn.inner_attn_ln", "attn_sub_norm"),
        PRE_NORMS[1],
        ("mlp.ffn_layernorm", "ffn_sub_norm"),
    ],
    defaults: Defaults { kv_heads: KvHeads::Heads, ..BASE.defaults },
    ..BASE
};
