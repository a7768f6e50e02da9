//! Chats with tools against transformers' rendering of them (`tools/golden/tools.py`).

use bn_engine::base::{Result, Status};
use bn_engine::text::reply::{format_of, thoughts_of};
use bn_engine::text::{Chat, ChatTemplate};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tools")
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn template(source: &str) -> Result<ChatTemplate> {
    let all = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    ChatTemplate::new(source, all.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec())
}

/// Every template of `folder`. Returns the numbers of chats that agree and that both refuse, and a reason for each of
/// the others.
fn compare(folder: &Path) -> (usize, usize, Vec<String>) {
    let chats = read(&folder.join("chats.json"));
    let (mut agreed, mut refused, mut wrong) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") || path.ends_with("chats.json") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let golden = read(&path);
        let source = golden["template"].as_str().unwrap();
        // For templates that we may not distribute, the test prints them.
        let formats =
            [format_of(source).map(|format| format.name), thoughts_of(source).map(|tags| tags.name)];
        let known = ["tool_format", "reasoning_format"].map(|name| golden.get(name).map(Value::as_str));
        if let [Some(calls), Some(thoughts)] = known
            && formats != [calls, thoughts]
        {
            wrong.push(format!("{name}: {formats:?}"));
        }
        let template = match template(source) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (title, text) in golden["texts"].as_object().unwrap() {
            let chat = Chat::parse(chats[title].as_str().unwrap()).unwrap();
            match (template.render_chat(&chat), text.as_str()) {
                (Ok(ours), Some(theirs)) if ours.text == theirs => agreed += 1,
                (Err(error), None) if error.status != Status::Internal => refused += 1,
                (ours, theirs) => wrong.push(format!("{name}, {title}:\n  {ours:?}\n  {theirs:?}")),
            }
        }
    }
    (agreed, refused, wrong)
}

#[test]
fn chats_with_tools_render_as_transformers_renders_them() {
    let (agreed, refused, wrong) = compare(&folder());
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(agreed >= 150 && refused >= 3, "{agreed} agree, {refused} are refused: are the goldens there?");
}

/// The templates of the folder in BN_TOOLS_GOLDEN: templates that we may not distribute. Prints how each writes calls
/// and reasoning.
#[test]
#[ignore = "needs BN_TOOLS_GOLDEN: tools/golden/tools.py --originals"]
fn originals_render_as_transformers_renders_them() {
    let folder = std::env::var_os("BN_TOOLS_GOLDEN").expect("BN_TOOLS_GOLDEN names a folder");
    let folder = Path::new(&folder);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let source = read(&path)["template"].as_str().unwrap_or_default().to_owned();
        let calls = format_of(&source).map(|format| format.name);
        let thoughts = thoughts_of(&source).map(|thoughts| thoughts.name);
        println!("{}: {calls:?} {thoughts:?}", path.file_stem().unwrap().to_string_lossy());
    }
    let (agreed, refused, wrong) = compare(folder);
    println!("{agreed} texts agree, {refused} are refused by both");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(agreed > 0);
}

/// Text from a chat never counts as the template's own, wherever it is: contents, arguments, names, schemas,
/// variables.
#[test]
fn nothing_in_a_chat_makes_control_tokens() {
    let evil = r#"{"messages": [
        {"role": "system", "content": "EVIL"}, {"role": "user", "content": "EVIL", "name": "EVIL"},
        {"role": "assistant", "content": "EVIL", "reasoning_content": "EVIL", "tool_calls": [
            {"id": "EVIL56789", "type": "function", "function": {"name": "EVIL", "arguments": "{\"EVIL\": [\"EVIL\"]}"}}]},
        {"role": "tool", "tool_call_id": "EVIL56789", "content": "EVIL"}, {"role": "EVIL", "content": "EVIL", "EVIL": "EVIL"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "EVIL", "parameters": {"EVIL": {"EVIL": "EVIL"}}}}],
        "documents": [{"title": "EVIL", "text": "EVIL"}],
        "chat_template_kwargs": {"date_string": "EVIL", "extra": ["EVIL"], "settings": {"EVIL": "EVIL"}, "builtin_tools": ["EVIL"]}}"#;
    let evil = Chat::parse(evil).unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        let Ok(made) = template(&std::fs::read_to_string(&path).unwrap()).unwrap().render_chat(&evil) else {
            continue;
        };
        for (at, _) in made.text.match_indices("EVIL") {
            let marked = made.untrusted.iter().any(|range| range.start <= at && at + 4 <= range.end);
            assert!(marked, "{path:?} at {at}: {}", made.text);
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}
