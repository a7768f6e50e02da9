//! A grammar that compiled quickly the last time need not wait after unknown ones. It may be slow again, as the engine keeps
//! few compiled grammars. So known ones have a line of their own, and no grammar is ever in the line of bodies.
use super::Line;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const QUICK: Duration = Duration::from_millis(20);
/// Bytes of a body whose grammar is not looked at.
const LONG: usize = 64 << 10;
const KNOWN: usize = 1024;

pub(super) struct Grammars {
    /// Hashes, each at its place. Clients do not see the key.
    known: Mutex<Box<[u64; KNOWN]>>,
    key: RandomState,
}

impl Default for Grammars {
    fn default() -> Self {
        Self { known: Mutex::new(Box::new([0; KNOWN])), key: RandomState::new() }
    }
}

impl Grammars {
    /// None: there is no grammar. Requests of one body have the same.
    pub fn line_of(&self, requests: &[bn::Request], bytes: usize) -> Option<Line> {
        let request = requests.iter().find(|request| request.constraint.is_some())?;
        if bytes > LONG {
            return Some(Line::Grammar(None));
        }
        let hash = self.hash(request).max(1);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Some(if known[place(hash)] == hash { Line::Known(hash) } else { Line::Grammar(Some(hash)) })
    }

    pub fn submitted(&self, line: Line, well: bool, took: Duration) {
        let (Line::Known(hash) | Line::Grammar(Some(hash))) = line else { return };
        let known = &mut self.known.lock().unwrap_or_else(PoisonError::into_inner)[place(hash)];
        if took >= QUICK && *known == hash {
            *known = 0;
        } else if took < QUICK && well {
            *known = hash;
        }
    }

    /// The hash of everything that decides the grammar, except whether the conversation leaves a thought open.
    fn hash(&self, request: &bn::Request) -> u64 {
        let chat = match &request.prompt {
            bn::Prompt::Chat(bn::Chat::Json(json)) => {
                serde_json::from_str::<Chat>(json).map(|chat| Value::Object(chat.others).to_string()).ok()
            }
            _ => None,
        };
        self.key.hash_one((&request.constraint, chat))
    }
}

fn place(hash: u64) -> usize {
    hash as usize % KNOWN
}

/// A conversation without what was said in it.
#[derive(Deserialize)]
struct Chat {
    #[serde(default, rename = "messages")]
    _messages: IgnoredAny,
    #[serde(default, rename = "documents")]
    _documents: IgnoredAny,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    fn request(messages: &str, tools: &str) -> bn::Request {
        let chat = format!(r#"{{"messages": {messages}, "tools": {tools}}}"#);
        let constraint = Some(bn::Constraint::regex("[ab]"));
        bn::Request { constraint, ..bn::Request::prompt(bn::Prompt::Chat(bn::Chat::Json(chat))) }
    }

    #[test]
    fn a_quick_grammar_is_known_whatever_was_said() {
        let grammars = Grammars::default();
        let [one, same, other] = [request("[1]", "[1]"), request("[2]", "[1]"), request("[1]", "[2]")];
        let line = grammars.line_of(&[one], 10).unwrap();
        assert!(matches!(line, Line::Grammar(Some(_))));
        grammars.submitted(line, false, Duration::ZERO);
        assert_eq!(grammars.line_of(from_ref(&same), 10), Some(line));
        grammars.submitted(line, true, Duration::ZERO);
        let known = grammars.line_of(from_ref(&same), 10).unwrap();
        assert!(matches!(known, Line::Known(_)));
        assert!(matches!(grammars.line_of(&[other], 10), Some(Line::Grammar(Some(_)))));
        assert_eq!(grammars.line_of(from_ref(&same), LONG + 1), Some(Line::Grammar(None)));
        grammars.submitted(known, true, QUICK);
        assert_eq!(grammars.line_of(&[same], 10), Some(line));
        assert_eq!(grammars.line_of(&[bn::Request::prompt("a")], 10), None);
    }
}
