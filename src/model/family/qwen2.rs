//! Qwen 2 and 2.5 (arXiv 2407.10671).

use super::{BASE, Bias, Biases, Family, NO_BIASES, Windows};

pub(super) const QWEN2: Family = Family {
    gguf: &["qwen2"],
    hf: Some("qwen2"),
    windows: Windows::Upper,
    biases: Biases { qkv: Bias::Always, ..NO_BIASES },
    ..BASE
};
