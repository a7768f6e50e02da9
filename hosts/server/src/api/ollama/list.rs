//! GET /api/tags, /api/ps and /api/version, POST /api/show: models as Ollama lists them. They load none.
use super::about::About;
use crate::api::write;
use crate::app::App;
use crate::body;
use crate::failure::{Failure, Result};
use crate::models::{FOREVER, Model, not_found};
use crate::run::{self, Call};
use axum::body::Body;
use axum::http::{Response, request::Parts};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The version of Ollama whose API this is: clients refuse older ones.
const OLLAMA: &str = "0.12.11";
/// As in Ollama, a model that stays has an expiry far in the future.
const CENTURY: Duration = Duration::from_secs(3_155_760_000);

fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// When the model's files were written.
fn modified_at(model: &Model) -> String {
    time(UNIX_EPOCH + Duration::from_secs(model.created))
}

/// A hash of the files' name, size and time. Clients take it for the hash of the contents, which is not
/// computed here.
fn digest(model: &Model) -> String {
    let part = |part: u8| {
        let mut hasher = DefaultHasher::new();
        (part, &model.path, model.bytes, model.created).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    (0..4).map(part).collect()
}

/// A number of parameters in short form: 1.7B, 135M.
fn short(parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        1..1_000_000_000 => format!("{:.1}M", parameters as f64 / 1e6),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}

fn details(about: &About) -> Value {
    json!({
        "parent_model": "",
        "format": about.format,
        "family": about.architecture,
        "families": [about.architecture],
        "parameter_size": short(about.parameters),
        "quantization_level": about.quantization,
    })
}

/// The fields of a model in both lists.
fn listed(model: &Model, about: &About) -> Value {
    json!({
        "name": model.name,
        "model": model.name,
        "size": model.bytes,
        "digest": digest(model),
        "details": details(about),
        "capabilities": about.capabilities(),
    })
}

/// The sampling that a model's authors recommend, in the form of a Modelfile.
fn parameters(model: &Model) -> String {
    let Some(loaded) = &model.loaded else { return String::new() };
    let own = &loaded.info.recommended;
    let lines = [
        ("temperature", own.temperature.map(|value| value.to_string())),
        ("top_k", own.top_k.map(|value| value.to_string())),
        ("top_p", own.top_p.map(|value| value.to_string())),
        ("min_p", own.min_p.map(|value| value.to_string())),
        ("repeat_penalty", own.repetition_penalty.map(|value| value.to_string())),
    ];
    let lines = lines.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Models with their descriptions. Files of models that are not loaded may have to be read.
async fn known(models: Vec<Model>) -> Vec<(Model, About)> {
    let with_about = |model| {
        let about = About::of(&model);
        (model, about)
    };
    let read = move || models.into_iter().map(with_about).collect();
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

pub async fn tags(app: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    let tagged = |(model, about): &(Model, About)| {
        let mut listed = listed(model, about);
        listed["modified_at"] = modified_at(model).into();
        listed
    };
    let models: Vec<_> = known(app.models.list().await).await.iter().map(tagged).collect();
    write::response(&json!({"models": models}))
}

pub async fn ps(app: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    let mut models = app.models.list().await;
    models.retain(|model| model.loaded.is_some());
    let running = |(model, about): &(Model, About)| {
        let left = if model.left == FOREVER { CENTURY } else { model.left.min(CENTURY) };
        let mut listed = listed(model, about);
        listed["size_vram"] = 0.into();
        listed["context_length"] = about.context_length.into();
        listed["expires_at"] = time(SystemTime::now() + left).into();
        listed
    };
    let models: Vec<_> = known(models).await.iter().map(running).collect();
    write::response(&json!({"models": models}))
}

pub async fn version(_: Arc<App>, _: Parts, _: Body) -> Response<Body> {
    write::response(&json!({
        "version": OLLAMA,
        "version_of": "Ollama's API as this server speaks it",
        "bn_engine": bn::version(),
    }))
}

pub async fn show(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    let call = Call::new(&app, &parts);
    let shape = call.shape;
    shown(call, body).await.unwrap_or_else(|failure| failure.response(shape))
}

/// The model of a name, found as by requests that run it.
async fn find(app: &App, name: &str) -> Option<Model> {
    match app.models.find(name).await {
        None if app.options.any_model => app.models.list().await.into_iter().next(),
        found => found.map(|(model, _)| model),
    }
}

async fn shown(mut call: Call, body: Body) -> Result<Response<Body>> {
    let (fields, _) = body::read(&mut call, body).await?;
    let name = fields.get("model").or(fields.get("name"));
    let name = name.ok_or_else(|| Failure::invalid("'model' is missing"))?;
    let name = name.as_str().ok_or_else(|| Failure::invalid("'model' must be a text"))?;
    let model = find(&call.app, name).await.ok_or_else(|| not_found(name))?;
    let mut known = known(vec![model]).await;
    let (model, about) = known.pop().ok_or_else(|| Failure::invalid("'model' cannot be read"))?;
    let shown = json!({
        "modelfile": "",
        "parameters": parameters(&model),
        "template": "",
        "details": details(&about),
        "model_info": about.values(),
        "capabilities": about.capabilities(),
        "modified_at": modified_at(&model),
    });
    Ok(run::json(shown.to_string(), call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let all = [(0, ""), (134_515_008, "134.5M"), (1_720_574_976, "1.7B"), (999_999_999, "1000.0M")];
        for (parameters, text) in all {
            assert_eq!(short(parameters), text);
        }
    }
}
