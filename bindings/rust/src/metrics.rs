//! Counters and reports of an engine.
use crate::engine::Engine;
use crate::error::Result;
use crate::stats::{Latency, Lengths, Stats};
use crate::{sys, text};
use std::mem::{MaybeUninit, size_of};

impl Engine {
    /// A snapshot of the engine's counters.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = MaybeUninit::<sys::bn_stats>::zeroed();
        let to = stats.as_mut_ptr();
        // SAFETY: the library fills a struct of this size, and one of zeros is a valid one.
        unsafe {
            sys::bn_stats_init(to, size_of::<sys::bn_stats>() as u32);
            self.0.call(|engine, error| sys::bn_engine_stats(engine, to, error))?;
            Ok(Stats::from(&stats.assume_init()))
        }
    }

    /// The statistics as Prometheus text (exposition format 0.0.4).
    pub fn metrics(&self) -> Result<String> {
        text::sized_text(32768, |text, capacity, length| {
            // SAFETY: the buffer has the room that is said.
            self.0.call(|engine, error| unsafe {
                sys::bn_engine_metrics(engine, text, capacity, length, error)
            })
        })
    }

    /// A readable report on the engine's efficiency. Its wording may change in any version.
    pub fn report(&self) -> Result<String> {
        text::sized_text(4096, |text, capacity, length| {
            // SAFETY: as above.
            self.0
                .call(|engine, error| unsafe { sys::bn_engine_report(engine, text, capacity, length, error) })
        })
    }
}

impl Latency {
    /// The inclusive upper bound of a bucket, in nanoseconds; `u64::MAX` for the last and for those beyond.
    pub fn bound_ns(bucket: u32) -> u64 {
        // SAFETY: any number is allowed.
        unsafe { sys::bn_latency_bound_ns(bucket) }
    }
}

impl Lengths {
    /// Like [`Latency::bound_ns`], in tokens.
    pub fn bound(bucket: u32) -> u64 {
        // SAFETY: any number is allowed.
        unsafe { sys::bn_length_bound(bucket) }
    }
}
