//! Checks a request against the engine's limits, and makes the tokens of its prompt.

use super::config::{draft_tokens, session_name};
use crate::base::{Error, Result, Status, reserve};
use crate::constrain::Constraint;
use crate::engine::api::{Prompt, RequestParams, ScoreParams};
use crate::engine::request::answer::Answer;
use crate::engine::request::decision::Decider;
use crate::engine::request::eyes::Eyes;
use crate::engine::request::pictures::Pictures;
use crate::engine::request::thinking::Bound;
use crate::sample::SamplingParams;
use crate::text::chat::{ToolChoice, no_template, pair};
use crate::text::reply::{Advice, Reply, ReplyParts, grammar};
use crate::text::{Chat, ChatTemplate, Message, Tokenizer};
use xxhash_rust::xxh64::Xxh64;

/// Maximum length of a bad word in bytes.
const MAX_BAD_WORD: usize = 1024;

/// A prompt as tokens, with the parser and the grammar of its output.
#[derive(Default)]
pub(super) struct Prompted {
    pub ids: Vec<u32>,
    /// Some: the output is parsed.
    pub answer: Option<Answer>,
    /// Grammar that the output must match, in Lark, and a looser one if that cannot be compiled.
    pub grammar: Option<String>,
    pub looser: Option<String>,
    /// See `Sequence::second`.
    pub second: Option<u32>,
    /// Some: the pictures in `ids`.
    pub pictures: Option<Pictures>,
    /// Some: the request's questions, which begin with `ids`.
    pub decider: Option<Box<Decider>>,
}

/// The limits that a request is checked against.
pub(super) struct RequestLimits<'a> {
    pub vocab_size: usize,
    /// 0: the model has no hidden states to pool.
    pub hidden_size: usize,
    pub max_sequence: usize,
    /// Some: the model is an encoder, which runs a prompt in one step, of at most this many tokens.
    pub whole: Option<usize>,
    /// The model scores pairs of texts.
    pub scores: bool,
    /// Number of new tokens that a request needs room for after its prompt: 1, or 0 if it generates nothing.
    pub new_tokens: usize,
    pub tokenizer: Option<&'a Tokenizer>,
    pub chat: Option<&'a ChatTemplate>,
    /// The template for the prompt of a pair of texts, if the tokenizer does not combine them.
    pub pair: Option<&'a ChatTemplate>,
    /// Bytes that all requests may take together.
    pub room: u64,
    /// None: it sees no pictures.
    pub eyes: Option<&'a Eyes>,
    /// When the request's time is up: it waits no longer for its pictures.
    pub until_ns: u64,
}

impl RequestLimits<'_> {
    /// Checks all of `params` except whether the queue has room, and returns the prompt.
    pub(super) fn prompt(&self, params: &RequestParams) -> Result<Prompted> {
        params.session.as_deref().map_or(Ok(()), session_name)?;
        draft_tokens(params.draft_tokens)?;
        if params.session.is_some() && !params.cache {
            return Err(Error::invalid("session is set, and BN_REQUEST_NO_CACHE leaves nothing to keep"));
        }
        match params.embedding {
            Some(_) => self.embedding(params)?,
            None if self.whole.is_some() => {
                let makes = if self.scores { "embeddings and scores" } else { "embeddings" };
                return Err(Error::unsupported(format!(
                    "the model is an encoder: it makes {makes}, and generates nothing"
                )));
            }
            None if params.questions.is_some() => {
                quiet(params, "decisions", &[("session", params.session.is_some())])?;
            }
            None => self.generation(params)?,
        }
        if params.parse_output && !matches!(params.prompt, Prompt::ChatJson(_)) {
            return Err(Error::invalid("BN_REQUEST_PARSE_OUTPUT is set and needs chat.json"));
        }
        if params.max_reasoning_tokens < u64::MAX && !params.parse_output {
            return Err(Error::invalid("max_reasoning_tokens is set and needs BN_REQUEST_PARSE_OUTPUT"));
        }
        if let Some(questions) = &params.questions {
            return self.questions(params, questions);
        }
        let (pictures, mut spread) = match &params.prompt {
            Prompt::ChatJson(_) | Prompt::Pair(..) => (Vec::new(), false),
            _ => (self.seen(params, &[])?, false),
        };
        let ids = match &params.prompt {
            Prompt::Tokens(ids) => self.given(ids)?,
            Prompt::Text(text) => {
                let (ids, made) = self.encode_seen(text, params, &pictures)?;
                spread = made;
                ids
            }
            Prompt::Chat(messages) if params.scores_pair() => self.judged(messages)?,
            Prompt::Chat(messages) => self.conversation(messages)?,
            Prompt::Pair(first, second) => {
                if !params.pictures.is_empty() {
                    return Err(Error::invalid(
                        "pictures are set, and a pair of texts has no place for them",
                    ));
                }
                return self.pair(params, first, second).and_then(|made| self.checked(made));
            }
            Prompt::ChatJson(source) => return self.chat(source, params).and_then(|made| self.checked(made)),
        };
        let (ids, pictures) = self.placed(ids, pictures, spread)?;
        if let Some(scores) = params.scores.filter(|scores| scores.from as usize >= ids.len().max(1)) {
            let (from, n) = (scores.from, ids.len());
            return Err(Error::invalid(format!(
                "logprobs_from = {from} lies beyond the prompt's {n} tokens"
            )));
        }
        self.checked(Prompted { ids, pictures, ..Prompted::default() })
    }

    /// The tokens of a pair of texts to score.
    fn pair(&self, params: &RequestParams, first: &str, second: &str) -> Result<Prompted> {
        if !params.scores_pair() {
            return Err(Error::invalid("a pair of texts is given, and only a score takes one"));
        }
        if self.pair.is_some() {
            let messages = [(pair::ROLES[1], first), (pair::ROLES[2], second)];
            let ids = self.judged(&messages.map(|(role, content)| Message { role, content }))?;
            return Ok(Prompted { ids, ..Prompted::default() });
        }
        let tokenizer = self.tokenizer()?;
        self.fit_by_size(tokenizer, &[first, second])?;
        let (ids, second) = tokenizer.encode_pair(first, second)?;
        Ok(Prompted { ids, second, ..Prompted::default() })
    }

    /// Renders a pair with the model's own prompt, or with the caller's instruction, and tokenizes it.
    fn judged(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let Some(template) = self.pair else {
            let why = "the model's files have no prompt for pairs; pass prompt and document";
            return Err(Error::unsupported(format!("messages are set, and {why}")));
        };
        let roles: Vec<&str> = messages.iter().map(|message| message.role).collect();
        if roles != pair::ROLES && roles != pair::ROLES[1..] {
            let why = "the roles of a pair's messages are query and document, optionally after system";
            return Err(Error::invalid(why));
        }
        let texts: Vec<&str> = messages.iter().map(|message| message.content).collect();
        let tokenizer = self.tokenizer()?;
        self.fit_by_size(tokenizer, &texts)?;
        tokenizer.encode_chat(&template.render(messages, true)?)
    }

    fn checked(&self, made: Prompted) -> Result<Prompted> {
        match made.ids.len() {
            0 => Err(Error::invalid("the prompt is empty")),
            n => self.fits(n, n, "tokens").map(|()| made),
        }
    }

    /// Returns a checked copy of the caller's own ids.
    pub(super) fn given(&self, ids: &[u32]) -> Result<Vec<u32>> {
        self.fits(ids.len(), ids.len(), "tokens")?;
        self.check_ids("the prompt", ids.iter().copied())?;
        let mut copy = Vec::new();
        reserve(&mut copy, ids.len(), "a prompt")?;
        copy.extend_from_slice(ids);
        Ok(copy)
    }

    /// Renders a conversation with the model's chat template and tokenizes it.
    pub(super) fn conversation(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self.chat.ok_or_else(no_template)?;
        let text = template.render(messages, true)?;
        self.tokenizer()?.encode_chat(&text)
    }

    /// Renders a conversation with the model's chat template, and tokenizes it.
    fn chat(&self, source: &str, params: &RequestParams) -> Result<Prompted> {
        let template = self.chat.ok_or_else(no_template)?;
        let chat = Chat::parse(source)?;
        let made = template.render_chat(&chat)?;
        let tokenizer = self.tokenizer()?;
        let pictures = self.seen(params, &chat.pictures)?;
        let ids = tokenizer.encode_chat(&*self.spread(&made, &pictures)?)?;
        let (ids, pictures) = self.placed(ids, pictures, true)?;
        let mut parts = ReplyParts::of(&chat, template, &made.text)?;
        parts.seed = seed(&ids, params.sampling.seed);
        let control = |mark: &str| tokenizer.control_token(mark);
        let schema = params.constraint.as_ref().and_then(Constraint::schema);
        let must = matches!(chat.choice, ToolChoice::Required | ToolChoice::Named(_));
        let written = |advice| grammar(&chat, &parts, schema, advice, &control);
        let advised = must && chat.tools().any(|tool| !tool.strict && tool.parameters.is_some());
        let looser = if advised { written(Advice::Left)? } else { None };
        let grammar = written(Advice::Taken)?;
        if grammar.is_some() && params.constraint.is_some() && (must || schema.is_none()) {
            return Err(Error::invalid("constraint is set, and chat.json asks for calls: a request has one"));
        }
        if params.parse_output {
            parts.check(&chat)?;
        }
        let bound = match parts.thoughts.filter(|_| params.max_reasoning_tokens < u64::MAX) {
            Some(tags) => {
                let close = tokenizer.encode(&tags.ending(), false, true)?;
                Some(Bound::new(params.max_reasoning_tokens, close))
            }
            None => None,
        };
        let reply = params.parse_output.then(|| Reply::new(parts, &|mark| control(mark).is_some()));
        let answer = reply.map(|reply| Answer::new(reply, bound));
        Ok(Prompted { ids, answer, grammar, looser, pictures, ..Prompted::default() })
    }

    pub(super) fn tokenizer(&self) -> Result<&Tokenizer> {
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
    pub(super) fn bad_words(&self, params: &RequestParams) -> Result<Vec<Vec<u32>>> {
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
    pub(super) fn embedding_size(&self) -> Result<usize> {
        match self.hidden_size {
            0 => Err(Error::unsupported("the model has no hidden states to make an embedding of")),
            size => Ok(size),
        }
    }

    /// Options of the output have no meaning for an embedding. If one is set, the error names it.
    fn embedding(&self, params: &RequestParams) -> Result<()> {
        self.embedding_size()?;
        let scores = params.scores_pair();
        if scores {
            if !self.scores {
                return Err(Error::unsupported("the model has no head that scores pairs of texts"));
            }
            if !matches!(params.prompt, Prompt::Pair(..) | Prompt::Tokens(_) | Prompt::Chat(_)) {
                return Err(Error::invalid("a score is of a pair of texts, a query and a document"));
            }
        }
        if self.whole.is_some() && params.session.is_some() {
            return Err(Error::unsupported("session is set, and an encoder keeps nothing of a text"));
        }
        let messages = matches!(params.prompt, Prompt::Chat(_)) && !scores;
        let json = matches!(params.prompt, Prompt::ChatJson(_));
        quiet(params, "an embedding", &[("messages", messages), ("chat.json", json)])
    }

    /// Refuses texts that are too long together by their bytes alone, without tokenizing them.
    fn fit_by_size(&self, tokenizer: &Tokenizer, texts: &[&str]) -> Result<()> {
        let tokens = texts.iter().map(|text| tokenizer.fewest_tokens(text)).sum();
        self.fits(tokens, texts.iter().map(|text| text.len()).sum(), "bytes")
    }

    /// Tokenizes a text. `whole`: nothing follows it.
    pub(super) fn encode(&self, text: &str, parse_special: bool, whole: bool) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        self.fit_by_size(tokenizer, &[text])?;
        let ids = match whole {
            true => tokenizer.encode_whole(text, parse_special)?,
            false => tokenizer.encode(text, true, parse_special)?,
        };
        self.fits(ids.len(), ids.len(), "tokens").map(|()| ids)
    }

    /// Checks whether a prompt of `tokens` tokens fits. The error gives its size as `size` `unit`.
    pub(super) fn fits(&self, tokens: usize, size: usize, unit: &str) -> Result<()> {
        if let Some(most) = self.whole.filter(|most| tokens > *most && *most < self.max_sequence) {
            let message = format!(
                "the prompt has {size} {unit}, which an encoder runs in one step; max_batch_tokens = {most} has to hold it"
            );
            return Err(Error::new(Status::TooLong, message));
        }
        if tokens <= self.max_sequence.saturating_sub(self.new_tokens) {
            return Ok(());
        }
        let (limit, more) = (self.max_sequence, if self.new_tokens > 0 { " and a new token" } else { "" });
        let message =
            format!("the prompt has {size} {unit}; the context of {limit} tokens has to hold it{more}");
        Err(Error::new(Status::TooLong, message))
    }

    pub(super) fn check_ids(&self, what: &str, ids: impl IntoIterator<Item = u32>) -> Result<()> {
        match ids.into_iter().enumerate().find(|(_, id)| *id as usize >= self.vocab_size) {
            None => Ok(()),
            Some((at, id)) => Err(Error::invalid(format!(
                "token id {id} at index {at} of {what} is out of range: the vocabulary has {}",
                self.vocab_size
            ))),
        }
    }
}

/// Options of the output have no meaning for a request for `what`, which generates nothing. If one of them or `more` is
/// set, the error names it.
pub(super) fn quiet(params: &RequestParams, what: &str, more: &[(&'static str, bool)]) -> Result<()> {
    let set = [
        ("stop_tokens", !params.stop_tokens.is_empty()),
        ("stop_strings", !params.stop_strings.is_empty()),
        ("BN_REQUEST_IGNORE_EOS", params.ignore_eos),
        ("BN_REQUEST_ECHO_PROMPT", params.echo_prompt),
        ("bad_words", !params.bad_words.is_empty()),
        ("constraint", params.constraint.is_some()),
        ("on_logits", params.on_logits.is_some()),
        ("BN_TASK_SCORE or BN_REQUEST_PROMPT_LOGPROBS", params.scores.is_some()),
    ];
    let named = more.iter().chain(&set).find(|(_, set)| *set).map(|(name, _)| *name);
    match named.or_else(|| params.sampling.differs_from(&SamplingParams::default())) {
        None => Ok(()),
        Some(name) => {
            Err(Error::invalid(format!("{name} is set, and a request for {what} generates nothing")))
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
        ("chat.json", matches!(params.prompt, Prompt::ChatJson(_))),
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

/// Seed for the ids of calls: the same prompt and seed give the same ids.
fn seed(prompt: &[u32], seed: u64) -> u64 {
    let mut hash = Xxh64::new(seed);
    prompt.iter().for_each(|id| hash.update(&id.to_le_bytes()));
    hash.digest()
}

#[cfg(test)]
mod tests;
