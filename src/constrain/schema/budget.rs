//! Step limit for rewriting a schema: the result can be larger than the source.

use super::Refusal;
use crate::text::watch;
use serde_json::Value;

pub(super) struct Budget(u32);

impl Budget {
    pub(super) fn new(steps: u32) -> Self {
        Self(steps)
    }

    /// Fails also when the time is up (`text::watch`).
    pub(super) fn spend(&mut self, steps: usize) -> Result<(), Refusal> {
        if watch::is_over() {
            return Err(Refusal::new("rewriting it takes too long"));
        }
        let left = u32::try_from(steps).ok().and_then(|steps| self.0.checked_sub(steps));
        self.0 = left.ok_or_else(|| Refusal::new("it is too large when it is rewritten"))?;
        Ok(())
    }

    /// Spends the steps of copying `value`.
    pub(super) fn spend_on(&mut self, value: &Value) -> Result<(), Refusal> {
        self.spend(1)?;
        match value {
            Value::Array(all) => all.iter().try_for_each(|one| self.spend_on(one)),
            Value::Object(fields) => fields.values().try_for_each(|one| self.spend_on(one)),
            Value::String(text) => self.spend(text.len() / 64),
            _ => Ok(()),
        }
    }
}
