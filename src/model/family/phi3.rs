//! Phi-3, 3.5 and 4 (arXiv 2404.14219, 2503.01743): Llama with q, k and v in one matrix, gate and up in another. Long
//! contexts are LongRoPE's; Phi-4-mini rotates three quarters of a head.

use super::{BASE, Defaults, Family, Fused, KvHeads, Windows};

pub(super) const PHI3: Family = Family {
    gguf: &["phi3"],
    hf: Some("phi3"),
    fused: Fused { qkv: true, gate_up: true },
    windows: Windows::All { default: None },
    rotated: Some(1.0),
    defaults: Defaults { kv_heads: KvHeads::Heads, rms_eps: 1e-5, ..BASE.defaults },
    ..BASE
};
