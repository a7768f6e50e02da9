//! Drafts of a request: tokens that may come next, which a step verifies together.

use super::api::{EngineConfig, RequestParams, Speculation};
use super::lookup::{Chances, Lookup, Text};
use crate::schedule::{MAX_DRAFT, Offer};

/// How an engine's requests draft that do not say.
pub struct Speculating {
    how: Speculation,
    most: u32,
}

impl Speculating {
    pub fn new(config: &EngineConfig) -> Self {
        let most = if config.draft_tokens == 0 { MAX_DRAFT as u32 } else { config.draft_tokens };
        Self { how: config.speculation, most }
    }

    /// Sets what `params` leave open.
    pub fn apply(&self, params: &mut RequestParams) {
        params.speculation.get_or_insert(self.how);
        if params.draft_tokens == 0 {
            params.draft_tokens = self.most;
        }
    }
}

/// What a request drafts, and what became of it.
pub struct Drafts {
    lookup: Lookup,
    /// In one step.
    most: u32,
    tokens: [u32; MAX_DRAFT],
    count: u32,
    pub drafted: u32,
    pub accepted: u32,
}

impl Drafts {
    /// None for a request that is not to draft, or never could. Its `speculation` and `draft_tokens` are set.
    pub fn new(params: &RequestParams, prompt: usize, max_new: u32) -> Option<Box<Self>> {
        wanted(params, max_new).then(|| {
            Box::new(Self {
                lookup: Lookup::new(prompt, max_new as usize),
                most: params.draft_tokens,
                tokens: [0; MAX_DRAFT],
                count: 0,
                drafted: 0,
                accepted: 0,
            })
        })
    }

    /// Bytes that `new` for such a request takes.
    pub fn bytes(params: &RequestParams, prompt: usize, max_new: u32) -> u64 {
        let bytes = size_of::<Self>() + Lookup::bytes(prompt, max_new as usize);
        if wanted(params, max_new) { bytes as u64 } else { 0 }
    }

    /// How likely its drafts stand.
    pub fn chances(&mut self) -> &mut Chances {
        &mut self.lookup.chances
    }

    /// Takes in the tokens that came.
    pub fn read(&mut self, text: Text) {
        self.lookup.read(text);
    }

    /// What it could draft for entry `at` of a plan, at most `room` tokens.
    pub fn offer(&self, at: usize, room: u32) -> Offer {
        let mut offer = Offer { at, most: self.most.min(room), ..Offer::default() };
        self.lookup.stands(&mut offer.stands);
        offer
    }

    /// Drafts the next `count` tokens.
    pub fn draft(&mut self, text: Text, count: u32) {
        self.count = count;
        self.lookup.draft(text, &mut self.tokens[..count as usize]);
    }

    /// Those of this step.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.count as usize]
    }

    /// So many were verified, and so many of them were what was sampled.
    pub fn verified(&mut self, drafted: u32, accepted: u32) {
        self.drafted += drafted;
        self.accepted += accepted;
    }
}

fn wanted(params: &RequestParams, max_new: u32) -> bool {
    params.speculation == Some(Speculation::Lookup) && params.embedding.is_none() && max_new > LEAST_OUTPUT
}

/// With its first tokens a request has nothing to draft, and with its last no room.
const LEAST_OUTPUT: u32 = 2;
