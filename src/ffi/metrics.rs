//! The statistics as Prometheus text (exposition format 0.0.4), named as vLLM names them, under `bn_`.

use crate::engine::api::{LATENCY_BOUNDS_NS, Latency, Stats};
use std::fmt::{Display, Write};

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP bn_{name} {help}\n# TYPE bn_{name} {kind}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "bn_{name} {value}");
    }

    fn labelled(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.head(name, "counter", help);
        for (of, value) in values {
            let _ = writeln!(self.0, "bn_{name}{{{label}=\"{of}\"}} {value}");
        }
    }

    fn histogram(&mut self, name: &str, help: &str, of: &Latency) {
        self.head(name, "histogram", help);
        let mut below = 0;
        for (bound, n) in LATENCY_BOUNDS_NS.iter().zip(of.buckets) {
            below += n;
            let _ = writeln!(self.0, "bn_{name}_bucket{{le=\"{}\"}} {below}", seconds(*bound));
        }
        let (sum, count) = (seconds(of.sum_ns), of.count);
        let _ = writeln!(self.0, "bn_{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "bn_{name}_sum {sum}\nbn_{name}_count {count}");
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(super) fn text(stats: &Stats) -> String {
    let mut page = Page(String::new());
    gauges(&mut page, stats);
    counters(&mut page, stats);
    page.histogram("request_queue_time_seconds", "Submit to admission.", &stats.queue_wait);
    page.histogram("time_to_first_token_seconds", "Submit to first token.", &stats.time_to_first_token);
    page.histogram("inter_token_latency_seconds", "A token to the next.", &stats.inter_token);
    page.histogram("e2e_request_latency_seconds", "Submit to completion.", &stats.end_to_end);
    page.0
}

fn gauges(page: &mut Page, stats: &Stats) {
    let kv = if stats.kv_blocks_total == 0 {
        0.0
    } else {
        stats.kv_blocks_used as f64 / stats.kv_blocks_total as f64
    };
    page.one("num_requests_running", "gauge", "Requests in the batch.", stats.running);
    page.one("num_requests_waiting", "gauge", "Requests waiting for admission.", stats.queued);
    page.one("num_requests_unreleased", "gauge", "Requests that hold a queue place.", stats.unreleased);
    page.one("queue_capacity", "gauge", "Queue places.", stats.queue_capacity);
    page.one("queued_prompt_tokens", "gauge", "Prompt tokens waiting for admission.", stats.queued_tokens);
    page.one("queue_token_capacity", "gauge", "The most of them; 0: no bound.", stats.queue_token_capacity);
    page.one("num_requests_paused", "gauge", "Requests paused.", stats.paused);
    page.one("kv_blocks_cached", "gauge", "KV blocks with prefixes for later.", stats.kv_blocks_cached);
    page.one("kv_cache_usage_ratio", "gauge", "KV cache blocks in use, 0 to 1.", kv);
    page.one(
        "batch_utilization_ratio",
        "gauge",
        "Mean batch size over the largest.",
        stats.batch_utilization,
    );
    page.one("memory_used_bytes", "gauge", "Bytes counted against the limit.", stats.memory_used_bytes);
    page.one("memory_peak_bytes", "gauge", "The most ever counted.", stats.memory_peak_bytes);
    page.one("memory_limit_bytes", "gauge", "The limit, 0 for none.", stats.memory_limit_bytes);
    let (generated, prompt) = (stats.generated_tokens_per_second, stats.prompt_tokens_per_second);
    page.one("generation_tokens_per_second", "gauge", "Generated tokens over time in steps.", generated);
    page.one("prompt_tokens_per_second", "gauge", "Prompt tokens over time in steps.", prompt);
}

fn counters(page: &mut Page, stats: &Stats) {
    page.one("prompt_tokens_total", "counter", "Prompt tokens processed.", stats.prompt_tokens);
    page.one("generation_tokens_total", "counter", "Tokens generated.", stats.generated_tokens);
    page.one("engine_steps_total", "counter", "Forward passes.", stats.steps);
    page.one("decode_steps_total", "counter", "Forward passes with answers.", stats.decode_steps);
    page.one("long_steps_total", "counter", "Those that passed max_step_ms.", stats.long_steps);
    page.one("prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", stats.cached_tokens);
    page.one("recomputed_tokens_total", "counter", "Tokens computed again.", stats.recomputed_tokens);
    page.one("num_preemptions_total", "counter", "Requests interrupted.", stats.preemptions);
    page.one("pauses_total", "counter", "Requests paused.", stats.pauses);
    page.one("kv_cache_evictions_total", "counter", "Cached blocks given up.", stats.kv_evictions);
    page.one("requests_accepted_total", "counter", "Requests accepted.", stats.accepted);
    let finished = [
        ("stop", stats.completed_stop),
        ("stop_string", stats.completed_stop_string),
        ("length", stats.completed_length),
        ("embedding", stats.completed_embedding),
    ];
    page.labelled("request_success_total", "Requests finished, by reason.", "finished_reason", &finished);
    let unfinished = [
        ("cancelled", stats.completed_cancelled),
        ("timed_out", stats.completed_timed_out),
        ("failed", stats.completed_failed),
    ];
    page.labelled(
        "request_failure_total",
        "Requests ended early, by reason.",
        "finished_reason",
        &unfinished,
    );
    let rejected = [
        ("invalid", stats.rejected_invalid),
        ("queue_full", stats.rejected_queue_full),
        ("too_long", stats.rejected_too_long),
        ("memory", stats.rejected_memory),
        ("shutdown", stats.rejected_shutdown),
    ];
    page.labelled("request_rejected_total", "Requests refused at submit, by reason.", "reason", &rejected);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The page's samples by their series, `name{labels}`. Checks the exposition format as far as the page uses it:
    /// each metric has its HELP and TYPE once, before its samples, which stand together.
    fn parse(page: &str) -> BTreeMap<&str, f64> {
        assert!(page.ends_with('\n'));
        let (mut samples, mut types, mut metric) = (BTreeMap::new(), BTreeMap::new(), ("", ""));
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, text) = help.split_once(' ').unwrap();
                let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).unwrap();
                let (typed, kind) = kind.split_once(' ').unwrap();
                assert!(typed == name && !text.is_empty(), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(types.insert(name, kind).is_none(), "{name} twice");
                metric = (name, kind);
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert!(
                name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_'),
                "{line}"
            );
            for label in labels.strip_suffix('}').unwrap().split(',').filter(|label| !label.is_empty()) {
                let (_, value) = label.split_once('=').unwrap();
                assert!(value.len() >= 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
            }
            let suffix = name.strip_prefix(metric.0).unwrap_or_else(|| panic!("{line} after {}", metric.0));
            let suffixes: &[&str] =
                if metric.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line}");
            assert!(metric.1 != "counter" || name.ends_with("_total"), "{line}");
            assert!(samples.insert(series, value.parse().unwrap()).is_none(), "{series} twice");
        }
        samples
    }

    #[test]
    fn the_page_is_prometheus_text() {
        let mut first = Latency { count: 6, sum_ns: 3_000_000, ..Default::default() };
        (first.buckets[0], first.buckets[7], first.buckets[23]) = (1, 3, 2);
        let stats = Stats {
            running: 3,
            kv_blocks_used: 1,
            kv_blocks_total: 4,
            completed_stop: 7,
            time_to_first_token: first,
            ..Default::default()
        };
        let page = text(&stats);
        let samples = parse(&page);
        let bucket =
            |le: &str| samples[format!("bn_time_to_first_token_seconds_bucket{{le=\"{le}\"}}").as_str()];
        assert_eq!(["0.00001", "0.001", "0.0025", "300", "+Inf"].map(bucket), [1.0, 1.0, 4.0, 4.0, 6.0]);
        for (series, value) in [
            ("bn_num_requests_running", 3.0),
            ("bn_kv_cache_usage_ratio", 0.25),
            ("bn_request_success_total{finished_reason=\"stop\"}", 7.0),
            ("bn_time_to_first_token_seconds_sum", 0.003),
            ("bn_time_to_first_token_seconds_count", 6.0),
            ("bn_e2e_request_latency_seconds_bucket{le=\"+Inf\"}", 0.0),
        ] {
            assert_eq!(samples[series], value, "{series}");
        }
    }

    #[test]
    fn buckets_rise_to_the_count() {
        let mut wait = Latency::default();
        wait.buckets.iter_mut().enumerate().for_each(|(i, n)| *n = (i % 3) as u64);
        wait.count = wait.buckets.iter().sum();
        let page = text(&Stats { queue_wait: wait, ..Default::default() });
        let mut last = (f64::NEG_INFINITY, 0);
        let buckets =
            page.lines().filter_map(|l| l.strip_prefix("bn_request_queue_time_seconds_bucket{le=\""));
        assert_eq!(buckets.clone().count(), wait.buckets.len());
        for line in buckets {
            let (bound, n) = line.split_once("\"} ").unwrap();
            let this = (bound.parse::<f64>().unwrap(), n.parse::<u64>().unwrap());
            assert!(this.0 > last.0 && this.1 >= last.1, "{line}");
            last = this;
        }
        assert_eq!(last, (f64::INFINITY, wait.count));
    }

    #[test]
    fn a_page_has_the_room_that_is_promised() {
        let most = Latency {
            count: u64::MAX,
            sum_ns: u64::MAX,
            buckets: [u64::MAX / 24; LATENCY_BOUNDS_NS.len() + 1],
            ..Default::default()
        };
        let stats = Stats {
            queue_wait: most,
            time_to_first_token: most,
            inter_token: most,
            end_to_end: most,
            memory_limit_bytes: u64::MAX,
            ..Default::default()
        };
        let page = text(&stats);
        parse(&page);
        assert!(page.len() < 12288, "bn_engine_metrics promises that 16384 are enough: {} bytes", page.len());
    }
}
