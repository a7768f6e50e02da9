//! Divides the rows and time that decode rows leave in a step among the prompts.

use super::{HeldBack, Plan, PlanEntry, Scheduler, SeqId, State, Tokens, Work};
use std::cmp::Reverse;

/// Maximum time of a step of prompts alone: the next request to arrive waits for its end.
const PROMPT_STEP_NS: f64 = 1e9;
/// The same for several prompts of similar lengths. Once the first of them decodes, the others get only the time that
/// the target for steps leaves, so few long steps serve such a burst best.
const BURST_STEP_NS: f64 = 4e9;
/// Lengths are similar if the longest is at most this many times the shortest.
const ALIKE: u32 = 4;
/// Minimum rows of such a step: weights are read once for all rows, so fewer rows would use them badly.
const LEAST_PROMPT_ROWS: u32 = 64;
/// Part of a step's target time that is planned. The rest absorbs prediction errors.
const OF_TARGET: f64 = 0.875;
/// Minimum time of prompts in a step with decode rows, as a multiple of the decode rows' time, whatever the
/// target is.
const FLOOR: f64 = 0.75;
/// Number of steps over which the usual share of prompts is learned.
const USUAL_STEPS: f64 = 64.0;
/// The first prompt in the queue gets one part in this many of the prompts' rows and time. The rest goes to the
/// shortest prompts, so that a short prompt need not wait for the end of a long one.
const FIRST: u32 = 4;

/// The part of a step that is left for prompts.
#[derive(Clone, Copy)]
struct Room {
    rows: u32,
    ns: f64,
    /// Rows that run even if there is no time for them.
    least: u32,
    /// Rows that may give logits, besides the last row of each sequence.
    logits: u32,
}

impl Scheduler {
    pub(super) fn plan_prompts(&mut self, plan: &mut Plan, tokens: &dyn Tokens, now: u64) {
        let mut chunks = std::mem::take(&mut self.chunks);
        chunks.clear();
        let decode = self.step_time.predict(plan.work);
        let only = self.isolated();
        let prompts = self.running.iter().filter(|&seq| !self.slots[seq].decodes());
        let prompts = prompts.filter(|seq| only.is_none_or(|only| only == *seq));
        chunks.extend(prompts.map(|seq| (seq, 0)));
        if !chunks.is_empty() {
            self.share(plan, &mut chunks, tokens);
            for &(seq, rows) in &chunks {
                self.plan_chunk(seq, rows, plan, tokens, now);
            }
        }
        self.chunks = chunks;
        if plan.decode_rows > 0 && decode > 0.0 {
            let part = self.step_time.predict(plan.work) / decode - 1.0;
            self.usual_prompts += (part.min(FLOOR) - self.usual_prompts) / USUAL_STEPS;
        }
    }

    /// The rows and time left for prompts next to the decode rows of `plan`.
    fn room(&self, plan: &Plan, prompts: &[(SeqId, u32)]) -> Room {
        let rows = u64::from(self.config.max_batch_tokens).saturating_sub(plan.work.rows) as u32;
        let logits = self.config.max_logits_rows.saturating_sub(plan.decode_rows + prompts.len() as u32);
        if plan.decode_rows == 0 {
            let missing = prompts.iter().map(|&(seq, _)| self.slots[seq].missing());
            let (shortest, longest) = (missing.clone().min().unwrap_or(0), missing.max().unwrap_or(0));
            let burst = prompts.len() > 1 && longest <= shortest.saturating_mul(ALIKE);
            let ns = if burst { BURST_STEP_NS } else { PROMPT_STEP_NS };
            let ns = ns - self.step_time.predict(Work::default());
            return Room { rows, ns, least: LEAST_PROMPT_ROWS, logits };
        }
        Room { rows, ns: self.prompts_ns(self.step_time.predict(plan.work)), least: 1, logits }
    }

    /// Nanoseconds that prompts, or drafts, may add to a step whose decode rows take `decode` ns.
    pub(super) fn prompts_ns(&self, decode: f64) -> f64 {
        (self.target_ns() - decode).max(FLOOR * decode)
    }

    /// Nanoseconds that a step with decode rows should take at most.
    fn target_ns(&self) -> f64 {
        let target = match self.config.target_itl_ns {
            0 => self.config.max_step_ns,
            ns => ns.min(self.config.max_step_ns),
        };
        target as f64 * OF_TARGET
    }

    /// Nanoseconds that other work than `plan` may add to its step, as prompts may; `None` if no sequence decodes in
    /// it.
    pub fn time_beside(&self, plan: &Plan) -> Option<f64> {
        let mut decodes = Work::default();
        for entry in plan.entries.iter().filter(|entry| entry.decode) {
            decodes.add(Work::span(entry.start, entry.rows));
        }
        let decode = self.step_time.predict(decodes);
        let prompts = self.step_time.predict(plan.work) - decode;
        (plan.decode_rows > 0).then(|| (self.prompts_ns(decode) - prompts).max(0.0))
    }

    /// Predicted nanoseconds to the first token of a waiting sequence if it were admitted now, with `cached`
    /// positions in the cache.
    pub(super) fn first_token_ns(&self, seq: SeqId, cached: u32) -> f64 {
        let own = &self.slots[seq];
        let rows = own.len - cached;
        let mut prompts = self.step_time.extra(Work::span(cached, rows));
        let mut decodes = Work::default();
        for seq in self.running.iter() {
            let slot = &self.slots[seq];
            if slot.decodes() {
                decodes.add(Work::span(slot.computed, 1));
            } else if slot.missing() <= rows {
                prompts += self.step_time.extra(Work::span(slot.computed, slot.missing()));
            }
        }
        if decodes.rows == 0 {
            return self.step_time.predict(Work::default()) + prompts;
        }
        let decode = self.step_time.predict(decodes);
        let steps = (prompts / self.prompts_ns(decode).max(1.0)).ceil().max(1.0);
        prompts + steps * decode
    }

    /// Divides the room among the prompts, which are in the order of the queue.
    fn share(&self, plan: &mut Plan, chunks: &mut [(SeqId, u32)], tokens: &dyn Tokens) {
        let mut room = self.room(plan, chunks);
        let first = chunks[0].0;
        let part = match self.slots[first].request.whole {
            true => room,
            false => {
                Room { rows: room.rows.div_ceil(FIRST), ns: room.ns / f64::from(FIRST), least: 1, ..room }
            }
        };
        let rows = self.rows_in(first, 0, part);
        chunks[0].1 = self.whole_units(first, 0, rows, room, tokens);
        self.spend(first, 0, chunks[0].1, &mut room);
        // The order of prompts in the plan does not affect results.
        chunks.sort_unstable_by_key(|&(seq, _)| {
            let slot = &self.slots[seq];
            (Reverse(slot.request.priority), slot.missing(), slot.rank)
        });
        for (seq, rows) in chunks.iter_mut() {
            let more = self.rows_in(*seq, *rows, room);
            let more = self.whole_units(*seq, *rows, more, room, tokens);
            self.spend(*seq, *rows, more, &mut room);
            *rows += more;
            if *rows < self.slots[*seq].missing() {
                plan.held_back = if room.rows == 0 { HeldBack::Rows } else { HeldBack::Time };
            }
        }
    }

    /// Number of rows of `seq` that fit, after the `given` ones.
    fn rows_in(&self, seq: SeqId, given: u32, room: Room) -> u32 {
        let slot = &self.slots[seq];
        if slot.request.whole {
            return self.whole_in(seq, given, room);
        }
        let ns = room.ns + self.step_time.extra(Work::span(slot.computed, given));
        let more = self.step_time.rows_within(slot.computed, ns).saturating_sub(given);
        let most = slot.rows_without_logits(given).saturating_add(room.logits).max(u32::from(given == 0));
        more.max(room.least).min(slot.missing() - given).min(room.rows).min(most)
    }

    /// All rows of a prompt that runs in one step, or none. `room.least` is unchanged until a prompt gets rows, so the
    /// first one always runs.
    fn whole_in(&self, seq: SeqId, given: u32, room: Room) -> u32 {
        let missing = self.slots[seq].missing();
        let in_time = self.step_time.rows_within(0, room.ns) >= missing || room.least == LEAST_PROMPT_ROWS;
        if given == 0 && missing <= room.rows && in_time { missing } else { 0 }
    }

    /// Cuts `rows` more rows of a prompt before rows that run in one step (`Tokens::undivided`). If such rows are next,
    /// all of them or none. `room.least` is unchanged until a prompt gets rows, so the first one always runs.
    fn whole_units(&self, seq: SeqId, given: u32, rows: u32, room: Room, tokens: &dyn Tokens) -> u32 {
        let from = self.slots[seq].computed + given;
        let Some(unit) = tokens.undivided(seq, from + rows) else { return rows };
        if unit.start > from {
            return unit.start - from;
        }
        let all = unit.end - from;
        let logits = all.saturating_sub(self.slots[seq].rows_without_logits(given));
        let fits = all <= room.rows && logits <= room.logits + 1;
        let in_time = room.least > 0 || self.rows_in(seq, given, room) >= all;
        if fits && in_time { all } else { 0 }
    }

    fn spend(&self, seq: SeqId, given: u32, rows: u32, room: &mut Room) {
        let extra = |rows| self.step_time.extra(Work::span(self.slots[seq].computed, rows));
        room.rows -= rows;
        room.logits = room.logits.saturating_sub(rows - self.slots[seq].rows_without_logits(given).min(rows));
        room.ns -= extra(given + rows) - extra(given);
        room.least = room.least.saturating_sub(rows);
    }

    fn plan_chunk(&mut self, seq: SeqId, rows: u32, plan: &mut Plan, tokens: &dyn Tokens, now: u64) {
        // It may have been preempted meanwhile, for another prompt's blocks.
        let runs = self.state(seq) == State::Running;
        let start = self.slots[seq].computed;
        if rows == 0 || !runs || !self.hold(seq, start + rows, plan, tokens, now) {
            return;
        }
        self.plan_saves(seq, rows);
        let slot = &self.slots[seq];
        let (sample, decode) = (rows == slot.missing(), slot.decodes());
        let logits = rows.saturating_sub(slot.rows_without_logits(0)).max(sample.into());
        plan.push(PlanEntry {
            seq,
            start,
            rows,
            logits,
            sample,
            decode,
            drafts: 0,
            accepted: 0,
            late: false,
        });
    }
}
