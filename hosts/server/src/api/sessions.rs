//! Sessions that are saved and restored: /v1/sessions, and llama.cpp's POST /slots/ID?action=save.
use crate::api::write;
use crate::app::App;
use crate::body;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::engine::session_of_slot;
use crate::run::{self, Call, shape_of};
use crate::serve::Rest;
use crate::sessions::{Saved, Sessions};
use axum::body::Body;
use axum::http::{Response, StatusCode, request::Parts};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the data of `bn_session_save` has the number of tokens, as 64 bits, the low ones first.
const TOKENS_AT: usize = 52;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Save,
    Restore,
    Erase,
}

impl Action {
    fn of(name: &str) -> Result<Self> {
        match name {
            "save" => Ok(Self::Save),
            "restore" => Ok(Self::Restore),
            "erase" => Ok(Self::Erase),
            _ => Err(Failure::invalid("the action must be save, restore or erase")),
        }
    }
}

/// An action on a session.
struct Asked {
    action: Action,
    /// Its name in the model's engine.
    session: String,
    /// Its name in the folder.
    name: String,
}

struct Done {
    tokens: u64,
    bytes: usize,
    took: Duration,
}

impl Asked {
    fn run(&self, sessions: &Sessions, held: &Held) -> Result<Done> {
        let begun = Instant::now();
        let data = match self.action {
            Action::Save => {
                let data = held.engine.session_save(&self.session).map_err(|error| failure(&error))?;
                sessions.write(&self.name, &data)?;
                data
            }
            Action::Restore => {
                let data = sessions.read(&self.name)?;
                held.engine.session_restore(&self.session, &data).map_err(|error| failure(&error))?;
                data
            }
            Action::Erase => {
                held.engine.session_free(&self.session).map_err(|error| failure(&error))?;
                Vec::new()
            }
        };
        Ok(Done { tokens: tokens_of(&data), bytes: data.len(), took: begun.elapsed() })
    }
}

/// The number of tokens of a saved session.
fn tokens_of(data: &[u8]) -> u64 {
    let bytes = data.get(TOKENS_AT..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The failure of a call of the engine for a session.
fn failure(error: &bn::Error) -> Failure {
    let failure = Failure::of(error);
    match error.kind() {
        // Sessions hold only a part of the KV cache.
        bn::ErrorKind::MemoryLimit => {
            Failure::new(StatusCode::INSUFFICIENT_STORAGE, "sessions_full", failure.message)
        }
        _ => failure,
    }
}

/// Runs what the body and its route ask for.
async fn run(
    call: &mut Call,
    body: Body,
    ask: impl FnOnce(&mut Fields) -> Result<Asked>,
) -> Result<(Asked, Done, String)> {
    let mut fields = body::read_if_any(call, body).await?;
    let asked = ask(&mut fields)?;
    call.app.unknown_fields(&fields)?;
    if asked.action != Action::Erase {
        call.app.sessions.folder()?;
        crate::sessions::check(&asked.name)?;
    }
    let held = run::take_model(call, &fields).await?;
    let turn = call.app.sessions.turn().await;
    let app = call.app.clone();
    // The thread ends its work if the client leaves.
    let work = tokio::task::spawn_blocking(move || {
        let done = asked.run(&app.sessions, &held);
        drop(turn);
        done.map(|done| (asked, done, held.shown().to_owned()))
    });
    let words = "the server failed to answer this request";
    let broken = |_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", words);
    work.await.map_err(broken)?
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn rest(parts: &Parts) -> String {
    parts.extensions.get::<Rest>().map(|rest| rest.0.clone()).unwrap_or_default()
}

fn object(saved: &Saved) -> Value {
    json!({"id": saved.name, "object": "session", "bytes": saved.bytes, "created": saved.written})
}

/// An answer, or the failure in the form of the path.
fn answered(parts: &Parts, call: Call, result: Result<Value>) -> Response<Body> {
    match result {
        Ok(value) => run::json(write::json(&value), call),
        Err(failure) => failure.response(shape_of(parts.uri.path())),
    }
}

/// GET /v1/sessions: those in the folder.
pub async fn list(app: Arc<App>, parts: Parts, _body: Body) -> Response<Body> {
    let result = app.sessions.list().map(|all| {
        let (most, most_bytes) = app.sessions.limits();
        let bytes: u64 = all.iter().map(|saved| saved.bytes).sum();
        let data: Vec<_> = all.iter().map(object).collect();
        json!({"object": "list", "data": data, "bytes": bytes, "max_bytes": most_bytes, "max_sessions": most})
    });
    answered(&parts, Call::new(&app, &parts), result)
}

/// GET /v1/sessions/NAME.
pub async fn get(app: Arc<App>, parts: Parts, _body: Body) -> Response<Body> {
    let result = app.sessions.find(&rest(&parts)).map(|saved| object(&saved));
    answered(&parts, Call::new(&app, &parts), result)
}

/// DELETE /v1/sessions/NAME: deletes the file. The model's session stays.
pub async fn delete(app: Arc<App>, parts: Parts, _body: Body) -> Response<Body> {
    let name = rest(&parts);
    let _turn = app.sessions.turn().await;
    let result = app.sessions.remove(&name);
    let result = result.map(|()| json!({"id": name, "object": "session", "deleted": true}));
    answered(&parts, Call::new(&app, &parts), result)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    /// The name in the model's engine, if it is not that of the file.
    session: Option<String>,
}

/// POST /v1/sessions/NAME/ACTION.
pub async fn act(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    let mut call = Call::new(&app, &parts);
    let path = rest(&parts);
    let (name, action) = path.rsplit_once('/').unwrap_or((path.as_str(), ""));
    let ask = |fields: &mut Fields| {
        let (action, own) = (Action::of(action)?, fields.take::<Own>()?);
        let session = own.session.filter(|session| !session.is_empty()).unwrap_or_else(|| name.to_owned());
        Ok(Asked { action, session, name: name.to_owned() })
    };
    let result = run(&mut call, body, ask).await.map(|(asked, done, model)| {
        let mut value =
            json!({"id": asked.name, "object": "session", "session": asked.session, "model": model});
        match asked.action {
            Action::Erase => value["erased"] = true.into(),
            _ => {
                value["tokens"] = done.tokens.into();
                value["bytes"] = done.bytes.into();
            }
        }
        value["ms"] = milliseconds(done.took).into();
        value
    });
    answered(&parts, call, result)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Slot {
    filename: Option<String>,
}

/// The value of `action` in a query.
fn action_of(query: Option<&str>) -> &str {
    let pairs = query.unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.strip_prefix("action=")).next().unwrap_or_default()
}

/// POST /slots/ID?action=ACTION, as in llama.cpp's server. A slot is the session of the requests with its `id_slot`.
pub async fn slot(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    let mut call = Call::new(&app, &parts);
    let slot = rest(&parts).parse::<u32>();
    let ask = |fields: &mut Fields| {
        let wrong = |_| Failure::invalid("the slot must be a whole number");
        let session = session_of_slot(slot.clone().map_err(wrong)?);
        let (action, own) = (Action::of(action_of(parts.uri.query()))?, fields.take::<Slot>()?);
        if action != Action::Erase && own.filename.is_none() {
            return Err(Failure::invalid("'filename' is missing"));
        }
        Ok(Asked { action, session, name: own.filename.unwrap_or_default() })
    };
    let result = run(&mut call, body, ask).await.map(|(asked, done, _)| {
        let id = slot.clone().unwrap_or_default();
        let ms = milliseconds(done.took);
        match asked.action {
            Action::Save => json!({"id_slot": id, "filename": asked.name, "n_saved": done.tokens,
                "n_written": done.bytes, "timings": {"save_ms": ms}}),
            Action::Restore => json!({"id_slot": id, "filename": asked.name, "n_restored": done.tokens,
                "n_read": done.bytes, "timings": {"restore_ms": ms}}),
            Action::Erase => json!({"id_slot": id}),
        }
    });
    answered(&parts, call, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_in_the_query() {
        assert_eq!(action_of(Some("action=save")), "save");
        assert_eq!(action_of(Some("model=a&action=restore&action=save")), "restore");
        assert_eq!((action_of(Some("reaction=save")), action_of(None)), ("", ""));
        assert_eq!(Action::of("erase").unwrap(), Action::Erase);
        assert!(Action::of("").is_err() && Action::of("load").is_err());
    }

    #[test]
    fn what_is_no_session_has_no_tokens() {
        let mut data = vec![0; TOKENS_AT];
        assert_eq!(tokens_of(&data), 0);
        data.extend(258_u64.to_le_bytes());
        assert_eq!(tokens_of(&data), 258);
    }
}
