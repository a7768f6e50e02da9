//! Sessions: named remains of finished requests.

use super::world::World;
use crate::common::rng::mix;
use bn_engine::base::Status;
use bn_engine::schedule::SeqId;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl World {
    /// Now and then keeps a request's computed blocks, right before it ends.
    pub fn keep_some(&mut self, seq: SeqId) {
        if self.rng.one_in(8) {
            let name = self.rng.pick(&NAMES);
            let states = self.setting.config.states.slots;
            let kept = self.scheduler.keep_session(name, seq, &self.requests);
            if states > 0 && states == self.setting.config.max_batch_size {
                // Sessions may hold no state.
                return assert!(kept.err().is_none_or(|error| error.status == Status::MemoryLimit));
            }
            kept.unwrap();
            let Some(session) = self.scheduler.session(name) else { return };
            self.tally.kept += u64::from(session.contents.len() as u32 == self.requests.get(seq).computed);
        }
    }

    pub fn drop_or_touch(&mut self) {
        let name = self.rng.pick(&NAMES);
        match self.rng.one_in(2) {
            true => _ = self.scheduler.drop_session(name),
            false => self.scheduler.touch_session(name),
        }
    }

    pub fn drop_sessions(&mut self) {
        NAMES.iter().for_each(|name| _ = self.scheduler.drop_session(name));
        assert_eq!(self.scheduler.session_counts(), (0, 0));
    }

    /// Each session has its own text in its blocks, and together they leave half of the memory free.
    pub fn check_sessions(&self) {
        let sessions = NAMES.iter().filter_map(|name| self.scheduler.session(name));
        let (mut count, mut blocks) = (0, 0);
        for session in sessions {
            let root = mix(session.salt, 1);
            // Contents of positions that run in one step are no tokens.
            let tokens: Option<Vec<u32>> = session.contents.iter().map(|id| id.token()).collect();
            if let Some(tokens) = tokens {
                self.memory.check(&session.table, root, &tokens);
                self.memory.check_session(session.state, root, &tokens);
            }
            (count, blocks) = (count + 1, blocks + session.table.len());
        }
        assert_eq!(self.scheduler.session_counts(), (count, blocks));
        assert!(blocks <= self.setting.config.blocks as usize / 2);
    }
}
