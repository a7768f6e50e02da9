//! Checks the ranges of the configuration and of requests. Errors name the field.

use crate::base::{Error, Result, Status, reserve};
use crate::engine::api::{EngineConfig, Prompt, RequestParams, ScoreParams, Speculation};
use crate::engine::request::prompt::Prompted;
use crate::engine::request::speculation::no_model;
use crate::sample::SamplingParams;
use crate::schedule::MAX_DRAFT;
use crate::text::chat::no_template;
use crate::text::{ChatTemplate, Message, Tokenizer};

pub fn in_range(name: &str, value: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} = {value} is out of range: {low} to {high}")))
}

pub fn check(config: &EngineConfig) -> Result<()> {
    in_range("max_batch_size", config.max_batch_size.into(), 1, 4096)?;
    in_range("max_batch_tokens", config.max_batch_tokens.into(), config.max_batch_size.into(), 65_536)?;
    in_range("queue_capacity", config.queue_capacity.into(), 1, 1 << crate::engine::hub::ids::SLOT_BITS)?;
    in_range("max_wait_us", config.max_wait_us.into(), 0, 1_000_000)?;
    in_range("max_step_ms", config.max_step_ms.into(), 1, 60_000)?;
    in_range("target_itl_ms", config.target_itl_ms.into(), 0, 60_000)?;
    in_range("kv_events_capacity", config.kv_events_capacity.into(), 0, 1 << 20)?;
    in_range("priority_ageing_ms", config.priority_ageing_ms.into(), 0, 3_600_000)?;
    draft_tokens(config.draft_tokens)?;
    if config.speculates() == Speculation::Model && config.draft_model.is_none() {
        return Err(no_model());
    }
    if ![16, 32, 64, 128].contains(&config.kv_block_size) {
        let size = config.kv_block_size;
        return Err(Error::invalid(format!("kv_block_size = {size} is out of range: 16, 32, 64 or 128")));
    }
    Ok(())
}

fn draft_tokens(asked: u32) -> Result<()> {
    in_range("draft_tokens", asked.into(), 0, MAX_DRAFT as i64)
}

/// Returns `asked` (0: the model's context length), checked against the model.
pub fn sequence_length(asked: u32, context_length: usize) -> Result<usize> {
    match asked as usize {
        0 => Ok(context_length),
        n => in_range("max_sequence_length", n as i64, 2, context_length as i64).map(|()| n),
    }
}

/// Returns `asked`, or if that is 0 the number of CPUs that this process may use: by the affinity mask of the
/// calling thread, and by the CPU quotas of its control group and those above it (v1 and v2), rounded down. More
/// threads than a quota allows are only throttled.
pub fn threads(asked: u32) -> Result<usize> {
    in_range("threads", asked.into(), 0, 256)?;
    match asked {
        0 => Ok(std::thread::available_parallelism().map_or(1, |n| n.get()).min(256)),
        n => Ok(n as usize),
    }
}

/// Checks a session's name: 1 to 256 bytes.
pub fn session_name(name: &str) -> Result<()> {
    match name.len() {
        1..=256 => Ok(()),
        n => Err(Error::invalid(format!("a session's name has {n} bytes, not 1 to 256"))),
    }
}

/// Maximum length of a bad word in bytes.
const MAX_BAD_WORD: usize = 1024;

/// The limits that a request is checked against.
pub struct RequestLimits<'a> {
    pub vocab_size: usize,
    /// 0: the model has no hidden states to pool.
    pub hidden_size: usize,
    pub max_sequence: usize,
    /// Number of new tokens that a request needs room for after its prompt: 1, or 0 if it generates nothing.
    pub new_tokens: usize,
    pub tokenizer: Option<&'a Tokenizer>,
    pub chat: Option<&'a ChatTemplate>,
}

impl RequestLimits<'_> {
    /// Checks everything about `params` except room in the queue, and returns the prompt.
    pub fn prompt(&self, params: &RequestParams) -> Result<Prompted> {
        params.session.as_deref().map_or(Ok(()), session_name)?;
        draft_tokens(params.draft_tokens)?;
        if params.session.is_some() && !params.cache {
            return Err(Error::invalid("session is set, and BN_REQUEST_NO_CACHE leaves nothing to keep"));
        }
        match params.embedding {
            Some(_) => self.embedding(params)?,
            None => self.generation(params)?,
        }
        if params.parse_output && !matches!(params.prompt, Prompt::ChatJson(_)) {
            return Err(Error::invalid("BN_REQUEST_PARSE_OUTPUT is set and needs chat_json"));
        }
        let ids = match &params.prompt {
            Prompt::Tokens(ids) => self.given(ids)?,
            Prompt::Text(text) => self.encode(text, params.parse_special, params.embedding.is_some())?,
            Prompt::Chat(messages) => self.conversation(messages)?,
            Prompt::ChatJson(source) => return self.chat(source, params).and_then(|made| self.checked(made)),
        };
        if let Some(scores) = params.scores.filter(|scores| scores.from as usize >= ids.len().max(1)) {
            let (from, n) = (scores.from, ids.len());
            return Err(Error::invalid(format!(
                "logprobs_from = {from} lies behind the prompt's {n} tokens"
            )));
        }
        self.checked(Prompted { ids, ..Prompted::default() })
    }

    fn checked(&self, made: Prompted) -> Result<Prompted> {
        match made.ids.len() {
            0 => Err(Error::invalid("the prompt is empty")),
            n => self.fits(n, n, "tokens").map(|()| made),
        }
    }

    /// Returns a checked copy of the caller's own ids.
    fn given(&self, ids: &[u32]) -> Result<Vec<u32>> {
        self.fits(ids.len(), ids.len(), "tokens")?;
        self.check_ids("the prompt", ids.iter().copied())?;
        let mut copy = Vec::new();
        reserve(&mut copy, ids.len(), "a prompt")?;
        copy.extend_from_slice(ids);
        Ok(copy)
    }

    /// Renders a conversation with the model's chat template and tokenizes it.
    fn conversation(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self.chat.ok_or_else(no_template)?;
        let text = template.render(messages, true)?;
        self.tokenizer()?.encode_chat(&text)
    }

    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.ok_or_else(|| {
            Error::unsupported(
                "a text prompt needs a tokenizer, and the model's file has none; pass token ids",
            )
        })
    }

    fn generation(&self, params: &RequestParams) -> Result<()> {
        if let Some(scores) = &params.scores {
            scored(params, scores)?;
        }
        params.sampling.validate()?;
        if !params.stop_strings.is_empty() && self.tokenizer.is_none() {
            return Err(Error::unsupported("stop strings need a tokenizer, and the model's file has none"));
        }
        if (!params.bad_words.is_empty() || params.sampling.dry.multiplier > 0.0) && self.tokenizer.is_none()
        {
            return Err(Error::unsupported(
                "bad words and DRY need a tokenizer, and the model's file has none",
            ));
        }
        self.check_ids("logprob_tokens", params.sampling.logprob_tokens.iter().copied())?;
        self.check_ids("logit_bias", params.sampling.logit_bias.iter().map(|(token, _)| *token))?;
        self.check_ids("stop_tokens", params.stop_tokens.iter().copied())
    }

    /// The tokens of each bad word, alone and after a space.
    pub fn bad_words(&self, params: &RequestParams) -> Result<Vec<Vec<u32>>> {
        let mut words = Vec::new();
        reserve(&mut words, 2 * params.bad_words.len(), "bad words")?;
        for (i, word) in params.bad_words.iter().enumerate() {
            if word.is_empty() || word.len() > MAX_BAD_WORD {
                let n = word.len();
                return Err(Error::invalid(format!("bad_words[{i}] has {n} bytes, not 1 to {MAX_BAD_WORD}")));
            }
            for text in [&**word, &format!(" {word}")] {
                let ids = self.tokenizer()?.encode(text, false, false)?;
                if !ids.is_empty() && !words.contains(&ids) {
                    words.push(ids);
                }
            }
        }
        Ok(words)
    }

    /// Number of elements of an embedding.
    pub fn embedding_size(&self) -> Result<usize> {
        match self.hidden_size {
            0 => Err(Error::unsupported("the model has no hidden states to make an embedding of")),
            size => Ok(size),
        }
    }

    /// Options of the output have no meaning for an embedding. If one is set, the error names it.
    fn embedding(&self, params: &RequestParams) -> Result<()> {
        self.embedding_size()?;
        let given = &params.sampling;
        let set = [
            ("messages", matches!(params.prompt, Prompt::Chat(_))),
            ("chat_json", matches!(params.prompt, Prompt::ChatJson(_))),
            ("stop_tokens", !params.stop_tokens.is_empty()),
            ("stop_strings", !params.stop_strings.is_empty()),
            ("BN_REQUEST_IGNORE_EOS", params.ignore_eos),
            ("BN_REQUEST_ECHO_PROMPT", params.echo_prompt),
            ("bad_words", !params.bad_words.is_empty()),
            ("constraint", params.constraint.is_some()),
            ("on_logits", params.on_logits.is_some()),
            ("BN_TASK_SCORE or BN_REQUEST_PROMPT_LOGPROBS", params.scores.is_some()),
        ];
        let named = set.iter().find(|(_, set)| *set).map(|(name, _)| *name);
        match named.or_else(|| given.differs_from(&SamplingParams::default())) {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "{name} is set, and a request for an embedding generates nothing"
            ))),
        }
    }

    /// `whole`: nothing follows the text. A text that is too long by its bytes alone is not tokenized.
    fn encode(&self, text: &str, parse_special: bool, whole: bool) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        self.fits(tokenizer.fewest_tokens(text.len()), text.len(), "bytes")?;
        let ids = match whole {
            true => tokenizer.encode_whole(text, parse_special)?,
            false => tokenizer.encode(text, true, parse_special)?,
        };
        self.fits(ids.len(), ids.len(), "tokens").map(|()| ids)
    }

    /// Checks whether a prompt of `tokens` tokens fits. The error gives its size as `size` `unit`.
    fn fits(&self, tokens: usize, size: usize, unit: &str) -> Result<()> {
        if tokens <= self.max_sequence.saturating_sub(self.new_tokens) {
            return Ok(());
        }
        let (limit, more) = (self.max_sequence, if self.new_tokens > 0 { " and a new token" } else { "" });
        let message =
            format!("the prompt has {size} {unit}; max_sequence_length = {limit} has to hold it{more}");
        Err(Error::new(Status::TooLong, message))
    }

    fn check_ids(&self, what: &str, ids: impl IntoIterator<Item = u32>) -> Result<()> {
        match ids.into_iter().enumerate().find(|(_, id)| *id as usize >= self.vocab_size) {
            None => Ok(()),
            Some((at, id)) => Err(Error::invalid(format!(
                "token id {id} at index {at} of {what} is out of range: the vocabulary has {}",
                self.vocab_size
            ))),
        }
    }
}

/// Checks the options that prompt scores require, and those that they exclude.
fn scored(params: &RequestParams, scores: &ScoreParams) -> Result<()> {
    let flag = if scores.generates { "BN_REQUEST_PROMPT_LOGPROBS" } else { "BN_TASK_SCORE" };
    if !params.sampling.logprobs {
        return Err(Error::invalid(format!("{flag} is set and needs BN_REQUEST_LOGPROBS")));
    }
    if scores.generates && !params.echo_prompt {
        return Err(Error::invalid(format!("{flag} is set and needs BN_REQUEST_ECHO_PROMPT")));
    }
    let set = [
        ("chat_json", matches!(params.prompt, Prompt::ChatJson(_))),
        ("stop_tokens", !scores.generates && !params.stop_tokens.is_empty()),
        ("stop_strings", !scores.generates && !params.stop_strings.is_empty()),
        ("BN_REQUEST_ECHO_PROMPT", !scores.generates && params.echo_prompt),
        ("BN_REQUEST_CHAIN_LOGPROBS", params.sampling.chain_logprobs),
        ("constraint", !scores.generates && params.constraint.is_some()),
        ("on_logits", !scores.generates && params.on_logits.is_some()),
    ];
    match set.iter().find(|(_, set)| *set) {
        None => Ok(()),
        Some((name, _)) => Err(Error::invalid(format!("{name} cannot be set beside {flag}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Bytes;
    use crate::engine::api::EmbeddingParams;
    use crate::formats::Gguf;
    use crate::formats::gguf::writer::{self, Meta};

    #[test]
    fn only_texts_to_embed_end_with_eos() {
        let pair = |key: &str, value: Meta| (format!("tokenizer.ggml.{key}"), value);
        let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "a"].map(String::from);
        let pairs = [
            pair("model", "llama".into()),
            pair("tokens", Meta::Strs(tokens.to_vec())),
            pair("scores", Meta::F32s(vec![0.0; 5])),
            pair("token_type", Meta::I32s(vec![2, 3, 3, 1, 1])),
            pair("add_eos_token", Meta::Bool(true)),
        ];
        let gguf = Gguf::from_bytes(Bytes::new(writer::metadata_only(&pairs)), "x").unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf, &|_| {}).unwrap().unwrap();
        let tokenizer = Some(&tokenizer);
        let limits = RequestLimits {
            vocab_size: 5,
            hidden_size: 8,
            max_sequence: 4,
            new_tokens: 0,
            tokenizer,
            chat: None,
        };
        let ids = |prompt: Prompt, embedding: Option<EmbeddingParams>| {
            limits.prompt(&RequestParams { prompt, embedding, ..Default::default() }).map(|made| made.ids)
        };
        let text = |text: &'static str| Prompt::Text(text.into());
        let embedding = || Some(EmbeddingParams::default());
        assert_eq!(ids(text("a"), None).unwrap(), [1, 3, 4]);
        assert_eq!(ids(text("a"), embedding()).unwrap(), [1, 3, 4, 2]);
        assert_eq!(ids(Prompt::Tokens(vec![4].into()), embedding()).unwrap(), [4]);
        // Tokens appended after a text count too.
        assert_eq!(ids(text("aa"), None).unwrap().len(), 4);
        assert_eq!(ids(text("aa"), embedding()).unwrap_err().status, Status::TooLong);
    }
}
