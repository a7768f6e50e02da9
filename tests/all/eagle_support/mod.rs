//! Small models with EAGLE-3 heads beside them, as GGUF files, and a plain reference of both.

mod reference;

use crate::common::gguf::{FFN, File, HIDDEN, Tensor, VOCAB, Value, granite, llama};
pub use reference::{Reference, drafts};

/// Layers of the model, and those that a head continues from.
pub const LAYERS: u64 = 6;
pub const TAPS: [i32; 3] = [1, 3, 4];
/// GGUF's number of whole numbers of 64 bits.
pub const I64: u32 = 27;

/// `file` of two layers with `LAYERS` of them, which have other weights.
fn deep(mut file: File, name: &str) -> File {
    let layer: Vec<_> = file.tensors.iter().filter(|t| t.name.starts_with("blk.1.")).cloned().collect();
    for index in 2..LAYERS {
        for (n, Tensor { name, dims, .. }) in layer.iter().enumerate() {
            let name = name.replacen("blk.1.", &format!("blk.{index}."), 1);
            file = file.random(&name, dims, 100 * index + n as u64);
        }
    }
    file.u32(&format!("{name}.block_count"), LAYERS as u32)
}

/// A model without factors, and one whose residual and embedding have some.
pub fn models() -> [File; 2] {
    let scaled = deep(granite(), "granite")
        .f32("granite.embedding_scale", 3.0)
        .f32("granite.residual_scale", 0.25)
        .f32("granite.logit_scale", 2.0);
    [deep(llama(), "llama"), scaled]
}

/// The sizes of a head, and the parts that it may have.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    /// The model's width and vocabulary.
    pub width: u64,
    pub vocab: u64,
    pub taps: [i32; 3],
    /// Every `every`th token of the model is one of the head's. 1: it has no list of them.
    pub every: u64,
    pub embedding: bool,
    pub output: bool,
    pub norm_before_fc: bool,
    pub norm_before_residual: bool,
}

impl Head {
    /// One with the sizes of `models`.
    pub fn new() -> Self {
        Self {
            hidden: HIDDEN,
            heads: 2,
            kv_heads: 1,
            head_dim: HIDDEN / 2,
            width: HIDDEN,
            vocab: VOCAB,
            taps: TAPS,
            every: 3,
            embedding: false,
            output: true,
            norm_before_fc: false,
            norm_before_residual: false,
        }
    }

    /// The numbers of its tokens in the model.
    pub fn ids(&self) -> Vec<i64> {
        (0..self.vocab as i64).step_by(self.every as usize).collect()
    }

    pub fn file(&self) -> File {
        let key = |key: &str| format!("eagle3.{key}");
        let (hidden, all) = (self.hidden, self.heads * self.head_dim);
        let kv = self.kv_heads * self.head_dim;
        let mut file = File::default()
            .str("general.architecture", "eagle3")
            .u32(&key("context_length"), 64)
            .u32(&key("embedding_length"), hidden as u32)
            .u32(&key("block_count"), 1)
            .u32(&key("feed_forward_length"), FFN as u32)
            .u32(&key("attention.head_count"), self.heads as u32)
            .u32(&key("attention.head_count_kv"), self.kv_heads as u32)
            .u32(&key("attention.key_length"), self.head_dim as u32)
            .u32(&key("attention.value_length"), self.head_dim as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .f32(&key("rope.freq_base"), 500.0)
            .u32(&key("vocab_size"), self.vocab as u32)
            .set(&key("target_layers"), Value::I32s(self.taps.into()))
            .u32(&key("target_hidden_size"), self.width as u32)
            .set(&key("norm_before_fc"), Value::Bool(self.norm_before_fc))
            .set(&key("norm_before_residual"), Value::Bool(self.norm_before_residual));
        let tokens = self.ids().len() as u64;
        let tensors: [(&str, &[u64]); 14] = [
            ("fc", &[3 * self.width, hidden]),
            ("blk.0.attn_norm", &[hidden]),
            ("blk.0.attn_norm_2", &[hidden]),
            ("blk.0.attn_q", &[2 * hidden, all]),
            ("blk.0.attn_k", &[2 * hidden, kv]),
            ("blk.0.attn_v", &[2 * hidden, kv]),
            ("blk.0.attn_output", &[all, hidden]),
            ("blk.0.ffn_norm", &[hidden]),
            ("blk.0.ffn_gate", &[hidden, FFN]),
            ("blk.0.ffn_up", &[hidden, FFN]),
            ("blk.0.ffn_down", &[FFN, hidden]),
            ("output_norm", &[hidden]),
            ("output", &[hidden, tokens]),
            ("token_embd", &[hidden, self.vocab]),
        ];
        for (n, (name, dims)) in tensors.into_iter().enumerate() {
            if name == "output" && !self.output || name == "token_embd" && !self.embedding {
                continue;
            }
            file = file.random(&format!("{name}.weight"), dims, 900 + n as u64);
        }
        if self.norm_before_fc {
            file = file.random("enc.output_norm.weight", &[3 * self.width], 990);
        }
        if self.every > 1 {
            file.tensors.push(whole_numbers(&self.ids()));
        }
        file
    }
}

/// The tensor of the numbers of a head's tokens.
pub fn whole_numbers(ids: &[i64]) -> Tensor {
    let data = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    Tensor { name: "d2t".into(), dims: vec![ids.len() as u64], type_id: I64, data }
}
