//! Which drafted tokens a step verifies.

use super::*;

impl Core {
    /// Adds drafts to the decode rows of `plan`, as many as pay.
    pub(super) fn draft(&mut self, plan: &mut Plan) {
        let mut offers = std::mem::take(&mut self.offers);
        offers.clear();
        for (at, entry) in plan.entries.iter().enumerate().filter(|(_, entry)| entry.decode) {
            let sequence = self.sequences[entry.seq.0 as usize].as_ref();
            offers.extend(sequence.and_then(|sequence| sequence.offer(at)));
        }
        if !offers.is_empty() {
            self.scheduler.draft(plan, &mut offers);
        }
        for offer in offers.iter().filter(|offer| offer.depth > 0) {
            if let Some(sequence) = self.sequences[plan.entries[offer.at].seq.0 as usize].as_mut() {
                sequence.draft(offer.depth);
            }
        }
        self.offers = offers;
    }
}
