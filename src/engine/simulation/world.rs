//! An engine without threads and its host, turn by turn. It has one or several replicas, which take turns at
//! random.

use super::disk::Disk;
use super::host::Host;
use super::machine;
use super::machine::{Machine, RecurrentDraft};
use super::pictures::{Slow, sight};
use super::recurrent::Recurrent;
use super::setting::Setting;
use super::tally::Tally;
use crate::base::clock::{fake, now_ns};
use crate::base::error::refusals;
use crate::base::{Status, panics};
use crate::cache::disk::Store;
use crate::engine::api::{FinishReason, ShutdownMode, Speculation, Which};
use crate::engine::core::Core;
use crate::engine::core::backend::Backend;
use crate::engine::delivery::callback::Log;
use crate::engine::handle::{DeviceSlot, Engine};
use crate::engine::hub::checks::Bed;
use crate::engine::hub::{Phase, Rest};
use crate::engine::memory::free::Claims;
use crate::kernels::{Pool, isa};
use crate::model::{self, Loaded, Source};
use crate::ops::CpuOps;
use crate::rng::{Rng, mix};
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

mod replicas;

pub struct World {
    seed: u64,
    setting: Setting,
    runners: Vec<Runner>,
    host: Rc<RefCell<Host>>,
    turns: u64,
    /// The next turn that samples is the last one, of all replicas or of one.
    dying: bool,
    doomed: Option<usize>,
    store: Option<Arc<Store>>,
}

/// A replica.
struct Runner {
    /// None once the replica has ended.
    core: Option<Core>,
    /// The rest before the next turn, and its end; `u64::MAX`: none.
    rest: Rest,
    until: u64,
    /// The time until which the replica rests.
    nap: Option<u64>,
}

impl Runner {
    fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("it is not gone")
    }
}

fn echo() -> Loaded {
    let pool = Pool::new(1).unwrap();
    let source = Source::Echo(Default::default());
    model::load(&source, &Default::default(), &pool, &|_, _| (), &mut |_, _| false).unwrap()
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let setting = Setting::draw(&mut rng);
        Self::of(seed, rng, setting)
    }

    fn of(seed: u64, mut rng: Rng, setting: Setting) -> Self {
        static CLAIMS: Claims = Claims::new();
        fake::set(Some(1_000_000_000 + rng.below(1_000_000_000)));
        let (mut loaded, mut config) = (echo(), setting.config());
        let (recurrent, by_model) = (setting.states > 0, setting.speculation == Speculation::Model);
        let drafts = by_model && recurrent && setting.drafting == 0;
        config.draft_model = (by_model && !drafts).then(|| match setting.drafting {
            0 => loaded.clone(),
            _ => Loaded { model: Arc::new(RecurrentDraft::new(loaded.model.clone())), ..loaded.clone() },
        });
        let recurrent = recurrent.then(Recurrent::default);
        loaded.model = Arc::new(Machine { echo: loaded.model, recurrent, drafts });
        loaded.sight = setting.sees.then(sight);
        let ops = || CpuOps::with_isa(Pool::new(1).unwrap(), isa()).unwrap();
        let device = |replica| {
            let mut backend = Backend::from(ops());
            backend.ops = Box::new(Slow(ops()));
            let claim = CLAIMS.claim(1, &|| 0, |_| Ok(0)).unwrap().1;
            DeviceSlot { backend, memory: setting.memory(replica), claim }
        };
        let (devices, log) = ((0..setting.replicas).map(device).collect(), Log::new(None, 0).unwrap());
        let (engine, cores) = Engine::assemble(&config, loaded, devices, log).unwrap();
        let mut cores = cores;
        let store = (setting.disk > 0).then(|| {
            let disk = Box::new(Disk::new(Rng(rng.next()), setting.faults));
            let sizes = cores[0].sizes();
            let bounds = sizes.bounds(setting.disk, rng.below(20_000));
            let store = Store::open(disk, 1, sizes, bounds, cores.len()).unwrap();
            let store = Arc::new(store.without_thread());
            cores.iter_mut().for_each(|core| core.use_store(store.clone()).unwrap());
            store
        });
        let host = Host::new(engine, cores[0].shared().clone(), rng, setting);
        let runner = |core| Runner { core: Some(core), rest: Rest::UntilCommand, until: u64::MAX, nap: None };
        let host = Rc::new(RefCell::new(host));
        machine::set_host(Some(host.clone()));
        Self {
            seed,
            setting,
            runners: cores.into_iter().map(runner).collect(),
            host,
            turns: 0,
            dying: false,
            doomed: None,
            store,
        }
    }

    /// Random turns, then the world's end. Returns a tally and a digest of everything that happened.
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
        let refusals = self.refusals();
        let mut host = self.host.borrow_mut();
        let stats = host.engine.stats();
        host.tally.more("allocations refused", refusals);
        host.tally.more("tokens drafted", stats.drafted_tokens);
        host.tally.more("drafts that stood", stats.accepted_tokens);
        host.tally.more("turns", self.turns);
        if let Some(counts) = self.store.as_ref().map(|store| store.counts()) {
            host.tally.more("records read", counts.reads);
            host.tally.more("records written", counts.writes);
            host.tally.more("records dropped", counts.dropped);
            host.tally.more("records damaged", counts.damaged);
            host.tally.more("records evicted", counts.evicted);
        }
        let digest = mix(host.digest, mix(now_ns(), host.rng.next()));
        (host.tally.clone(), digest)
    }

    fn host(&self) -> RefMut<'_, Host> {
        self.host.borrow_mut()
    }

    fn alive(&self) -> Vec<usize> {
        (0..self.runners.len()).filter(|&replica| self.runners[replica].core.is_some()).collect()
    }

    fn cores(&self) -> impl Iterator<Item = &Core> {
        self.runners.iter().filter_map(|runner| runner.core.as_ref())
    }

    /// Lets the host act, then runs a turn of a replica, or a part of its rest.
    fn turn(&mut self) {
        self.host().act();
        self.toggle_sick();
        let alive = self.alive();
        if self.doomed.is_none() && alive.len() > 1 && self.host().rng.one_in(4000) {
            let doomed = *self.host().rng.pick(&alive);
            self.doomed = Some(doomed);
        }
        self.advance();
    }

    /// Reads or writes a record.
    fn serve_disk(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let mut host = self.host();
        if host.rng.one_in(self.setting.disk_pace) {
            let hub = &host.shared.clone().hub;
            drop(host);
            store.work(&|replica| hub.knock(replica));
        }
    }

    /// A replica becomes sick, or recovers.
    fn toggle_sick(&mut self) {
        let mut host = self.host();
        let replicas = host.setting.replicas as u64;
        if replicas > 1 && host.setting.faults > 0 && host.rng.one_in(400) {
            let sick = host.rng.below(replicas) as usize;
            host.sick = if host.sick.is_none() { Some(sick) } else { None };
        }
    }

    fn advance(&mut self) {
        self.serve_disk();
        let alive = self.alive();
        let replica = *self.host().rng.pick(&alive);
        self.advance_one(replica);
    }

    fn advance_one(&mut self, replica: usize) {
        self.turns += 1;
        let Runner { rest, nap, until, .. } = self.runners[replica];
        match (nap, rest) {
            (Some(until), _) => self.sleep(replica, until),
            (None, Rest::None) => self.run_turn(replica, rest),
            _ => match self.runners[replica].core().lie_down(rest) {
                Bed::Awake => self.run_turn(replica, rest),
                Bed::Done => self.finish(replica),
                Bed::Asleep => {
                    let what = if until == u64::MAX { "rests until a command" } else { "rests until a time" };
                    self.runners[replica].nap = Some(until);
                    self.host().tally.count(what);
                    if now_ns() < until {
                        self.check_rest(replica, until);
                        self.check_statistics();
                    }
                }
            },
        }
        self.check();
    }

    fn finish(&mut self, replica: usize) {
        assert_eq!(self.runners[replica].core().try_turn(Rest::UntilCommand).unwrap(), None);
        self.leave(replica, Ok(()));
    }

    /// Continues a wait of the loop.
    fn sleep(&mut self, replica: usize, until: u64) {
        let hub = &self.host().shared.clone().hub;
        if hub.is_rung(replica) {
            self.host().tally.count("rests that ended early");
            return match hub.looks_up(replica) {
                Some(Bed::Done) if !matches!(self.runners[replica].rest, Rest::For(_)) => {
                    self.finish(replica)
                }
                // The bell rang for a reason that does not end such a wait.
                None if until == u64::MAX => {}
                _ => self.wake(replica),
            };
        }
        if self.host().rng.one_in(50) {
            self.host().tally.count("spurious wake-ups");
            return self.wake(replica);
        }
        if now_ns() >= until {
            return self.wake(replica);
        }
        self.check_rest(replica, until);
        let left = until - now_ns();
        let mut host = self.host();
        let ns = if host.rng.one_in(3) { left } else { 1 + host.rng.below(50_000_000) };
        host.move_clock(ns.min(left).min(10_000_000_000));
        drop(host);
        if now_ns() >= until {
            self.wake(replica);
        }
    }

    fn wake(&mut self, replica: usize) {
        self.host().shared.hub.get_up(replica);
        self.runners[replica].nap = None;
        self.run_turn(replica, Rest::None);
    }

    fn run_turn(&mut self, replica: usize, rest: Rest) {
        self.runners[replica].nap = None;
        let (calls, told) = {
            let host = &mut *self.host();
            if !host.faults_off && host.setting.faults > 0 && host.rng.one_in(100) {
                refusals::refuse_after(Some(host.rng.below(20)));
            }
            host.begin_turn(replica)
        };
        let (started, refusals) = (now_ns(), self.refusals());
        let core = self.runners[replica].core.as_mut().expect("it is not gone");
        let line = core.line();
        machine::set_dying(self.dying || self.doomed == Some(replica));
        let outcome = core.try_turn(rest);
        machine::set_dying(false);
        refusals::refuse_after(None);
        let broken = self.host().broken.take();
        assert_eq!(broken, None, "during a pass");
        match outcome {
            Ok(Some(rest)) => {
                let runner = &mut self.runners[replica];
                runner.rest = rest;
                runner.until = match rest {
                    Rest::For(time) | Rest::Idle(time) => now_ns() + time.as_nanos() as u64,
                    _ => u64::MAX,
                };
            }
            Ok(None) => return self.leave(replica, Ok(())),
            Err(text) => {
                assert!(self.dying || self.doomed.take() == Some(replica), "{text}");
                return self.leave(replica, Err(text));
            }
        }
        self.host().check_answers(replica, calls);
        let stopped = self.host().stopped.take();
        let unrefused = refusals == self.refusals();
        let core = self.runners[replica].core();
        // If memory was refused, the sequences ran alone.
        if let Some(sequences) = stopped.filter(|_| unrefused) {
            core.check_stopped(sequences, now_ns());
        }
        core.check_line(&line);
        for sequence in core.live() {
            assert!(!told.contains(&sequence.id), "{:?} goes on though it was told to end", sequence.id);
            assert!(sequence.times.expired(started).is_none(), "{:?} outlives its deadline", sequence.id);
        }
    }

    /// Does what a replica's thread does after its last turn.
    fn leave(&mut self, replica: usize, outcome: Result<(), String>) {
        let core = self.runners[replica].core.take().expect("it is not gone");
        let events = core.scheduler().events();
        let (died, hub) = (outcome.is_err(), &self.host().shared.clone().hub);
        let failed = || hub.usage().outcomes[FinishReason::Failed as usize];
        let before = failed();
        core.leave(outcome);
        let mut host = self.host();
        host.hits += failed() - before;
        host.calls.retain(|(of, _)| *of != replica);
        for (what, n) in [
            ("pauses", events.pauses),
            ("preemptions", events.preemptions),
            ("positions found in the cache", events.cached_positions),
            ("positions read from disk", events.fetched_positions),
            ("prefixes from disk given up", events.given_up_fetches),
            ("prefixes ordered from disk", events.fetches),
        ] {
            host.tally.more(what, n);
        }
        if died && hub.phase() < Phase::Drained {
            host.tally.count("replicas that died beside others");
        }
        host.check();
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
        assert!(failed <= most, "{failed} failed by {most} faults");
        host.move_clock(1_000);
        for (replica, runner) in self.runners.iter().enumerate() {
            let Some(core) = &runner.core else { continue };
            core.check(!self.setting.callback, self.setting.max_unread);
            let moved = |id| host.asked.get(&id).is_some_and(|asked| asked.replica != replica);
            let counts = [
                (
                    "turns beside refused grants",
                    core.live().filter(|sequence| sequence.account.awaits_grant).count(),
                ),
                ("turns beside the unread", core.live().filter(|sequence| sequence.account.unread).count()),
                ("turns beside the moved", core.live().filter(|sequence| moved(sequence.id)).count()),
            ];
            for (what, n) in counts {
                host.tally.more(what, n.min(1) as u64);
            }
        }
    }

    fn check_rest(&mut self, replica: usize, until: u64) {
        let now = now_ns();
        let rest = match until {
            u64::MAX => Rest::UntilCommand,
            until => Rest::For(Duration::from_nanos(until.saturating_sub(now))),
        };
        let core = self.runners[replica].core.as_ref().expect("it is not gone");
        // Memory held by another replica's requests is returned too.
        let own = core.live().count();
        let others = self.host().shared.hub.usage().unfinished > own;
        let held = others || !self.host().held.is_empty() || self.host().aside.is_some();
        core.check_rest(rest, now, self.setting.max_unread, held);
        let refused = core.live().any(|sequence| sequence.account.awaits_grant);
        let unread = core.live().any(|sequence| sequence.account.unread);
        let all = self.all_rest();
        let mut host = self.host.borrow_mut();
        host.tally.more("rests beside refused grants", refused.into());
        host.tally.more("rests beside the unread", unread.into());
        let failed = host.shared.hub.usage().outcomes[FinishReason::Failed as usize];
        assert!(!all || failed >= host.hits, "{failed} failed by {} faults", host.hits);
        let (living, unfinished) = (host.living_pictures(), host.shared.hub.usage().unfinished);
        assert!(!all || unfinished > 0 || living == 0, "{living} pictures of no request");
    }

    /// Returns whether all replicas rest and nothing waits for them.
    fn all_rest(&self) -> bool {
        let hub = &self.host().shared.clone().hub;
        self.alive().into_iter().all(|replica| self.runners[replica].nap.is_some() && !hub.is_rung(replica))
    }

    /// Compares the statistics with the state of the replicas while all rest.
    fn check_statistics(&mut self) {
        let all = self.all_rest();
        let mut host = self.host.borrow_mut();
        if !host.rng.one_in(8) || !all {
            return;
        }
        host.tally.count("statistics");
        let stats = host.engine.stats();
        let live = || self.cores().flat_map(Core::live);
        let running = live().filter(|sequence| sequence.times.was_admitted()).count() as u64;
        assert_eq!((stats.queued, stats.running), (live().count() as u64 - running, running));
        let counts = || self.cores().map(|core| core.scheduler().counts());
        let (paused, used): (usize, usize) =
            (counts().map(|counts| counts.paused).sum(), counts().map(|counts| counts.blocks_used).sum());
        assert_eq!((stats.paused, stats.kv_blocks_used), (paused as u64, used as u64));
        assert_eq!(stats.accepted, host.accepted);
        let known = host.asked.len() as u64;
        let released = live().filter(|sequence| !host.asked.contains_key(&sequence.id)).count() as u64;
        assert_eq!(stats.unreleased, known + released);
    }

    /// Ends the engine in one of several ways.
    fn end(&mut self) {
        let mode = self.host().rng.below(5);
        match mode {
            0 | 1 => self.drain(mode == 0),
            2 => self.cancel(),
            3 => return self.destroy(),
            _ => self.die(),
        }
        let mut host = self.host();
        while host.serve() {}
        assert!(host.asked.is_empty(), "{:?} have no end", host.asked);
        assert_eq!(host.living_pictures(), 0, "pictures outlive their requests");
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

    /// Returns whether some of the first `n` requests are unfinished.
    fn lives(&mut self, n: u64) -> bool {
        self.host().shared.hub.first_live() < n
    }

    /// With a host that polls and frees everything, every request ends. `rush`: even if new ones keep
    /// arriving.
    fn drain(&mut self, rush: bool) {
        self.host().calm_down();
        if !rush && self.host().rng.one_in(2) {
            self.host().engine.shutdown(ShutdownMode::Drain).unwrap();
        }
        let live = self.host().shared.hub.usage().unfinished as u64;
        // Replicas take turns at random.
        let allowed = (live + 1) * self.setting.turns_each() * (2 * self.runners.len() as u64 - 1);
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
        for scheduler in self.cores().map(Core::scheduler) {
            assert_eq!(scheduler.counts().blocks_used == 0, scheduler.session_counts().0 == 0);
        }
        self.host().engine.shutdown(ShutdownMode::Drain).unwrap();
        self.stop(4);
    }

    /// Runs the replicas to their end, which must not need a poll.
    fn stop(&mut self, turns: u64) {
        for _ in 0..turns {
            for replica in self.alive() {
                self.advance_one(replica);
            }
        }
        assert!(self.alive().is_empty(), "it goes on behind its end");
    }

    fn told(&mut self) {
        let mut host = self.host();
        host.note_end_of_all();
        host.calm_down();
        host.engine.shutdown(ShutdownMode::Cancel).unwrap();
    }

    fn cancel(&mut self) {
        self.told();
        self.stop(4);
        self.host().tally.count("worlds cancelled");
    }

    /// Destroys the engine, with events that are never polled, or with callbacks that are due. Other threads
    /// make calls meanwhile.
    fn destroy(&mut self) {
        self.host().shared.hub.leave_all();
        self.told();
        if self.setting.callback {
            let acts = self.host().rng.below(8);
            for _ in 0..acts {
                self.host().act();
                if !self.alive().is_empty() {
                    self.advance();
                }
            }
        }
        self.stop(4);
        let mut host = self.host();
        match host.setting.callback {
            true => host.deliver_the_rest(),
            false => {
                let poll = host.engine.poll(Which::Any, 1, None, &mut |_, _| ());
                assert_eq!(poll.unwrap_err().status, Status::Shutdown);
            }
        }
        host.engine.destroy().unwrap();
        assert_eq!(host.living_pictures(), 0, "pictures outlive the engine");
        host.tally.count("worlds destroyed");
    }

    /// The loop panics outside of guarded code. The host goes on as usual until then.
    fn die(&mut self) {
        self.dying = true;
        self.host().calm_down();
        let mut turns = 0;
        while !self.alive().is_empty() {
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
