//! How often the drafts of a model are accepted, from a request's recent ones.

use super::MAX_DRAFT;

/// Places in a step with a rate of their own: the first ones, and all later ones together. A block of multi-token
/// prediction is right less often the further it is from the model's own hidden state.
const PLACES: usize = 4;
/// Initial rate.
const FIRST: f32 = 0.7;
/// Weight of the newest draft. The first drafts weigh more: the initial rate counts as `KNOWN` of them.
const NEW: f32 = 1.0 / 24.0;
const KNOWN: f32 = 8.0;
/// Minimum number of drafts at a place for its rate to be learned from.
const ENOUGH: u32 = 8;
/// Rates in offers are at least this, so that the scheduler may try drafts again.
const LEAST: f32 = 0.12;
/// A place that a step could not judge moves this far to the rate of the place before it.
const FOLLOWS: f32 = 1.0 / 32.0;

/// Rates of drafts by their place in a step: how often one is right if all before it are.
#[derive(Clone, Copy, Debug)]
pub struct Acceptance {
    right: [f32; PLACES],
    drafts: [u32; PLACES],
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { right: [FIRST; PLACES], drafts: [0; PLACES] }
    }
}

impl Acceptance {
    /// The rates that a request begins with, learned from others.
    pub fn of_others(&self) -> Self {
        Self { drafts: [0; PLACES], ..*self }
    }

    /// Learns from an ended request.
    pub fn learn(&mut self, seen: &Self) {
        for place in (0..PLACES).filter(|&place| seen.drafts[place] >= ENOUGH) {
            self.right[place] += (seen.right[place] - self.right[place]) / 2.0;
        }
    }

    /// Records a step that verified `drafted` drafts and accepted the first `accepted`. `ended`: the output ended
    /// there, so nothing is known about the next one.
    pub fn verified(&mut self, drafted: u32, accepted: u32, ended: bool) {
        let judged = drafted.min(accepted + u32::from(!ended)) as usize;
        for n in 0..judged {
            let place = n.min(PLACES - 1);
            self.drafts[place] += 1;
            let new = NEW.max(1.0 / (KNOWN + self.drafts[place] as f32));
            self.right[place] += new * (f32::from(u8::from(n < accepted as usize)) - self.right[place]);
        }
        if judged > 0 && judged < PLACES {
            self.right[judged] += FOLLOWS * (self.right[judged - 1] - self.right[judged]);
        }
    }

    /// The probability that each of the next drafts is accepted together with all before it.
    pub fn stands(&self) -> [f32; MAX_DRAFT] {
        let mut all = 1.0;
        std::array::from_fn(|n| {
            all *= self.right[n.min(PLACES - 1)].max(LEAST);
            all
        })
    }
}
