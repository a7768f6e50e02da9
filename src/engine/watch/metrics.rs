//! The statistics as Prometheus text (exposition format 0.0.4), named as vLLM names them, under `bn_`.

use super::buckets::{LATENCY_BOUNDS_NS, LENGTH_BOUNDS};
use super::table::{Latency, Lengths, METRICS, Stats};
use crate::engine::hub::Phase;
use crate::model::Facts;
use std::fmt::{Display, Write};

/// Declares a struct for C, and `METRICS` for the fields that have a metric: its kind, its name without
/// `bn_`, and optionally a label and a help text. A label with its value tells apart fields that share a
/// name; these are adjacent, and the first one has the help for all. Without a help text, the first line of
/// the field's comment is used.
macro_rules! statistics {
    ($(#[doc = $about:literal])+ pub struct $struct:ident {$(
        $(#[doc = $doc:literal])+
        $field:ident: $type:ty $(=> $kind:ident $name:literal $($label:ident = $is:literal)? $(($help:literal))?)?;
    )+}) => {
        $(#[doc = $about])+
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $struct {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl $struct {
            /// Names and offsets.
            pub const FIELDS: &[(&str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($struct, $field)),)+];
        }

        use $crate::engine::watch::metrics::{Kind, Metric};
        pub(crate) const METRICS: &[Option<Metric>] = &[$(
            statistics!(@metric [$($doc)+] $field $($kind $name [$($label = $is)?] [$($help)?])?),
        )+];
    };
    (@metric [$($doc:literal)+] $field:ident) => { None };
    (@metric $docs:tt $field:ident $kind:ident $name:literal $label:tt $help:tt) => {
        Some(Metric {
            kind: Kind::$kind,
            name: $name,
            label: statistics!(@label $label),
            help: statistics!(@help $help $docs),
            value: |stats| stats.$field.into(),
        })
    };
    (@label []) => { None };
    (@label [$label:ident = $is:literal]) => { Some((stringify!($label), $is)) };
    (@help [$help:literal] $docs:tt) => { $help };
    (@help [] [$doc:literal $($more:literal)*]) => { $doc };
}
pub(super) use statistics;

/// A statistic as a Prometheus metric.
pub(crate) struct Metric {
    pub kind: Kind,
    /// The name without `bn_`.
    pub name: &'static str,
    /// Label and value that tell apart metrics with the same name.
    pub label: Option<(&'static str, &'static str)>,
    pub help: &'static str,
    pub value: fn(&Stats) -> Value,
}

/// A statistic's metric type, and its unit if it differs from the field's: nanoseconds become seconds.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Gauge,
    GaugeOfSeconds,
    Counter,
    CounterOfSeconds,
    /// A histogram in seconds.
    Times,
    /// A histogram in tokens.
    Tokens,
}

pub(crate) enum Value {
    Number(u64),
    Real(f64),
    Times(Latency),
    Tokens(Lengths),
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Number(n)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Self::Real(x)
    }
}

impl From<Latency> for Value {
    fn from(of: Latency) -> Self {
        Self::Times(of)
    }
}

impl From<Lengths> for Value {
    fn from(of: Lengths) -> Self {
        Self::Tokens(of)
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP bn_{name} {help}\n# TYPE bn_{name} {kind}");
    }

    fn sample(&mut self, name: &str, label: Option<(&str, &str)>, value: impl Display) {
        let _ = match label {
            Some((label, is)) => writeln!(self.0, "bn_{name}{{{label}=\"{is}\"}} {value}"),
            None => writeln!(self.0, "bn_{name} {value}"),
        };
    }

    /// Constant facts: labels of a sample that is 1.
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        self.head(name, "gauge", help);
        let labels: Vec<_> =
            labels.iter().map(|(label, is)| format!("{label}=\"{}\"", escaped(is))).collect();
        let _ = writeln!(self.0, "bn_{name}{{{}}} 1", labels.join(","));
    }

    /// `buckets` has one more than `bounds`.
    fn histogram(&mut self, name: &str, bounds: &[f64], buckets: &[u64], sum: f64) {
        let mut below = 0u64;
        for (n, bound) in buckets.iter().zip(bounds.iter().copied().chain([f64::INFINITY])) {
            below = below.saturating_add(*n);
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            let _ = writeln!(self.0, "bn_{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(self.0, "bn_{name}_sum {sum}\nbn_{name}_count {below}");
    }

    fn metric(&mut self, metric: &Metric, stats: &Stats) {
        let in_seconds = matches!(metric.kind, Kind::GaugeOfSeconds | Kind::CounterOfSeconds);
        match (metric.value)(stats) {
            Value::Number(ns) if in_seconds => self.sample(metric.name, metric.label, seconds(ns)),
            Value::Number(n) => self.sample(metric.name, metric.label, n),
            Value::Real(x) => self.sample(metric.name, metric.label, x),
            Value::Times(of) => {
                let bounds = LATENCY_BOUNDS_NS.map(seconds);
                self.histogram(metric.name, &bounds, &of.buckets, seconds(of.sum_ns));
            }
            Value::Tokens(of) => {
                let bounds = LENGTH_BOUNDS.map(|n| n as f64);
                self.histogram(metric.name, &bounds, &of.buckets, of.sum as f64);
            }
        }
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Gauge | Self::GaugeOfSeconds => "gauge",
            Self::Counter | Self::CounterOfSeconds => "counter",
            Self::Times | Self::Tokens => "histogram",
        }
    }
}

/// Escapes a text for use as the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

const STATES: [(&str, Option<Phase>); 5] = [
    ("loading", None),
    ("running", Some(Phase::Open)),
    ("draining", Some(Phase::Closing)),
    ("drained", Some(Phase::Drained)),
    ("dead", Some(Phase::Dead)),
];

pub(crate) fn text(stats: &Stats, model: &Facts, model_name: &str, phase: Phase) -> String {
    let mut page = Page(String::with_capacity(24 << 10));
    let labels = [("model_name", model_name), ("architecture", model.architecture.as_str())];
    page.info("model_info", "The model.", &labels);
    page.head("engine_state", "gauge", "1 for the state that the engine is in.");
    for (name, of) in STATES {
        page.sample("engine_state", Some(("state", name)), u8::from(of == Some(phase)));
    }
    let (size, blocks) = (stats.kv_block_size.to_string(), stats.kv_blocks_total.to_string());
    page.info("cache_config_info", "The KV cache.", &[("block_size", &size), ("num_gpu_blocks", &blocks)]);
    page.head("kv_cache_usage_perc", "gauge", "KV blocks in use, 0 to 1.");
    let blocks = stats.kv_blocks_total.max(1) as f64;
    page.sample("kv_cache_usage_perc", None, stats.kv_blocks_used as f64 / blocks);
    let mut last = "";
    for metric in METRICS.iter().flatten() {
        if metric.name != last {
            page.head(metric.name, metric.kind.name(), metric.help.trim());
        }
        page.metric(metric, stats);
        last = metric.name;
    }
    page.0
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
