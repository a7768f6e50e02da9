//! Ranges of the configuration and of a request, refused by name.

use super::api::{EngineConfig, Prompt, RequestParams};
use crate::base::{Error, Result, Status};
use crate::sample::SamplingParams;
use crate::text::chat::no_template;
use crate::text::{ChatTemplate, Message, Tokenizer};

/// Bytes of one stop string; its matcher is several times as large.
const MAX_STOP_STRING: usize = 1 << 16;

fn in_range(name: &str, value: u64, low: u64, high: u64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} = {value} is out of range: {low} to {high}")))
}

pub fn check(config: &EngineConfig) -> Result<()> {
    in_range("max_batch_size", config.max_batch_size.into(), 1, 4096)?;
    in_range("max_batch_tokens", config.max_batch_tokens.into(), config.max_batch_size.into(), 65_536)?;
    in_range("queue_capacity", config.queue_capacity.into(), 1, 1 << super::ids::SLOT_BITS)?;
    in_range("max_wait_us", config.max_wait_us.into(), 0, 1_000_000)?;
    in_range("max_step_ms", config.max_step_ms.into(), 1, 60_000)?;
    in_range("target_itl_ms", config.target_itl_ms.into(), 0, 60_000)?;
    in_range("priority_ageing_ms", config.priority_ageing_ms.into(), 0, 3_600_000)?;
    in_range("log_level", config.log_level as i64 as u64, 0, 4)?;
    if ![16, 32, 64, 128].contains(&config.kv_block_size) {
        let size = config.kv_block_size;
        return Err(Error::invalid(format!("kv_block_size = {size} is out of range: 16, 32, 64 or 128")));
    }
    Ok(())
}

/// `asked` (0: the model's context length), checked against the model.
pub fn sequence_length(asked: u32, context_length: usize) -> Result<usize> {
    match asked as usize {
        0 => Ok(context_length),
        n => in_range("max_sequence_length", n as u64, 2, context_length as u64).map(|()| n),
    }
}

/// `asked`, or where that is 0 the CPUs that this process may use: by the affinity mask of the calling thread, and by the
/// CPU quotas of its control group and those above it (v1 and v2), rounded down: threads beyond a quota only run into
/// its pauses.
pub fn threads(asked: u32) -> Result<usize> {
    in_range("threads", asked.into(), 0, 256)?;
    match asked {
        0 => Ok(std::thread::available_parallelism().map_or(1, |n| n.get()).min(256)),
        n => Ok(n as usize),
    }
}

/// What a request is checked against.
pub struct RequestLimits<'a> {
    pub vocab_size: usize,
    /// 0: none that could be had.
    pub hidden_size: usize,
    pub max_sequence: usize,
    /// Which a request needs room for behind its prompt: 1, or 0 for an embedding.
    pub new_tokens: usize,
    pub tokenizer: Option<&'a Tokenizer>,
    pub chat: Option<&'a ChatTemplate>,
}

impl RequestLimits<'_> {
    /// Checks everything about `params` but room in the queue, and returns the prompt's ids.
    pub fn prompt_ids(&self, params: &RequestParams) -> Result<Vec<u32>> {
        match params.embedding {
            Some(_) => self.embedding(params)?,
            None => self.generation(params)?,
        }
        let ids = match &params.prompt {
            Prompt::Tokens(ids) => self.given(ids)?,
            Prompt::Text(text) => self.encode(text, params.parse_special, params.embedding.is_some())?,
            Prompt::Chat(messages) => self.conversation(messages)?,
        };
        if ids.is_empty() {
            return Err(Error::invalid("the prompt is empty"));
        }
        self.size(0, ids.len())?;
        Ok(ids)
    }

    /// A copy of the caller's own ids.
    fn given(&self, ids: &[u32]) -> Result<Vec<u32>> {
        self.size(0, ids.len())?;
        self.check_ids("the prompt", ids)?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(ids.len()).map_err(|_| Error::out_of_memory("a prompt", 4 * ids.len()))?;
        copy.extend_from_slice(ids);
        Ok(copy)
    }

    /// The ids of a conversation, by the model's chat template.
    fn conversation(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self.chat.ok_or_else(no_template)?;
        let text = template.render(messages, true)?;
        self.tokenizer()?.encode_chat(&text)
    }

    fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.ok_or_else(|| {
            Error::unsupported(
                "a text prompt needs a tokenizer, and the model's file has none; pass token ids",
            )
        })
    }

    fn generation(&self, params: &RequestParams) -> Result<()> {
        params.sampling.validate()?;
        for stop in &params.stop_strings {
            if stop.is_empty() {
                return Err(Error::invalid("a stop string is empty"));
            }
            if stop.len() > MAX_STOP_STRING {
                let n = stop.len();
                return Err(Error::invalid(format!("a stop string of {n} bytes: at most {MAX_STOP_STRING}")));
            }
        }
        if !params.stop_strings.is_empty() && self.tokenizer.is_none() {
            return Err(Error::unsupported("stop strings need a tokenizer, and the model's file has none"));
        }
        self.check_ids("stop_tokens", &params.stop_tokens)
    }

    /// Elements of an embedding.
    pub fn embedding_size(&self) -> Result<usize> {
        match self.hidden_size {
            0 => Err(Error::unsupported("the model has no hidden states to make an embedding of")),
            size => Ok(size),
        }
    }

    /// What shapes an output has no meaning where there is none: set, it is a mistake that we name.
    fn embedding(&self, params: &RequestParams) -> Result<()> {
        self.embedding_size()?;
        let (given, default) = (&params.sampling, SamplingParams::default());
        let set = [
            ("messages", matches!(params.prompt, Prompt::Chat(_))),
            ("stop_tokens", !params.stop_tokens.is_empty()),
            ("stop_strings", !params.stop_strings.is_empty()),
            ("ignore_eos", params.ignore_eos),
            ("echo_prompt", params.echo_prompt),
            ("logprobs", given.logprobs),
            ("top_logprobs", given.top_logprobs != default.top_logprobs),
            ("seed", given.seed != default.seed),
            ("temperature", given.temperature != default.temperature),
            ("top_k", given.top_k != default.top_k),
            ("top_p", given.top_p != default.top_p),
            ("min_p", given.min_p != default.min_p),
            ("repetition_penalty", given.repetition_penalty != default.repetition_penalty),
            ("frequency_penalty", given.frequency_penalty != default.frequency_penalty),
            ("presence_penalty", given.presence_penalty != default.presence_penalty),
        ];
        match set.iter().find(|(_, set)| *set) {
            None => Ok(()),
            Some((name, _)) => Err(Error::invalid(format!(
                "{name} is set, and a request for an embedding generates nothing"
            ))),
        }
    }

    /// Refuses what is too long by its size alone: no tokenizer makes fewer tokens of a text than this.
    pub fn size(&self, bytes: usize, ids: usize) -> Result<()> {
        let most = self.max_sequence.saturating_sub(self.new_tokens);
        let (what, unit) = if ids > most { (ids, "tokens") } else { (bytes, "bytes") };
        let fewest = self.tokenizer.map_or(bytes, |tokenizer| tokenizer.fewest_tokens(bytes));
        if ids > most || fewest > most {
            return Err(self.too_long(&format!("the prompt has {what} {unit}")));
        }
        Ok(())
    }

    /// `whole`: nothing is to follow the text.
    fn encode(&self, text: &str, parse_special: bool, whole: bool) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        self.size(text.len(), 0)?;
        match whole {
            true => tokenizer.encode_whole(text, parse_special),
            false => tokenizer.encode(text, true, parse_special),
        }
    }

    fn too_long(&self, what: &str) -> Error {
        let (limit, more) = (self.max_sequence, if self.new_tokens > 0 { " and a new token" } else { "" });
        Error::new(Status::TooLong, format!("{what}; max_sequence_length = {limit} has to hold it{more}"))
    }

    fn check_ids(&self, what: &str, ids: &[u32]) -> Result<()> {
        match ids.iter().position(|&id| id as usize >= self.vocab_size) {
            None => Ok(()),
            Some(at) => Err(Error::invalid(format!(
                "token id {} at index {at} of {what} is out of range: the vocabulary has {}",
                ids[at], self.vocab_size
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::api::EmbeddingParams;
    use super::*;
    use crate::base::Bytes;
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
            limits.prompt_ids(&RequestParams { prompt, embedding, ..Default::default() })
        };
        let text = |text: &'static str| Prompt::Text(text.into());
        let embedding = || Some(EmbeddingParams::default());
        assert_eq!(ids(text("a"), None).unwrap(), [1, 3, 4]);
        assert_eq!(ids(text("a"), embedding()).unwrap(), [1, 3, 4, 2]);
        assert_eq!(ids(Prompt::Tokens(vec![4].into()), embedding()).unwrap(), [4]);
        // What stands behind a text counts.
        assert_eq!(ids(text("aa"), None).unwrap().len(), 4);
        assert_eq!(ids(text("aa"), embedding()).unwrap_err().status, Status::TooLong);
    }
}
