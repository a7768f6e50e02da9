//! Bytes of the limit that belong to no request, as adapters and kept grammars have them.

use super::host::Host;

impl Host {
    /// Now and then sets bytes aside, or lets them go.
    pub fn set_aside(&mut self) {
        if self.calm || self.setting.budget == u64::MAX || !self.rng.one_in(30) {
            return;
        }
        if self.aside.is_some() {
            return self.let_go();
        }
        self.aside = self.shared.hub.keep(1 + self.rng.below(self.setting.budget));
        self.tally.more("set-asides", self.aside.is_some().into());
    }

    /// The first thread to take the bytes back must wake those that wait for them.
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
}
