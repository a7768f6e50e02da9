//! Facts about a model.
use crate::error::{Result, check};
use crate::handle::Handle;
use crate::request::Pooling;
use crate::{sys, text};
use std::mem::{MaybeUninit, size_of};

/// The sampling that a model's authors recommend, in its files. Requests never use it by themselves. Without a
/// recommendation, chats commonly use a `temperature` of 0.8, `top_k` 40, `top_p` 0.95 and `min_p` 0.05.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecommendedSampling {
    /// 0: always the most likely token.
    pub temperature: Option<f32>,
    /// See [`Sampling`](crate::Sampling).
    pub top_k: Option<u32>,
    /// See [`Sampling`](crate::Sampling).
    pub top_p: Option<f32>,
    /// See [`Sampling`](crate::Sampling).
    pub min_p: Option<f32>,
    /// See [`Sampling`](crate::Sampling).
    pub repetition_penalty: Option<f32>,
}

impl RecommendedSampling {
    /// Whether the files recommend nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn of(raw: &sys::bn_model_info) -> Self {
        let has = |field| raw.sampling_fields & field != 0;
        Self {
            temperature: has(sys::BN_SAMPLING_FIELD_TEMPERATURE).then_some(raw.temperature),
            top_k: has(sys::BN_SAMPLING_FIELD_TOP_K).then_some(raw.top_k),
            top_p: has(sys::BN_SAMPLING_FIELD_TOP_P).then_some(raw.top_p),
            min_p: has(sys::BN_SAMPLING_FIELD_MIN_P).then_some(raw.min_p),
            repetition_penalty: has(sys::BN_SAMPLING_FIELD_REPETITION_PENALTY)
                .then_some(raw.repetition_penalty),
        }
    }
}

/// Facts about a model.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// Without one, prompts are token ids and events have no text.
    pub has_tokenizer: bool,
    /// With one, requests may have a conversation.
    pub has_chat_template: bool,
    /// The model is an encoder: it makes embeddings and generates nothing.
    pub encodes: bool,
    /// The model can do [`Task::Rerank`](crate::Task::Rerank).
    pub scores_pairs: bool,
    /// The model sees pictures ([`Request::pictures`](crate::Request::pictures)).
    pub sees: bool,
    /// The model's own.
    pub pooling: Pooling,
    /// As the model's files name it: `llama`, `bitnet-b1.58`, ...
    pub architecture: String,
    /// May be empty.
    pub name: String,
    /// Token ids are 0 to `vocab_size - 1`.
    pub vocab_size: u64,
    /// Tokens of context that the model was made for.
    pub context_length: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Width of the hidden state.
    pub hidden_size: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Width of the feed-forward layer.
    pub ffn_size: u64,
    /// Elements of an embedding. 0: the model makes none.
    pub embedding_size: u64,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of weights, mapped or allocated.
    pub weight_bytes: u64,
    /// The tokens that end an output.
    pub end_tokens: Vec<u32>,
    /// The BOS token.
    pub bos_token: Option<u32>,
    /// The sampling that its authors recommend.
    pub recommended: RecommendedSampling,
}

impl ModelInfo {
    pub(crate) fn of(model: Handle<sys::bn_model>) -> Result<Self> {
        let mut info = MaybeUninit::<sys::bn_model_info>::zeroed();
        // SAFETY: the library fills a struct of this size, and one of zeros is a valid one.
        let raw = unsafe {
            sys::bn_model_info_init(info.as_mut_ptr(), size_of::<sys::bn_model_info>() as u32);
            check(|error| sys::bn_model_get_info(model.raw(), info.as_mut_ptr(), error))?;
            info.assume_init()
        };
        // SAFETY: they are valid until the model is freed.
        let (architecture, name, end_tokens) = unsafe {
            (
                text::text(raw.architecture).into_owned(),
                text::text(raw.name).into_owned(),
                text::slice(raw.end_tokens, raw.end_tokens_count).to_vec(),
            )
        };
        Ok(Self {
            has_tokenizer: raw.has_tokenizer != 0,
            has_chat_template: raw.has_chat_template != 0,
            encodes: raw.encodes != 0,
            scores_pairs: raw.scores_pairs != 0,
            sees: raw.sees != 0,
            pooling: Pooling::of(raw.pooling),
            architecture,
            name,
            vocab_size: raw.vocab_size,
            context_length: raw.context_length,
            layers: raw.layers,
            hidden_size: raw.hidden_size,
            heads: raw.heads,
            kv_heads: raw.kv_heads,
            head_dim: raw.head_dim,
            ffn_size: raw.ffn_size,
            embedding_size: raw.embedding_size,
            parameters: raw.parameters,
            weight_bytes: raw.weight_bytes,
            end_tokens,
            bos_token: u32::try_from(raw.bos_token).ok(),
            recommended: RecommendedSampling::of(&raw),
        })
    }
}
