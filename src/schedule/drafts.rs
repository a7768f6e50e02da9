//! Decides how many drafted tokens a step verifies in addition to the known ones.

use super::scheduler::TABLE;
use super::slots::SequenceSlot;
use super::{Plan, PlanEntry, Scheduler, SeqId, StateConfig, Work};
use crate::base::reserve;

/// Maximum number of drafted tokens of a sequence in one step.
pub const MAX_DRAFT: usize = 15;

/// A draft that is accepted with a higher probability than this is tried now and then, even if it does not seem to
/// save time.
const LIKELY: f32 = 0.3;
/// One in this many plans tries such a draft: for a size that is not known yet (or if a model drafts, within what its
/// drafts may lose), while other drafts run, and while none runs (or if a model would first compute a whole text).
const RETRY: [u64; 3] = [8, 64, 512];
const TRY: usize = 0;
const OTHERS_RUN: usize = 1;
const COLD: usize = 2;
/// A draft with no higher probability than this is not run, however cheap rows seem to be.
const UNLIKELY: f32 = 0.1;
/// Number of rows that a pass of the draft model may always have, however long it takes.
const LEAST_ROWS: u32 = 64;
/// Factor by which drafts must raise the tokens per time. A smaller gain is lost in costs that the times of steps do
/// not show.
const LEAST_GAIN: f64 = 1.06;

/// Part of the time of decode steps that drafts may lose if nobody asked for them.
const LOSS: f64 = 0.005;
/// Limits of the balance in steps: the maximum that such drafts may lose after a gain, and the maximum loss
/// that later steps must make up for.
const CREDIT: f64 = 4.0;
const DEBT: f64 = 16.0;

/// What a model's drafts of a request may lose at first, in steps of its own.
pub(super) const AT_FIRST: f32 = 1.0;
/// The maximum of what they may lose after gains.
const MOST_CREDIT: f32 = 4.0;
/// What a step without drafts adds while they may lose less than at first.
const EARNED: f32 = 0.01;
/// Part of it that one step may lose. It is never all lost, and shallow drafts go on longer than deep ones.
const RISK: f32 = 0.5;

/// An account of drafts that nobody asked for: their gain less their cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// Nanoseconds gained. While it is negative, no such drafts run.
    balance: f64,
    /// Whether all drafts of the planned step are such drafts.
    planned: bool,
}

/// Drafts that a decoding sequence offers for verification.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// Index of its entry in the plan.
    pub at: usize,
    /// Probability that each drafted token is accepted along with all before it, in descending order.
    pub stands: [f32; MAX_DRAFT],
    /// Maximum number of drafts.
    pub most: u32,
    /// Whether a model drafts them, each in a pass of its own.
    pub by_model: bool,
    /// Whether they run only while the account of such drafts is not negative.
    pub auto: bool,
    /// Whether the model computes the whole text of a sequence before its first draft.
    pub cold: bool,
    /// The chosen number of drafts.
    pub depth: u32,
    /// What a model's drafts may cost in this step, in steps of the sequence's own. The scheduler sets it.
    pub risk: f32,
}

/// What each draft of a step cost, in steps of its sequence's own. An accepted draft saves one of these. In a step of
/// `n` sequences, time that all of them wait for costs `n` times as much as in a step of one.
pub(super) struct Price(f32);

impl Price {
    /// Adds a step to what a sequence's drafts may still lose. So drafts that are never accepted lose at most one step,
    /// and then one percent of the time.
    pub(super) fn settle(&self, entry: &PlanEntry, slot: &mut SequenceSlot) {
        if entry.drafts > 0 {
            let gain = entry.accepted as f32 - self.0 * entry.drafts as f32;
            (slot.credit, slot.drafted) = ((slot.credit + gain).clamp(0.0, MOST_CREDIT), true);
        } else if entry.decode && slot.credit < AT_FIRST {
            slot.credit = AT_FIRST.min(slot.credit + EARNED);
        }
    }
}

/// The rows and passes of the drafts that are chosen so far.
#[derive(Clone, Copy)]
struct Chosen {
    work: Work,
    passes: [Work; MAX_DRAFT],
    /// Expected nanoseconds of the step and of these passes, without optimism about sizes that never ran.
    ns: f64,
}

impl Scheduler {
    /// Chooses the depths of `offers` and adds their rows to `plan`. The depths maximize the expected tokens
    /// per time of the step, within the step's rows and time. Drafts take only blocks that are not needed
    /// now. Among equals, the first offer wins.
    pub fn draft(&mut self, plan: &mut Plan, offers: &mut [Offer]) {
        let logits: u32 = plan.entries.iter().map(|entry| entry.logits).sum();
        let rows = u64::from(self.config.max_batch_tokens).saturating_sub(plan.work.rows);
        let rows = rows.min(u64::from(self.config.max_logits_rows.saturating_sub(logits)));
        let StateConfig { slots, drafts, .. } = self.config.states;
        let rows = if slots == 0 { rows } else { rows.min(drafts.into()) };
        self.drafting_ns = [0; 2];
        let depth = self.best_depth(plan, offers, rows);
        offers.iter_mut().for_each(|offer| offer.depth = 0);
        for _ in 0..depth {
            let Some(offer) = likeliest(offers) else { break };
            let entry = &mut plan.entries[offer.at];
            if !self.hold_spare(entry.seq, entry.start + entry.rows + 1) {
                offer.most = offer.depth;
                continue;
            }
            offer.depth += 1;
            plan.work.sub(Work::span(entry.start, entry.rows));
            (entry.rows, entry.logits, entry.drafts) = (entry.rows + 1, entry.logits + 1, entry.drafts + 1);
            plan.work.add(Work::span(entry.start, entry.rows));
        }
        self.account.planned = offers.iter().all(|offer| offer.auto || offer.depth == 0);
    }

    /// Number of draft rows for all `offers` together, at most `rows`.
    fn best_depth(&mut self, plan: &Plan, offers: &mut [Offer], rows: u64) -> u64 {
        if self.draft_always {
            return all(offers, rows);
        }
        self.bound(plan, offers);
        let sequences = plan.entries.iter().filter(|entry| entry.sample).count() as f64;
        let predicted = self.step_time.predict(plan.work);
        let most_ns = predicted + self.prompts_ns(predicted);
        let alone = self.step_time.measured(plan.work).unwrap_or(predicted);
        let mut chosen = Chosen { work: plan.work, passes: Default::default(), ns: alone };
        let (mut tokens, mut depth, mut likely, mut retry) = (sequences, 0, 0, None);
        let (mut best, mut best_depth) = (LEAST_GAIN * tokens / alone, 0);
        while depth < rows {
            let Some(offer) = likeliest(offers) else { break };
            let stands = offer.stands[offer.depth as usize];
            let next = self.one_more(&chosen, plan, offer, [predicted, alone]);
            let drafting = self.drafting_ns(&next.passes);
            if self.step_time.predict(next.work) + drafting > most_ns {
                break;
            }
            if offer.by_model {
                let cost = ((next.ns - chosen.ns).max(0.0) * sequences / alone) as f32;
                if cost > offer.risk {
                    offer.most = offer.depth;
                    continue;
                }
                offer.risk -= cost;
                let own = if offer.cold { COLD } else { TRY };
                retry = Some(retry.map_or(own, |other: usize| other.min(own)));
            }
            offer.depth += 1;
            (depth, chosen) = (depth + 1, next);
            tokens += f64::from(stands);
            likely = if stands > LIKELY { depth } else { likely };
            // The cost of a size that never ran is best found by trying it.
            let unknown = if stands > LIKELY { alone } else { self.step_time.predict(chosen.work) };
            // More rows never make a step faster, whatever else the machine did during the measurement.
            let step = self.step_time.measured(chosen.work).unwrap_or(unknown).max(alone);
            let gain = tokens / (step + drafting);
            if gain > best {
                (best, best_depth) = (gain, depth);
            }
        }
        self.tried(plan, best_depth, likely, retry)
    }

    /// The number of draft rows that a plan has for which `best` seems best: now and then it is more. `likely` drafts
    /// are accepted often. With `retry`, one in `RETRY[retry]` plans tries a model's draft even if it is accepted
    /// seldom, since what it may cost is bounded.
    fn tried(&mut self, plan: &Plan, best: u64, likely: u64, retry: Option<usize>) -> u64 {
        let retry = retry.filter(|_| best == 0);
        let likely = likely.max(u64::from(retry.is_some()));
        if best >= likely {
            return best;
        }
        // The cost of the next size may have changed, or was measured badly.
        let rows = plan.work.rows;
        let next = likely.min((rows + best + 1).next_power_of_two() - rows);
        let retry = match self.step_time.knows(rows + next) {
            true => retry.unwrap_or(if best == 0 { COLD } else { OTHERS_RUN }),
            false => TRY,
        };
        self.declined += 1;
        if self.declined.is_multiple_of(RETRY[retry]) { next } else { best }
    }

    /// Sets what the drafts of `offers` may cost in this step.
    fn bound(&self, plan: &Plan, offers: &mut [Offer]) {
        for offer in offers {
            let slot = &self.slots[plan.entries[offer.at].seq];
            offer.risk = RISK * slot.credit;
            offer.cold &= !slot.drafted;
            if offer.auto && self.account.balance < 0.0 {
                offer.most = 0;
            }
        }
    }

    /// `chosen` with one more draft of `offer`. `predicted` and `alone` are the time of the step without drafts, by the
    /// formula and as measured.
    fn one_more(&self, chosen: &Chosen, plan: &Plan, offer: &Offer, [predicted, alone]: [f64; 2]) -> Chosen {
        let (entry, mut next) = (&plan.entries[offer.at], *chosen);
        if offer.by_model {
            next.passes[offer.depth as usize].add(Work::span(entry.start + offer.depth, 1));
        }
        next.work.sub(Work::span(entry.start, entry.rows + offer.depth));
        next.work.add(Work::span(entry.start, entry.rows + offer.depth + 1));
        let extra = match self.step_time.measured(next.work) {
            Some(ns) => ns - alone,
            None => self.step_time.predict(next.work) - predicted,
        };
        next.ns = alone + extra.max(0.0) + self.drafting_ns(&next.passes);
        next
    }

    /// What each draft of a committed step cost.
    pub(super) fn price(&mut self, plan: &Plan, decodes: bool, step_ns: u64) -> Price {
        let [drafting, known] = std::mem::take(&mut self.drafting_ns);
        let (work, drafts) = without_drafts(plan);
        let predicted = self.step_time.predict(work);
        let alone = self.step_time.measured(work).unwrap_or(predicted);
        if drafts == 0 || alone <= 0.0 {
            return Price(0.0);
        }
        let extra = match decodes {
            true => self.step_time.measured(plan.work).unwrap_or(step_ns as f64) - alone,
            false => self.step_time.predict(plan.work) - predicted,
        };
        // Computing a prompt is not for this step alone.
        let again = |entry: &PlanEntry| {
            entry.drafts == 0 || self.slots.get(entry.seq).is_some_and(|slot| slot.drafted)
        };
        let known = if plan.entries.iter().all(again) { known } else { 0 };
        let ns = extra.max(0.0) + (drafting + known) as f64;
        let sequences = plan.entries.iter().filter(|entry| entry.sample).count() as f64;
        Price((ns * sequences / alone / f64::from(drafts)) as f32)
    }

    /// Adds a decode step to the account of drafts that nobody asked for. It counts with the mean time of steps of its
    /// size, if that is known, since a single step may have waited for other programs.
    pub(super) fn account(&mut self, plan: &Plan, step_ns: u64) {
        let (work, _) = without_drafts(plan);
        let Some(alone) = self.step_time.measured(work) else { return };
        let mut balance = self.account.balance + LOSS * alone;
        if plan.work.rows > work.rows && self.account.planned {
            let took = self.step_time.measured(plan.work).unwrap_or(step_ns as f64).max(alone);
            balance += gained(plan) * alone - (took - alone);
        }
        self.account.balance = balance.clamp(-DEBT * alone, CREDIT * alone);
    }

    /// Predicted nanoseconds of these passes of the draft model.
    fn drafting_ns(&self, passes: &[Work]) -> f64 {
        let ns =
            |work: &Work| self.draft_time.measured(*work).unwrap_or_else(|| self.draft_time.predict(*work));
        passes.iter().take_while(|pass| pass.rows > 0).map(ns).sum()
    }

    /// Number of rows that a pass of the draft model may have in addition to the step of `plan`, if sequences
    /// have prompts to catch up with.
    pub fn draft_rows(&self, plan: &Plan) -> u32 {
        let ns = self.prompts_ns(self.step_time.predict(plan.work));
        self.draft_time.rows_within(0, ns).max(LEAST_ROWS).min(self.config.max_batch_tokens)
    }

    /// Learns that a pass of the draft model took `ns`. `decodes`: all of its rows gave logits.
    pub fn drafted(&mut self, work: Work, decodes: bool, ns: u64) {
        self.draft_time.observe_step(work, decodes, ns);
        self.drafting_ns[usize::from(!decodes)] += ns;
    }

    /// Takes blocks for the positions below `to`, but only while the others have enough for their next positions.
    fn hold_spare(&mut self, seq: SeqId, to: u32) -> bool {
        let slot = &self.slots[seq];
        let (blocks, lane) = (self.blocks_for(to), slot.lane);
        if to > slot.bound() {
            return false;
        }
        while self.lanes.table(lane).len() < blocks {
            let spare = self.cache.pool().available() > self.running.len();
            if !spare || reserve(self.lanes.table_mut(lane), 1, TABLE).is_err() {
                return false;
            }
            let Some(block) = self.cache.take() else { return false };
            self.lanes.table_mut(lane).push(block);
        }
        true
    }
}

/// The work of a plan without its drafts, and their number.
fn without_drafts(plan: &Plan) -> (Work, u32) {
    let (mut work, mut drafts) = (plan.work, 0);
    for entry in &plan.entries {
        work.sub(Work::span(entry.start, entry.rows));
        work.add(Work::span(entry.start, entry.known()));
        drafts += entry.drafts;
    }
    (work, drafts)
}

/// The number of steps that accepted drafts save, as a mean over the sequences. Many drafts of one sequence do not make
/// up for the wait of the others, so with several sequences `n` accepted drafts of one count as `ln(1 + n)`.
fn gained(plan: &Plan) -> f64 {
    match &plan.entries[..] {
        [alone] => alone.accepted.into(),
        all => all.iter().map(|entry| f64::from(1 + entry.accepted).ln()).sum::<f64>() / all.len() as f64,
    }
}

/// Number of rows of all drafts that are likely enough to be run.
fn all(offers: &mut [Offer], rows: u64) -> u64 {
    let mut depth = 0;
    while depth < rows
        && let Some(offer) = likeliest(offers)
    {
        offer.depth += 1;
        depth += 1;
    }
    depth
}

/// The offer whose next draft has the highest probability.
fn likeliest(offers: &mut [Offer]) -> Option<&mut Offer> {
    let chance = |offer: &Offer| offer.stands[offer.depth as usize];
    let open = offers.iter_mut().filter(|offer| offer.depth < offer.most && chance(offer) > UNLIKELY);
    open.reduce(|a, b| if chance(b) > chance(a) { b } else { a })
}
