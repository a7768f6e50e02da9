//! Sends spans to the collector by OTLP: once a second, or whole batches. What it does not take is lost and counted.
use super::collector::{Collector, TIMEOUT};
use super::endpoint::Endpoint;
use super::spans::{BATCH, Queue};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

const INTERVAL: Duration = Duration::from_secs(1);

struct Export {
    queue: Arc<Queue>,
    collector: Arc<Collector>,
    exporter: SpanExporter,
    authority: String,
    /// The last batch was not taken, and the log has it.
    fails: bool,
}

/// Sends what the queue gets until it ends.
pub async fn run(queue: Arc<Queue>, endpoint: Endpoint) {
    let mut export = match Export::new(queue, endpoint) {
        Ok(export) => export,
        Err(why) => return tracing::error!("traces: {why}"),
    };
    export.go_on().await;
    export.end().await;
}

impl Export {
    fn new(queue: Arc<Queue>, endpoint: Endpoint) -> Result<Self, String> {
        let collector = Arc::new(Collector::new(endpoint.clone()));
        let builder = SpanExporter::builder().with_http().with_protocol(Protocol::HttpJson);
        let builder = builder.with_endpoint(&endpoint.url).with_timeout(TIMEOUT);
        // Spans that wait meanwhile are worth no less than those of a batch that failed.
        let builder =
            builder.with_retry_policy(RetryPolicy::disabled()).with_shared_http_client(collector.clone());
        let mut exporter = builder.build().map_err(|error| error.to_string())?;
        exporter.set_resource(&Resource::builder_empty().with_service_name("bn-server").build());
        Ok(Self { queue, collector, exporter, authority: endpoint.authority(), fails: false })
    }

    async fn go_on(&mut self) {
        loop {
            while self.queue.len() == 0 && !self.queue.ends() {
                self.queue.news().await;
            }
            let due = Instant::now() + INTERVAL;
            while self.queue.len() < BATCH && !self.queue.ends() && Instant::now() < due {
                let _ = timeout_at(due, self.queue.news()).await;
            }
            if self.queue.ends() {
                return;
            }
            self.send().await;
        }
    }

    /// Sends the rest, if the collector is not too slow for it.
    async fn end(&mut self) {
        let end = Instant::now() + TIMEOUT;
        while self.queue.len() > 0 && Instant::now() < end {
            self.send().await;
            if self.fails {
                break;
            }
        }
        self.queue.lose_all();
    }

    async fn send(&mut self) {
        let batch = self.queue.take();
        let count = batch.len();
        let sent = self.exporter.export(batch).await;
        let failure =
            sent.err().map(|error| self.collector.take_failure().unwrap_or_else(|| error.to_string()));
        match &failure {
            None => self.queue.sent(count),
            Some(_) => self.queue.lose(count),
        }
        match &failure {
            Some(why) if !self.fails => tracing::warn!("traces to {}: {why}", self.authority),
            None if self.fails => tracing::info!("traces to {}: they are taken again", self.authority),
            _ => {}
        }
        self.fails = failure.is_some();
    }
}
