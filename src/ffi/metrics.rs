//! The statistics as Prometheus text (exposition format 0.0.4), named as vLLM names them, under `bn_`.

use crate::engine::api::{Percentiles, Stats};
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

    fn summary(&mut self, name: &str, help: &str, of: &Percentiles) {
        self.head(name, "summary", help);
        for (quantile, ns) in [("0.5", of.p50_ns), ("0.9", of.p90_ns), ("0.99", of.p99_ns)] {
            // The format's way to say that nothing was measured.
            let value = if of.count == 0 { f64::NAN } else { seconds(ns) };
            let _ = writeln!(self.0, "bn_{name}{{quantile=\"{quantile}\"}} {value}");
        }
        let _ = writeln!(self.0, "bn_{name}_sum {}\nbn_{name}_count {}", seconds(of.sum_ns), of.count);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(super) fn text(stats: &Stats) -> String {
    let mut page = Page(String::new());
    gauges(&mut page, stats);
    counters(&mut page, stats);
    page.summary("request_queue_time_seconds", "Submit to admission.", &stats.queue_wait);
    page.summary("time_to_first_token_seconds", "Submit to first token.", &stats.time_to_first_token);
    page.summary("inter_token_latency_seconds", "A token to the next.", &stats.inter_token);
    page.summary("e2e_request_latency_seconds", "Submit to completion.", &stats.end_to_end);
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

    #[test]
    fn the_page_is_prometheus_text() {
        let stats = Stats {
            running: 3,
            kv_blocks_used: 1,
            kv_blocks_total: 4,
            completed_stop: 7,
            time_to_first_token: Percentiles {
                p50_ns: 1_500_000,
                count: 2,
                sum_ns: 3_000_000,
                ..Default::default()
            },
            ..Default::default()
        };
        let page = text(&stats);
        for line in [
            "bn_num_requests_running 3",
            "bn_kv_cache_usage_ratio 0.25",
            "bn_request_success_total{finished_reason=\"stop\"} 7",
            "bn_time_to_first_token_seconds{quantile=\"0.5\"} 0.0015",
            "bn_time_to_first_token_seconds_sum 0.003",
            "bn_time_to_first_token_seconds_count 2",
            "bn_e2e_request_latency_seconds{quantile=\"0.99\"} NaN",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
        assert!(page.len() < 8192, "what bn_engine_metrics's comment says, {} bytes", page.len());
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
