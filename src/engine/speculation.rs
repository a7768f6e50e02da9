//! Drafts of a request: tokens that may come next, which a step verifies together.

use super::api::{EngineConfig, RequestParams, Speculation};
use super::lookup::{Chances, Lookup, Text};
use crate::base::{Error, Result};
use crate::sample::{Dry, SamplerState, SamplingParams};
use crate::schedule::{MAX_DRAFT, Offer};

/// How an engine's requests draft that do not say.
pub struct Speculating {
    how: Speculation,
    most: u32,
    has_model: bool,
}

impl Speculating {
    pub fn new(config: &EngineConfig) -> Self {
        let most = if config.draft_tokens == 0 { MAX_DRAFT as u32 } else { config.draft_tokens };
        Self { how: config.speculates(), most, has_model: config.draft_model.is_some() }
    }

    /// Sets what `params` leave open.
    pub fn apply(&self, params: &mut RequestParams) -> Result<()> {
        if *params.speculation.get_or_insert(self.how) == Speculation::Model && !self.has_model {
            return Err(no_model());
        }
        if params.draft_tokens == 0 {
            params.draft_tokens = self.most;
        }
        Ok(())
    }
}

pub fn no_model() -> Error {
    Error::invalid("speculation is BN_SPECULATION_DRAFT, and the engine has no draft_model")
}

/// How likely drafts stand, as requests that ended have shown.
#[derive(Clone, Copy, Default)]
pub struct Learned {
    lookup: Chances,
    model: Rate,
}

impl Learned {
    /// Takes in what a request has seen that began with this.
    pub fn learn(&mut self, drafts: &Drafts) {
        match &drafts.source {
            Source::Lookup(lookup) => self.lookup.learn(&lookup.chances),
            Source::Model(model) => self.model.learn(&model.rate),
        }
    }
}

/// How likely a draft model's token is right behind right ones.
#[derive(Clone, Copy)]
struct Rate {
    right: f32,
    tokens: u32,
}

/// While nothing is known.
const FIRST_RATE: f32 = 0.7;
/// Weight of the newest token; of the first ones more, as what others have shown counts as `KNOWN` tokens.
const NEW: f32 = 1.0 / 64.0;
const KNOWN: f32 = 16.0;
/// Tokens from which on a request has something to say.
const ENOUGH: u32 = 8;
/// With each step without drafts, a rate goes back so far to the first one: only drafts tell what they are worth now.
const FORGET: f32 = 1.0 / 2048.0;

impl Default for Rate {
    fn default() -> Self {
        Self { right: FIRST_RATE, tokens: 0 }
    }
}

impl Rate {
    fn see(&mut self, right: bool) {
        self.tokens += 1;
        let new = NEW.max(1.0 / (KNOWN + self.tokens as f32));
        self.right += new * (f32::from(u8::from(right)) - self.right);
    }

    fn learn(&mut self, seen: &Self) {
        if seen.tokens >= ENOUGH {
            self.right += (seen.right - self.right) / 2.0;
        }
    }
}

/// A draft model's tokens: what it would say with the request's own sampling, and its random numbers.
struct ModelDrafts {
    sampling: SamplingParams,
    sampler: SamplerState,
    rate: Rate,
}

enum Source {
    Lookup(Lookup),
    Model(ModelDrafts),
}

/// What a request drafts, and what became of it.
pub struct Drafts {
    source: Source,
    /// In one step.
    most: u32,
    tokens: [u32; MAX_DRAFT],
    count: u32,
    pub drafted: u32,
    pub accepted: u32,
}

impl Drafts {
    /// None for a request that is not to draft, or never could. Its `speculation` and `draft_tokens` are set.
    pub fn new(params: &RequestParams, prompt: usize, max_new: u32) -> Result<Option<Box<Self>>> {
        if !wanted(params, max_new) {
            return Ok(None);
        }
        let source = match params.speculation {
            Some(Speculation::Model) => Source::Model(ModelDrafts::new(&params.sampling)?),
            _ => Source::Lookup(Lookup::new(prompt, max_new as usize)),
        };
        let (most, tokens) = (params.draft_tokens, [0; MAX_DRAFT]);
        Ok(Some(Box::new(Self { source, most, tokens, count: 0, drafted: 0, accepted: 0 })))
    }

    /// Bytes that `new` for such a request takes.
    pub fn bytes(params: &RequestParams, prompt: usize, max_new: u32) -> u64 {
        let own = match params.speculation {
            Some(Speculation::Model) => params.sampling.bytes(),
            _ => Lookup::bytes(prompt, max_new as usize),
        };
        if wanted(params, max_new) { (size_of::<Self>() + own) as u64 } else { 0 }
    }

    /// Begins with what others have shown.
    pub fn begin(&mut self, learned: &Learned) {
        match &mut self.source {
            Source::Lookup(lookup) => lookup.chances = learned.lookup,
            Source::Model(model) => model.rate = Rate { tokens: 0, ..learned.model },
        }
    }

    /// Tokens of a step, at most.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Takes in the tokens that came.
    pub fn read(&mut self, text: Text) {
        if let Source::Lookup(lookup) = &mut self.source {
            lookup.read(text);
        }
    }

    /// What it could draft for entry `at` of a plan, at most `room` tokens.
    pub fn offer(&self, at: usize, room: u32) -> Offer {
        let mut offer = Offer { at, most: self.most.min(room), ..Offer::default() };
        match &self.source {
            Source::Lookup(lookup) => lookup.stands(&mut offer.stands),
            Source::Model(model) => {
                offer.by_model = true;
                offer.stands = std::array::from_fn(|n| model.rate.right.powi(n as i32 + 1));
            }
        }
        offer
    }

    /// Looks the next `count` tokens up; those of a model come one by one.
    pub fn draft(&mut self, text: Text, count: u32) {
        self.count = 0;
        if let Source::Lookup(lookup) = &mut self.source {
            self.count = count;
            lookup.draft(text, &mut self.tokens[..count as usize]);
        }
    }

    /// How a draft model's tokens are sampled, and what that remembers; None where none drafts.
    pub fn sampling(&mut self) -> Option<(&SamplingParams, &mut SamplerState)> {
        match &mut self.source {
            Source::Lookup(_) => None,
            Source::Model(model) => Some((&model.sampling, &mut model.sampler)),
        }
    }

    /// One more token.
    pub fn push(&mut self, token: u32) {
        self.tokens[self.count as usize] = token;
        self.count += 1;
    }

    /// Those of this step.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.count as usize]
    }

    /// So many were verified, and so many of them were what was sampled; `ended`: the output ended with the last of these,
    /// or the token behind.
    pub fn verified(&mut self, drafted: u32, accepted: u32, ended: bool) {
        self.drafted += drafted;
        self.accepted += accepted;
        if let Source::Model(ModelDrafts { rate, .. }) = &mut self.source {
            match drafted {
                0 => rate.right += FORGET * (FIRST_RATE - rate.right),
                _ => (0..drafted.min(accepted + u32::from(!ended))).for_each(|n| rate.see(n < accepted)),
            }
        }
    }
}

impl ModelDrafts {
    /// DRY's breakers are left to the model whose token counts, and a draft has no log probabilities.
    fn new(params: &SamplingParams) -> Result<Self> {
        let mut sampling = params.clone();
        (sampling.dry, sampling.logprobs, sampling.chain_logprobs) = (Dry::default(), false, false);
        sampling.top_logprobs = 0;
        sampling.logprob_tokens.clear();
        let sampler = SamplerState::new(&sampling)?;
        Ok(Self { sampling, sampler, rate: Rate::default() })
    }
}

fn wanted(params: &RequestParams, max_new: u32) -> bool {
    params.speculation != Some(Speculation::Off) && params.embedding.is_none() && max_new > LEAST_OUTPUT
}

/// With its first tokens a request has nothing to draft, and with its last no room.
const LEAST_OUTPUT: u32 = 2;
