//! For the simulation: recomputes the slots' counts.

use super::*;

/// A slot as the simulation sees it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub info: RequestInfo,
    pub thread: usize,
    pub open: bool,
    pub discard: bool,
    pub running: bool,
    pub finished: bool,
    pub slow: bool,
    pub granted: u64,
    /// Granted bytes in its events: the pending one, and those that pollers hold.
    pub pending: u64,
    pub leased: u64,
}

impl<E: Merge> RequestSlots<E> {
    pub fn view(&self, index: usize) -> Option<View> {
        let slot = self.slots.get(index)?;
        Some(View {
            info: slot.info,
            thread: slot.assignment.thread,
            open: slot.open,
            discard: slot.discard,
            running: slot.running,
            finished: slot.finished,
            slow: slot.slow,
            granted: slot.granted,
            pending: slot.pending.as_ref().map_or(0, |event| event.granted()),
            leased: slot.leases.iter().map(|(_, event)| event.granted()).sum(),
        })
    }

    /// `aside`: bytes that belong to no request. `owed`: tokens that each thread owes.
    pub fn check(&self, budget: u64, aside: u64, owed: &[u64]) {
        let open = || self.slots.iter().filter(|slot| slot.open);
        let live = || open().filter(|slot| !slot.finished);
        let ready = |slot: &&RequestSlot<E>| slot.pending.is_some() && !slot.info.by_id;
        let usage = &self.usage;
        assert_eq!(usage.unreleased, open().count());
        assert_eq!(usage.unfinished, live().count());
        assert_eq!(usage.running, live().filter(|slot| slot.running).count());
        let queued = live().filter(|slot| !slot.running).map(|slot| slot.info.prompt_tokens);
        assert_eq!(usage.queued_tokens, queued.sum::<u64>());
        assert_eq!(usage.any_ready, open().filter(ready).count());
        assert_eq!(usage.accepted, usage.outcomes.iter().sum::<u64>() + usage.unfinished as u64);
        let lease = |slot: &RequestSlot<E>| slot.leases.len().saturating_sub(1) as u64 * lease_bytes::<E>();
        let bytes: u64 = open().map(|slot| slot.info.reserved + slot.granted + lease(slot)).sum();
        let bytes = bytes + aside;
        assert_eq!(usage.reserved, bytes, "bytes reserved, and those of all slots");
        assert!(usage.reserved_peak <= budget && bytes <= usage.reserved_peak, "{usage:?} of {budget}");
        for (thread, owed) in owed.iter().enumerate() {
            let own = live().filter(|slot| slot.assignment.thread == thread);
            assert_eq!(
                *owed,
                own.map(|slot| slot.assignment.tokens).sum::<u64>(),
                "tokens that thread {thread} owes"
            );
        }
        let need = live().map(|slot| slot.info.need()).max().unwrap_or(0);
        assert_eq!(self.largest_need.unwrap_or(need), need, "the largest need");
        for (index, slot) in self.slots.iter().enumerate() {
            let entries = self.any.iter().filter(|&&entry| entry as usize == index).count();
            assert_eq!(entries, usize::from(slot.in_any), "slot {index} in the pollers' queue");
            assert!(slot.in_any || !ready(&slot), "nobody will poll slot {index}");
            let empty = slot.pending.is_none() && slot.leases.is_empty();
            assert!(empty || slot.open && !slot.discard, "slot {index} keeps events");
            assert!(slot.open || slot.granted == 0, "slot {index} keeps a grant");
            let prompt = slot.info.reserved - slot.info.kept;
            assert!(!slot.finished || prompt == 0, "slot {index} has finished and keeps {prompt} bytes");
        }
        if budget < u64::MAX {
            // The host can return whatever else it holds at any time.
            let held: u64 = live().map(|slot| slot.info.reserved + slot.granted).sum();
            assert!(
                all_can_end(budget - held - aside, live().map(|slot| (slot, 0))),
                "not all can come to their ends"
            );
        }
    }

    pub fn waits_for_host(&self) -> bool {
        let of_host =
            |slot: &RequestSlot<E>| slot.finished || slot.pending.is_some() || !slot.leases.is_empty();
        self.slots.iter().any(|slot| slot.open && of_host(slot))
    }

    pub fn first_live(&self) -> u64 {
        let live = self.slots.iter().filter(|slot| slot.open && !slot.finished);
        live.map(|slot| slot.ticket).min().unwrap_or(u64::MAX)
    }

    /// See `grant`.
    pub fn could_grant(&self, index: usize, bytes: u64, budget: u64) -> bool {
        let Some(left) = budget.saturating_sub(self.usage.reserved).checked_sub(bytes) else {
            return false;
        };
        let live = self.slots.iter().enumerate().filter(|(_, slot)| slot.open && !slot.finished);
        let more = live.map(|(at, slot)| (slot, if at == index { bytes } else { 0 }));
        all_can_end(left, more.filter(|(slot, more)| slot.granted + more > 0))
    }
}

/// Returns whether `left` bytes suffice for each slot, with its extra bytes, to get all that it may need. Tries
/// repeatedly to find a slot that can finish.
fn all_can_end<'a, E: 'a>(mut left: u64, slots: impl Iterator<Item = (&'a RequestSlot<E>, u64)>) -> bool {
    let claim = |(slot, more): (&RequestSlot<E>, u64)| {
        let held = slot.info.reserved + slot.granted + more;
        (slot.info.alone.saturating_sub(held), held)
    };
    let mut claims: Vec<(u64, u64)> = slots.map(claim).collect();
    while let Some(at) = claims.iter().position(|&(need, _)| need <= left) {
        left += claims.swap_remove(at).1;
    }
    claims.is_empty()
}
