//! /save and /load: the messages as JSON, which other programs can read, and beside them the session of the
//! conversation in FILE.kv. Only the messages are needed: without the session, the first turn computes it again.
use crate::chat::{Chat, SESSION};
use crate::conversation::Conversation;
use crate::failure::{Failure, Result, failed, words_of_library, words_of_system};
use crate::files::{path_of, read_whole, write_whole};
use crate::image;
use crate::say::note;
use bn::{ErrorKind, Message};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The library accepts 64 MiB of messages, and JSON may take six bytes for one.
const MOST_TEXT: u64 = 6 * (64 << 20);
/// A session has tokens and recurrent states beside its share of the KV cache.
const BESIDE_KV: u64 = 1 << 30;
const MIB: f64 = (1 << 20) as f64;

fn shown(path: &Path) -> String {
    bn_hub::printable(&path.to_string_lossy()).into_owned()
}

/// The file of the session.
fn computed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".kv");
    name.into()
}

pub fn save(chat: &mut Chat, rest: &str) -> Result<()> {
    if rest.is_empty() {
        return failed("/save needs the name of a file");
    }
    let messages = chat.conversation.messages();
    if messages.is_empty() {
        return failed("there is nothing to save yet");
    }
    let path = path_of(rest);
    let name = shown(&path);
    if let Err(wrong) = write_whole(&path, written(&chat.conversation).as_bytes()) {
        return failed(format!("{name}: {wrong}"));
    }
    let size = save_session(chat, &computed(&path)).map_err(|wrong| {
        Failure::Said(format!("{name}.kv: {wrong} (the messages alone are saved, in {name})"))
    })?;
    if chat.interactive {
        let and_computed = match size {
            0 => String::new(),
            size => format!("; what was computed of them, {:.1} MiB, in {name}.kv", size as f64 / MIB),
        };
        let messages = bn_hub::counted(messages.len() as u64, "message");
        note(format_args!("(saved: {messages} in {name}{and_computed})"));
    }
    Ok(())
}

/// The messages as JSON, one on each line.
fn written(conversation: &Conversation) -> String {
    let pictures = conversation.pictures();
    let lines: Vec<_> = conversation
        .messages()
        .iter()
        .zip(pictures)
        .map(|(message, pictures)| {
            let role = json!(message.role);
            let content = image::content(pictures, &message.content, image::whole);
            format!("\n  {{\"role\": {role}, \"content\": {content}}}")
        })
        .collect();
    format!("{{\"messages\": [{}\n]}}\n", lines.join(","))
}

/// Writes the session, and returns its size; 0 if there is none. The error says what is wrong.
fn save_session(chat: &Chat, path: &Path) -> std::result::Result<usize, String> {
    match chat.engine.session_save(SESSION) {
        Ok(data) => write_whole(path, &data).map(|()| data.len()),
        // Remove an older file, which belongs to another conversation.
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(words_of_system(&error)),
            _ => Ok(0),
        },
        Err(error) => Err(words_of_library(error.message())),
    }
}

pub fn load(chat: &mut Chat, rest: &str) -> Result<()> {
    if rest.is_empty() {
        return failed("/load needs the name of a file");
    }
    if !chat.has_template() {
        return failed("this model has no chat template, so no conversation");
    }
    let path = path_of(rest);
    let read = read_whole(&path, MOST_TEXT).and_then(|data| Ok(conversation_of(&data)?));
    chat.conversation = read.map_err(|wrong| Failure::Said(format!("{}: {wrong}", shown(&path))))?;
    _ = chat.engine.session_free(SESSION); // there may be none
    let whole = load_session(chat, &computed(&path))?;
    if chat.interactive {
        let what_is_left = if whole { "" } else { "; the next answer computes them first" };
        let messages = bn_hub::counted(chat.conversation.messages().len() as u64, "message");
        note(format_args!("({messages}{what_is_left})"));
    }
    Ok(())
}

fn conversation_of(data: &[u8]) -> std::result::Result<Conversation, &'static str> {
    const NO_TEXT: &str =
        "a message lacks \"role\" or \"content\", or its content is no text and no images before one";
    let json: Value = serde_json::from_slice(data).unwrap_or_default();
    let Some(list) = json.get("messages").and_then(Value::as_array) else {
        return Err("no conversation in JSON: it lacks a list \"messages\"");
    };
    let message = |json: &Value| {
        let role = json.get("role").and_then(Value::as_str)?;
        let (pictures, text) = image::read(json.get("content")?)?;
        Some((Message::new(role, text), pictures))
    };
    Conversation::of(list.iter().map(message).collect::<Option<_>>().ok_or(NO_TEXT)?)
}

/// Restores the session. Returns false if none fits this model; the messages are enough then.
fn load_session(chat: &Chat, path: &Path) -> Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    let name = shown(path);
    let most = chat.engine.stats()?.kv_bytes.saturating_add(BESIDE_KV);
    let restored = match read_whole(path, most) {
        Ok(data) => {
            chat.engine.session_restore(SESSION, &data).map_err(|error| words_of_library(error.message()))
        }
        Err(wrong) => Err(wrong),
    };
    if let Err(wrong) = &restored {
        note(format_args!("({name} is left out: {wrong})"));
    }
    Ok(restored.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bn::Picture;

    #[test]
    fn messages_come_back_as_they_were() {
        let messages = vec![
            (Message::system("Be brief."), vec![]),
            (Message::user("say \"é\\ok\"\n\u{1}\u{2028}"), vec![Picture::new(*b"\x89PNG")]),
            (Message::assistant(""), vec![]),
        ];
        let given = Conversation::of(messages).unwrap();
        let text = written(&given);
        assert_eq!(text.lines().count(), 5);
        let Ok(read) = conversation_of(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(read.messages(), given.messages());
        assert_eq!(read.pictures(), given.pictures());
    }

    #[test]
    fn other_files_are_refused() {
        for text in ["", "{}", "[]", r#"{"messages": {}}"#, r#"{"messages": [{"role": "user"}]}"#] {
            assert!(conversation_of(text.as_bytes()).is_err(), "{text}");
        }
    }
}
