//! For the simulation: an exchange that does not block, and whether the hub's state is whole.

use super::super::slots::checks::View;
use super::*;
use std::collections::BTreeSet;

/// Where an exchange stops before its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bed {
    /// It would not wait.
    Awake,
    /// It would return false.
    Done,
    /// It waits for the bell, or for its time.
    Asleep,
}

impl<E: Merge, C: Named, R: Readable> Hub<E, C, R> {
    /// `exchange` up to its wait.
    pub fn lie_down(&self, out: &mut Outbox<E>, rest: Rest) -> Bed {
        let mut state = self.hand_over(out);
        if rest == Rest::None || !state.is_quiet() {
            return Bed::Awake;
        }
        if rest == Rest::UntilCommand && state.is_done() {
            return Bed::Done;
        }
        state.asleep = true;
        Bed::Asleep
    }

    /// Somebody has rung for the engine thread since it lay down.
    pub fn is_rung(&self) -> bool {
        !self.state.lock().asleep
    }

    /// What the wait would see: None where it would go on waiting, though rung.
    pub fn looks_up(&self) -> Option<Bed> {
        let mut state = self.state.lock();
        state.asleep = state.is_quiet() && !state.is_done();
        match (state.is_quiet(), state.is_done()) {
            (false, _) => Some(Bed::Awake),
            (true, true) => Some(Bed::Done),
            _ => None,
        }
    }

    /// The end of a timed wait.
    pub fn get_up(&self) {
        self.state.lock().asleep = false;
    }

    /// What no host may have broken, at any time. `readable`: what the wait descriptor says.
    pub fn check(&self, readable: Option<bool>) {
        let state = self.state.lock();
        state.slots.check(self.bounds.bytes);
        let rests = state.asleep && (!state.is_quiet() || state.is_done());
        assert!(!rests, "the engine thread sleeps beside {} commands", state.commands.len());
        let ends =
            || state.commands.iter().filter_map(|c| if let Command::End(id) = c { Some(*id) } else { None });
        let different: BTreeSet<RequestId> = ends().collect();
        assert_eq!(ends().count(), different.len(), "a request is to end twice");
        let over = state.phase >= Phase::Drained;
        let expected = over || state.slots.usage().any_ready > 0;
        assert_eq!(readable.unwrap_or(expected), expected, "the wait descriptor, in {:?}", state.phase);
    }

    pub fn view(&self, slot: u32) -> View {
        self.state.lock().slots.view(slot as usize).expect("a slot")
    }

    /// The host holds events, or what has finished.
    pub fn waits_for_host(&self) -> bool {
        self.state.lock().slots.waits_for_host()
    }

    /// For messages.
    pub fn tell_all(&self) -> String {
        let state = self.state.lock();
        let slots: Vec<View> = (0..).map_while(|index| state.slots.view(index)).collect();
        format!("{:?}, hungry: {}, fed: {}, {slots:#?}", state.slots.usage(), state.hungry, state.fed)
    }

    /// How many requests came before the oldest that is not done; `u64::MAX` without one.
    pub fn first_live(&self) -> u64 {
        self.state.lock().slots.first_live()
    }

    /// Whether a grant would leave a way for all to end; see `Slots::grant`.
    pub fn could_grant(&self, slot: u32, bytes: u64) -> bool {
        self.bounds.bytes == u64::MAX
            || self.state.lock().slots.could_grant(slot as usize, bytes, self.bounds.bytes)
    }
}
