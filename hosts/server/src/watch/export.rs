//! Sends spans to the collector by OTLP, once a second or when a batch is full. Spans that it does not accept are
//! lost and counted.
use super::collector::{Collector, TIMEOUT};
use axum::http::Uri;
use opentelemetry::Context;
use opentelemetry_otlp::{self as otlp, Protocol, RetryPolicy, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span, SpanData, SpanExporter,
    SpanProcessor,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of waiting spans. More are lost.
const MOST: usize = 4096;
/// Number of spans that are sent together.
const BATCH: usize = 512;

#[derive(Debug, Default)]
pub struct Counts {
    waiting: AtomicUsize,
    pub exported: AtomicU64,
    pub dropped: AtomicU64,
}

/// Makes spans, and sends ended ones to `url`. Must be called in a runtime.
pub fn provider(url: &Uri, counts: &Arc<Counts>) -> Result<SdkTracerProvider, String> {
    let builder = otlp::SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(url.to_string())
        .with_timeout(TIMEOUT)
        // No retries: spans that wait meanwhile are as valuable as those of a failed batch.
        .with_retry_policy(RetryPolicy::disabled())
        .with_shared_http_client(Arc::new(Collector::new()));
    let mut exporter = builder.build().map_err(|error| error.to_string())?;
    exporter.set_resource(&Resource::builder_empty().with_service_name("bn-server").build());
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(MOST)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(INTERVAL)
        .build();
    let exporter = Counted { inner: exporter, counts: counts.clone() };
    let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
        .with_span_processor(Counted { inner: batches, counts: counts.clone() });
    Ok(provider.build())
}

#[derive(Debug)]
struct Counted<T> {
    inner: T,
    counts: Arc<Counts>,
}

impl SpanProcessor for Counted<BatchSpanProcessor> {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.counts.waiting.fetch_add(1, Ordering::Relaxed) < MOST {
            self.inner.on_end(span);
        } else {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }
}

impl SpanExporter for Counted<otlp::SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = self.inner.export(batch).await;
        let counter = if sent.is_ok() { &self.counts.exported } else { &self.counts.dropped };
        counter.fetch_add(count as u64, Ordering::Relaxed);
        self.counts.waiting.fetch_sub(count, Ordering::Relaxed);
        sent
    }
}
