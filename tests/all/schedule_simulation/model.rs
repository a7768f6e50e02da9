//! The expected behaviour of a request, kept apart from the scheduler.

use crate::common::rng::{Rng, mix};
use bn_engine::cache::ContentId;
use bn_engine::schedule::{Rank, Request, Reuse, SeqId, State, Tokens};
use std::ops::Range;

/// Number of different tokens: few, so that unrelated texts often begin alike.
const VOCAB: u64 = 3;

/// A live request, and the model of its state.
#[derive(Clone, Debug)]
pub struct Live {
    pub request: Request,
    pub rank: Rank,
    /// The prompt and the output that the request computes alone.
    pub whole: Vec<u32>,
    /// Positions of the prompt that run in one step, in ascending order.
    pub units: Vec<Range<u32>>,
    /// The hash before the first token. Different for requests that must not share.
    pub root: u64,
    pub seed: u64,
    /// Number of known tokens: the prompt and the sampled ones.
    pub known: u32,
    /// Number of new tokens after which it ends by itself.
    pub ends_after: u32,
    pub state: State,
    pub computed: u32,
    /// It has computed something.
    pub ran: bool,
    pub since: u64,
    /// Committed steps since its submit, except those in which it was paused, and their maximum.
    pub life: u64,
    pub allowed: u64,
    /// Consecutive plans that did not admit it although it fitted.
    pub fitting: u32,
}

impl Live {
    /// `unique` distinguishes requests that share nothing. `unit`: see `units`.
    pub fn new(
        request: Request,
        rank: Rank,
        (prompt, unit): (&[u32], u32),
        ends_after: u32,
        seed: u64,
        unique: u64,
    ) -> Self {
        let Reuse { shared, salt, .. } = request.reuse;
        let root = mix(if shared { salt } else { unique }, u64::from(shared));
        let (mut whole, mut hash) = (prompt.to_vec(), root);
        for at in 0..prompt.len() + request.max_new as usize {
            if at == whole.len() {
                whole.push(sampled(seed, hash));
            }
            hash = mix(hash, u64::from(whole[at]));
        }
        Self {
            request,
            rank,
            whole,
            units: units(prompt, unit),
            root,
            seed,
            known: request.prompt_len,
            ends_after,
            state: State::Waiting,
            computed: 0,
            ran: false,
            since: request.arrived_ns,
            life: 0,
            allowed: 0,
            fitting: 0,
        }
    }

    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    pub fn decodes(&self) -> bool {
        self.known > self.request.prompt_len && self.computed + 1 == self.known
    }

    /// Maximum number of positions that it computes: the last token needs none.
    pub fn bound(&self) -> u32 {
        self.request.prompt_len + self.request.max_new - 1
    }

    pub fn generated(&self) -> u32 {
        self.known - self.request.prompt_len
    }

    pub fn outranks(&self, other: &Live) -> bool {
        self.rank < other.rank && self.request.priority > other.request.priority
    }

    /// Returns true if `other` may be computing the prefix of this one now.
    pub fn may_follow(&self, other: &Live) -> bool {
        let known = |live: &Live| live.known as usize;
        let common = self.whole[..known(self)].iter().zip(&other.whole[..known(other)]);
        other.is_running()
            && !other.decodes()
            && other.rank < self.rank
            && other.root == self.root
            && common.take_while(|(a, b)| a == b).count() >= 16
    }
}

/// After each 2, 1 in a prompt, `most` positions that run in one step, or fewer at its end.
fn units(prompt: &[u32], most: u32) -> Vec<Range<u32>> {
    let (mut units, len, mut at) = (Vec::new(), prompt.len() as u32, 2);
    while most > 0 && at < len {
        match prompt[at as usize - 2..at as usize] == [2, 1] {
            true => {
                units.push(at..len.min(at + most));
                at += most + 2;
            }
            false => at += 1,
        }
    }
    units
}

/// The token drawn after everything that `hash` covers.
pub fn sampled(seed: u64, hash: u64) -> u32 {
    (mix(seed, hash) % VOCAB) as u32
}

/// All live requests by slot.
pub struct Requests(pub Vec<Option<Live>>);

impl Requests {
    pub fn get(&self, seq: SeqId) -> &Live {
        self.0[seq.0 as usize].as_ref().expect("a live request")
    }

    pub fn get_mut(&mut self, seq: SeqId) -> &mut Live {
        self.0[seq.0 as usize].as_mut().expect("a live request")
    }

    pub fn iter(&self) -> impl Iterator<Item = (SeqId, &Live)> {
        self.0.iter().enumerate().filter_map(|(i, live)| Some((SeqId(i as u32), live.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Live> {
        self.0.iter_mut().flatten()
    }

    /// The sequences in `state`, in order.
    pub fn line(&self, state: State) -> Vec<SeqId> {
        let mut line: Vec<_> = self.iter().filter(|(_, live)| live.state == state).collect();
        line.sort_unstable_by_key(|(_, live)| live.rank);
        line.into_iter().map(|(seq, _)| seq).collect()
    }
}

impl Tokens for Requests {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        let live = self.get(seq);
        assert!(position < live.known, "{seq:?} was asked for the token {position} of {}", live.known);
        let Some(unit) = live.units.iter().find(|unit| unit.contains(&position)) else {
            return live.whole[position as usize].into();
        };
        let contents = &live.whole[unit.start as usize..unit.end as usize];
        let key = contents.iter().fold(contents.len() as u64, |key, token| mix(key, u64::from(*token)));
        ContentId::of_vector(key, position - unit.start)
    }

    fn undivided(&self, seq: SeqId, position: u32) -> Option<Range<u32>> {
        self.get(seq).units.iter().find(|unit| unit.start < position && position < unit.end).cloned()
    }
}

/// Prompts that share prefixes, repeat one another, or continue the texts of earlier requests.
pub struct Prompts {
    bases: Vec<Vec<u32>>,
    /// The latest prompts, and the latest finished texts.
    recent: Vec<Vec<u32>>,
    ended: Vec<Vec<u32>>,
    most: usize,
}

const KEPT: usize = 6;

impl Prompts {
    pub fn new(rng: &mut Rng, most: u32) -> Self {
        let most = most as usize;
        let bases = (0..4).map(|_| (0..most).map(|_| token(rng)).collect()).collect();
        Self { bases, recent: Vec::new(), ended: Vec::new(), most }
    }

    pub fn draw(&mut self, rng: &mut Rng) -> Vec<u32> {
        let base = match rng.below(8) {
            0..3 if !self.recent.is_empty() => return rng.pick(&self.recent).clone(),
            3..5 if !self.ended.is_empty() => rng.pick(&self.ended).clone(),
            _ => {
                let base = rng.pick(&self.bases);
                base[..rng.below(base.len() as u64) as usize].to_vec()
            }
        };
        let mut prompt = base;
        let tail = 1 + rng.below(1 + self.most as u64 / 4);
        prompt.extend((0..tail).map(|_| token(rng)));
        prompt.truncate(self.most);
        keep(&mut self.recent, prompt.clone(), rng);
        prompt
    }

    pub fn ended(&mut self, text: &[u32], rng: &mut Rng) {
        keep(&mut self.ended, text.to_vec(), rng);
    }
}

fn token(rng: &mut Rng) -> u32 {
    rng.below(VOCAB) as u32
}

fn keep(texts: &mut Vec<Vec<u32>>, text: Vec<u32>, rng: &mut Rng) {
    if texts.len() == KEPT {
        texts.swap_remove(rng.below(KEPT as u64) as usize);
    }
    texts.push(text);
}
