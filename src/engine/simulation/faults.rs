//! Passes as the host of a world decides: how long they take, whether they fail, and what comes of it.

use super::host::Host;
use super::machine::{self, Fault};
use crate::base::{Result, Status, panics};
use crate::engine::api::{RequestId, Stage};
use crate::ops::RaggedBatch;

impl Host {
    /// Chooses the fault of the pass that runs `batch`, and its duration. The host acts meanwhile.
    pub fn pass(&mut self, batch: &RaggedBatch) -> Fault {
        let [each, row] = self.setting.cost;
        let mut ns = (each + row * batch.tokens.len() as u64) * (95 + self.rng.below(11)) / 100;
        if self.rng.one_in(300) {
            ns *= 50;
            self.tally.count("slow passes");
        }
        self.move_clock(ns / 2);
        let hub = &self.shared.hub;
        let live = |id: &&RequestId| {
            let own = hub.replica_of(**id) == Some(self.replica);
            own && hub.stage(**id).is_ok_and(|stage| stage != Stage::Finished)
        };
        if let Some(id) = self.ending.iter().find(live).filter(|_| !machine::is_probe(batch)) {
            self.broken.get_or_insert(format!("{id:?} waits for the end of a pass to end"));
        }
        self.check_hold(batch);
        self.all = false;
        // The host may call `facts`, which panics while the engine dies.
        if !self.faults_off && !machine::is_dying() && self.rng.one_in(6) {
            self.tally.count("acts during a pass");
            if let Err(text) = panics::catch(|| self.act()) {
                self.broken.get_or_insert(text);
            }
        }
        if self.angry > 0 && self.rng.one_in(8) {
            self.cancel_all();
        }
        self.move_clock(ns / 2);
        self.fault(batch)
    }

    fn fault(&mut self, batch: &RaggedBatch) -> Fault {
        if self.sick == Some(self.replica) {
            self.tally.count("passes of the sick");
            self.again = false;
            return Fault::Error;
        }
        let lone = batch.seqs.len() == 1;
        let angry = lone && self.angry > 0;
        self.again = self.angry > 0;
        self.angry = self.angry.saturating_sub(1);
        let chance = match self.setting.faults {
            _ if angry => 3,
            faults if machine::is_probe(batch) => faults.min(10),
            faults => faults,
        };
        if self.faults_off || !self.chance(chance) {
            return Fault::None;
        }
        if !lone {
            self.angry = batch.seqs.len();
        }
        let (logits, hidden) = (batch.logits_rows.len() as u64, batch.hidden_rows.len() as u64);
        match self.rng.below(6) {
            0 => Fault::Panic,
            1 | 2 if logits > 0 => {
                let value = *self.rng.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
                Fault::Logits(self.rng.below(logits) as usize, value)
            }
            3 if hidden > 0 => Fault::Hidden(self.rng.below(16 * hidden) as usize),
            _ => Fault::Error,
        }
    }

    /// Takes the time of a step of the tower, in which the host may act. Returns whether it fails.
    pub fn looks(&mut self) -> bool {
        self.tally.count("steps of the tower");
        let ns = 1 + self.rng.below(8_000_000);
        self.move_clock(ns);
        if !self.faults_off && !machine::is_dying() && self.rng.one_in(12) {
            self.tally.count("acts during a step of the tower");
            if let Err(text) = panics::catch(|| self.act()) {
                self.broken.get_or_insert(text);
            }
        }
        let fails = self.fails("steps of the tower that failed");
        self.grazes += u64::from(fails);
        fails
    }

    /// Returns whether the states of this many sequences cannot be advanced by their drafts.
    pub fn keeps_states(&mut self, sequences: usize) -> bool {
        let keeps = self.fails("states that were not advanced");
        self.grazes += if keeps { sequences as u64 } else { 0 };
        keeps
    }

    /// Returns whether a fault strikes, and counts it as `what`.
    pub fn fails(&mut self, what: &'static str) -> bool {
        let fails = !self.faults_off && self.chance(self.setting.faults);
        self.tally.more(what, fails.into());
        fails
    }

    /// Counts a pass of a draft model with a recurrent layer.
    pub fn drafted(&mut self, batch: &RaggedBatch) {
        self.tally.count("draft passes through states");
        self.tally.more("draft passes of several through states", (batch.seqs.len() > 1).into());
    }

    /// Records how a pass without an early fault ended.
    pub fn passed(&mut self, result: &Result<()>, batch: &RaggedBatch) {
        let sequences = batch.seqs.len();
        self.stopped = None;
        if result.is_ok() && self.all && !machine::is_probe(batch) {
            self.broken.get_or_insert("the pass went on for nobody".into());
        }
        match result {
            Ok(()) => self.tally.count("passes that ended"),
            Err(error) if error.status == Status::Cancelled => {
                self.stopped = (!self.again).then_some(sequences);
                self.tally.count("passes that were stopped");
            }
            // Memory was refused, so each of the sequences runs alone now.
            Err(_) => self.angry = sequences,
        }
    }

    /// Counts a fault that took effect.
    pub fn struck(&mut self, fault: Fault, batch: &RaggedBatch) {
        let lone = batch.seqs.len() == 1;
        match fault {
            Fault::None => {}
            Fault::Error | Fault::Panic if machine::is_probe(batch) => {
                // A single row of a prompt may look like a decode row.
                self.grazes += u64::from(batch.tokens.len() == 1);
                self.tally.count("probes that failed");
            }
            Fault::Error | Fault::Panic => {
                self.hits += u64::from(lone);
                self.tally.more("lone passes that failed", lone.into());
                let how = if fault == Fault::Error { "passes that failed" } else { "passes that panicked" };
                self.tally.count(how);
            }
            Fault::Logits(row, value) => {
                // Only a sequence's first row is certain to be sampled; a draft's row may be skipped.
                let sure = machine::is_first(batch, row);
                (self.hits, self.grazes) = (self.hits + u64::from(sure), self.grazes + u64::from(!sure));
                self.tally.count(if value.is_nan() { "passes with NaN" } else { "passes with infinity" });
            }
            Fault::Hidden(_) => {
                self.grazes += 1;
                self.tally.count("embeddings with NaN");
            }
        }
    }
}
