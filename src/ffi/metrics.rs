//! The statistics as Prometheus text (exposition format 0.0.4), named as vLLM names them, under `bn_`.

use crate::engine::api::{LATENCY_BOUNDS_NS, LENGTH_BOUNDS, Latency, Lengths, Stats};
use crate::engine::hub::Phase;
use crate::model::Facts;
use std::fmt::{Display, Write};

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP bn_{name} {help}\n# TYPE bn_{name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.0, "bn_{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "bn_{name} {value}");
    }

    /// A sample for each value of a label.
    fn labelled(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, f64)]) {
        self.head(name, kind, help);
        for (of, value) in values {
            let _ = writeln!(self.0, "bn_{name}{{{label}=\"{of}\"}} {value}");
        }
    }

    /// What does not change, as labels of a sample that is 1.
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        self.head(name, "gauge", help);
        let labels: Vec<_> =
            labels.iter().map(|(label, of)| format!("{label}=\"{}\"", escaped(of))).collect();
        let _ = writeln!(self.0, "bn_{name}{{{}}} 1", labels.join(","));
    }

    fn latency(&mut self, name: &str, help: &str, of: &Latency) {
        self.histogram(name, help, &LATENCY_BOUNDS_NS.map(seconds), &of.buckets, seconds(of.sum_ns));
    }

    fn lengths(&mut self, name: &str, help: &str, of: &Lengths) {
        self.histogram(name, help, &LENGTH_BOUNDS.map(|n| n as f64), &of.buckets, of.sum as f64);
    }

    /// `buckets` has one more than `bounds`.
    fn histogram(&mut self, name: &str, help: &str, bounds: &[f64], buckets: &[u64], sum: f64) {
        self.head(name, "histogram", help);
        let mut below = 0u64;
        for (n, bound) in buckets.iter().zip(bounds.iter().copied().chain([f64::INFINITY])) {
            below = below.saturating_add(*n);
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            let _ = writeln!(self.0, "bn_{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(self.0, "bn_{name}_sum {sum}\nbn_{name}_count {below}");
    }
}

/// As the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(super) fn text(stats: &Stats, model: &Facts, model_name: &str, phase: Phase) -> String {
    let mut page = Page(String::with_capacity(24 << 10));
    let labels = [("model_name", model_name), ("architecture", model.architecture.as_str())];
    page.info("model_info", "The model.", &labels);
    let states = [
        ("loading", None),
        ("running", Some(Phase::Open)),
        ("draining", Some(Phase::Closing)),
        ("drained", Some(Phase::Drained)),
        ("dead", Some(Phase::Dead)),
    ];
    let states = states.map(|(name, of)| (name, f64::from(u8::from(of == Some(phase)))));
    page.labelled("engine_state", "gauge", "1 for the state that the engine is in.", "state", &states);
    now(&mut page, stats);
    work(&mut page, stats);
    requests(&mut page, stats);
    page.latency("request_queue_time_seconds", "Submit to admission.", &stats.queue_wait);
    page.latency("time_to_first_token_seconds", "Submit to first token.", &stats.time_to_first_token);
    page.latency("inter_token_latency_seconds", "A token to the next.", &stats.inter_token);
    page.latency(
        "request_prefill_time_seconds",
        "Admission to the end of the prompt.",
        &stats.request_prefill,
    );
    page.latency("request_decode_time_seconds", "First token to last.", &stats.request_decode);
    page.latency("e2e_request_latency_seconds", "Submit to completion.", &stats.end_to_end);
    page.lengths("request_prompt_tokens", "Prompt tokens of a request.", &stats.prompt_lengths);
    page.lengths("request_generation_tokens", "Generated tokens of a request.", &stats.generated_lengths);
    page.0
}

/// What is so at the moment.
fn now(page: &mut Page, stats: &Stats) {
    let kv = match stats.kv_blocks_total {
        0 => 0.0,
        total => stats.kv_blocks_used as f64 / total as f64,
    };
    let (size, blocks) = (stats.kv_block_size.to_string(), stats.kv_blocks_total.to_string());
    page.info("cache_config_info", "The KV cache.", &[("block_size", &size), ("num_gpu_blocks", &blocks)]);
    page.gauge("engine_start_time_seconds", "When the engine was made.", seconds(stats.made_unix_ns));
    page.gauge("num_requests_running", "Requests admitted and not finished.", stats.running);
    page.gauge("num_requests_waiting", "Requests waiting for admission.", stats.queued);
    page.gauge("num_requests_paused", "Of the running ones, those that are paused.", stats.paused);
    page.gauge("num_requests_unreleased", "Requests that hold a queue place.", stats.unreleased);
    page.gauge("queue_capacity", "Queue places.", stats.queue_capacity);
    page.gauge("queued_prompt_tokens", "Prompt tokens waiting for admission.", stats.queued_tokens);
    page.gauge("queue_token_capacity", "The most queued prompt tokens; 0: any.", stats.queue_token_capacity);
    page.gauge("max_batch_size", "The most requests in a forward pass.", stats.max_batch_size);
    page.gauge("devices", "Devices that compute; the CPU is one.", stats.devices);
    page.gauge("devices_lost", "Of these, those that were lost.", stats.devices_lost);
    page.gauge("kv_cache_usage_perc", "KV blocks in use, 0 to 1.", kv);
    page.gauge("kv_blocks_cached", "KV blocks with prefixes for later.", stats.kv_blocks_cached);
    page.gauge("memory_used_bytes", "Bytes counted against the limit.", stats.memory_used_bytes);
    page.gauge("memory_peak_bytes", "The most ever counted.", stats.memory_peak_bytes);
    page.gauge("memory_limit_bytes", "The most bytes counted; 0: any.", stats.memory_limit_bytes);
    let (generated, prompt) =
        (stats.recent_generated_tokens_per_second, stats.recent_prompt_tokens_per_second);
    page.gauge("generation_tokens_per_second", "Tokens generated, lately.", generated);
    page.gauge("prompt_tokens_per_second", "Prompt tokens computed, lately.", prompt);
}

fn work(page: &mut Page, stats: &Stats) {
    let times = [("prefill", stats.prefill_ns), ("decode", stats.decode_ns), ("idle", stats.idle_ns)]
        .map(|(of, ns)| (of, seconds(ns)));
    page.labelled(
        "engine_time_seconds_total",
        "counter",
        "What the engine's time went into.",
        "phase",
        &times,
    );
    page.counter("prompt_tokens_total", "Prompt tokens computed, each once.", stats.prompt_tokens);
    page.counter("generation_tokens_total", "Tokens generated.", stats.generated_tokens);
    page.counter("spec_decode_num_draft_tokens_total", "Tokens drafted and verified.", stats.drafted_tokens);
    page.counter(
        "spec_decode_num_accepted_tokens_total",
        "Drafted tokens that stood.",
        stats.accepted_tokens,
    );
    page.counter(
        "spec_decode_drafting_seconds_total",
        "Seconds in passes of the draft model.",
        seconds(stats.drafting_ns),
    );
    page.counter("engine_steps_total", "Forward passes.", stats.steps);
    page.counter("batched_requests_total", "Requests in forward passes.", stats.batched_requests);
    page.counter("decode_steps_total", "Forward passes with answers.", stats.decode_steps);
    page.counter("long_steps_total", "Decode steps longer than max_step_ms.", stats.long_steps);
    page.counter("prefix_cache_queries_total", "Prompt tokens of admitted requests.", stats.queried_tokens);
    page.counter("prefix_cache_hits_total", "Prompt tokens found in the cache.", stats.cached_tokens);
    page.counter("recomputed_tokens_total", "Tokens computed again.", stats.recomputed_tokens);
    page.counter("num_preemptions_total", "Requests interrupted.", stats.preemptions);
    page.counter("pauses_total", "Requests paused.", stats.pauses);
    page.counter("kv_cache_evictions_total", "Cached blocks given up.", stats.kv_evictions);
    page.counter("grammars_compiled_total", "Constraints compiled.", stats.grammars_compiled);
    page.counter("grammars_reused_total", "Constraints found compiled.", stats.grammars_reused);
    page.counter("masks_total", "Masks of constraints computed.", stats.masks);
}

fn requests(page: &mut Page, stats: &Stats) {
    page.counter("requests_accepted_total", "Requests accepted.", stats.accepted);
    let finished = [
        ("stop", stats.completed_stop),
        ("stop_string", stats.completed_stop_string),
        ("length", stats.completed_length),
        ("embedding", stats.completed_embedding),
    ];
    let unfinished = [
        ("cancelled", stats.completed_cancelled),
        ("timed_out", stats.completed_timed_out),
        ("failed", stats.completed_failed),
    ];
    let rejected = [
        ("invalid", stats.rejected_invalid),
        ("queue_full", stats.rejected_queue_full),
        ("too_long", stats.rejected_too_long),
        ("memory", stats.rejected_memory),
        ("shutdown", stats.rejected_shutdown),
    ];
    let mut count = |name: &str, help: &str, label: &str, counts: &[(&str, u64)]| {
        let counts: Vec<_> = counts.iter().map(|(of, n)| (*of, *n as f64)).collect();
        page.labelled(name, "counter", help, label, &counts);
    };
    count("request_success_total", "Requests finished, by reason.", "finished_reason", &finished);
    count("request_failure_total", "Requests ended early, by reason.", "finished_reason", &unfinished);
    count("request_rejected_total", "Requests refused at submit, by reason.", "reason", &rejected);
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
        let mut lengths = Lengths::default();
        [1, 7, 3_000_000].into_iter().for_each(|tokens| lengths.record(tokens));
        let stats = Stats {
            running: 3,
            kv_blocks_used: 1,
            kv_blocks_total: 4,
            kv_block_size: 32,
            decode_ns: 2_500_000_000,
            drafting_ns: 250_000_000,
            prompt_lengths: lengths,
            completed_stop: 7,
            time_to_first_token: first,
            ..Default::default()
        };
        let model = Facts { architecture: "llama".into(), ..Facts::default() };
        let page = text(&stats, &model, "a \\ \"b\"\n", Phase::Closing);
        let samples = parse(&page);
        let bucket =
            |le: &str| samples[format!("bn_time_to_first_token_seconds_bucket{{le=\"{le}\"}}").as_str()];
        assert_eq!(["0.00001", "0.001", "0.0025", "300", "+Inf"].map(bucket), [1.0, 1.0, 4.0, 4.0, 6.0]);
        for (series, value) in [
            ("bn_num_requests_running", 3.0),
            ("bn_kv_cache_usage_perc", 0.25),
            ("bn_cache_config_info{block_size=\"32\",num_gpu_blocks=\"4\"}", 1.0),
            ("bn_model_info{model_name=\"a \\\\ \\\"b\\\"\\n\",architecture=\"llama\"}", 1.0),
            ("bn_engine_state{state=\"draining\"}", 1.0),
            ("bn_engine_state{state=\"running\"}", 0.0),
            ("bn_engine_time_seconds_total{phase=\"decode\"}", 2.5),
            ("bn_spec_decode_drafting_seconds_total", 0.25),
            ("bn_request_prompt_tokens_bucket{le=\"5\"}", 1.0),
            ("bn_request_prompt_tokens_bucket{le=\"1000000\"}", 2.0),
            ("bn_request_prompt_tokens_sum", 3_000_008.0),
            ("bn_request_prompt_tokens_count", 3.0),
            ("bn_request_success_total{finished_reason=\"stop\"}", 7.0),
            ("bn_time_to_first_token_seconds_sum", 0.003),
            ("bn_time_to_first_token_seconds_count", 6.0),
            ("bn_e2e_request_latency_seconds_bucket{le=\"+Inf\"}", 0.0),
        ] {
            assert_eq!(samples[series], value, "{series}");
        }
    }

    fn page_of(stats: &Stats) -> String {
        text(stats, &Facts::default(), &"x".repeat(256), Phase::Open)
    }

    #[test]
    fn buckets_rise_to_the_count() {
        let mut wait = Latency::default();
        wait.buckets.iter_mut().enumerate().for_each(|(i, n)| *n = (i % 3) as u64);
        wait.count = wait.buckets.iter().sum();
        let page = page_of(&Stats { queue_wait: wait, ..Default::default() });
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
        let long =
            Lengths { count: u64::MAX, sum: u64::MAX, buckets: [u64::MAX / 20; LENGTH_BOUNDS.len() + 1] };
        let stats = Stats {
            queue_wait: most,
            time_to_first_token: most,
            inter_token: most,
            end_to_end: most,
            request_prefill: most,
            request_decode: most,
            prompt_lengths: long,
            generated_lengths: long,
            memory_limit_bytes: u64::MAX,
            ..Default::default()
        };
        let page = page_of(&stats);
        parse(&page);
        assert!(
            page.len() < 28 << 10,
            "bn_engine_metrics promises that 32768 are enough: {} bytes",
            page.len()
        );
    }
}
