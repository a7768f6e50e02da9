//! Set-aside bytes, as adapters and kept grammars hold them, and pauses of the engine.

use super::host::Host;
use super::machine::is_probe;
use crate::engine::api::{Event, FinishReason};
use crate::engine::hub::Phase;
use crate::ops::RaggedBatch;

impl Host {
    /// Now and then sets bytes aside, or lets them go.
    pub fn set_aside(&mut self) {
        if self.faults_off || self.setting.budget == u64::MAX || !self.rng.one_in(30) {
            return;
        }
        if self.aside.is_some() {
            return self.let_go();
        }
        self.aside = self.shared.hub.keep(1 + self.rng.below(self.setting.budget));
        self.tally.more("set-asides", self.aside.is_some().into());
    }

    /// Returns the set-aside bytes. The first thread that takes them back must wake those that wait for
    /// memory.
    pub fn let_go(&mut self) {
        if self.aside.take().is_none() {
            return;
        }
        match self.rng.below(4) {
            0 => self.shared.hub.take_back(),
            1 => _ = self.shared.hub.usage(),
            2 => _ = self.shared.hub.keep(0),
            _ => _ = self.shared.hub.set_aside(0),
        }
        self.tally.count("set-asides that came back");
    }

    /// Now and then pauses the engine, or ends a pause. `Engine::pause` would wait for a turn.
    pub fn hold(&mut self) {
        if self.faults_off || !self.rng.one_in(100) {
            return;
        }
        let held = self.shared.hub.is_held();
        let open = self.shared.hub.phase() == Phase::Open;
        match self.shared.hub.hold(!held) {
            Ok(before) => assert_eq!(before, held),
            Err(error) => assert!(!open, "{error}"),
        }
        assert_eq!(self.shared.hub.is_held(), open && !held);
        self.tally.count(if held { "pauses of the engine that ended" } else { "pauses of the engine" });
    }

    /// Records an error if a pass of `batch` belongs to a turn that began in a pause.
    pub fn check_hold(&mut self, batch: &RaggedBatch) {
        if self.held_still && !is_probe(batch) {
            self.broken.get_or_insert("a pass begins while the engine is paused".into());
        }
    }

    pub fn count_hold(&mut self, event: &Event) {
        if event.finish == FinishReason::TimedOut && self.shared.hub.is_held() {
            self.tally.count("deadlines in a pause of the engine");
        }
    }
}
