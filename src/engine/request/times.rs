//! The times of a request, from submit to its last token, and its deadlines.

use super::ending::{Ending, timed_out};
use super::event::Usage;

/// In nanoseconds; 0: not reached, or no deadline.
pub(crate) struct Times {
    pub submitted: u64,
    deadline: u64,
    /// Deadline of the admission.
    pub queue_deadline: u64,
    admitted: u64,
    prefilled: u64,
    first: u64,
    last: u64,
}

impl Times {
    /// A request submitted at `now`. The timeouts are in milliseconds; 0: none.
    pub(crate) fn new(now: u64, timeout: u32, queue_timeout: u32) -> Self {
        let after = |ms: u32| if ms == 0 { 0 } else { now.saturating_add(u64::from(ms) * 1_000_000) };
        let (deadline, queue_deadline) = (after(timeout), after(queue_timeout));
        Self { submitted: now, deadline, queue_deadline, admitted: 0, prefilled: 0, first: 0, last: 0 }
    }

    /// The times of a part of the request, which ends with it.
    pub(crate) fn part(&self) -> Self {
        let Self { submitted, deadline, .. } = *self;
        Self { submitted, deadline, queue_deadline: 0, admitted: 0, prefilled: 0, first: 0, last: 0 }
    }

    /// The deadlines that still apply, each with its reason.
    fn limits(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let queue = if self.was_admitted() { 0 } else { self.queue_deadline };
        let all = [
            (self.deadline, "the request's timeout passed"),
            (queue, "the request was not admitted within queue_timeout_ms"),
        ];
        all.into_iter().filter(|(deadline, _)| *deadline > 0)
    }

    /// The time by which the request must end; `u64::MAX` without a deadline.
    pub(crate) fn until(&self) -> u64 {
        if self.deadline == 0 { u64::MAX } else { self.deadline }
    }

    /// The deadlines that still apply.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.limits().map(|(deadline, _)| deadline)
    }

    /// Reason for ending at `now`, if a deadline has passed.
    pub(crate) fn expired(&self, now: u64) -> Option<Ending> {
        self.limits().find(|(deadline, _)| *deadline <= now).map(|(_, why)| timed_out(why))
    }

    pub(crate) fn was_admitted(&self) -> bool {
        self.admitted > 0
    }

    /// Returns the waiting time.
    pub(crate) fn admit(&mut self, now: u64) -> u64 {
        self.admitted = now;
        now.saturating_sub(self.submitted)
    }

    /// Records that the prompt is computed.
    pub(crate) fn prefill(&mut self, now: u64) {
        self.prefilled = now;
    }

    /// Returns the time since the last token, or since submit for the first one.
    pub(crate) fn token(&mut self, now: u64) -> u64 {
        let since = if self.first == 0 { self.submitted } else { self.last };
        if self.first == 0 {
            (self.first, self.prefilled) = (now, now);
        }
        self.last = now;
        now.saturating_sub(since)
    }

    /// The times of a request that ends at `now`.
    pub(crate) fn usage(&self, now: u64) -> Usage {
        let since = |end: u64, start: u64| if end == 0 { 0 } else { end.saturating_sub(start) };
        let admitted = if self.was_admitted() { self.admitted } else { now };
        Usage {
            queued_ns: admitted.saturating_sub(self.submitted),
            prefill_ns: since(self.prefilled, self.admitted),
            first_token_ns: since(self.first, self.submitted),
            decode_ns: since(self.last, self.first),
            total_ns: now.saturating_sub(self.submitted),
            ..Usage::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_queue_timeout_ends_with_the_admission() {
        let mut times = Times::new(MS, 20, 5);
        assert!(times.expired(6 * MS - 1).is_none());
        assert!(times.expired(6 * MS).unwrap().1.message.contains("queue_timeout_ms"));
        assert_eq!(times.deadlines().collect::<Vec<_>>(), [21 * MS, 6 * MS]);
        assert_eq!(times.admit(4 * MS), 3 * MS);
        assert!(times.expired(21 * MS - 1).is_none());
        assert!(times.expired(21 * MS).unwrap().1.message.contains("the request's timeout"));
        assert_eq!(Times::new(MS, 0, 0).deadlines().count(), 0);
    }

    #[test]
    fn phases_that_were_not_reached_take_no_time() {
        let mut times = Times::new(10, 0, 0);
        let usage = times.usage(15);
        assert_eq!((usage.queued_ns, usage.prefill_ns, usage.total_ns), (5, 0, 5));
        times.admit(12);
        assert_eq!((times.token(20), times.token(27)), (10, 7));
        let usage = times.usage(30);
        assert_eq!((usage.queued_ns, usage.prefill_ns, usage.first_token_ns), (2, 8, 10));
        assert_eq!((usage.decode_ns, usage.total_ns), (7, 20));
    }
}
