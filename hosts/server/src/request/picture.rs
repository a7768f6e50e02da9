//! Pictures in the forms of all APIs.
use super::passage::{Passage, Shown};
use crate::failure::{Failure, Result};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Types of parts: Anthropic's and that of tools (MCP), OpenAI's chats', its responses'.
pub const KINDS: [&str; 4] = ["image", "image_url", "input_image", "computer_screenshot"];
/// The field with the reason why the picture at a URL was not fetched.
pub const UNFETCHED: &str = "unfetched";

/// What becomes of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The model sees them.
    Sees,
    /// Words stand for those of earlier turns, and of results. The others are refused.
    Refuses,
    /// Words stand for all.
    LeavesOut,
}

impl Sight {
    /// Puts words in the place of pictures that are not shown. `asked`: they are in the turn that is to be answered,
    /// and the client can change them.
    pub fn look(self, passage: &mut Passage, asked: bool) -> Result<()> {
        passage.replace(|shown| match (self, &shown.picture) {
            (Self::Sees, Ok(_)) => Ok(None),
            (Self::Sees, Err(why)) if asked => Err(Failure::invalid(format!("'{}' {why}", shown.at))),
            (Self::Sees, Err(_)) => Ok(Some("[image: not shown, as this server cannot read it]".to_owned())),
            (Self::Refuses, _) if asked => Err(Failure::invalid(format!(
                "'{}' is of the type image: this model takes only text, no images",
                shown.at
            ))),
            _ => Ok(Some("[image: not shown, as this model reads text only]".to_owned())),
        })
    }
}

/// The picture of a part at `at` in the client's body.
pub fn of_part(part: &Value, at: &str) -> Shown {
    let text = |name: &str| part.get(name).and_then(Value::as_str);
    let url = part.get("image_url").map(|url| url.get("url").unwrap_or(url));
    let source = part.get("source").filter(|source| source.is_object());
    let in_source = |name: &str| source.and_then(|source| source.get(name)).and_then(Value::as_str);
    let picture = match (text(UNFETCHED), url, in_source("type")) {
        (Some(why), ..) => Err(why.to_owned()),
        (_, Some(Value::String(url)), _) => of_url(url),
        (_, _, Some("base64")) => decoded(in_source("data").unwrap_or_default()),
        (_, _, Some("url")) => of_url(in_source("url").unwrap_or_default()),
        _ if in_source("file_id").or(text("file_id")).is_some() => {
            Err("is a file of another server: send its bytes in base64".to_owned())
        }
        _ => match text("data") {
            Some(data) => decoded(data),
            None => Err("has no image".to_owned()),
        },
    };
    Shown { at: at.to_owned(), picture }
}

/// A picture in base64 (Ollama's), with or without the head of a data URL.
pub fn of_text(text: Option<&str>, at: String) -> Shown {
    let picture = match text {
        None => Err("must be a text in base64".to_owned()),
        Some(text) if text.starts_with("data:") => of_url(text),
        Some(text) => decoded(text),
    };
    Shown { at, picture }
}

/// The URL of a part's picture, if it is to be fetched.
pub fn url_of(part: &Value) -> Option<&str> {
    let kind = part.get("type").and_then(Value::as_str)?;
    let url = part.get("image_url").map(|url| url.get("url").unwrap_or(url));
    let url = url.or_else(|| part.get("source")?.get("url")).and_then(Value::as_str)?;
    (KINDS.contains(&kind) && is_remote(url)).then_some(url)
}

fn is_remote(url: &str) -> bool {
    ["http://", "https://"]
        .iter()
        .any(|scheme| url.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme)))
}

/// RFC 2397. Its parameters are passed over: the bytes say what they are.
fn of_url(url: &str) -> std::result::Result<bn::Picture, String> {
    if is_remote(url) {
        return Err("is a URL, and this server fetches none: send the image as a data URL".to_owned());
    }
    let data = url.split_once(',').filter(|(head, _)| {
        head.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) && head.ends_with(";base64")
    });
    data.map_or_else(|| Err("must be a data URL in base64".to_owned()), |(_, data)| decoded(data))
}

fn decoded(data: &str) -> std::result::Result<bn::Picture, String> {
    let lines = data.bytes().any(|byte| byte.is_ascii_whitespace());
    let joined: String = if lines { data.split_ascii_whitespace().collect() } else { String::new() };
    match BASE64.decode(if lines { &joined } else { data }) {
        Ok(bytes) if bytes.is_empty() => Err("is an empty image".to_owned()),
        Ok(bytes) => Ok(bn::Picture::new(bytes)),
        Err(error) => Err(format!("is not base64: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pictures_are_read_in_the_form_of_each_api() {
        let wanted = Ok(bn::Picture::new(*b"abcd"));
        for part in [
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJjZA==", "detail": "low"}}),
            json!({"type": "image_url", "image_url": "DATA:;base64,YWJjZA"}),
            json!({"type": "input_image", "image_url": "data:image/x;a=b;base64,YWJj\r\nZA==\n", "detail": "auto"}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "YWJjZA=="}}),
            json!({"type": "image", "source": {"type": "url", "url": "data:image/png;base64,YWJjZA=="}}),
            json!({"type": "image", "data": "YWJjZA==", "mimeType": "image/png"}),
            json!({"type": "computer_screenshot", "image_url": "data:image/png;base64,YWJjZA=="}),
        ] {
            assert_eq!(of_part(&part, "x").picture, wanted, "{part}");
        }
        assert_eq!(of_text(Some("YWJjZA=="), "x".to_owned()).picture, wanted);
        assert_eq!(of_text(Some("data:image/png;base64,YWJjZA=="), "x".to_owned()).picture, wanted);
    }

    #[test]
    fn what_is_no_picture_is_told() {
        let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        for (part, words) in [
            (url("https://a.example/x.png"), "is a URL, and this server fetches none"),
            (url("HTTP://a.example/x.png"), "is a URL, and this server fetches none"),
            (url("data:image/png,abcd"), "must be a data URL in base64"),
            (url("/etc/passwd"), "must be a data URL in base64"),
            (url("file:///etc/passwd;base64,YWJj"), "must be a data URL in base64"),
            (url(""), "must be a data URL in base64"),
            (url("data:;base64,"), "is an empty image"),
            (url("data:;base64,a?b"), "is not base64"),
            (json!({"type": "image_url", "image_url": {}}), "has no image"),
            (json!({"type": "image", "source": {"type": "base64"}}), "is an empty image"),
            (
                json!({"type": "image", "source": {"type": "file", "file_id": "f"}}),
                "is a file of another server",
            ),
            (json!({"type": "input_image", "file_id": "f"}), "is a file of another server"),
            (json!({"type": "image", "image_url": "https://a.example", "unfetched": "is x"}), "is x"),
            (json!({"type": "image"}), "has no image"),
        ] {
            let why = of_part(&part, "x").picture.unwrap_err();
            assert!(why.starts_with(words), "{part}: {why}");
        }
        assert!(of_text(None, "x".to_owned()).picture.is_err());
    }

    #[test]
    fn what_is_not_shown_is_refused_or_becomes_words() {
        let looked = |sight: Sight, part: Value, asked| {
            let mut passage = Passage::from("a");
            passage.show(of_part(&part, "m[0]"));
            let result = sight.look(&mut passage, asked).map_err(|failure| failure.message);
            result.map(|()| json!(passage))
        };
        let (good, bad) = (|| json!({"type": "image", "data": "YWJj"}), || json!({"type": "image"}));
        let shown = json!([{"type": "text", "text": "a"}, {"type": "image"}]);
        let words = |why: &str| json!(format!("a\n[image: not shown, as this {why}]\n"));
        let blind = words("model reads text only");
        for (sight, part, asked, wanted) in [
            (Sight::Sees, good(), true, Ok(shown)),
            (Sight::Sees, bad(), false, Ok(words("server cannot read it"))),
            (Sight::Sees, bad(), true, Err("'m[0]' has no image")),
            (Sight::Refuses, good(), false, Ok(blind.clone())),
            (
                Sight::Refuses,
                good(),
                true,
                Err("'m[0]' is of the type image: this model takes only text, no images"),
            ),
            (Sight::LeavesOut, good(), true, Ok(blind)),
        ] {
            assert_eq!(looked(sight, part, asked), wanted.map_err(str::to_owned), "{sight:?}");
        }
    }

    #[test]
    fn pictures_elsewhere_are_found_by_their_urls() {
        let http = "http://a.example/x";
        for (part, found) in [
            (json!({"type": "image_url", "image_url": {"url": http}}), Some(http)),
            (json!({"type": "input_image", "image_url": http}), Some(http)),
            (json!({"type": "image", "source": {"type": "url", "url": http}}), Some(http)),
            (json!({"type": "text", "image_url": http}), None),
            (json!({"type": "image", "image_url": "data:;base64,YQ=="}), None),
            (json!({"type": "image"}), None),
        ] {
            assert_eq!(url_of(&part), found, "{part}");
        }
    }
}
