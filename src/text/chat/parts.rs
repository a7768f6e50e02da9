//! The parts of a message's content: texts and pictures.

use super::conversation::{At, not, text, wrong};
use crate::base::Result;
use crate::text::json::Json;

/// Where the bytes of a conversation's picture are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PictureSource {
    /// The next picture of the request.
    Request,
    /// An encoded picture within the conversation.
    Inline(Vec<u8>),
}

const TEXTS: [&str; 3] = ["text", "input_text", "output_text"];
const PICTURES: [&str; 3] = ["image", "image_url", "input_image"];

/// Returns a text, or the joined texts of a list of parts. With pictures among them it returns a list of parts,
/// `{"type": "text", "text": ..}` and `{"type": "image"}`, as templates expect them.
pub(super) fn content(at: At, value: Json, pictures: &mut Vec<PictureSource>) -> Result<Json> {
    let parts = match value {
        Json::Text(_) => return Ok(value),
        Json::List(parts) => parts,
        other => return Err(not(at, "a text or a list of parts", &other)),
    };
    let (mut joined, mut list) = (String::new(), Vec::new());
    for (n, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Json::as_str).unwrap_or("");
        if PICTURES.contains(&kind) {
            pictures.push(picture(&format_args!("{at}[{n}]"), part)?);
            list.extend((!joined.is_empty()).then(|| text_part(std::mem::take(&mut joined))));
            list.push(Json::Map(vec![("type".into(), Json::Text("image".into()))]));
            continue;
        }
        if !TEXTS.contains(&kind) {
            let what = "only parts of type text, image, image_url and input_image are taken";
            return Err(wrong(&format_args!("{at}[{n}].type"), what));
        }
        let at: At = &format_args!("{at}[{n}].text");
        let part = text(at, part.get("text").ok_or_else(|| wrong(at, "is missing"))?)?;
        joined.push_str(part);
    }
    if list.is_empty() {
        return Ok(Json::Text(joined));
    }
    list.extend((!joined.is_empty()).then(|| text_part(joined)));
    Ok(Json::List(list))
}

pub(super) fn text_part(text: String) -> Json {
    Json::Map(vec![("type".into(), Json::Text("text".into())), ("text".into(), Json::Text(text))])
}

/// The picture of a part: `{"type": "image"}` is the request's next one; the other types have a data URL, as OpenAI's
/// chat completions and responses do.
fn picture(at: At, part: &Json) -> Result<PictureSource> {
    let named = part.get("image_url").map(|value| match value {
        Json::Map(_) => (format!("{at}.image_url.url"), value.get("url")),
        url => (format!("{at}.image_url"), Some(url)),
    });
    let (at, url) = match named {
        None if part.get("type").and_then(Json::as_str) == Some("image") => {
            return Ok(PictureSource::Request);
        }
        None => return Err(wrong(&format_args!("{at}.image_url"), "is missing")),
        Some((at, None)) => return Err(wrong(&at, "is missing")),
        Some((at, Some(url))) => (at, url),
    };
    let url = text(&at, url)?;
    // RFC 2397. Its parameters are left out: the bytes say what they are.
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(','));
    let Some((_, data)) = data.filter(|(head, _)| head.ends_with(";base64")) else {
        return Err(wrong(&at, "must be a data URL in base64; nothing is fetched"));
    };
    match base64::decode(data.trim()) {
        Ok(bytes) => Ok(PictureSource::Inline(bytes)),
        Err(error) => Err(wrong(&at, format_args!("is no base64: {error}"))),
    }
}
