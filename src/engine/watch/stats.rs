//! Counters and latencies; the engine thread records once per step.

use super::buckets::Samples;
use super::efficiency::Efficiency;
use super::table::{Lengths, Stats};
use crate::base::Status;
use crate::base::clock::{now_ns, unix_ns};
use crate::base::sync::Mutex;
use crate::engine::memory::free::Claim;
use crate::engine::request::event::Usage;
use crate::schedule::{Counts, Plan, Snapshot, StepTime};
use std::sync::atomic::{AtomicU64, Ordering};

impl Stats {
    /// Mean number of requests in a forward pass; 0 before the first.
    pub fn mean_batch_size(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.batched_requests as f64 / self.steps as f64 }
    }
}

/// Events since the last record. Reused from step to step for its memory.
#[derive(Default)]
pub(crate) struct StepLog {
    steps: u64,
    sequences: u64,
    prompt_rows: u64,
    /// End of the last step.
    pub done_ns: u64,
    /// Time that passes of a draft model took since the engine began.
    pub drafting_ns: u64,
    /// `OpSet::gates`.
    pub gates: [u64; 2],
    /// Since the engine began.
    efficiency: Efficiency,
    /// Queue waits of admitted requests.
    pub waits: Vec<u64>,
    /// Whether it is a first token, and the time since the token before (or since submit).
    pub gaps: Vec<(bool, u64)>,
    /// Usage of ended requests.
    pub ends: Vec<Usage>,
}

impl StepLog {
    /// Counts a step. `learned` is the cost model after this step.
    pub(crate) fn step(&mut self, plan: &Plan, step_ns: u64, max_step_ns: u64, learned: &StepTime) {
        self.steps += 1;
        self.sequences = plan.entries.len() as u64;
        let decodes = plan.entries.iter().filter(|entry| entry.decode);
        self.prompt_rows += plan.work.rows - decodes.map(|entry| u64::from(entry.rows)).sum::<u64>();
        self.efficiency.step(plan, step_ns, max_step_ns, learned);
    }
}

/// The latest report of one engine thread.
#[derive(Clone, Copy, Default)]
struct ThreadStats {
    /// Total blocks of its KV cache.
    blocks: u64,
    last_batch_size: u64,
    idle_ns: u64,
    /// Start of the time in which nothing could run; 0: something can.
    idle_since_ns: u64,
    /// Since the thread began.
    efficiency: Efficiency,
    drafting_ns: u64,
    gates: [u64; 2],
    scheduling: Snapshot,
}

#[derive(Default)]
struct Inner {
    threads: Vec<ThreadStats>,
    steps: u64,
    sequence_steps: u64,
    prompt_rows: u64,
    generated_tokens: u64,
    queue_wait: Samples,
    time_to_first_token: Samples,
    inter_token: Samples,
    end_to_end: Samples,
    request_prefill: Samples,
    request_decode: Samples,
    prompt_lengths: Lengths,
    generated_lengths: Lengths,
}

impl Inner {
    fn ended(&mut self, usage: &Usage) {
        self.end_to_end.record(usage.total_ns);
        if usage.prefill_ns > 0 {
            self.request_prefill.record(usage.prefill_ns);
        }
        if usage.generated_tokens > 0 {
            self.request_decode.record(usage.decode_ns);
        }
        self.prompt_lengths.record(usage.prompt_tokens.into());
        self.generated_lengths.record(usage.generated_tokens.into());
    }

    /// Sums over all engine threads.
    fn sum(&self, of: impl Fn(&ThreadStats) -> u64) -> u64 {
        self.threads.iter().map(of).sum()
    }

    /// Prompt tokens that were computed, without recomputation.
    fn prompt_tokens(&self) -> u64 {
        self.prompt_rows - self.sum(|part| part.scheduling.events.recomputed_rows)
    }
}

pub(crate) struct Recorder {
    inner: Mutex<Inner>,
    /// One per engine thread.
    claims: Vec<Claim>,
    made_ns: u64,
    made_unix_ns: u64,
    rejected: [AtomicU64; REJECTIONS],
}

/// Number of rejection counters: invalid, queue full, too long, memory, shutdown.
const REJECTIONS: usize = 5;

impl Recorder {
    /// One thread for each of `claims`; their KV caches have `blocks` blocks.
    pub(crate) fn new(claims: Vec<Claim>, blocks: Vec<usize>) -> Self {
        let part = |blocks: usize| ThreadStats { blocks: blocks as u64, ..ThreadStats::default() };
        let inner = Inner { threads: blocks.into_iter().map(part).collect(), ..Inner::default() };
        Self {
            inner: Mutex::new(inner),
            claims,
            made_ns: now_ns(),
            made_unix_ns: unix_ns(),
            rejected: Default::default(),
        }
    }

    pub(crate) fn rejected(&self, why: Status, n: usize) {
        let counter = match why {
            Status::QueueFull => 1,
            Status::TooLong => 2,
            Status::MemoryLimit | Status::OutOfMemory => 3,
            Status::Shutdown | Status::EngineDead => 4,
            _ => 0,
        };
        self.rejected[counter].fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Called by an engine thread: adds the events of a step, and empties `log`.
    pub(crate) fn record(&self, thread: usize, log: &mut StepLog, scheduling: Snapshot) {
        let counts = scheduling.counts;
        self.claims[thread].touched(counts.blocks_used + counts.blocks_cached);
        let inner = &mut *self.inner.lock();
        let generated = log.gaps.len() as u64;
        let part = &mut inner.threads[thread];
        part.scheduling = scheduling;
        if log.steps > 0 {
            part.last_batch_size = log.sequences;
        }
        (part.efficiency, part.drafting_ns, part.gates) = (log.efficiency, log.drafting_ns, log.gates);
        inner.prompt_rows += log.prompt_rows;
        inner.steps += log.steps;
        inner.sequence_steps += log.sequences;
        inner.generated_tokens += generated;
        log.waits.drain(..).for_each(|ns| inner.queue_wait.record(ns));
        for (first, ns) in log.gaps.drain(..) {
            if first { inner.time_to_first_token.record(ns) } else { inner.inter_token.record(ns) }
        }
        log.ends.drain(..).for_each(|usage| inner.ended(&usage));
        (log.steps, log.sequences, log.prompt_rows) = (0, 0, 0);
    }

    /// Called by an engine thread: from now on nothing can run (true), or something can again.
    pub(crate) fn idle(&self, thread: usize, idle: bool) {
        let (now, part) = (now_ns(), &mut self.inner.lock().threads[thread]);
        let since = std::mem::replace(&mut part.idle_since_ns, if idle { now } else { 0 });
        if since > 0 {
            part.idle_ns += now - since;
        }
    }

    /// Called when an engine thread ends: its blocks and sessions no longer count, and it stays idle.
    pub(crate) fn part(&self, thread: usize) {
        self.idle(thread, true);
        let part = &mut self.inner.lock().threads[thread];
        (part.blocks, part.last_batch_size) = (0, 0);
        part.scheduling.counts = Counts::default();
        (part.scheduling.sessions, part.scheduling.session_blocks) = (0, 0);
    }

    /// The statistics that `hub` does not count.
    pub(crate) fn snapshot(&self) -> (Stats, Efficiency) {
        let rejected = self.rejected.each_ref().map(|n| n.load(Ordering::Relaxed));
        let inner = self.inner.lock();
        let now = now_ns();
        let uptime_ns = now.saturating_sub(self.made_ns);
        let idle_ns = |part: &ThreadStats| match part.idle_since_ns {
            0 => part.idle_ns,
            since => part.idle_ns + now.saturating_sub(since),
        };
        let efficiency = Efficiency::sum(inner.threads.iter().map(|part| part.efficiency));
        let scheduled = |of: fn(&Snapshot) -> u64| inner.sum(|part| of(&part.scheduling));
        let stats = Stats {
            rejected_invalid: rejected[0],
            rejected_queue_full: rejected[1],
            rejected_too_long: rejected[2],
            rejected_memory: rejected[3],
            rejected_shutdown: rejected[4],
            prompt_tokens: inner.prompt_tokens(),
            queried_tokens: scheduled(|s| s.events.prompt_positions),
            cached_tokens: scheduled(|s| s.events.cached_positions),
            recomputed_tokens: scheduled(|s| s.events.recomputed_rows),
            preemptions: scheduled(|s| s.events.preemptions),
            pauses: scheduled(|s| s.events.pauses),
            paused: scheduled(|s| s.counts.paused as u64),
            sessions: scheduled(|s| s.sessions as u64),
            session_blocks: scheduled(|s| s.session_blocks as u64),
            kv_evictions: scheduled(|s| s.cache.evictions),
            kv_blocks_total: inner.sum(|part| part.blocks),
            kv_blocks_cached: scheduled(|s| s.counts.blocks_cached as u64),
            generated_tokens: inner.generated_tokens,
            drafted_tokens: efficiency.drafted,
            accepted_tokens: efficiency.accepted,
            drafting_ns: inner.sum(|part| part.drafting_ns),
            ffn_gates: inner.sum(|part| part.gates[0]),
            ffn_gates_shut: inner.sum(|part| part.gates[1]),
            steps: inner.steps,
            decode_steps: efficiency.decode_steps,
            long_steps: efficiency.long_steps,
            last_batch_size: inner.sum(|part| part.last_batch_size),
            batched_requests: inner.sequence_steps,
            kv_blocks_used: scheduled(|s| s.counts.blocks_used as u64),
            prefill_ns: efficiency.prefill_ns,
            decode_ns: efficiency.step_ns - efficiency.prefill_ns,
            idle_ns: inner.sum(idle_ns),
            uptime_ns,
            made_unix_ns: self.made_unix_ns,
            queue_wait: inner.queue_wait.latency(),
            time_to_first_token: inner.time_to_first_token.latency(),
            inter_token: inner.inter_token.latency(),
            end_to_end: inner.end_to_end.latency(),
            request_prefill: inner.request_prefill.latency(),
            request_decode: inner.request_decode.latency(),
            prompt_lengths: inner.prompt_lengths,
            generated_lengths: inner.generated_lengths,
            disk_tokens: scheduled(|s| s.events.fetched_positions),
            disk_fetches: scheduled(|s| s.events.fetches),
            disk_fetches_late: scheduled(|s| s.events.given_up_fetches),
            ..Stats::default()
        };
        (stats, efficiency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::free::Claims;
    use crate::schedule::HeldBack;

    #[test]
    fn a_record_adds_up_and_empties_the_log() {
        static CLAIMS: Claims = Claims::new();
        let (_, claim) = CLAIMS.claim(10, &|| 0, |_| Ok(7)).unwrap();
        let (recorder, mut log) = (Recorder::new(vec![claim], vec![7]), StepLog::default());
        for _ in 0..2 {
            let work = crate::schedule::Work { rows: 5, positions: 5, keys: 9 };
            let plan = Plan { work, held_back: HeldBack::Blocks, ..Plan::default() };
            log.step(&plan, 1000, 2000, &StepTime::default());
            log.gaps.extend([(true, 20_000), (false, 30_000)]);
            let counts = Counts { blocks_used: 2, blocks_cached: 1, ..Counts::default() };
            recorder.record(0, &mut log, Snapshot { counts, ..Snapshot::default() });
        }
        let (stats, efficiency) = recorder.snapshot();
        assert_eq!((stats.steps, stats.prompt_tokens, stats.generated_tokens), (2, 10, 4));
        assert_eq!((efficiency.step_ns, efficiency.held_back), (2000, [0, 0, 0, 2, 0, 0, 0, 0]));
        let untouched = CLAIMS.claim(10, &|| 0, |others| Ok(others as usize)).unwrap().0;
        assert_eq!((stats.kv_blocks_used, untouched), (2, 40));
        assert_eq!((stats.time_to_first_token.count, stats.inter_token.buckets[2]), (2, 2));
    }

    fn recorder() -> Recorder {
        static CLAIMS: Claims = Claims::new();
        Recorder::new(vec![CLAIMS.claim(10, &|| 0, |_| Ok(7)).unwrap().1], vec![7])
    }

    #[test]
    fn ended_requests_leave_their_times_and_lengths() {
        let (recorder, mut log) = (recorder(), StepLog::default());
        let whole = Usage {
            prompt_tokens: 20,
            generated_tokens: 3,
            prefill_ns: 40_000,
            decode_ns: 60_000,
            ..Usage::default()
        };
        // Cancelled in the queue.
        let early = Usage { prompt_tokens: 21, total_ns: 5, ..Usage::default() };
        log.ends.extend([whole, early]);
        recorder.record(0, &mut log, Snapshot::default());
        let (stats, _) = recorder.snapshot();
        assert_eq!(
            (stats.end_to_end.count, stats.request_prefill.count, stats.request_decode.sum_ns),
            (2, 1, 60_000)
        );
        let lengths = stats.prompt_lengths;
        assert_eq!((lengths.count, lengths.sum, lengths.buckets[4], lengths.buckets[5]), (2, 41, 1, 1));
        assert_eq!((stats.generated_lengths.buckets[0], stats.generated_lengths.buckets[2]), (1, 1));
    }

    #[test]
    fn idle_time_never_goes_back() {
        use crate::base::clock::fake;
        fake::set(Some(100));
        let recorder = recorder();
        let idle_at = |now| {
            fake::set(Some(now));
            recorder.snapshot().0.idle_ns
        };
        recorder.idle(0, true);
        assert_eq!((idle_at(100), idle_at(130)), (0, 30));
        recorder.idle(0, false);
        assert_eq!(idle_at(150), 30);
        recorder.idle(0, true);
        assert_eq!(idle_at(155), 35);
        fake::set(None);
    }

    #[test]
    fn several_threads_add_up() {
        static CLAIMS: Claims = Claims::new();
        let claims = (0..2).map(|_| CLAIMS.claim(10, &|| 0, |_| Ok(7)).unwrap().1).collect();
        let (recorder, mut log) =
            (Recorder::new(claims, vec![7, 8]), [StepLog::default(), StepLog::default()]);
        for (thread, rows) in [(0, 4), (1, 16), (0, 8), (1, 16)] {
            let work = crate::schedule::Work { rows, positions: rows, keys: rows };
            let plan = Plan { work, ..Plan::default() };
            log[thread].step(&plan, 1000, 2000, &StepTime::default());
            let counts = Counts { blocks_used: 10 + thread, ..Counts::default() };
            recorder.record(thread, &mut log[thread], Snapshot { counts, ..Snapshot::default() });
        }
        let (stats, efficiency) = recorder.snapshot();
        assert_eq!((stats.steps, stats.prompt_tokens, stats.kv_blocks_used), (4, 44, 21));
        assert_eq!((efficiency.step_ns, efficiency.rows), (4000, (4, 16)));
        recorder.part(0);
        let (left, efficiency) = recorder.snapshot();
        assert_eq!((left.kv_blocks_used, left.kv_blocks_total, left.prompt_tokens), (11, 8, 44));
        assert_eq!(efficiency.step_ns, 4000);
    }
}
