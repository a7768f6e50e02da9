//! The host's submits, and its calls for sessions, the cache and statistics.

use super::host::Host;
use super::pictures::{COUNT, FIRST, PLACE, give, ids, misplaced, own};
use super::request::{Asked, SEPARATOR, alone};
use super::setting::{HEAVY, MOST_PICTURES};
use crate::base::clock::now_ns;
use crate::base::error::refusals;
use crate::base::{Error, Result, Status};
use crate::engine::api::*;
use crate::engine::core::session_file;
use crate::engine::hub::Phase;
use std::borrow::Cow;
use std::sync::mpsc::{Receiver, TryRecvError};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const STOPS: [&str; 6] = ["ab", "ba", "aab", "\u{e9}", "bc", "abc"];
/// Letters of prompts: few, so that unrelated prompts often begin alike. The last two are one letter in UTF-8.
const LETTERS: [u32; 5] = [97, 98, 99, 0xC3, 0xA9];

/// Calls that the core has to answer.
pub enum Call {
    Drop(Receiver<Result<()>>),
    Save(Receiver<Result<Vec<u8>>>),
    Size(Receiver<Result<usize>>),
    /// `true`: of a session with pictures.
    Restore(Receiver<Result<()>>, bool),
    Clear(Receiver<Result<()>>),
}

/// Whether a saved session has pictures.
fn seen_in(saved: &[u8]) -> bool {
    session_file::pictures(saved) > 0
}

impl Host {
    pub fn remember(&mut self, mut text: Vec<u32>) {
        text.truncate(self.setting.max_prompt as usize);
        if self.prompts.len() == 8 {
            let at = self.rng.below(8) as usize;
            self.prompts.swap_remove(at);
        }
        self.prompts.push(text);
    }

    fn draw_prompt(&mut self) -> Vec<u32> {
        let most = u64::from(self.setting.max_prompt);
        let mut prompt = match self.prompts.is_empty() || self.rng.one_in(4) {
            true => Vec::new(),
            false => self.rng.pick(&self.prompts).clone(),
        };
        if prompt.is_empty() || !self.rng.one_in(3) {
            let tail = 1 + self.rng.below(most);
            prompt.extend((0..tail).map(|_| *self.rng.pick(&LETTERS)));
            if self.setting.sees && self.rng.one_in(3) {
                let at = self.rng.below(prompt.len() as u64) as usize;
                prompt[at] = FIRST + self.rng.below(COUNT.into()) as u32;
            }
        }
        // Pictures past the maximum become letters.
        let pictures = prompt.iter_mut().filter(|token| **token >= FIRST);
        pictures.skip(MOST_PICTURES as usize).for_each(|token| *token = LETTERS[0]);
        prompt.truncate(1 + self.rng.below(most) as usize);
        // A host sends a placeholder that was generated as text, which becomes no placeholder.
        if prompt.iter().any(|token| *token >= FIRST) {
            prompt.iter_mut().filter(|token| **token == PLACE).for_each(|token| *token = LETTERS[0]);
        }
        if self.rng.one_in(2) {
            *prompt.last_mut().expect("it has a token") = SEPARATOR;
        }
        if self.rng.one_in(100) {
            prompt.resize(self.setting.max_sequence as usize + 1, 97);
        }
        self.remember(prompt.clone());
        prompt
    }

    fn draw_params(&mut self, prompt: Vec<u32>) -> RequestParams<'static> {
        let rng = &mut self.rng;
        let queue_timeout_ms = if rng.one_in(5) { 1 + rng.below(5_000) as u32 } else { 0 };
        let timeout = 1 + rng.below(20_000) as u32;
        let cache = !rng.one_in(10);
        let name = *rng.pick(&NAMES);
        let mut params = RequestParams {
            stream: !rng.one_in(if self.setting.heavy { 2 } else { 4 }),
            poll_by_id: !self.setting.callback && rng.one_in(4),
            user_data: rng.next(),
            timeout_ms: *rng.pick(&[0, 0, TIMEOUT_NONE, TIMEOUT_NONE, timeout]),
            queue_timeout_ms,
            end_unread: rng.one_in(4),
            drop_late: queue_timeout_ms > 0 && rng.one_in(2),
            priority: if self.last {
                0
            } else if rng.one_in(2) {
                128
            } else {
                rng.next() as u8
            },
            cache,
            cache_salt: u64::from(rng.one_in(6)),
            session: (cache && rng.one_in(5)).then_some(Cow::Borrowed(name)),
            speculation: *rng.pick(&[None, None, None, Some(Speculation::Off), Some(Speculation::Lookup)]),
            draft_tokens: rng.below(16) as u32,
            ..RequestParams::default()
        };
        give(&mut params, &prompt);
        if rng.one_in(10) {
            let pooling = *rng.pick(&[None, Some(Pooling::Mean), Some(Pooling::First), Some(Pooling::Last)]);
            params.embedding =
                Some(EmbeddingParams { pooling, normalize: Some(rng.one_in(2)), score: false });
            return params;
        }
        let most = u64::from(self.setting.max_new);
        params.max_new_tokens = if rng.one_in(8) { 0 } else { 1 + rng.below(most) as u32 };
        params.ignore_eos = rng.one_in(4);
        params.echo_prompt = rng.one_in(8);
        if rng.one_in(6) {
            (params.sampling.temperature, params.sampling.seed) = (2.0, rng.next());
            params.sampling.presence_penalty = rng.below(2) as f32;
        }
        if self.setting.heavy && !rng.one_in(4) {
            (params.sampling.logprobs, params.sampling.top_logprobs) = (true, HEAVY);
        } else if rng.one_in(6) {
            (params.sampling.logprobs, params.sampling.top_logprobs) = (true, rng.below(3) as u32);
        }
        if rng.one_in(8) {
            params.stop_tokens = vec![*rng.pick(&LETTERS), 7].into();
        }
        if rng.one_in(5) {
            params.stop_strings = (0..1 + rng.below(2)).map(|_| Cow::Borrowed(*rng.pick(&STOPS))).collect();
        }
        params
    }

    pub fn submit(&mut self) {
        let n = if self.rng.one_in(6) { 2 + self.rng.below(4) as usize } else { 1 };
        let mut requests: Vec<RequestParams> = Vec::new();
        for _ in 0..n {
            // Often several samples of one prompt.
            let prompt = match requests.first() {
                Some(first) if !self.rng.one_in(4) => own(first),
                _ => self.draw_prompt(),
            };
            requests.push(self.draw_params(prompt));
        }
        if self.rng.one_in(100)
            && let Some(params) = requests.iter_mut().find(|params| !params.pictures.is_empty())
            && let Prompt::Tokens(ids) = &mut params.prompt
        {
            ids.to_mut().push(PLACE);
        }
        let (before, refused) = (self.shared.hub.usage(), refusals::count());
        if !self.faults_off && self.rng.one_in(40) {
            refusals::refuse_after(Some(self.rng.below(12)));
        }
        let now = now_ns();
        let result = self.engine.submit(requests.clone());
        refusals::refuse_after(None);
        match result {
            Ok(given) => {
                assert_eq!((given.len(), self.shared.hub.phase()), (n, Phase::Open));
                self.tally.more("submits", n as u64);
                self.tally.more("submits of several", u64::from(n > 1));
                self.accepted += n as u64;
                let see = requests.iter().filter(|params| !params.pictures.is_empty()).count();
                self.tally.more("requests with pictures", see as u64);
                assert!(!requests.iter().any(misplaced), "{requests:?}");
                given.into_iter().zip(requests).for_each(|(id, params)| self.accept(id, params, now));
            }
            Err(error) => {
                let refused = refusals::count() > refused;
                self.check_refusal(&error, &requests, before.unreleased, refused);
            }
        }
    }

    /// Submits a request that cannot be refused.
    pub fn ask(&mut self, params: RequestParams<'static>) {
        let (now, given) = (now_ns(), self.engine.submit(vec![params.clone()]).expect("there is room"));
        self.accepted += 1;
        self.accept(given[0], params, now);
    }

    fn accept(&mut self, id: RequestId, mut params: RequestParams<'static>, now: u64) {
        params.speculation.get_or_insert(self.setting.speculation);
        let room = self.setting.max_sequence as usize - ids(&params).len();
        let max_new = match params.max_new_tokens as usize {
            0 => room,
            asked => asked.min(room),
        };
        let alone = alone(&params, max_new, &mut self.sampler);
        let after = |ms: u64| if ms == 0 { 0 } else { now + ms * 1_000_000 };
        let deadline = after(self.setting.timeout_ms(params.timeout_ms));
        let queue_deadline = after(params.queue_timeout_ms.into());
        let replica = self.shared.hub.replica_of(id).expect("it is unreleased");
        let asked = Asked::new(params, alone, replica, deadline, queue_deadline);
        assert!(self.asked.insert(id, asked).is_none(), "an id was given twice");
    }

    /// Checks that the refusal had a reason.
    fn check_refusal(&mut self, error: &Error, requests: &[RequestParams], unreleased: usize, refused: bool) {
        let (queue, n) = (self.setting.queue as usize, requests.len());
        let too_long = |params: &RequestParams| {
            let new = usize::from(params.embedding.is_none());
            ids(params).len() + new > self.setting.max_sequence as usize
        };
        let (queued, most) = (self.shared.hub.usage().queued_tokens, self.setting.queue_tokens);
        let (right, what) = match error.status {
            Status::QueueFull if error.message.contains("queue_token_capacity") => {
                let tokens: usize = requests.iter().map(|params| ids(params).len()).sum();
                let over = most > 0 && queued > 0 && queued + tokens as u64 > most;
                (over, "refused: queued tokens")
            }
            Status::QueueFull => (unreleased + n > queue, "refused: queue full"),
            Status::InvalidArgument if error.message.contains("places for pictures") => {
                (requests.iter().any(misplaced), "refused: misplaced pictures")
            }
            Status::InvalidArgument => (n > queue, "refused: queue full"),
            Status::TooLong => (requests.iter().any(too_long), "refused: too long"),
            Status::MemoryLimit => {
                let alone = unreleased == 0
                    && n == 1
                    && self.aside.is_none()
                    && error.message.contains("does not fit now");
                (self.setting.budget != u64::MAX && !alone, "refused: memory")
            }
            Status::OutOfMemory => (refused, "refused: allocation"),
            Status::Shutdown | Status::EngineDead => {
                (self.shared.hub.phase() > Phase::Open, "refused: shutdown")
            }
            _ => (false, ""),
        };
        assert!(right, "{error} for {n} requests beside {unreleased}");
        self.tally.count(what);
    }

    /// Makes a call to the core.
    pub fn call(&mut self) {
        let name = *self.rng.pick(&NAMES);
        let (engine, home) = (&self.shared, self.shared.home(name));
        let any = self.rng.below(self.setting.replicas as u64) as usize;
        let (replica, call) = match self.rng.below(8) {
            0 => (home, engine.ask(home, |core| core.drop_session(name)).map(Call::Drop)),
            1 | 2 => (home, engine.ask(home, |core| core.save_session(name)).map(Call::Save)),
            3 => (home, engine.ask(home, |core| core.session_size(name)).map(Call::Size)),
            4 | 5 if !self.saved.is_empty() => {
                let bytes = self.rng.pick(&self.saved).clone();
                let seen = seen_in(&bytes);
                let restore = move |core: &mut crate::engine::core::Core| {
                    core.restore_session(name, session_file::unseal(&bytes)?)
                };
                (home, engine.ask(home, restore).map(|answer| Call::Restore(answer, seen)))
            }
            6 if self.rng.one_in(3) => {
                let clear = |core: &mut crate::engine::core::Core| {
                    core.clear_cache();
                    Ok(())
                };
                (any, engine.ask(any, clear).map(Call::Clear))
            }
            _ => return self.read_cache_events(),
        };
        match call {
            Ok(call) => self.calls.push((replica, call)),
            Err(error) if error.status == Status::OutOfMemory => self.tally.count("refused: allocation"),
            Err(error) => {
                let hub = &self.shared.hub;
                assert!(
                    hub.phase() > Phase::Open || !hub.team(|team| team.balance.is_open(replica)),
                    "{error}"
                );
            }
        }
    }

    fn read_cache_events(&mut self) {
        if self.setting.kv_events > 0 {
            let mut events = 0;
            self.engine.kv_events(16, &mut |_| events += 1).unwrap();
            self.tally.more("events of the cache", events);
        }
    }

    /// Checks that the first `n` calls of a replica are answered: they were queued before the turn that has just
    /// ended.
    pub fn check_answers(&mut self, replica: usize, n: usize) {
        let (own, others): (Vec<_>, Vec<_>) = self.calls.drain(..).partition(|(of, _)| *of == replica);
        let mut own = own.into_iter();
        let answered: Vec<_> = own.by_ref().take(n).collect();
        self.calls = own.chain(others).collect();
        for (_, call) in answered {
            match call {
                Call::Drop(answer) => {
                    let what = if self.found(answer) { "sessions dropped" } else { "sessions not found" };
                    self.tally.count(what);
                }
                Call::Restore(answer, seen) => {
                    let found = self.found(answer);
                    self.tally.more("sessions with pictures restored", u64::from(found && seen));
                    let what = if found { "sessions restored" } else { "sessions not found" };
                    self.tally.count(what);
                }
                Call::Clear(answer) => {
                    assert!(self.found(answer));
                    self.tally.count("caches cleared");
                }
                Call::Size(answer) => _ = self.answer(answer),
                Call::Save(answer) => {
                    let Some(mut bytes) = self.answer(answer) else { continue };
                    session_file::seal(&mut bytes);
                    self.tally.more("sessions with pictures saved", seen_in(&bytes).into());
                    if self.saved.len() == 4 {
                        self.saved.remove(0);
                    }
                    self.saved.push(bytes);
                    self.tally.count("sessions saved");
                }
            }
        }
    }

    fn found(&mut self, answer: Receiver<Result<()>>) -> bool {
        self.answer(answer).is_some()
    }

    /// Returns the result; None if the call was refused for a valid reason.
    fn answer<T>(&mut self, answer: Receiver<Result<T>>) -> Option<T> {
        let answer = answer.try_recv();
        assert!(!matches!(answer, Err(TryRecvError::Empty)), "a call was forgotten");
        assert!(answer.is_ok(), "a call was dropped");
        let error = match answer.ok()? {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let fault = ["fault", "dies"].into_iter().any(|what| error.message.contains(what));
        let right = match error.status {
            Status::NotFound | Status::Busy | Status::MemoryLimit => true,
            Status::OutOfMemory => refusals::count() > 0,
            _ => fault,
        };
        assert!(right, "{:?}: {error}", error.status);
        None
    }
}
