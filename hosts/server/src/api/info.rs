//! The server and its models: which they are, and how they are doing.
use crate::api::write;
use crate::app::App;
use crate::failure::Shape;
use crate::models::{Model, not_found};
use crate::run::shape_of;
use crate::serve::{Rest, State};
use crate::watch::metrics;
use axum::body::Body;
use axum::http::{Response, StatusCode, request::Parts};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

/// A model, or its adapter of this name, in OpenAI's form, with Anthropic's fields and some of this server.
fn entry(model: &Model, name: &str) -> Value {
    let created = UNIX_EPOCH + Duration::from_secs(model.created);
    let mut entry = json!({
        "id": name,
        "display_name": name,
        "type": "model",
        "object": "model",
        "created": model.created,
        "created_at": humantime::format_rfc3339_seconds(created).to_string(),
        "owned_by": "bn_engine",
        "parent": (name != model.name).then_some(&model.name),
        "loaded": model.loaded.is_some(),
        "sees": model.sees,
    });
    if let Some(info) = model.loaded.as_ref().map(|loaded| &loaded.info) {
        entry["architecture"] = info.architecture.as_str().into();
        entry["context_length"] = info.context_length.into();
        entry["parameters"] = info.parameters.into();
        entry["chat"] = info.has_chat_template.into();
        entry["embedding_size"] = info.embedding_size.into();
    }
    entry
}

fn no_model(name: &str, parts: &Parts) -> Response<Body> {
    let anthropic = parts.headers.contains_key("anthropic-version"); // the other routes have paths of their own
    not_found(name).response(if anthropic { Shape::Anthropic } else { shape_of(parts.uri.path()) })
}

pub async fn models(app: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    let models = app.models.list().await;
    let entries = |model: &Model| -> Vec<_> {
        let names = std::iter::once(&model.name).chain(&model.adapters);
        names.map(|name| entry(model, name)).collect()
    };
    let data: Vec<_> = models.iter().flat_map(entries).collect();
    let id = |entry: Option<&Value>| entry.map(|entry| entry["id"].clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    write::response(&json!({
        "object": "list",
        "data": data,
        "has_more": false,
        "first_id": first_id,
        "last_id": last_id,
    }))
}

pub async fn model(app: Arc<App>, parts: Parts, _: Body) -> Response<Body> {
    let name = parts.extensions.get::<Rest>().map_or("", |rest| rest.0.as_str());
    match app.models.find(name).await {
        Some((model, shown)) => write::response(&entry(&model, &shown)),
        None => no_model(name, &parts),
    }
}

/// The model that `?model=` names, or else a loaded one, if any: a request without a name means the only model.
async fn meant(app: &App, parts: &Parts) -> Result<Model, Response<Body>> {
    if let Some(name) = query(parts, "model") {
        return app.models.find(&name).await.map(|(model, _)| model).ok_or_else(|| no_model(&name, parts));
    }
    let models = app.models.list().await;
    let loaded = models.iter().find(|model| model.loaded.is_some());
    loaded.or(models.first()).cloned().ok_or_else(|| no_model("", parts))
}

/// A field of the query.
fn query(parts: &Parts, name: &str) -> Option<String> {
    let mut pairs = parts.uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned())
}

/// Statistics for the page; times are in milliseconds.
pub async fn stats(app: Arc<App>, parts: Parts, _: Body) -> Response<Body> {
    let model = match meant(&app, &parts).await {
        Ok(model) => model,
        Err(response) => return response,
    };
    let s = stats_of(&model);
    let mut out = Map::new();
    out.insert("model".to_owned(), model.name.into());
    let numbers = [
        ("running", s.running),
        ("queued", s.queued),
        ("paused", s.paused),
        ("unreleased", s.unreleased),
        ("kv_blocks_used", s.kv_blocks_used),
        ("kv_blocks_total", s.kv_blocks_total),
        ("kv_blocks_cached", s.kv_blocks_cached),
        ("memory_used_bytes", s.memory_used_bytes),
        ("generated_tokens", s.generated_tokens),
        ("prompt_tokens", s.prompt_tokens),
        ("cached_tokens", s.cached_tokens),
        ("accepted", s.accepted),
        ("cancelled", s.completed_cancelled),
        ("rejected_queue_full", s.rejected_queue_full),
        ("rejected_memory", s.rejected_memory),
        ("preemptions", s.preemptions),
        ("sessions", s.sessions),
        ("exchanges", app.life.exchanges() as u64),
        ("working", app.work.working() as u64),
    ];
    out.extend(numbers.map(|(name, value)| (name.to_owned(), value.into())));
    let times = [
        ("prefill_ms", s.prefill_ns),
        ("decode_ms", s.decode_ns),
        ("idle_ms", s.idle_ns),
        ("uptime_ms", s.uptime_ns),
    ];
    out.extend(times.map(|(name, ns)| (name.to_owned(), milliseconds(ns).into())));
    let latencies = [
        ("queue_wait_ms", &s.queue_wait),
        ("first_token_ms", &s.time_to_first_token),
        ("inter_token_ms", &s.inter_token),
        ("total_ms", &s.end_to_end),
    ];
    out.extend(latencies.map(|(name, latency)| (name.to_owned(), percentiles(latency))));
    write::response(&out)
}

fn stats_of(model: &Model) -> bn::Stats {
    model.loaded.as_ref().and_then(|loaded| loaded.engine.stats().ok()).unwrap_or_default()
}

fn milliseconds(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

fn percentiles(latency: &bn::Latency) -> Value {
    json!({
        "p50": milliseconds(latency.p50_ns),
        "p90": milliseconds(latency.p90_ns),
        "p99": milliseconds(latency.p99_ns),
        "count": latency.count,
    })
}

pub async fn metrics(app: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    let models = app.models.list().await;
    let engine = |model: &Model| Some((model.name.clone(), model.loaded.as_ref()?.engine.metrics().ok()?));
    let mut engines: Vec<_> = models.iter().filter_map(engine).collect();
    let mut out = String::new();
    if app.models.several() {
        metrics::loaded(&mut out, models.iter().map(|model| (model.name.as_str(), model.loaded.is_some())));
        out.push_str(&metrics::together(&engines));
    } else {
        // The other states are in the engine's own metrics.
        out.push_str(&engines.pop().map_or_else(|| metrics::LOADING.to_owned(), |(_, text)| text));
    }
    let (exported, dropped) = app.tracer.counts();
    let own = [
        ("exchanges", "gauge", "Requests over HTTP that are being answered.", app.life.exchanges() as u64),
        ("connections", "gauge", "Open connections.", app.life.connections() as u64),
        ("memory_bytes", "gauge", "Bytes of bodies, their values and answers.", app.memory.used() as u64),
        ("spans_exported_total", "counter", "Spans that the collector took.", exported),
        ("spans_dropped_total", "counter", "Spans that it did not take, or that were too many.", dropped),
        (
            "ignored_fields_total",
            "counter",
            "Fields of requests that were not known.",
            app.ignored_fields.load(Ordering::Relaxed),
        ),
    ];
    for (name, kind, help, value) in own {
        metrics::single(&mut out, &format!("bn_server_{name}"), kind, help, value);
    }
    write::typed("text/plain; version=0.0.4; charset=utf-8", out)
}

pub async fn version(_: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    write::response(&json!({"version": bn::version()}))
}

/// The same object as llama.cpp's.
pub async fn props(app: Arc<App>, parts: Parts, _: Body) -> Response<Body> {
    let model = match meant(&app, &parts).await {
        Ok(model) => model,
        Err(response) => return response,
    };
    let stats = stats_of(&model);
    let path = model.loaded.and_then(|loaded| loaded.path.clone()).or(model.path);
    write::response(&json!({
        "build_info": format!("bn_engine {}", bn::version()),
        "total_slots": stats.max_batch_size,
        "model_alias": model.name,
        "model_path": path.unwrap_or_default().to_string_lossy(),
        "default_generation_settings": {"n_ctx": stats.context_length},
        "modalities": {"vision": model.sees, "audio": false},
    }))
}

pub async fn health(app: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    let (status, word) = match app.life.state() {
        State::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        State::Serving => (StatusCode::OK, "ok"),
        State::Draining | State::Cancelling => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
    };
    let mut response = write::response(&json!({"status": word}));
    *response.status_mut() = status;
    response
}

pub async fn page(_: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    write::typed("text/html; charset=utf-8", include_str!("../../page.html"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    #[test]
    fn a_query_is_decoded() {
        let (parts, ()) =
            Request::get("/stats?x=1&model=a+b%2Fc%C3%A9&model=y").body(()).unwrap().into_parts();
        assert_eq!(query(&parts, "model").as_deref(), Some("a b/cé"));
        assert_eq!(query(&parts, "y"), None);
    }
}
