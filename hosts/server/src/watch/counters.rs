//! The server's own counters, beside those of the engines.
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub struct Counters {
    ignored_fields: AtomicU64,
}

impl Counters {
    /// Fields of a request were not known, and passed over.
    pub fn ignored_fields(&self, count: usize) {
        let add = |all: u64| Some(all.saturating_add(count as u64));
        let _ = self.ignored_fields.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub fn ignored_fields_total(&self) -> u64 {
        self.ignored_fields.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_wrap() {
        let counters = Counters::default();
        counters.ignored_fields(usize::MAX);
        counters.ignored_fields(2);
        assert_eq!(counters.ignored_fields_total(), u64::MAX);
    }
}
