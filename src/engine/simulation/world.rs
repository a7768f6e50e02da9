//! An engine without threads and its host, turn by turn.

use super::super::api::{FinishReason, ShutdownMode, Speculation, Which};
use super::super::callback::Log;
use super::super::core::Core;
use super::super::free_memory::Claims;
use super::super::handle::Engine;
use super::super::hub::checks::Bed;
use super::super::hub::{Phase, Rest};
use super::host::Host;
use super::machine::{self, Machine};
use super::rng::{Rng, mix};
use super::setting::Setting;
use super::tally::Tally;
use crate::base::clock::{fake, now_ns};
use crate::base::error::refusals;
use crate::base::{Status, panics};
use crate::kernels::{Pool, isa};
use crate::model::{self, Loaded, Source};
use crate::ops::FusedOps;
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub struct World {
    seed: u64,
    setting: Setting,
    /// None once it is closed.
    core: Option<Core>,
    host: Rc<RefCell<Host>>,
    /// Before the next turn, and its end; `u64::MAX`: none.
    rest: Rest,
    until: u64,
    /// It rests until then.
    nap: Option<u64>,
    turns: u64,
    /// There will be no other turn; how the loop ended.
    over: Option<Result<(), String>>,
    /// The next turn that samples is the last.
    dying: bool,
}

fn echo() -> Loaded {
    let pool = Pool::new(1).unwrap();
    let source = Source::Echo(Default::default());
    model::load(&source, &Default::default(), &pool, &|_, _| (), &mut |_, _| false).unwrap()
}

impl World {
    pub fn new(seed: u64) -> Self {
        static CLAIMS: Claims = Claims::new();
        let mut rng = Rng(seed);
        let setting = Setting::draw(&mut rng);
        fake::set(Some(1_000_000_000 + rng.below(1_000_000_000)));
        let ops = FusedOps::with_isa(Pool::new(1).unwrap(), isa()).unwrap();
        let (mut loaded, mut config) = (echo(), setting.config());
        config.draft_model = (setting.speculation == Speculation::Model).then(|| loaded.clone());
        loaded.model = Arc::new(Machine { echo: loaded.model });
        let (_, claim) = CLAIMS.claim(1, |_| Ok(0)).unwrap();
        let log = Log::new(None, 0).unwrap();
        let (engine, mut core) =
            Engine::assemble(&config, loaded, ops.into(), setting.memory(), claim, log).unwrap();
        let host = Host::new(engine, core[0].shared().clone(), rng, setting);
        let host = Rc::new(RefCell::new(host));
        machine::set_host(Some(host.clone()));
        Self {
            seed,
            setting,
            core: core.pop(),
            host,
            rest: Rest::UntilCommand,
            until: u64::MAX,
            nap: None,
            turns: 0,
            over: None,
            dying: false,
        }
    }

    /// Random turns, then the world's end. A digest of all of it.
    pub fn run(mut self, turns: u64) -> (Tally, u64) {
        let outcome = panics::catch(|| {
            while self.turns < turns {
                self.turn();
            }
            self.end();
        });
        if let Err(text) = outcome {
            let (seed, turn, now, setting) = (self.seed, self.turns, now_ns(), self.setting);
            eprintln!(
                "replay with BN_SIM_SEED={seed} BN_SIM_STEPS={turns}: turn {turn} at {now} ns, {setting:?}"
            );
            panic!("{text}");
        }
        let mut host = self.host.borrow_mut();
        host.tally.more("turns", self.turns);
        let digest = mix(host.digest, mix(now_ns(), host.rng.next()));
        (host.tally.clone(), digest)
    }

    fn host(&self) -> RefMut<'_, Host> {
        self.host.borrow_mut()
    }

    fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("it is not closed")
    }

    /// The host does something, then the loop does: a turn, or a part of its rest.
    fn turn(&mut self) {
        self.host().act();
        self.advance();
    }

    fn advance(&mut self) {
        self.turns += 1;
        let rest = self.rest;
        match (self.nap, rest) {
            (Some(until), _) => self.sleep(until),
            (None, Rest::None) => self.run_turn(rest),
            _ => match self.core().lie_down(rest) {
                Bed::Awake => self.run_turn(rest),
                Bed::Done => self.finish(),
                Bed::Asleep => {
                    let until = self.until;
                    let what = if until == u64::MAX { "rests until a command" } else { "rests until a time" };
                    self.nap = Some(until);
                    self.host().tally.count(what);
                    if now_ns() < until {
                        self.check_rest(until);
                        self.check_statistics();
                    }
                }
            },
        }
        self.check();
    }

    fn finish(&mut self) {
        assert_eq!(self.core().try_turn(Rest::UntilCommand).unwrap(), None);
        self.over = Some(Ok(()));
    }

    /// The loop is in the midst of its wait.
    fn sleep(&mut self, until: u64) {
        let hub = &self.host().shared.clone().hub;
        if hub.is_rung() {
            self.host().tally.count("rests that ended early");
            return match hub.looks_up() {
                Some(Bed::Done) if until == u64::MAX => self.finish(),
                // It rang for nothing that such a wait would end for.
                None if until == u64::MAX => {}
                _ => self.wake(),
            };
        }
        if self.host().rng.one_in(50) {
            self.host().tally.count("spurious wake-ups");
            return self.wake();
        }
        if now_ns() >= until {
            return self.wake();
        }
        self.check_rest(until);
        let left = until - now_ns();
        let mut host = self.host();
        let ns = if host.rng.one_in(3) { left } else { 1 + host.rng.below(50_000_000) };
        host.move_clock(ns.min(left).min(10_000_000_000));
        drop(host);
        if now_ns() >= until {
            self.wake();
        }
    }

    fn wake(&mut self) {
        self.host().shared.hub.get_up();
        self.nap = None;
        self.run_turn(Rest::None);
    }

    fn run_turn(&mut self, rest: Rest) {
        self.nap = None;
        let (calls, told) = {
            let host = &mut *self.host();
            if !host.calm && host.setting.faults > 0 && host.rng.one_in(100) {
                refusals::refuse_after(Some(host.rng.below(20)));
            }
            host.ending = std::mem::take(&mut host.told);
            (host.calls.len(), host.ending.clone())
        };
        let (started, refusals) = (now_ns(), self.refusals());
        let line = self.core().line();
        machine::set_dying(self.dying);
        let outcome = self.core().try_turn(rest);
        machine::set_dying(false);
        refusals::refuse_after(None);
        let broken = self.host().broken.take();
        assert_eq!(broken, None, "during a pass");
        match outcome {
            Ok(Some(rest)) => {
                self.rest = rest;
                self.until = match rest {
                    Rest::For(time) => now_ns() + time.as_nanos() as u64,
                    _ => u64::MAX,
                };
            }
            Ok(None) => self.over = Some(Ok(())),
            Err(text) => {
                assert!(self.dying, "{text}");
                self.over = Some(Err(text));
                return;
            }
        }
        self.host().check_answers(calls);
        let stopped = self.host().stopped.take();
        // Where memory was refused, they ran alone.
        if let Some(sequences) = stopped.filter(|_| refusals == self.refusals()) {
            self.core().check_stopped(sequences, now_ns());
        }
        self.core().check_line(&line);
        for sequence in self.core().live() {
            assert!(!told.contains(&sequence.id), "{:?} goes on though it was told to end", sequence.id);
            assert!(sequence.expired(started).is_none(), "{:?} outlives its deadline", sequence.id);
        }
    }

    fn refusals(&self) -> u64 {
        refusals::count() - self.host().refused
    }

    fn check(&mut self) {
        let refusals = self.refusals();
        let mut host = self.host.borrow_mut();
        host.check();
        let failed = host.shared.hub.usage().outcomes[FinishReason::Failed as usize];
        let most = host.hits + host.grazes + refusals;
        if matches!(self.over, Some(Err(_))) {
            return;
        }
        assert!(failed <= most, "{failed} failed by {most} faults");
        host.move_clock(1_000);
        if let Some(core) = &self.core {
            core.check(!self.setting.callback, self.setting.max_unread);
            for (what, n) in [
                ("turns beside the starved", core.live().filter(|sequence| sequence.starved).count()),
                ("turns beside the unread", core.live().filter(|sequence| sequence.unread).count()),
            ] {
                host.tally.more(what, n.min(1) as u64);
            }
        }
    }

    fn check_rest(&mut self, until: u64) {
        let now = now_ns();
        let rest = match until {
            u64::MAX => Rest::UntilCommand,
            until => Rest::For(Duration::from_nanos(until.saturating_sub(now))),
        };
        let held = !self.host().held.is_empty();
        let core = self.core.as_ref().expect("it is not closed");
        core.check_rest(rest, now, self.setting.max_unread, held);
        let starved = core.live().any(|sequence| sequence.starved);
        let unread = core.live().any(|sequence| sequence.unread);
        let mut host = self.host.borrow_mut();
        host.tally.more("rests beside the starved", starved.into());
        host.tally.more("rests beside the unread", unread.into());
        let failed = host.shared.hub.usage().outcomes[FinishReason::Failed as usize];
        assert!(failed >= host.hits, "{failed} failed by {} faults", host.hits);
    }

    /// What statistics say while the loop rests.
    fn check_statistics(&mut self) {
        let core = self.core.as_ref().expect("it is not closed");
        let mut host = self.host.borrow_mut();
        if !host.rng.one_in(8) {
            return;
        }
        host.tally.count("statistics");
        let (stats, counts) = (host.engine.stats(), core.scheduler().counts());
        let running = core.live().filter(|sequence| sequence.was_admitted()).count() as u64;
        let live = core.live().count() as u64;
        assert_eq!((stats.queued, stats.running), (live - running, running));
        assert_eq!((stats.paused, stats.kv_blocks_used), (counts.paused as u64, counts.blocks_used as u64));
        assert_eq!(stats.accepted, host.accepted);
        let known = host.asked.len() as u64;
        let released = core.live().filter(|sequence| !host.asked.contains_key(&sequence.id)).count() as u64;
        assert_eq!(stats.unreleased, known + released);
    }

    /// One of the ways in which engines end.
    fn end(&mut self) {
        let mode = self.host().rng.below(5);
        match mode {
            0 | 1 => self.drain(mode == 0),
            2 => self.cancel(),
            3 => return self.destroy(),
            _ => self.die(),
        }
        self.close();
        let mut host = self.host();
        while host.serve() {}
        assert!(host.asked.is_empty(), "{:?} have no end", host.asked);
        let usage = host.shared.hub.usage();
        assert_eq!((usage.unreleased, usage.unfinished, usage.reserved), (0, 0, 0));
        let status =
            if host.shared.hub.phase() == Phase::Dead { Status::EngineDead } else { Status::Shutdown };
        host.submit();
        if !host.setting.callback {
            let poll = host.engine.poll(Which::Any, 1, None, &mut |_, _| ());
            assert_eq!(poll.unwrap_err().status, status);
        }
    }

    fn close(&mut self) {
        self.count();
        let outcome = self.over.take().expect("it is over");
        self.core.take().expect("it is not closed").leave(outcome);
        self.host().check();
    }

    fn count(&mut self) {
        let (events, refusals) = (self.core().scheduler().events(), self.refusals());
        let stats = self.host().engine.stats();
        let tally = &mut self.host().tally;
        tally.more("tokens drafted", stats.drafted_tokens);
        tally.more("drafts that stood", stats.accepted_tokens);
        tally.more("pauses", events.pauses);
        tally.more("preemptions", events.preemptions);
        tally.more("positions found in the cache", events.cached_positions);
        tally.more("allocations refused", refusals);
    }

    /// Some of the first `n` requests are not done.
    fn lives(&mut self, n: u64) -> bool {
        self.host().shared.hub.first_live() < n
    }

    /// By a host that polls and frees all, every request comes to its end. `rush`: though ever new ones come behind it.
    fn drain(&mut self, rush: bool) {
        self.host().calm = true;
        if !rush && self.host().rng.one_in(2) {
            self.host().engine.shutdown(ShutdownMode::Drain).unwrap();
        }
        let live = self.host().shared.hub.usage().unfinished as u64;
        let allowed = (live + 1) * self.setting.turns_each();
        let mut turns = 0;
        let first = self.host().accepted;
        self.host().last = rush;
        while self.lives(first) {
            turns += 1;
            assert!(turns <= allowed, "{live} requests have not ended in {allowed} turns");
            while self.host().serve() {}
            if rush {
                self.host().submit();
            }
            self.advance();
        }
        if rush {
            self.host().tally.count("worlds drained in a rush");
            return self.drain(false);
        }
        let mut host = self.host();
        host.tally.longest = host.tally.longest.max(turns as f64 / allowed as f64);
        host.tally.count("worlds drained");
        drop(host);
        let scheduler = self.core().scheduler();
        assert_eq!(scheduler.counts().blocks_used == 0, scheduler.session_counts().0 == 0);
        self.host().engine.shutdown(ShutdownMode::Drain).unwrap();
        self.stop(4);
    }

    /// Nobody need poll for that.
    fn stop(&mut self, turns: u64) {
        for _ in 0..turns {
            if self.over.is_none() {
                self.advance();
            }
        }
        assert!(self.over.is_some(), "it goes on behind its end");
    }

    fn told(&mut self) {
        let mut host = self.host();
        host.tell_all();
        host.calm = true;
        host.engine.shutdown(ShutdownMode::Cancel).unwrap();
    }

    fn cancel(&mut self) {
        self.told();
        self.stop(4);
        self.host().tally.count("worlds cancelled");
    }

    /// With events that nobody polls.
    fn destroy(&mut self) {
        self.host().shared.hub.leave_all();
        self.told();
        self.stop(4);
        self.close();
        let mut host = self.host();
        if !host.setting.callback {
            let poll = host.engine.poll(Which::Any, 1, None, &mut |_, _| ());
            assert_eq!(poll.unwrap_err().status, Status::Shutdown);
        }
        host.engine.destroy().unwrap();
        host.tally.count("worlds destroyed");
    }

    /// The loop panics, outside of what is guarded; the host goes on as ever until it does.
    fn die(&mut self) {
        self.dying = true;
        self.host().calm = true;
        let mut turns = 0;
        while self.over.is_none() {
            turns += 1;
            assert!(turns < 10_000, "nothing runs");
            let mut host = self.host();
            while host.serve() {}
            if host.shared.hub.usage().unfinished == 0 {
                host.submit();
            }
            drop(host);
            self.advance();
        }
        self.host().tally.count("worlds that died");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        machine::set_host(None);
        machine::set_dying(false);
        refusals::refuse_after(None);
    }
}
