//! Sickness: a replica whose passes keep failing although its device is not lost.

/// Number of passes that fail in a row before a replica counts as sick.
pub const FAILURES: u32 = 4;

pub struct Health {
    /// Passes that failed in a row.
    failures: u32,
    /// No other replica could take requests.
    alone: bool,
}

impl Health {
    pub fn new(replicas: usize) -> Self {
        Self { failures: 0, alone: replicas == 1 }
    }

    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    pub fn passed(&mut self) {
        self.failures = 0;
    }

    /// A sick replica soon has no work left, so without this flag it would be the first choice for every request.
    pub fn is_sick(&self) -> bool {
        self.failures >= FAILURES && !self.alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_failures_in_a_row_make_a_replica_sick_beside_others() {
        for (replicas, sick) in [(1, false), (2, true)] {
            let mut health = Health::new(replicas);
            (1..FAILURES).for_each(|_| health.failed());
            assert!(!health.is_sick());
            health.failed();
            assert_eq!(health.is_sick(), sick);
            health.passed();
            health.failed();
            assert!(!health.is_sick());
        }
    }
}
