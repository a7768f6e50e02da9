//! A service that has the engine inside: `curl -N -d '{"prompt": "17+25="}' -H 'Content-Type: application/json'
//! localhost:8080/generate` streams an answer as server-sent events. Hanging up cancels the request.
use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::{Router, routing::get, routing::post};
use futures_core::Stream;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The events of a request as server-sent events.
struct Answer(bn::Stream);

impl Stream for Answer {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(context).map(|event| Some(Ok(written(&event?))))
    }
}

fn written(event: &bn::Event) -> Event {
    let finish = event.finish.as_ref().map(|finish| finish.reason.name());
    Event::default().data(json!({"text": event.text, "finish": finish}).to_string())
}

async fn generate(
    State(engine): State<bn::Engine>,
    Json(body): Json<Value>,
) -> Result<Sse<Answer>, (StatusCode, String)> {
    let prompt = body["prompt"].as_str().unwrap_or_default();
    let request = bn::Request { max_unread_bytes: Some(1 << 20), ..bn::Request::prompt(prompt) };
    match engine.submit(&request) {
        Ok(stream) => Ok(Sse::new(Answer(stream))),
        Err(error) if error.kind() == bn::ErrorKind::QueueFull => {
            Err((StatusCode::TOO_MANY_REQUESTS, error.to_string()))
        }
        Err(error) => Err((StatusCode::BAD_REQUEST, error.to_string())),
    }
}

async fn metrics(State(engine): State<bn::Engine>) -> Result<String, StatusCode> {
    engine.metrics().map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model_path = std::env::args_os().nth(1).map(Into::into); // none: the model inside the library
    let engine = bn::Engine::new(bn::EngineOptions { model_path, ..Default::default() })?;
    let app =
        Router::new().route("/generate", post(generate)).route("/metrics", get(metrics)).with_state(engine);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 8080)).await?;
    Ok(axum::serve(listener, app).await?)
}
