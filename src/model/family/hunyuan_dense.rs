//! Hunyuan's dense models (0.5B to 7B, Hunyuan-MT): q and k are normed after their rotation, whose base `alpha`
//! stretches.

use super::{ATTENTION_BIASES, BASE, Defaults, Family, KvHeads, PRE_NORMS, QkNorm};

pub(super) const HUNYUAN_DENSE: Family = Family {
    gguf: &["hunyuan-dense"],
    hf: Some("hunyuan_v1_dense"),
    norms: &[
        PRE_NORMS[0],
        ("self_attn.query_layernorm", "attn_q_norm"),
        ("self_attn.key_layernorm", "attn_k_norm"),
        PRE_NORMS[1],
    ],
    qk_norm: QkNorm::Turned,
    rope_alpha: true,
    biases: ATTENTION_BIASES,
    defaults: Defaults { kv_heads: KvHeads::Heads, rms_eps: 1e-5, ..BASE.defaults },
    ..BASE
};
