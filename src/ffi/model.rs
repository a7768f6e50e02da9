//! `bn_model_config`, and its conversion to `ModelConfig`; `bn_model_info`.

use super::callbacks::{bn_log_callback, bn_progress_callback};
use super::config::choice;
use super::growth::{Grown, grown};
use super::guard;
use super::log::{BN_LOG_WARN, log_sink};
use super::pooling::BN_POOLING_LAST;
use super::types::*;
use crate::base::{Bytes, Error, Result, Status, os};
use crate::engine::api::{LoadOptions, ModelConfig, ProgressSink, Source, WeightType};
use crate::model::Loaded;
use std::ffi::c_void;
use std::io::ErrorKind;

/// As the model's files store them.
pub const BN_WEIGHTS_KEEP: u32 = 0;
/// 8 bits, in blocks of 32 with a half-precision scale.
pub const BN_WEIGHTS_Q8_0: u32 = 1;
/// 4 bits, in blocks of 32 with a half-precision scale.
pub const BN_WEIGHTS_Q4_0: u32 = 2;
/// -1, 0 and 1 with a scale, as in BitNet b1.58.
pub const BN_WEIGHTS_TERNARY: u32 = 3;
/// 8 bits, with a scale for each row; activations get one for each token. Faster than Q8_0 for
/// prompts, and less precise.
pub const BN_WEIGHTS_INT8: u32 = 4;

/// Also load the model's block of multi-token prediction, which drafts tokens
/// (`BN_SPECULATION_DRAFT`). Every pass then computes a part of it. `BN_ERR_UNSUPPORTED` if the
/// files do not have one: `drafter_path` names it in a file of its own. Not with a `draft_model`,
/// adapters or a device.
pub const BN_MODEL_MTP: u32 = 1 << 0;
/// Also keep the down projections by columns, in a ternary model with ReLU² (BitNet b1.58 2B-4T).
/// Steps of up to four tokens on the CPU then skip the columns that are multiplied by zeros only,
/// if there are enough of them. The results are the same. `BN_ERR_UNSUPPORTED` for other models.
pub const BN_MODEL_SKIP_ZEROS: u32 = 1 << 1;

/// How to open a model: by `path`, `fd` or `data`, at most one of them. With none it is the small
/// model embedded in the library.
#[repr(C)]
pub struct bn_model_config {
    pub struct_size: u32,
    /// A readable descriptor of a GGUF file, or -1 (default). It is read from the beginning,
    /// whatever its position, and may be closed once `bn_model_open` has returned.
    /// `BN_ERR_UNSUPPORTED` on Windows.
    pub fd: i32,
    /// A GGUF file, a Hugging Face folder (`config.json`, safetensors, `tokenizer.json`; nothing is
    /// downloaded), or
    /// `builtin:echo`, a model without weights that answers with its prompt
    /// (`builtin:echo?us_per_token=N&load_ms=N` takes so long for each token, and to load).
    pub path: bn_string,
    /// The bytes of a GGUF file, at any alignment, used in place: keep them unchanged until the
    /// model and every engine made of it are freed.
    pub data: *const c_void,
    /// Bytes at `data`.
    pub data_size: usize,
    /// The `kernel_config.ini` of a GGUF file with TL1 or TL2 tensors. Not set: the one beside the
    /// file.
    pub kernel_config_path: bn_string,
    /// The most bytes of weights; loading stops at the tensor that passes it.
    pub memory_limit_bytes: u64,
    /// As in `bn_engine_config`.
    pub threads: u32,
    /// `BN_MODEL_*`.
    pub flags: u32,
    /// The type that attention and feed-forward weights get while loading, `BN_WEIGHTS_*`. F32,
    /// F16 and BF16 weights can become any type, but only those of BitNet models
    /// `BN_WEIGHTS_TERNARY`; Q4_0 to Q8_0, Q4_K to Q6_K, IQ4 and MXFP4 can become
    /// `BN_WEIGHTS_INT8`.
    pub weight_type: u32,
    /// The same for the embedding, without `BN_WEIGHTS_TERNARY`.
    pub embedding_type: u32,
    /// The same for the output head. If that is tied to the embedding, either field sets both.
    pub head_type: u32,
    /// As in `bn_engine_config`.
    pub log_level: u32,
    /// Receives the log.
    pub log: bn_log_callback,
    pub log_context: *mut c_void,
    /// Receives the progress of loading, and may stop it.
    pub progress: bn_progress_callback,
    pub progress_context: *mut c_void,
    /// A GGUF file of a drafter alone, which predicts tokens from hidden states of the model
    /// (`BN_SPECULATION_DRAFT`): a block of multi-token prediction, or an EAGLE-3 head. The file
    /// says what it is. What it shares with the model, such as the embedding, may be missing there.
    /// `BN_ERR_UNSUPPORTED` for other files, `BN_ERR_INVALID_ARGUMENT` if it drafts for a model of
    /// other sizes. Not with `BN_MODEL_MTP`, a `draft_model`, adapters or a device.
    pub drafter_path: bn_string,
    /// A GGUF file of the part that sees pictures ("mmproj"), of a model that is a GGUF file. A
    /// folder has it among its own files.
    pub pictures_path: bn_string,
}

grown!(
    bn_model_config {
        struct_size, fd, path, data, data_size, kernel_config_path, memory_limit_bytes, threads, flags,
        weight_type, embedding_type, head_type, log_level, log, log_context, progress, progress_context,
        drafter_path, pictures_path,
    },
    fd: -1, threads: ModelConfig::default().threads, log_level: BN_LOG_WARN
);

fn weight_type(field: &str, value: u32) -> Result<WeightType> {
    choice(
        field,
        value,
        "BN_WEIGHTS",
        &[
            (BN_WEIGHTS_KEEP, WeightType::Keep),
            (BN_WEIGHTS_Q8_0, WeightType::Q8_0),
            (BN_WEIGHTS_Q4_0, WeightType::Q4_0),
            (BN_WEIGHTS_TERNARY, WeightType::Ternary),
            (BN_WEIGHTS_INT8, WeightType::Int8),
        ],
    )
}

impl bn_model_config {
    /// # Safety
    /// Pointers are NULL or as the fields say.
    pub(super) unsafe fn as_engine(&self) -> Result<ModelConfig> {
        let has = |flag| self.flags & flag != 0;
        guard::flags("flags", self.flags, BN_MODEL_MTP | BN_MODEL_SKIP_ZEROS)?;
        // SAFETY: the caller's promise.
        let kernel_config = unsafe { path("kernel_config_path", self.kernel_config_path) }?;
        // SAFETY: the caller's promise.
        let drafter = unsafe { path("drafter_path", self.drafter_path) }?;
        // SAFETY: the caller's promise.
        let pictures = unsafe { path("pictures_path", self.pictures_path) }?;
        Ok(ModelConfig {
            // SAFETY: the caller's promise.
            source: unsafe { self.source() }?,
            options: LoadOptions {
                weights: weight_type("weight_type", self.weight_type)?,
                embedding: weight_type("embedding_type", self.embedding_type)?,
                head: weight_type("head_type", self.head_type)?,
                kernel_config: kernel_config.map(str::to_owned),
                mtp: has(BN_MODEL_MTP),
                drafter: drafter.map(str::to_owned),
                pictures: pictures.map(str::to_owned),
                skip_zeros: has(BN_MODEL_SKIP_ZEROS),
                max_weight_bytes: self.memory_limit_bytes,
            },
            threads: self.threads,
            log: log_sink(self.log, self.log_context),
            log_level: self.log_level,
            progress: self.progress_sink(),
        })
    }

    /// # Safety
    /// As `as_engine`.
    unsafe fn source(&self) -> Result<Source> {
        // SAFETY: the caller's promise.
        let path = unsafe { path("path", self.path) }?;
        // SAFETY: the caller's promise, which also says that the bytes outlive the model.
        let data: &'static [u8] = unsafe { guard::slice("data", self.data.cast(), self.data_size) }?;
        match (path, self.fd, self.data.is_null()) {
            (None, -1, false) => {
                Ok(Source::Memory { bytes: Bytes::new(data), what: "the model in memory".into() })
            }
            // SAFETY: a number that the caller says to be an open descriptor.
            (None, 0.., true) => unsafe { self.descriptor() },
            (path, -1, true) => Source::parse(path),
            (None, fd, true) => Err(Error::invalid(format!("fd is {fd}; it is a descriptor, or -1"))),
            _ => Err(Error::invalid("more than one of path, fd and data is set: a model has one source")),
        }
    }

    /// # Safety
    /// `fd` is the number of an open descriptor.
    unsafe fn descriptor(&self) -> Result<Source> {
        let what = format!("file descriptor {}", self.fd);
        // SAFETY: the caller's promise.
        let file = unsafe { os::duplicate(self.fd) }.map_err(|e| match e.kind() {
            ErrorKind::Unsupported => Error::unsupported("fd is set, and this system has no descriptors"),
            _ => Error::new(Status::Io, format!("cannot open {what}: {e}")),
        })?;
        Source::open_file(&file, what)
    }

    fn progress_sink(&self) -> Option<ProgressSink> {
        let call = self.progress?;
        let context = Context::new(self.progress_context);
        Some(Box::new(move |fraction, what: &str| {
            // SAFETY: the header's contract for `progress`; `what` outlives the call.
            unsafe { call(fraction, bn_string::of(what), context.get()) != 0 }
        }))
    }
}

/// None where it is not set.
///
/// # Safety
/// As `guard::optional_text`.
pub(super) unsafe fn path<'a>(field: &str, path: bn_string) -> Result<Option<&'a str>> {
    // SAFETY: the caller's promise.
    match unsafe { guard::optional_text(field, path) }? {
        Some("") => Err(Error::invalid(format!("{field} is empty; NULL stands for the default"))),
        path => Ok(path),
    }
}

/// The files recommend `temperature`.
pub const BN_SAMPLING_FIELD_TEMPERATURE: u32 = 1 << 0;
/// The files recommend `top_k`.
pub const BN_SAMPLING_FIELD_TOP_K: u32 = 1 << 1;
/// The files recommend `top_p`.
pub const BN_SAMPLING_FIELD_TOP_P: u32 = 1 << 2;
/// The files recommend `min_p`.
pub const BN_SAMPLING_FIELD_MIN_P: u32 = 1 << 3;
/// The files recommend `repetition_penalty`.
pub const BN_SAMPLING_FIELD_REPETITION_PENALTY: u32 = 1 << 4;

/// Facts about a model. Pointers are valid until `bn_model_free`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_model_info {
    pub struct_size: u32,
    /// 1 if it has one. Without, prompts are token ids and events have no text.
    pub has_tokenizer: i32,
    /// 1 if it has one, so that requests may have a `chat`.
    pub has_chat_template: i32,
    /// 1 if it is an encoder: it makes embeddings and generates nothing, has no KV cache, and runs
    /// a prompt in one step, so `max_batch_tokens` must hold it.
    pub encodes: i32,
    /// 1 if it can do `BN_TASK_RERANK`.
    pub scores_pairs: i32,
    /// The model's own, not `BN_POOLING_MODEL`.
    pub pooling: u32,
    /// As the model's files name it: `llama`, `bitnet-b1.58`, ...
    pub architecture: bn_string,
    /// May be empty.
    pub name: bn_string,
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
    /// They end an output as `BN_FINISH_STOP`. NULL if there are none.
    pub end_tokens: *const u32,
    pub end_tokens_count: usize,
    /// The BOS token's id, or -1.
    pub bos_token: i64,
    /// `BN_SAMPLING_FIELD_*`: which of the five fields below `generation_config.json`, or keys of
    /// a GGUF file, recommend. The others are 0. Requests never use them by themselves. Where there
    /// are none, chats commonly use `temperature` 0.8, `top_k` 40, `top_p` 0.95 and `min_p` 0.05.
    pub sampling_fields: u32,
    /// Recommended; 0: always the most likely token.
    pub temperature: f32,
    /// Recommended.
    pub top_k: u32,
    /// Recommended.
    pub top_p: f32,
    /// Recommended.
    pub min_p: f32,
    /// Recommended.
    pub repetition_penalty: f32,
    /// 1 if it sees pictures, on the CPU.
    pub sees: i32,
    /// The most vectors of a picture by the model's own bound, without the tokens between them.
    /// 0: it sees none.
    pub picture_tokens: u32,
}

grown!(
    bn_model_info {
        struct_size, has_tokenizer, has_chat_template, encodes, scores_pairs, pooling, architecture,
        name, vocab_size, context_length, layers, hidden_size, heads, kv_heads, head_dim, ffn_size,
        embedding_size, parameters, weight_bytes, end_tokens, end_tokens_count, bos_token,
        sampling_fields, temperature, top_k, top_p, min_p, repetition_penalty, sees, picture_tokens,
    },
    architecture: bn_string::of(""), name: bn_string::of(""), bos_token: -1,
    pooling: BN_POOLING_LAST
);

impl bn_model_info {
    /// Points into `loaded`.
    pub(super) fn of(loaded: &Loaded) -> Self {
        let facts = loaded.model.facts();
        let ends = &loaded.end_tokens;
        let sampling = &facts.sampling;
        let set = |flag, set: bool| if set { flag } else { 0 };
        Self {
            has_tokenizer: i32::from(loaded.tokenizer.is_some()),
            architecture: bn_string::of(&facts.architecture),
            name: bn_string::of(&facts.name),
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
            bos_token: loaded.tokenizer.as_ref().and_then(|t| t.bos()).map_or(-1, i64::from),
            embedding_size: facts.hidden_size as u64,
            pooling: facts.pooling as u32,
            sees: i32::from(loaded.sight.is_some()),
            picture_tokens: loaded.sight.as_ref().map_or(0, |sight| sight.tower.processor().most_tokens()),
            has_chat_template: i32::from(loaded.chat.is_some()),
            sampling_fields: set(BN_SAMPLING_FIELD_TEMPERATURE, sampling.temperature.is_some())
                | set(BN_SAMPLING_FIELD_TOP_K, sampling.top_k.is_some())
                | set(BN_SAMPLING_FIELD_TOP_P, sampling.top_p.is_some())
                | set(BN_SAMPLING_FIELD_MIN_P, sampling.min_p.is_some())
                | set(BN_SAMPLING_FIELD_REPETITION_PENALTY, sampling.repetition_penalty.is_some()),
            temperature: sampling.temperature.unwrap_or_default(),
            top_k: sampling.top_k.unwrap_or_default(),
            top_p: sampling.top_p.unwrap_or_default(),
            min_p: sampling.min_p.unwrap_or_default(),
            repetition_penalty: sampling.repetition_penalty.unwrap_or_default(),
            encodes: i32::from(facts.encodes),
            scores_pairs: i32::from(facts.scores.is_some()),
            ..Self::defaults()
        }
    }
}
