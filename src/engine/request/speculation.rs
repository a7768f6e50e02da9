//! Drafts of a request: likely next tokens that one step verifies together.

use super::lookup::{Chances, Lookup, Text};
use crate::base::{Error, Result};
use crate::engine::api::{EngineConfig, RequestParams, Speculation};
use crate::model::Model;
use crate::sample::{Dry, SamplerState, SamplingParams};
use crate::schedule::{Acceptance, MAX_DRAFT, Offer};

/// Speculation defaults of an engine's requests.
pub(crate) struct Speculating {
    how: Speculation,
    most: u32,
    drafts: bool,
}

impl Speculating {
    pub(crate) fn new(config: &EngineConfig, model: &dyn Model) -> Self {
        let most = if config.draft_tokens == 0 { MAX_DRAFT as u32 } else { config.draft_tokens };
        Self { how: config.speculates(model), most, drafts: config.drafts(model) }
    }

    /// Sets the fields that `params` leave open.
    pub(crate) fn apply(&self, params: &mut RequestParams) -> Result<()> {
        if *params.speculation.get_or_insert(self.how) == Speculation::Model && !self.drafts {
            return Err(no_drafter());
        }
        if params.draft_tokens == 0 {
            params.draft_tokens = self.most;
        }
        Ok(())
    }
}

pub(crate) fn no_drafter() -> Error {
    Error::invalid(
        "speculation is BN_SPECULATION_DRAFT, and the engine has no draft_model, nor a model opened with mtp or \
         drafter_path",
    )
}

/// Likelihood that drafts are accepted, learned from ended requests.
#[derive(Clone, Copy, Default)]
pub(crate) struct Learned {
    lookup: Chances,
    model: Acceptance,
}

impl Learned {
    /// Learns from an ended request.
    pub(crate) fn learn(&mut self, drafts: &Drafts) {
        match &drafts.source {
            Source::Lookup(lookup, _) => self.lookup.learn(&lookup.chances),
            Source::Model(model) => self.model.learn(&model.rate),
        }
    }
}

/// Drafts from a draft model, drawn with the request's own sampling and random numbers.
struct ModelDrafts {
    sampling: SamplingParams,
    sampler: SamplerState,
    rate: Acceptance,
}

enum Source {
    /// Drafts from look-ups; `true`: only as long as they gain.
    Lookup(Lookup, bool),
    Model(Box<ModelDrafts>),
}

/// The drafts of a request, and how many were accepted.
pub(crate) struct Drafts {
    source: Source,
    /// Maximum number of tokens per step.
    most: u32,
    tokens: [u32; MAX_DRAFT],
    count: u32,
    pub drafted: u32,
    pub accepted: u32,
}

impl Drafts {
    /// None for a request that does not draft, or never could. `speculation` and `draft_tokens` must be set.
    pub(crate) fn new(params: &RequestParams, prompt: usize, max_new: u32) -> Result<Option<Box<Self>>> {
        if !wanted(params, max_new) {
            return Ok(None);
        }
        let source = match params.speculation {
            Some(Speculation::Model) => Source::Model(Box::new(ModelDrafts::new(&params.sampling)?)),
            how => Source::Lookup(Lookup::new(prompt, max_new as usize), how == Some(Speculation::Auto)),
        };
        let (most, tokens) = (params.draft_tokens, [0; MAX_DRAFT]);
        Ok(Some(Box::new(Self { source, most, tokens, count: 0, drafted: 0, accepted: 0 })))
    }

    /// Bytes that `new` takes for such a request, with the masks after drafts.
    pub(crate) fn bytes(params: &RequestParams, prompt: usize, max_new: u32, vocab: usize) -> u64 {
        let own = match params.speculation {
            Some(Speculation::Model) => size_of::<ModelDrafts>() + params.sampling.bytes(),
            _ => Lookup::bytes(prompt, max_new as usize),
        };
        let masks = if params.constraint.is_some() { params.draft_tokens as usize } else { 0 };
        let masks = masks.min(MAX_DRAFT).saturating_mul(vocab.div_ceil(8));
        if wanted(params, max_new) { (size_of::<Self>() + own + masks) as u64 } else { 0 }
    }

    /// Starts with the rates learned from other requests.
    pub(crate) fn begin(&mut self, learned: &Learned) {
        match &mut self.source {
            Source::Lookup(lookup, _) => lookup.chances = learned.lookup,
            Source::Model(model) => model.rate = learned.model.of_others(),
        }
    }

    /// Maximum number of drafted tokens per step.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Reads the new tokens of the text.
    pub(crate) fn read(&mut self, text: Text) {
        if let Source::Lookup(lookup, _) = &mut self.source {
            lookup.read(text);
        }
    }

    /// The drafts that it can offer for entry `at` of a plan, at most `room` tokens.
    pub(crate) fn offer(&self, at: usize, room: u32) -> Offer {
        let mut offer = Offer { at, most: self.most.min(room), ..Offer::default() };
        match &self.source {
            Source::Lookup(lookup, auto) => {
                offer.auto = *auto;
                lookup.stands(&mut offer.stands);
            }
            Source::Model(model) => {
                offer.by_model = true;
                offer.stands = model.rate.stands();
            }
        }
        offer
    }

    /// Looks up the next `count` tokens. A model's drafts arrive one by one, through `push`.
    pub(crate) fn draft(&mut self, text: Text, count: u32) {
        self.count = 0;
        if let Source::Lookup(lookup, _) = &mut self.source {
            self.count = count;
            lookup.draft(text, &mut self.tokens[..count as usize]);
        }
    }

    /// Sampling parameters and state for a draft model's tokens; None without a draft model.
    pub(crate) fn sampling(&mut self) -> Option<(&SamplingParams, &mut SamplerState)> {
        match &mut self.source {
            Source::Lookup(..) => None,
            Source::Model(model) => Some((&model.sampling, &mut model.sampler)),
        }
    }

    /// Appends a draft model's token.
    pub(crate) fn push(&mut self, token: u32) {
        self.tokens[self.count as usize] = token;
        self.count += 1;
    }

    /// The drafted tokens of this step.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens[..self.count as usize]
    }

    /// Records that `drafted` tokens were verified, and the first `accepted` of them agreed. `ended`: the output
    /// ended with the last accepted token or the one after it.
    pub(crate) fn verified(&mut self, drafted: u32, accepted: u32, ended: bool) {
        self.drafted += drafted;
        self.accepted += accepted;
        if let Source::Model(model) = &mut self.source {
            model.rate.verified(drafted, accepted, ended);
        }
    }
}

impl ModelDrafts {
    /// Leaves out log probabilities, and DRY, whose breakers only the target model's sampling needs.
    fn new(params: &SamplingParams) -> Result<Self> {
        let mut sampling = params.clone();
        (sampling.dry, sampling.logprobs, sampling.chain_logprobs) = (Dry::default(), false, false);
        sampling.top_logprobs = 0;
        sampling.logprob_tokens.clear();
        let sampler = SamplerState::new(&sampling)?;
        Ok(Self { sampling, sampler, rate: Acceptance::default() })
    }
}

fn wanted(params: &RequestParams, max_new: u32) -> bool {
    params.speculation != Some(Speculation::Off) && params.embedding.is_none() && max_new > LEAST_OUTPUT
}

/// Minimum output length. With its first tokens a request has nothing to draft, and with its last ones no room.
const LEAST_OUTPUT: u32 = 2;
