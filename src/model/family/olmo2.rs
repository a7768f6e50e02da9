//! OLMo 2 (arXiv 2501.00656): norms after attention and feed-forward, none before them, and norms of whole rows of q
//! and k.

use super::{ATTENTION_BIASES, BASE, Defaults, Family, K_NORM, KvHeads, Q_NORM, QkNorm};

pub(super) const OLMO2: Family = Family {
    gguf: &["olmo2"],
    hf: Some("olmo2"),
    norms: &[
        Q_NORM,
        K_NORM,
        ("post_attention_layernorm", "post_attention_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    qk_norm: QkNorm::Row,
    biases: ATTENTION_BIASES,
    defaults: Defaults { kv_heads: KvHeads::Heads, rms_eps: 1e-5, ..BASE.defaults },
    ..BASE
};
