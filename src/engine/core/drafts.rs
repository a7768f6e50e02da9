//! Chooses the drafted tokens that a step verifies, and runs the passes that draft.

use super::drafter::{DraftModel, Drafter, Wanted};
use super::*;
use crate::engine::request::speculation::Learned;
use crate::ops::OpSet;
use crate::schedule::MAX_DRAFT;

/// The drafting state of an engine thread.
pub(super) struct Drafting {
    /// Drafts that the next step could verify; kept for its memory.
    offers: Vec<Offer>,
    pub learned: Learned,
    /// The model that drafts, if one does.
    pub model: Option<Drafter>,
}

impl Drafting {
    pub(super) fn new(
        config: &EngineConfig,
        target: &Loaded,
        ops: &dyn OpSet,
        plan: &MemoryPlan,
    ) -> Result<Self> {
        let model = Drafter::new(config, target, ops, plan)?;
        let mut offers = Vec::new();
        reserve(&mut offers, config.max_batch_size as usize, BATCH)?;
        Ok(Self { offers, learned: Learned::default(), model })
    }
}

impl Drafting {
    /// The draft model, if it has a cache of its own.
    pub(super) fn own_cache(&mut self) -> Option<&mut DraftModel> {
        self.model.as_mut().and_then(Drafter::own_cache)
    }
}

impl Core {
    /// Copies KV blocks of both models, before any other work of the step.
    pub(super) fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.memory.copy(Unit::Block, pairs)?;
        self.drafting.own_cache().map_or(Ok(()), |draft| draft.copy_blocks(pairs))
    }

    /// Adds as many drafts to the decode rows of `plan` as pay off.
    pub(super) fn draft(&mut self, plan: &mut Plan) {
        let mut offers = std::mem::take(&mut self.drafting.offers);
        offers.clear();
        let context = self.drafting.model.as_ref().map_or(0, Drafter::context);
        let cold = self.drafting.own_cache().is_some();
        for (at, entry) in plan.entries.iter().enumerate().filter(|(_, entry)| entry.decode) {
            let Some(sequence) = self.sequences.get_mut(entry.seq) else { continue };
            if let Some((tokens, bytes)) = sequence.wants_room()
                && self.shared.hub.grant(entry.seq.0, bytes, false)
            {
                sequence.account.grant(tokens);
            }
            let offer = sequence.offer(at, context.saturating_sub(entry.start));
            offers.extend(offer.map(|offer| Offer { cold: cold && offer.by_model, ..offer }));
        }
        if !offers.is_empty() {
            self.scheduler.draft(plan, &mut offers);
            // Drafted rows may have taken blocks.
            self.spill();
        }
        if let Some(draft) = self.drafting.own_cache() {
            for entry in &plan.entries {
                draft.overwritten(
                    self.scheduler.block_table(entry.seq),
                    entry.start,
                    entry.start + entry.rows,
                );
            }
        }
        for offer in offers.iter().filter(|offer| offer.depth > 0) {
            if let Some(sequence) = self.sequences.get_mut(plan.entries[offer.at].seq) {
                sequence.draft(offer.depth);
            }
        }
        offers.retain(|offer| offer.by_model && offer.depth > 0);
        if !offers.is_empty() {
            self.draft_by_model(plan, &mut offers);
        }
        self.drafting.offers = offers;
        // The masks after the drafts are computed during the pass.
        for entry in plan.entries.iter().filter(|entry| entry.drafts > 0) {
            if let Some(sequence) = self.sequences.get_mut(entry.seq) {
                sequence.look_ahead(entry.drafts);
            }
        }
    }

    /// Runs one draft pass for each token of the deepest offer. Drafts that were not produced are cut from the
    /// plan.
    fn draft_by_model(&mut self, plan: &mut Plan, offers: &mut [Offer]) {
        // The sequence that lacks the fewest tokens goes first, so that it does not wait for one that still lacks
        // a prompt.
        if let Some(drafter) = &self.drafting.model {
            offers.sort_by_key(|offer| {
                let entry = plan.entries[offer.at];
                drafter.lacks(self.scheduler.block_table(entry.seq), entry.start)
            });
        }
        for pass in 0..MAX_DRAFT as u32 {
            let ran = self.draft_pass(plan, offers, pass);
            if let Err(error) = &ran {
                self.lose_drafts(plan, offers);
                offers.iter_mut().for_each(|offer| offer.depth = offer.depth.min(pass));
                if error.status != Status::Cancelled {
                    self.shared.log.write(LOG_WARN, format!("a pass that drafts failed: {error}"));
                }
            }
            if !matches!(ran, Ok(true)) {
                break;
            }
        }
        offers.iter().for_each(|offer| plan.cut_drafts(offer.at, offer.depth));
    }

    /// A draft pass did not run: forgets everything that the draft model has computed for these sequences.
    fn lose_drafts(&mut self, plan: &Plan, offers: &[Offer]) {
        let Self { drafting, scheduler, .. } = self;
        let Some(draft) = drafting.own_cache() else { return };
        for entry in offers.iter().map(|offer| plan.entries[offer.at]) {
            draft.overwritten(scheduler.block_table(entry.seq), 0, entry.start + entry.rows);
        }
    }

    /// Drafts one more token for each of `offers` that is deeper than `pass`. Offers that get none stop at this
    /// depth. Returns false if no offer goes deeper.
    fn draft_pass(&mut self, plan: &Plan, offers: &mut [Offer], pass: u32) -> Result<bool> {
        let Self { number, drafting, backend, memory, scheduler, shared, sequences, .. } = self;
        let Some(drafter) = &mut drafting.model else { return Ok(false) };
        let by_grid = shared.eyes.as_ref().is_some_and(|eyes| eyes.sight.by_grid);
        drafter.begin(scheduler.draft_rows(plan) as usize);
        for offer in offers.iter_mut().filter(|offer| offer.depth > pass) {
            let entry = plan.entries[offer.at];
            let Some(sequence) = sequences.get(entry.seq) else { continue };
            let last = entry.start + pass;
            let rotation =
                || sequence.pictures.as_ref().map_or([last; 3], |pictures| pictures.rotation(last));
            let wanted = Wanted {
                table: scheduler.block_table(entry.seq),
                last,
                rotation: by_grid.then(rotation),
                pass,
                state: scheduler.state_slot(entry.seq),
                token: &|position| sequence.token_or_draft(position as usize),
            };
            if !drafter.add(&wanted, &**memory)? {
                offer.depth = pass;
            }
        }
        if drafter.is_empty() {
            return Ok(false);
        }
        let started = now_ns();
        let (work, decodes) = drafter.run(&*backend.ops, &mut **memory, &mut || {
            all_ended(shared, *number, sequences, seqs_of(&plan.entries))
        })?;
        let ns = now_ns() - started;
        scheduler.drafted(work, decodes, ns);
        self.record.drafting_ns += ns;
        self.draw_drafts(plan, offers, pass);
        Ok(offers.iter().any(|offer| offer.depth > pass + 1))
    }

    /// Draws each sequence's next draft from the logits of the pass.
    fn draw_drafts(&mut self, plan: &Plan, offers: &mut [Offer], pass: u32) {
        for offer in offers.iter().filter(|offer| offer.depth > pass) {
            let entry = plan.entries[offer.at];
            let sequence = self.sequences.lend(entry.seq);
            let row = self.sampling.draws.len();
            self.sampling.draws.extend(
                sequence.map(|sequence| Draw::new(PlanEntry { logits: 1, ..entry }, offer.at, sequence, row)),
            );
        }
        let Self { drafting, backend, sampling, shared, .. } = self;
        let Some(drafter) = &mut drafting.model else { return };
        let vocab = shared.loaded.model.facts().vocab_size;
        sampling.run(&backend.pool, drafter.logits(), vocab, &|draw, logits, sampler| {
            draw.sequence.propose(logits, sampler).map(|()| 0)
        });
        for Draw { at, mut sequence, known, gap, .. } in self.sampling.draws.drain(..) {
            // This must also be done after a panic.
            sequence.output.truncate(known);
            self.sequences.put_back(sequence);
            let failed = offers.iter_mut().find(|offer| offer.at == at && gap.is_err());
            failed.into_iter().for_each(|offer| offer.depth = pass);
        }
    }
}
