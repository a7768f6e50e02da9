//! Chat templates against transformers' rendering of them (`tools/golden/chat.py`).

use bn_engine::text::{ChatTemplate, Message};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn tokens() -> Vec<(String, String)> {
    let all = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    all.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec()
}

/// Every template of `folder`. Returns the number of cases that agree, and a reason for each of the others.
fn compare(folder: &Path) -> (usize, Vec<String>) {
    let read_conversations = read(&folder.join("conversations.json"));
    let text = |message: &'_ Value, name| message[name].as_str().unwrap().to_owned();
    let pairs = |all: &Value| -> Vec<(String, String)> {
        let messages = all.as_array().unwrap().iter();
        messages.map(|message| (text(message, "role"), text(message, "content"))).collect()
    };
    let conversations = read_conversations.as_object().unwrap().iter();
    let conversations: BTreeMap<_, _> =
        conversations.map(|(title, all)| (title.as_str(), pairs(all))).collect();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| {
        path.extension().is_some_and(|e| e == "json") && !path.ends_with("conversations.json")
    });
    files.sort();
    let (mut agreed, mut wrong) = (0, Vec::new());
    for path in files {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let golden = read(&path);
        let template = match ChatTemplate::new(golden["template"].as_str().unwrap(), tokens()) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for case in golden["cases"].as_array().unwrap() {
            let title = case["conversation"].as_str().unwrap();
            let messages = conversations[title].iter();
            let messages: Vec<_> = messages.map(|(role, content)| Message { role, content }).collect();
            for (key, prompt) in [("without_prompt", false), ("with_prompt", true)] {
                let ours = template.render(&messages, prompt).map(|rendered| rendered.text);
                let added = case["added"].as_str().filter(|_| prompt);
                let whole = added.map(|added| case["without_prompt"].as_str().unwrap().to_owned() + added);
                match (ours, whole.as_deref().or(case[key].as_str())) {
                    (Ok(ours), Some(theirs)) if ours == theirs => agreed += 1,
                    (Err(_), None) => agreed += 1,
                    (Ok(ours), theirs) => {
                        wrong.push(format!("{name}, {title}, {key}:\n  {ours:?}\n  {theirs:?}"))
                    }
                    (Err(error), _) => wrong.push(format!("{name}, {title}, {key}: {error}")),
                }
            }
        }
    }
    (agreed, wrong)
}

#[test]
fn templates_render_as_transformers_renders_them() {
    let (agreed, wrong) = compare(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat"));
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    println!("{agreed} texts agree");
    assert!(agreed >= 400, "{agreed} texts only: are the goldens there?");
}

/// The templates of the folder in BN_CHAT_GOLDEN: templates that we may not distribute.
#[test]
#[ignore = "needs BN_CHAT_GOLDEN: tools/golden/chat.py --originals"]
fn originals_render_as_transformers_renders_them() {
    let folder = std::env::var_os("BN_CHAT_GOLDEN").expect("BN_CHAT_GOLDEN names a folder");
    let (agreed, wrong) = compare(Path::new(&folder));
    println!("{agreed} texts agree");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(agreed > 0);
}
