//! Drafts for the rows of a plan: random offers, and their outcomes.

use super::world::World;
use bn_engine::schedule::{MAX_DRAFT, Offer, Plan, Work};

impl World {
    /// Has the scheduler add drafts to `plan`, and checks that nothing else changes.
    pub fn draft(&mut self, plan: &mut Plan) {
        let mut offers = Vec::new();
        for (at, _) in plan.entries.iter().enumerate().filter(|(_, entry)| entry.decode) {
            if self.rng.one_in(3) {
                continue;
            }
            let chance = self.rng.below(100) as f32 * 0.01;
            let most = 1 + self.rng.below(MAX_DRAFT as u64) as u32;
            let stands = std::array::from_fn(|n| chance.powi(n as i32 + 1));
            let (by_model, auto) = *self.rng.pick(&[(true, false), (false, true), (false, false)]);
            offers.push(Offer { at, stands, most, by_model, auto, ..Offer::default() });
        }
        let passes = self.rng.below(4);
        for rows in 0..passes {
            self.scheduler.drafted(Work::span(0, rows as u32), self.rng.one_in(2), self.rng.below(1_000_000));
        }
        let (before, events, counts) = (plan.clone(), self.scheduler.events(), self.scheduler.counts());
        self.scheduler.draft(plan, &mut offers);
        assert_eq!(self.scheduler.events(), events, "nobody gives way to a draft");
        assert_eq!(self.scheduler.counts().running, counts.running);
        let mut work = Work::default();
        for (at, (entry, before)) in plan.entries.iter().zip(&before.entries).enumerate() {
            let offer = offers.iter().find(|offer| offer.at == at);
            let depth = offer.map_or(0, |offer| offer.depth);
            assert!(offer.is_none_or(|offer| depth <= offer.most));
            let (rows, logits) = (before.rows + depth, before.logits + depth);
            assert_eq!((entry.seq, entry.start, entry.sample), (before.seq, before.start, before.sample));
            assert_eq!((entry.rows, entry.logits, entry.drafts), (rows, logits, depth));
            assert!(entry.start + entry.rows <= self.requests.get(entry.seq).bound(), "{entry:?}");
            self.check_blocks(entry);
            work.add(Work::span(entry.start, entry.rows));
        }
        assert_eq!(plan.work, work);
        let config = &self.setting.config;
        assert!(work.rows <= config.max_batch_tokens.into());
        let logits: u32 = plan.entries.iter().map(|entry| entry.logits).sum();
        assert!(logits <= config.max_logits_rows);
        self.tally.drafted += work.rows - before.work.rows;
    }
}
