//! /image: a picture for the next message, and pictures in conversations as JSON.
use crate::chat::Chat;
use crate::failure::{Failure, Result, failed, words_of_library};
use crate::files::{path_of, read_whole};
use crate::say::note;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bn::Picture;
use serde_json::{Value, json};

/// Bytes of a file.
const MOST: u64 = 64 << 20;

/// Reads a picture, which comes before the text of the next message.
pub fn show(chat: &mut Chat, rest: &str) -> Result<()> {
    if rest.is_empty() {
        return failed("/image needs the name of a file");
    }
    if !chat.model.info().sees {
        return failed(
            "this model sees no images: for those, a GGUF file needs an mmproj file beside it or as --pictures FILE",
        );
    }
    if !chat.has_template() {
        return failed("this model has no chat template, so its messages have no images");
    }
    let path = path_of(rest);
    let name = bn_hub::printable(&path.to_string_lossy()).into_owned();
    let wrong = |wrong: String| Failure::Said(format!("{name}: {wrong}"));
    let picture = Picture::new(read_whole(&path, MOST).map_err(wrong)?);
    let tokens = chat.engine.picture_positions(&picture);
    let tokens = tokens.map_err(|error| wrong(words_of_library(error.message())))?;
    if chat.interactive {
        let tokens = bn_hub::counted(tokens, "token");
        note(format_args!("({name}: {tokens}, before your next message)"));
    }
    chat.shown.push((name, picture));
    Ok(())
}

/// The content of a message: its pictures, each as `picture` writes it, and its text.
pub fn content(pictures: &[Picture], text: &str, picture: fn(&Picture) -> Value) -> Value {
    if pictures.is_empty() {
        return json!(text);
    }
    let text = (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
    pictures.iter().map(picture).chain(text).collect()
}

/// The place of a request's next picture.
pub fn place(_: &Picture) -> Value {
    json!({"type": "image"})
}

/// A picture with its bytes, as OpenAI's API has it.
pub fn whole(picture: &Picture) -> Value {
    let data = picture.data();
    let kind = match data {
        [0x89, b'P', b'N', b'G', ..] => "png",
        [0xff, 0xd8, ..] => "jpeg",
        [b'G', b'I', b'F', ..] => "gif",
        _ => "webp",
    };
    let url = format!("data:image/{kind};base64,{}", BASE64_STANDARD.encode(data));
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// The pictures and the text of such a content; None if it is none.
pub fn read(content: &Value) -> Option<(Vec<Picture>, String)> {
    let (mut pictures, mut all) = (Vec::new(), String::new());
    let parts = match content {
        Value::String(text) => return Some((pictures, text.clone())),
        Value::Array(parts) => parts,
        _ => return None,
    };
    for part in parts {
        if let Some(text) = part.get("text").and_then(Value::as_str) {
            all.push_str(text);
            continue;
        }
        let url = part.get("image_url")?.get("url")?.as_str()?;
        let (_, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
        // A picture is before the text.
        pictures.push(all.is_empty().then(|| BASE64_STANDARD.decode(data).ok())?.map(Picture::new)?);
    }
    Some((pictures, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_come_back() {
        let pictures = vec![Picture::new(*b"\x89PNG"), Picture::new(*b"\xff\xd8")];
        for (pictures, text) in [(pictures.clone(), "a"), (pictures, ""), (vec![], "b"), (vec![], "")] {
            assert_eq!(read(&content(&pictures, text, whole)), Some((pictures.clone(), text.to_owned())));
        }
        let url = "data:image/png;base64,iVBORw==";
        assert_eq!(whole(&Picture::new(*b"\x89PNG"))["image_url"]["url"], url);
        let image = json!({"type": "image"});
        let wanted = json!([image, {"type": "text", "text": "a"}]);
        assert_eq!(content(&[Picture::new(*b"x")], "a", place), wanted);
    }

    #[test]
    fn other_contents_are_none() {
        let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        for content in [
            json!(null),
            json!(5),
            json!([{"type": "image"}]),
            json!([url("https://a.example/x")]),
            json!([url("data:image/png;base64,?")]),
            json!([{"type": "text", "text": "a"}, url("data:image/png;base64,iVBORw==")]),
        ] {
            assert_eq!(read(&content), None, "{content}");
        }
    }
}
