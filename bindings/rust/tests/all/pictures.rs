//! Pictures: what is refused before a model sees them.
use crate::support::{ECHO, demo, generate, open, wants};
use bn::{Chat, ErrorKind, Message, Picture, Request};
use serde_json::json;

/// The head of a PNG of 2 x 1 pixels.
const HEAD: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x01\x08\x02\0\0\0";

fn seeing(pictures: Vec<Picture>) -> Request {
    Request { pictures, ..Request::chat(vec![Message::user("What is it?")]) }
}

#[test]
fn a_model_that_sees_none_refuses_pictures() {
    for engine in [open(ECHO), demo()] {
        assert!(!engine.model().info().sees);
        let picture = Picture::new(HEAD);
        wants(engine.generate(&seeing(vec![picture.clone()])), ErrorKind::Unsupported, "sees none");
        wants(engine.picture_positions(&picture), ErrorKind::Unsupported, "sees");
        let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
        let chat = json!({"messages": [{"role": "user", "content": [part]}]});
        let request = Request::prompt(Chat::Json(chat.to_string()));
        wants(engine.generate(&request), ErrorKind::Unsupported, "sees none");
        assert!(!generate(&engine, &seeing(vec![])).text.is_empty());
    }
}

#[test]
fn pictures_are_checked() {
    // 19
    let engine = open(ECHO);
    let whole = || Picture::pixels(2, 1, [0; 6]);
    for (second, words) in [
        (Picture::new([]), "pictures[1].data is empty"),
        (Picture::pixels(2, 1, [0; 5]), "pictures[1]: 5 bytes for 2 x 1 pixels"),
        (Picture::pixels(u32::MAX, u32::MAX, [0; 6]), "pictures[1]: 6 bytes for"),
        (Picture::pixels(2, 0, [0; 6]), "pictures[1]: 6 bytes for 2 x 0 pixels"),
    ] {
        wants(engine.generate(&seeing(vec![whole(), second])), ErrorKind::InvalidArgument, words);
    }
    let many = vec![whole(); bn::MAX_PICTURES + 1];
    wants(engine.generate(&seeing(many)), ErrorKind::InvalidArgument, "pictures");
    wants(engine.picture_positions(&Picture::new([])), ErrorKind::InvalidArgument, "picture.data is empty");
}

#[test]
fn pictures_are_read_from_files() {
    let path = std::env::temp_dir().join(format!("bn-picture-{}", std::process::id()));
    wants(Picture::open(&path), ErrorKind::Io, "bn-picture-");
    std::fs::write(&path, HEAD).unwrap();
    let read = Picture::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read, Picture::new(HEAD));
    assert_eq!(format!("{read:?}"), format!("Picture {{ bytes: {}, width: 0, height: 0 }}", HEAD.len()));
}
