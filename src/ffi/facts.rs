//! `bn_model_facts`: what a host may ask about the loaded model.

use super::growth::Grown;
use super::request::BN_POOLING_LAST;
use crate::engine::Engine;
use std::ffi::c_char;

/// The loaded model: `bn_model_facts_init`, then `bn_engine_model_facts`. The pointers belong to the engine
/// and live until its destroy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_model_facts {
    /// `sizeof(bn_model_facts)`; set by `bn_model_facts_init`.
    pub struct_size: u32,
    /// 1 if the model has a tokenizer: without one, prompts are token ids and events carry no text.
    pub has_tokenizer: i32,
    /// As the model's file names it (`llama`, `bitnet-b1.58`, ...); UTF-8, not NUL-terminated.
    pub architecture: *const c_char,
    /// Bytes of `architecture`.
    pub architecture_length: usize,
    /// The model's own name, perhaps empty; UTF-8, not NUL-terminated.
    pub name: *const c_char,
    /// Bytes of `name`.
    pub name_length: usize,
    /// Ids go from 0 to `vocab_size - 1`.
    pub vocab_size: u64,
    /// Tokens that the model was made for.
    pub context_length: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Width of the hidden state.
    pub hidden_size: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Width of the feed-forward part.
    pub ffn_size: u64,
    /// Parameters in all.
    pub parameters: u64,
    /// Bytes of weights held, mapped or owned.
    pub weight_bytes: u64,
    /// Ids that end an output (`BN_FINISH_STOP`). NULL where there are none.
    pub end_tokens: *const u32,
    /// Ids in `end_tokens`.
    pub end_tokens_count: usize,
    /// The id of the BOS token, or -1; whether it is put in front of a text, the model's files say.
    pub bos_token: i64,
    /// Elements of an embedding (`BN_REQUEST_EMBED`); 0: the model makes none.
    pub embedding_size: u64,
    /// What `BN_POOLING_MODEL` stands for: `BN_POOLING_LAST`, `BN_POOLING_MEAN` or `BN_POOLING_FIRST`.
    pub pooling: i32,
    /// 0.
    pub reserved: i32,
}

// SAFETY: repr(C), `struct_size` first, and integers and raw pointers after it.
unsafe impl Grown for bn_model_facts {
    const NAME: &'static str = "bn_model_facts";
    const FIRST: usize = 144;
    fn defaults() -> Self {
        Self {
            struct_size: 0,
            has_tokenizer: 0,
            architecture: c"".as_ptr(),
            architecture_length: 0,
            name: c"".as_ptr(),
            name_length: 0,
            vocab_size: 0,
            context_length: 0,
            layers: 0,
            hidden_size: 0,
            heads: 0,
            kv_heads: 0,
            head_dim: 0,
            ffn_size: 0,
            parameters: 0,
            weight_bytes: 0,
            end_tokens: std::ptr::null(),
            end_tokens_count: 0,
            bos_token: -1,
            embedding_size: 0,
            pooling: BN_POOLING_LAST,
            reserved: 0,
        }
    }
    fn set_struct_size(&mut self, size: u32) {
        self.struct_size = size;
    }
}

const _: () = assert!(size_of::<bn_model_facts>() >= <bn_model_facts as Grown>::FIRST);

impl bn_model_facts {
    /// Points into `engine`.
    pub(super) fn of(engine: &Engine) -> Self {
        let facts = engine.facts();
        let tokenizer = engine.tokenizer();
        let ends = engine.end_tokens();
        Self {
            has_tokenizer: i32::from(tokenizer.is_some()),
            architecture: facts.architecture.as_ptr().cast(),
            architecture_length: facts.architecture.len(),
            name: facts.name.as_ptr().cast(),
            name_length: facts.name.len(),
            vocab_size: facts.vocab_size as u64,
            context_length: facts.context_length as u64,
            layers: facts.layers as u64,
            hidden_size: facts.hidden_size as u64,
            heads: facts.heads as u64,
            kv_heads: facts.kv_heads as u64,
            head_dim: facts.head_dim as u64,
            ffn_size: facts.ffn_size as u64,
            parameters: facts.parameters,
            weight_bytes: facts.weight_bytes,
            end_tokens: if ends.is_empty() { std::ptr::null() } else { ends.as_ptr() },
            end_tokens_count: ends.len(),
            bos_token: tokenizer.and_then(|t| t.bos()).map_or(-1, i64::from),
            embedding_size: facts.hidden_size as u64,
            pooling: facts.pooling as i32,
            ..Self::defaults()
        }
    }
}
