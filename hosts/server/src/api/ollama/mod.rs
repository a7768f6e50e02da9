//! Ollama's API.
mod about;
mod duration;
mod embed;
mod line;
mod list;
mod messages;
mod options;
mod text;

pub use embed::{Embed, Embeddings};
pub use list::{ps, show, tags, version};

use crate::app::App;
use crate::failure::Result;
use crate::fields::Fields;
use crate::run::{self, Call};
use axum::body::Body;
use axum::http::{Response, request::Parts};
use duration::KeepAlive;
use line::{Said, line};
use serde_json::json;
use std::sync::Arc;
use text::{Common, Text};

pub async fn chat(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    run::answer_with(app, parts, body, text::<true>).await
}

pub async fn generate(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    run::answer_with(app, parts, body, text::<false>).await
}

async fn text<const CHAT: bool>(call: Call, fields: Fields, length: usize) -> Result<Response<Body>> {
    if Text::<CHAT>::says(&fields) {
        return run::run::<Text<CHAT>>(call, fields, length).await;
    }
    load::<CHAT>(call, fields).await
}

/// A request without a prompt loads its model, or unloads it.
async fn load<const CHAT: bool>(mut call: Call, mut fields: Fields) -> Result<Response<Body>> {
    let name = fields.get("model").and_then(|name| name.as_str()).map(str::to_owned);
    let keep = fields.get("keep_alive").cloned();
    let keep: Option<KeepAlive> = keep.map(|keep| crate::fields::read(keep, "keep_alive")).transpose()?;
    let unloads = keep.is_some_and(|keep| keep.0.is_zero());
    let away = match &name {
        Some(name) if unloads => call.app.models.find(name).await.filter(|(model, _)| model.loaded.is_none()),
        _ => None,
    };
    let model = match away {
        Some((_, shown)) => shown, // it need not be loaded to be unloaded
        None => {
            let held = run::take_model(&mut call, &fields).await?;
            if let Some(KeepAlive(time)) = keep {
                held.keep(time);
            }
            held.shown().to_owned()
        }
    };
    let _: Common = fields.take()?;
    let end = json!({"done_reason": if unloads { "unload" } else { "load" }});
    Ok(run::json(line(&model, CHAT, Said::default(), Some(end)).to_string(), call))
}
