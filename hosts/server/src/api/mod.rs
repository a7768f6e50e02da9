//! The routes. Each API is a module of its requests and answers.
pub mod batch;
mod decisions;
mod direct;
pub mod embeddings;
pub mod infill;
pub mod info;
pub mod messages;
pub mod ollama;
pub mod openai;
pub mod pairs;
mod pieces;
pub mod responses;
mod sessions;
pub mod tokenize;
pub mod write;

use crate::app::App;
use crate::run::answer;
use axum::body::Body;
use axum::http::{Response, request::Parts};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A path and its handler.
pub struct Route {
    pub method: &'static str,
    /// `{*rest}` matches the rest of the path, which `serve::Rest` holds.
    pub path: &'static str,
    /// The route needs no key.
    pub open: bool,
    /// The route works while the model is loading, while the server drains, and when all connections are in
    /// use.
    pub always: bool,
    pub handle: fn(Arc<App>, Parts, Body) -> Answering,
}

const fn post(path: &'static str, handle: fn(Arc<App>, Parts, Body) -> Answering) -> Route {
    Route { method: "POST", path, open: false, always: false, handle }
}

const fn get(path: &'static str, handle: fn(Arc<App>, Parts, Body) -> Answering) -> Route {
    Route { method: "GET", ..post(path, handle) }
}

/// A route that always works, without a key.
const fn open(path: &'static str, handle: fn(Arc<App>, Parts, Body) -> Answering) -> Route {
    Route { open: true, always: true, ..get(path, handle) }
}

macro_rules! call {
    ($function:path) => {
        |app, parts, body| Box::pin($function(app, parts, body))
    };
}

pub const ROUTES: &[Route] = &[
    post("/v1/completions", call!(answer::<openai::Completion>)),
    post("/v1/chat/completions", call!(answer::<openai::Chat>)),
    post("/v1/responses", call!(answer::<responses::Responses>)),
    get("/v1/responses/{*id}", call!(responses::get)),
    Route { method: "DELETE", ..post("/v1/responses/{*id}", call!(responses::delete)) },
    post("/v1/messages", call!(answer::<messages::Messages>)),
    post("/v1/messages/count_tokens", call!(messages::count_tokens)),
    post("/v1/embeddings", call!(answer::<embeddings::Embeddings>)),
    post("/v1/rerank", call!(answer::<pairs::Rerank>)),
    post("/v2/rerank", call!(answer::<pairs::Rerank>)),
    post("/rerank", call!(answer::<pairs::Rerank>)),
    post("/v1/score", call!(answer::<pairs::Score>)),
    post("/score", call!(answer::<pairs::Score>)),
    post("/v1/systemone", call!(answer::<decisions::Decisions>)),
    post("/generate/batch", call!(answer::<batch::Batch>)),
    get("/v1/sessions", call!(sessions::list)),
    get("/v1/sessions/{*name}", call!(sessions::get)),
    Route { method: "DELETE", ..post("/v1/sessions/{*name}", call!(sessions::delete)) },
    post("/v1/sessions/{*name}", call!(sessions::act)),
    post("/slots/{*id}", call!(sessions::slot)),
    post("/tokenize", call!(tokenize::tokenize)),
    post("/detokenize", call!(tokenize::detokenize)),
    post("/api/chat", call!(ollama::chat)),
    post("/api/generate", call!(ollama::generate)),
    post("/api/embed", call!(answer::<ollama::Embed>)),
    post("/api/embeddings", call!(answer::<ollama::Embeddings>)),
    post("/api/show", call!(ollama::show)),
    get("/api/tags", call!(ollama::tags)),
    get("/api/ps", call!(ollama::ps)),
    open("/api/version", call!(ollama::version)),
    get("/v1/models", call!(info::models)),
    get("/v1/models/{*name}", call!(info::model)),
    Route { always: true, ..get("/metrics", call!(info::metrics)) },
    get("/stats", call!(info::stats)),
    open("/version", call!(info::version)),
    get("/props", call!(info::props)),
    open("/health", call!(info::health)),
    open("/v1/health", call!(info::health)),
    open("/ping", call!(info::health)),
    open("/", call!(info::page)),
];
