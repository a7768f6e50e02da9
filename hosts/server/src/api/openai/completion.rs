//! POST /v1/completions.
use super::{Common, MOST_ALTERNATIVES, Texts, Writer, finish_name};
use crate::api::infill;
use crate::failure::{Failure, Result};
use crate::fields::{Fields, U32, Whole};
use crate::models::Held;
use crate::request::constraint::Format;
use crate::request::engine::generating;
use crate::request::prompts;
use crate::run::{Api, Call, Generation, Totals};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionFields {
    prompt: Option<Value>,
    max_tokens: Option<Whole<-1, U32>>,
    suffix: Option<String>,
    best_of: Option<Whole<1, 128>>,
    echo: Option<bool>,
    logprobs: Option<Whole<0, MOST_ALTERNATIVES>>,
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    functions: Vec<Value>,
    function_call: Option<Value>,
    parallel_tool_calls: Option<Value>,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Texts>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Value>,
}

pub struct Completion {
    writer: Writer,
    logprobs: bool,
    /// The answer is the prompt alone, whose text is that of its tokens.
    scores: bool,
    samples: usize,
    prompts: usize,
    /// Number of `samples` that are returned; None: all.
    best: Option<usize>,
    /// Characters of text that each request has streamed.
    written: Vec<usize>,
}

/// The fields, and their combined meaning.
struct Asked {
    own: CompletionFields,
    common: Common,
}

impl Asked {
    /// A completion of no tokens is its prompt, with log probabilities if they are asked for.
    fn prompt_alone(&self) -> bool {
        self.own.max_tokens == Some(Whole(0))
    }

    fn n(&self) -> usize {
        self.common.n.map_or(1, |n| n.u32() as usize)
    }

    /// Number of `samples` that are returned, if not all are.
    fn best(&self) -> Option<usize> {
        Some(self.n()).filter(|n| self.samples() > *n)
    }

    fn samples(&self) -> usize {
        self.own.best_of.map_or(self.n(), |best| best.u32() as usize)
    }

    fn streams(&self) -> bool {
        self.common.stream == Some(true)
    }

    /// Whether there is a text after the answer.
    fn fills(&self) -> bool {
        self.own.suffix.as_deref().is_some_and(|suffix| !suffix.is_empty())
    }

    fn check(&self, prompts: &[bn::Prompt]) -> Result<()> {
        let scores = self.common.prompt_logprobs.is_some();
        let texts = prompts.iter().all(|prompt| matches!(prompt, bn::Prompt::Text(_)));
        let wrong = [
            (self.prompt_alone() && self.own.echo != Some(true), "'max_tokens' can be 0 with 'echo' only"),
            (scores && self.streams(), "'prompt_logprobs' cannot be streamed"),
            // Each choice would repeat these.
            (scores && self.n() > 1, "'prompt_logprobs' of a completion needs 'n' to be 1"),
            (self.samples() < self.n(), "'best_of' must not be less than 'n'"),
            (
                self.best().is_some() && (self.streams() || self.prompt_alone() || scores),
                "'best_of' is for whole answers that have tokens of their own",
            ),
            (
                self.fills() && (self.prompt_alone() || !texts),
                "'suffix' needs prompts that are texts, and 'max_tokens' above 0",
            ),
        ];
        match wrong.iter().find(|(wrong, _)| *wrong) {
            Some((_, words)) => Err(Failure::invalid(*words)),
            None => Ok(()),
        }
    }

    fn request(&self, call: &Call, held: &Held, fields: &mut Fields) -> Result<bn::Request> {
        let mut request = generating(call, held, fields, Format::default(), None)?;
        request.stop_strings = prompts::stops("stop", self.common.stop.as_ref())?;
        let most = self.own.max_tokens.map(|most| most.0).or(self.common.max_new_tokens.map(|most| most.0));
        request.max_new_tokens = u32::try_from(most.unwrap_or(16)).unwrap_or(0);
        request.echo_prompt = self.own.echo == Some(true);
        request.logprobs = self.own.logprobs.is_some() || self.best().is_some();
        request.top_logprobs = self.own.logprobs.map_or(0, Whole::u32);
        // As in OpenAI's API, the echoed prompt has log probabilities too.
        request.prompt_logprobs = request.echo_prompt && request.logprobs;
        if self.prompt_alone() {
            return Ok(scoring(&request, request.top_logprobs));
        }
        Ok(request)
    }

    fn generation(&self, held: &Held, request: &bn::Request, given: Vec<bn::Prompt>) -> Result<Generation> {
        let scored = self.common.prompt_logprobs.map(Whole::u32);
        let mut scores = Vec::new();
        if let Some(top) = scored {
            let one = |prompt: &bn::Prompt| bn::Request { prompt: prompt.clone(), ..scoring(request, top) };
            scores.extend(given.iter().map(one));
        }
        let given = match self.own.suffix.as_deref().filter(|suffix| !suffix.is_empty()) {
            Some(suffix) => {
                given.into_iter().map(|p| infill::prompt(held, p, suffix)).collect::<Result<_>>()?
            }
            None => given,
        };
        let mut generation = Generation::samples(request, given, self.samples(), self.streams());
        generation.scores = scores.len();
        generation.requests.append(&mut scores);
        Ok(generation)
    }
}

/// A request for only a prompt's log probabilities, with the engine fields of `request`.
pub fn scoring(request: &bn::Request, top: u32) -> bn::Request {
    bn::Request {
        task: bn::Task::Score { from: 0 },
        prompt: request.prompt.clone(),
        no_cache: request.no_cache,
        drop_late: request.drop_late,
        top_logprobs: top,
        cache_salt: request.cache_salt,
        timeout_ms: request.timeout_ms,
        queue_timeout_ms: request.queue_timeout_ms,
        priority: request.priority,
        ..bn::Request::default()
    }
}

impl Api for Completion {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let asked = Asked { own: fields.take()?, common: fields.take()? };
        for (name, tools) in [("tools", &asked.own.tools), ("functions", &asked.own.functions)] {
            if !tools.is_empty() {
                let words = format!("'{name}' is not supported here: chats take tools");
                return Err(Failure::invalid(words));
            }
        }
        let value = asked.own.prompt.as_ref().ok_or_else(|| Failure::invalid("'prompt' is missing"))?;
        let mut given = prompts::read("prompt", value)?;
        let request = asked.request(call, held, fields)?;
        asked.check(&given)?;
        if !asked.fills() {
            given = given.into_iter().map(|prompt| prompts::begun(held, prompt)).collect();
        }
        let generation = asked.generation(held, &request, given)?;
        let api = Self {
            writer: Writer::new(call, held, &asked.common, "cmpl", "text_completion"),
            logprobs: asked.own.logprobs.is_some(),
            scores: asked.prompt_alone(),
            samples: asked.samples(),
            prompts: (generation.requests.len() - generation.scores) / asked.samples(),
            best: asked.best(),
            written: vec![0; generation.requests.len()],
        };
        Ok((generation, api))
    }

    fn event(&mut self, out: &mut String, at: usize, event: &bn::Event) {
        let news = !event.text.is_empty() || !event.tokens.is_empty() && self.logprobs || self.scores;
        if !news && event.finish.is_none() {
            return;
        }
        let logprobs = self.logprobs_of(&event.logprobs, event.logprobs_per_token, self.written[at]);
        self.written[at] += event.text.chars().count();
        let choice = Choice {
            index: at,
            text: self.text_of(&event.text, &event.tokens),
            logprobs,
            finish_reason: finish_name(event.finish.as_ref()),
            prompt_logprobs: None,
        };
        self.writer.part(out, choice);
    }

    fn failed(&mut self, out: &mut String, _at: usize, failure: &Failure) {
        self.writer.failed(out, failure);
    }

    fn end(&mut self, out: &mut String, totals: &Totals, _failed: bool) {
        self.writer.end(out, totals);
    }

    fn whole(&mut self, mut answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let scores = answers.split_off(self.prompts * self.samples);
        let mut prompts = self.writer.prompt_logprobs(&scores)?.into_iter();
        let mut choices = Vec::new();
        for samples in answers.chunks(self.samples) {
            let prompt = prompts.next();
            for sample in self.chosen(samples) {
                choices.push(Choice {
                    index: choices.len(),
                    text: self.text_of(&sample.text, &sample.tokens),
                    logprobs: self.logprobs_of(&sample.logprobs, sample.logprobs_per_token, 0),
                    finish_reason: finish_name(Some(&sample.finish)),
                    prompt_logprobs: prompt.clone(),
                });
            }
        }
        Ok(self.writer.whole(&choices, None, totals))
    }
}

impl Completion {
    /// A scored prompt's text is only in its tokens.
    fn text_of(&self, text: &str, tokens: &[u32]) -> String {
        if self.scores { self.writer.model.detokenize(tokens).unwrap_or_default() } else { text.to_owned() }
    }

    fn logprobs_of(&self, entries: &[bn::Logprob], per_token: usize, offset: usize) -> Option<Texts> {
        let wanted = self.logprobs && !entries.is_empty();
        wanted.then(|| Texts::new(&self.writer.model, entries, per_token, offset))
    }

    /// The samples of `best_of` with the highest mean log probability, the best first.
    fn chosen<'a>(&self, samples: &'a [bn::Answer]) -> Vec<&'a bn::Answer> {
        let mut chosen: Vec<_> = samples.iter().collect();
        if let Some(best) = self.best {
            chosen.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            chosen.truncate(best);
        }
        chosen
    }
}

fn mean(answer: &bn::Answer) -> f64 {
    let own = answer
        .logprobs
        .iter()
        .step_by(answer.logprobs_per_token.max(1))
        .map(|entry| f64::from(entry.logprob));
    let known: Vec<f64> = own.filter(|value| !value.is_nan()).collect();
    if known.is_empty() { f64::NEG_INFINITY } else { known.iter().sum::<f64>() / known.len() as f64 }
}
