//! The expected output of a request, by the echo model's rule alone, and its actual output.

use super::pictures::{ids, seen};
use super::setting::HIDDEN;
use crate::base::Status;
use crate::engine::api::{EmbeddingParams, Event, FinishReason, Pooling, RequestParams, Speculation, Usage};
use crate::sample::{Known, Sampler, SamplerState, SamplingParams};
use crate::schedule::MAX_DRAFT;
use std::borrow::Cow;

const VOCAB: usize = 258;
const END: u32 = 256;
pub const SEPARATOR: u32 = 257;
const PEAK: f32 = 10.0;

/// The complete output of a request if nothing disturbs it.
#[derive(Clone, Debug, Default)]
pub struct Alone {
    pub tokens: Vec<u32>,
    pub text: String,
    pub finish: FinishReason,
    pub stop: Option<u32>,
    pub embedding: Vec<f32>,
}

/// The token after `known`: the model repeats the text before the last separator, with an end token after each
/// repetition.
fn next(known: &[u32]) -> u32 {
    let Some(s) = known.iter().rposition(|&token| token == SEPARATOR) else { return known[known.len() - 1] };
    let at = (known.len() - 1 - s) % (s + 1);
    if at == s { END } else { known[at] }
}

/// The text of `tokens` that later tokens cannot change. `last`: no tokens follow, so it is the whole text.
fn text(tokens: &[u32], last: bool) -> String {
    let bytes: Vec<u8> = tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
    let mut text = String::new();
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        let open = chunks.peek().is_none()
            && std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
        if !chunk.invalid().is_empty() && (last || !open) {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

/// Start and index of the stop string that is complete first; the longest if several are.
fn stop_string(text: &str, stops: &[Cow<str>]) -> Option<(usize, usize)> {
    (1..=text.len()).find_map(|end| {
        let ends = |stop: &&Cow<str>| text.as_bytes()[..end].ends_with(stop.as_bytes());
        let longest = stops.iter().filter(ends).map(|stop| stop.len()).max()?;
        let which = stops.iter().position(|stop| stop.len() == longest && ends(&stop))?;
        Some((end - longest, which))
    })
}

pub fn alone(params: &RequestParams, max_new: usize, sampler: &mut Sampler) -> Alone {
    let (placed, mut known) = (ids(params), seen(params));
    if let Some(embedding) = &params.embedding {
        return Alone {
            finish: FinishReason::Embedding,
            embedding: pooled(&known, embedding),
            ..Alone::default()
        };
    }
    let prompt = known.len();
    let mut end = Alone::default();
    let mut state = SamplerState::new(&params.sampling).unwrap();
    let mut logits = [0.0; VOCAB];
    while end.finish == FinishReason::None {
        let mut token = next(&known);
        if params.sampling.temperature > 0.0 {
            logits[token as usize] = PEAK;
            let known = Known { prompt: &placed, output: &known[prompt..], ends: &[], ..Default::default() };
            let drawn = sampler.sample(&params.sampling, &mut state, &mut logits, &known, &mut Vec::new());
            logits[token as usize] = 0.0;
            token = drawn.unwrap();
        }
        known.push(token);
        let output = &known[prompt..];
        let stop = params.stop_tokens.iter().position(|&stop| stop == token);
        if stop.is_some() || token == END && !params.ignore_eos {
            (end.finish, end.stop) = (FinishReason::Stop, stop.map(|at| at as u32));
            end.text = text(&output[..output.len() - 1], true);
        } else {
            let last = output.len() == max_new;
            if last {
                end.finish = FinishReason::Length;
            }
            if last || !params.stop_strings.is_empty() {
                end.text = text(output, last);
            }
        }
        // The text that was certain before contains no stop string.
        if let Some((start, which)) = stop_string(&end.text, &params.stop_strings) {
            end.text.truncate(start);
            (end.finish, end.stop) = (FinishReason::StopString, Some(which as u32));
        }
    }
    end.tokens = known.split_off(prompt);
    end
}

fn pooled(prompt: &[u32], params: &EmbeddingParams) -> Vec<f32> {
    let rows = match params.pooling.unwrap_or(Pooling::Mean) {
        Pooling::Mean => prompt,
        Pooling::First => &prompt[..1],
        Pooling::Last => &prompt[prompt.len() - 1..],
    };
    let mut sum = [0.0; HIDDEN];
    rows.iter().for_each(|&token| sum[token as usize % HIDDEN] += 1.0 / rows.len() as f64);
    let length =
        if params.normalize != Some(false) { sum.iter().map(|x| x * x).sum::<f64>().sqrt() } else { 1.0 };
    sum.iter().map(|x| (x / length) as f32).collect()
}

/// The host's record of an accepted request.
#[derive(Debug)]
pub struct Asked {
    pub params: RequestParams<'static>,
    pub alone: Alone,
    /// The replica that was chosen at submit.
    pub replica: usize,
    /// 0: none.
    pub deadline: u64,
    pub queue_deadline: u64,
    /// Its end was requested.
    pub told: bool,
    pub finish: FinishReason,
    pub tokens: Vec<u32>,
    pub text: String,
    logprobs: usize,
    /// Leases that the host holds, and those that it gave back.
    pub leases: Vec<u64>,
    pub given: Vec<u64>,
}

impl Asked {
    pub fn new(
        params: RequestParams<'static>,
        alone: Alone,
        replica: usize,
        deadline: u64,
        queue_deadline: u64,
    ) -> Self {
        Self {
            params,
            alone,
            replica,
            deadline,
            queue_deadline,
            told: false,
            finish: FinishReason::None,
            tokens: Vec::new(),
            text: String::new(),
            logprobs: 0,
            leases: Vec::new(),
            given: Vec::new(),
        }
    }

    /// Takes the next event, at `now`. `lossy`: memory was refused in this world, perhaps for the last text.
    pub fn take(&mut self, event: &Event, now: u64, lossy: bool) {
        assert_eq!(self.finish, FinishReason::None, "an event behind the last: {event:?}");
        assert_eq!(event.user_data, self.params.user_data, "another request's event: {event:?}");
        assert!(self.params.stream || event.finish != FinishReason::None, "{event:?} streams");
        self.tokens.extend(&event.tokens);
        self.text.push_str(&event.text);
        self.logprobs += event.logprobs.len();
        let Usage { generated_tokens, drafted_tokens, accepted_tokens, .. } = event.usage;
        assert!(accepted_tokens <= drafted_tokens && accepted_tokens <= generated_tokens, "{event:?}");
        // The draft model is the model itself, so its drafts are wrong only if tokens are drawn at random, after an
        // output's end, or behind pictures, which it does not see.
        let plain = self.params.sampling == SamplingParams::default() && self.params.pictures.is_empty();
        if self.params.speculation == Some(Speculation::Model) && plain {
            assert!(drafted_tokens - accepted_tokens <= MAX_DRAFT as u32, "{event:?}");
        }
        self.finish = event.finish;
        let per_token = event.logprobs_per_token as usize;
        assert_eq!(self.logprobs, self.tokens.len() * per_token, "{event:?}");
        // If memory is refused, output may be lost.
        if event.status == Status::OutOfMemory {
            return;
        }
        let (echo, output) = self.output(lossy && event.status != Status::Ok);
        assert!(self.alone.tokens.starts_with(output), "{output:?} of {self:?}");
        match event.finish {
            FinishReason::None => {
                let all = echo + &text(output, true);
                assert!(all.starts_with(&self.text), "{:?} of {all:?}", self.text);
            }
            FinishReason::Stop
            | FinishReason::StopString
            | FinishReason::Length
            | FinishReason::Embedding => self.check_whole(event, &echo, output),
            FinishReason::Cancelled | FinishReason::TimedOut | FinishReason::Failed => {
                assert_eq!(event.usage.generated_tokens as usize, output.len(), "{event:?}");
                let all = echo + &text(output, true);
                let cut = lossy || !self.params.stop_strings.is_empty();
                let right = if cut { all.starts_with(&self.text) } else { self.text == all };
                assert!(right, "{:?} of {all:?}", self.text);
                self.check_why(event, now);
            }
        }
    }

    /// The text of an echoed prompt, and the output after it.
    fn output(&self, lossy: bool) -> (String, &[u32]) {
        let prompt = ids(&self.params);
        match self.params.echo_prompt && !(lossy && self.tokens.is_empty()) {
            true => {
                assert!(self.tokens.starts_with(&prompt), "{:?} echoes {prompt:?}", self.tokens);
                (text(&prompt, true), &self.tokens[prompt.len()..])
            }
            false => (String::new(), &self.tokens),
        }
    }

    /// Checks a request that ended by its own rules.
    fn check_whole(&self, event: &Event, echo: &str, output: &[u32]) {
        let alone = &self.alone;
        assert_eq!((event.finish, event.stop), (alone.finish, alone.stop), "{self:?}");
        assert_eq!(output, alone.tokens, "{self:?}");
        assert_eq!(self.text, echo.to_owned() + &alone.text, "{self:?}");
        assert_eq!((event.status, event.message.as_str()), (Status::Ok, ""));
        let vector = event.embedding.as_ref().map_or(&[][..], |embedding| &embedding.values);
        assert_eq!(vector.len(), alone.embedding.len());
        let near = vector.iter().zip(&alone.embedding).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near, "{vector:?} instead of {:?}", alone.embedding);
    }

    /// Checks the reason of a request that was ended from outside.
    fn check_why(&self, event: &Event, now: u64) {
        let passed = |deadline: u64| deadline > 0 && deadline <= now;
        let says = |what| event.message.contains(what);
        let right = match event.finish {
            FinishReason::Cancelled if says("max_unread_bytes") => self.params.end_unread,
            FinishReason::Cancelled => self.told,
            FinishReason::TimedOut if says("given up") => {
                self.params.drop_late && event.usage.generated_tokens == 0
            }
            FinishReason::TimedOut if says("admitted") => passed(self.queue_deadline),
            FinishReason::TimedOut => passed(self.deadline),
            _ => ["fault", "NaN", "infinity", "died", "dies"].into_iter().any(says),
        };
        assert!(right, "{event:?} at {now} of {self:?}");
    }
}
