//! A grammar that compiled quickly the last time need not wait for unknown ones. It may still be slow the next time,
//! since the engine keeps few compiled grammars. So known ones have a queue of their own, and no grammar is ever in the
//! queue of bodies.
use super::WorkQueue;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const QUICK: Duration = Duration::from_millis(20);
/// Bodies above this size are not searched for known grammars.
const LONG: usize = 64 << 10;
const KNOWN: usize = 1024;

pub(super) struct Grammars {
    /// Hashes, each at its index. Clients do not see the key.
    known: Mutex<Box<[u64; KNOWN]>>,
    key: RandomState,
}

impl Default for Grammars {
    fn default() -> Self {
        Self { known: Mutex::new(Box::new([0; KNOWN])), key: RandomState::new() }
    }
}

impl Grammars {
    /// The queue of requests of one body, which have the same grammar. None: there is no grammar.
    pub fn queue_of(&self, requests: &[bn::Request], bytes: usize) -> Option<WorkQueue> {
        let request = requests.iter().find(|request| request.constraint.is_some())?;
        if bytes > LONG {
            return Some(WorkQueue::Grammar(None));
        }
        let hash = self.hash(request).max(1);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Some(if known[index(hash)] == hash { WorkQueue::Known(hash) } else { WorkQueue::Grammar(Some(hash)) })
    }

    pub fn submitted(&self, queue: WorkQueue, well: bool, took: Duration) {
        let (WorkQueue::Known(hash) | WorkQueue::Grammar(Some(hash))) = queue else { return };
        let known = &mut self.known.lock().unwrap_or_else(PoisonError::into_inner)[index(hash)];
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

fn index(hash: u64) -> usize {
    hash as usize % KNOWN
}

/// The parts of a conversation that affect its grammar.
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
        let queue = grammars.queue_of(&[one], 10).unwrap();
        assert!(matches!(queue, WorkQueue::Grammar(Some(_))));
        grammars.submitted(queue, false, Duration::ZERO);
        assert_eq!(grammars.queue_of(from_ref(&same), 10), Some(queue));
        grammars.submitted(queue, true, Duration::ZERO);
        let known = grammars.queue_of(from_ref(&same), 10).unwrap();
        assert!(matches!(known, WorkQueue::Known(_)));
        assert!(matches!(grammars.queue_of(&[other], 10), Some(WorkQueue::Grammar(Some(_)))));
        assert_eq!(grammars.queue_of(from_ref(&same), LONG + 1), Some(WorkQueue::Grammar(None)));
        grammars.submitted(known, true, QUICK);
        assert_eq!(grammars.queue_of(&[same], 10), Some(queue));
        assert_eq!(grammars.queue_of(&[bn::Request::prompt("a")], 10), None);
    }
}
