//! Qwen 2 and 2.5 (arXiv 2407.10671).

use super::{BASE, Biases, Family, Windows};

pub const QWEN2: Family =
    Family { gguf: &["qwen2"], hf: Some("qwen2"), windows: Windows::Upper, biases: Biases::Qkv, ..BASE };
