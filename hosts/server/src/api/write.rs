//! Serializes answers: as JSON, as events of a stream, as lines of JSON.
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use serde::Serialize;

/// Serialization cannot fail here: keys are texts, and numbers that JSON lacks become null.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Writes an event without a name.
pub fn data(out: &mut String, data: &impl Serialize) {
    out.push_str("data: ");
    out.push_str(&json(data));
    out.push_str("\n\n");
}

/// Writes an event of this name, which is also its object's type.
pub fn event(out: &mut String, name: &str, fields: &impl Serialize) {
    #[derive(Serialize)]
    struct Typed<'a, T> {
        r#type: &'a str,
        #[serde(flatten)]
        fields: &'a T,
    }
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    data(out, &Typed { r#type: name, fields });
}

/// Writes a line of a stream of JSON.
pub fn line(out: &mut String, value: &impl Serialize) {
    out.push_str(&json(value));
    out.push('\n');
}

/// An answer of this media type.
pub fn typed(kind: &'static str, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A value as an answer.
pub fn response(value: &impl Serialize) -> Response<Body> {
    typed("application/json", json(value))
}
