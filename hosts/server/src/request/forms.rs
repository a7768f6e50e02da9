//! Finds a form of a conversation that the model's template accepts. Templates refuse much that clients send and
//! cannot change in a history: calls without a text, ids of another model's calls, two calls in a turn, consecutive
//! answers. If a conversation does not render, other forms are tried, each further from the client's.
use super::conversation::{Conversation, Message, Role};
use super::passage::Passage;
use super::picture::Sight;
use super::roles::{Manners, spell_lone_results};
use crate::api::write;
use crate::failure::Result;
use serde_json::{Value, json};
use std::mem;

/// The forms. Each changes the result of the one before.
const FORMS: [fn(&mut Conversation); 6] = [fill, merge, shorten, part, join, spell];
/// Letters and digits of an id that every template takes (Mistral's).
const ID: usize = 9;

/// A conversation for the engine, with its pictures in order.
pub struct Told {
    pub chat: bn::Chat,
    pub pictures: Vec<bn::Picture>,
    /// The pictures' paths in the client's body.
    pub places: Vec<String>,
}

impl Told {
    fn of(conversation: &Conversation) -> Self {
        let contents = conversation.messages.iter().filter_map(|message| message.content.as_ref());
        let placed = contents.flat_map(Passage::placed);
        let (places, pictures) = placed.map(|(at, picture)| (at.to_owned(), picture.clone())).unzip();
        Self { chat: bn::Chat::Json(write::json(conversation)), pictures, places }
    }

    /// Makes this the request's prompt.
    pub fn put(self, to: &mut bn::Request) {
        (to.prompt, to.pictures) = (bn::Prompt::Chat(self.chat), self.pictures);
    }
}

/// The conversation for the engine.
pub fn told(
    mut conversation: Conversation,
    model: &bn::Model,
    manners: Manners,
    sight: Sight,
) -> Result<Told> {
    conversation.arrange(manners, sight)?;
    let given = Told::of(&conversation);
    if is_plain(&conversation) {
        return Ok(given);
    }
    Ok(rendered(conversation, given, &|chat| match model.chat_format(chat) {
        Ok(_) => true,
        Err(error) => !error.message().contains("chat template"), // no other form would help
    }))
}

/// The first form that renders, or else the original conversation, for which the engine reports the error.
fn rendered(mut conversation: Conversation, given: Told, renders: &dyn Fn(&bn::Chat) -> bool) -> Told {
    if renders(&given.chat) {
        return given;
    }
    let mut forms = FORMS.iter().map(|form| {
        form(&mut conversation);
        Told::of(&conversation)
    });
    forms.find(|told| renders(&told.chat)).unwrap_or(given)
}

/// Whether users and answers take turns, which every template accepts.
fn is_plain(conversation: &Conversation) -> bool {
    let turns = conversation.messages.iter().skip_while(|message| message.role == Role::System);
    let mut expected = [Role::User, Role::Assistant].into_iter().cycle();
    let plain = |message: &Message| {
        let said =
            message.role == Role::User || message.content.as_ref().is_some_and(|said| !said.is_empty());
        Some(message.role) == expected.next() && message.calls.is_empty() && said
    };
    conversation.tools.is_empty() && turns.clone().count() > 0 && turns.clone().all(plain)
}

/// Fills in missing values: the text beside calls, ids, the description and the parameters of a tool.
fn fill(conversation: &mut Conversation) {
    let (mut open, mut count) = (Vec::new(), 0);
    for message in &mut conversation.messages {
        message.content.get_or_insert_default();
        for call in &mut message.calls {
            count += 1;
            open.push(call.id.get_or_insert_with(|| short_id(&count.to_string())).clone());
        }
        if message.role == Role::Tool {
            let own = message.call_id.take();
            let at = own.as_ref().and_then(|own| open.iter().position(|id| id == own)).unwrap_or(0);
            message.call_id = if at < open.len() { Some(open.remove(at)) } else { own };
        }
    }
    for tool in &mut conversation.tools {
        let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) else { continue };
        function.entry("description").or_insert_with(|| "".into());
        let parameters = function.entry("parameters").or_insert_with(|| json!({}));
        if let Some(parameters) = parameters.as_object_mut() {
            parameters.entry("type").or_insert_with(|| "object".into());
            parameters.entry("properties").or_insert_with(|| json!({}));
        }
    }
}

/// Begins with a user, removes empty answers, and merges adjacent messages of the same role.
fn merge(conversation: &mut Conversation) {
    let mut messages = mem::take(&mut conversation.messages);
    spell_lone_results(&mut messages);
    let out = &mut conversation.messages;
    for mut message in messages {
        if message.role == Role::Assistant
            && message.content.as_ref().is_none_or(Passage::is_empty)
            && message.calls.is_empty()
            && message.reasoning.is_none()
        {
            continue;
        }
        let begun = out.iter().any(|message| message.role != Role::System);
        if !begun && matches!(message.role, Role::Assistant | Role::Tool) {
            out.push(Message::new(Role::User, String::new()));
        }
        match out.last_mut() {
            Some(last) if last.role == message.role && message.role != Role::Tool => {
                last.join(&message);
                last.calls.append(&mut message.calls);
                last.reasoning = last.reasoning.take().or(message.reasoning);
            }
            _ => out.push(message),
        }
    }
    conversation.complete();
}

/// Gives calls ids of nine letters and digits.
fn shorten(conversation: &mut Conversation) {
    for message in &mut conversation.messages {
        let ids = message.calls.iter_mut().map(|call| &mut call.id).chain([&mut message.call_id]);
        for id in ids.flatten() {
            *id = short_id(id);
        }
    }
}

/// Puts each call into a turn of its own, with its result after it.
fn part(conversation: &mut Conversation) {
    let mut given = mem::take(&mut conversation.messages).into_iter().peekable();
    while let Some(mut message) = given.next() {
        let calls = mem::take(&mut message.calls);
        if calls.is_empty() {
            conversation.messages.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = given.next_if(|next| next.role == Role::Tool) {
            results.push(result);
        }
        for call in calls {
            let own = results.iter().position(|result| result.call_id == call.id);
            let result = own.map(|at| results.remove(at)).unwrap_or_else(|| Message {
                call_id: call.id.clone(),
                ..Message::new(Role::Tool, "no result".to_owned())
            });
            let turn = mem::replace(&mut message, Message::new(Role::Assistant, String::new()));
            conversation.messages.extend([Message { calls: vec![call], ..turn }, result]);
        }
        conversation.messages.append(&mut results);
    }
}

/// Joins the user's text after a result to the result.
fn join(conversation: &mut Conversation) {
    let out = &mut conversation.messages;
    for message in mem::take(out) {
        match out.last_mut().filter(|last| last.role == Role::Tool) {
            Some(last) if matches!(message.role, Role::User | Role::System) => {
                last.join(&message);
            }
            _ => out.push(message),
        }
    }
}

/// Converts calls and results to text.
fn spell(conversation: &mut Conversation) {
    let mut names: Vec<(Option<String>, String)> = Vec::new();
    for message in &mut conversation.messages {
        for call in mem::take(&mut message.calls) {
            let (name, arguments) = (call.function.name, write::json(&call.function.arguments));
            message.append(&format!("[called {name} with {arguments}]"));
            names.push((call.id, name));
        }
        if message.role == Role::Tool {
            let name =
                names.iter().rev().find(|(id, _)| *id == message.call_id).map(|(_, name)| name.as_str());
            *message = message.in_words(name);
        }
    }
    merge(conversation);
}

/// Nine letters and digits derived from `id`, or `id` itself if it has that form.
fn short_id(id: &str) -> String {
    const SIGNS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if id.len() == ID && id.bytes().all(|c| c.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a.
    let mix = |hash: u64, c: u8| (hash ^ u64::from(c)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    let mut sign = || {
        let sign = SIGNS[(hash % 62) as usize];
        hash /= 62;
        char::from(sign)
    };
    (0..ID).map(|_| sign()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::conversation::ToolCall;

    fn call(id: Option<&str>, name: &str) -> ToolCall {
        ToolCall::new(id.map(str::to_owned), Some(name), Some(&json!({"a": 1})))
    }

    fn answer(content: Option<&str>, calls: Vec<ToolCall>) -> Message {
        Message { calls, ..Message::new(Role::Assistant, content.map(str::to_owned)) }
    }

    fn result(id: Option<&str>, content: &str) -> Message {
        Message { call_id: id.map(str::to_owned), ..Message::new(Role::Tool, content.to_owned()) }
    }

    fn user(content: &str) -> Message {
        Message::new(Role::User, content.to_owned())
    }

    /// The messages after applying the first `forms` forms.
    fn formed(messages: Vec<Message>, forms: usize) -> Value {
        let mut conversation = Conversation { messages, ..Conversation::default() };
        FORMS[..forms].iter().for_each(|form| form(&mut conversation));
        json!(conversation.messages)
    }

    #[test]
    fn plain_conversations_are_not_tried() {
        let plain = |messages| is_plain(&Conversation { messages, ..Conversation::default() });
        assert!(plain(vec![
            Message::new(Role::System, "s".to_owned()),
            user("a"),
            answer(Some("b"), vec![])
        ]));
        assert!(!plain(vec![user("a"), user("b")]));
        assert!(!plain(vec![user("a"), answer(None, vec![call(None, "f")])]));
        assert!(!plain(vec![user("a"), answer(Some(""), vec![]), user("b")]));
        assert!(!plain(vec![Message::new(Role::System, "s".to_owned())]));
    }

    #[test]
    fn the_first_form_that_renders_is_taken() {
        let conversation = Conversation {
            messages: vec![
                user("a"),
                answer(None, vec![call(Some("call_1"), "f")]),
                result(Some("call_1"), "r"),
            ],
            ..Conversation::default()
        };
        let given = write::json(&conversation);
        let chosen = |renders: &dyn Fn(&str) -> bool| {
            let json = |chat: &bn::Chat| match chat {
                bn::Chat::Json(json) => json.clone(),
                bn::Chat::Messages(_) => String::new(),
            };
            let told = Told::of(&conversation);
            json(&rendered(conversation.clone(), told, &|chat| renders(&json(chat))).chat)
        };
        assert_eq!(chosen(&|_| true), given);
        assert_eq!(chosen(&|_| false), given);
        assert!(chosen(&|json| !json.contains("null")).contains(r#""content":"","tool_calls""#));
        let id = short_id("call_1");
        assert_eq!(chosen(&|json| !json.contains("call_1")).matches(&format!(r#":"{id}""#)).count(), 2);
        let words = chosen(&|json| !json.contains("tool"));
        assert!(words.contains(r#""content":"[called f with {\"a\":1}]""#), "{words}");
        assert!(words.contains(r#""content":"[result of f]\nr""#), "{words}");
    }

    #[test]
    fn what_is_missing_gets_a_value() {
        let filled = formed(vec![answer(None, vec![call(None, "f"), call(None, "g")]), result(None, "r")], 1);
        let id = &filled[0]["tool_calls"][0]["id"];
        assert_eq!((filled[0]["content"].as_str(), id.as_str().map(str::len)), (Some(""), Some(ID)));
        assert_eq!(filled[1]["tool_call_id"], *id);
        assert_ne!(filled[0]["tool_calls"][1]["id"], *id);
        let mut tools = Conversation {
            tools: vec![json!({"type": "function", "function": {"name": "f"}})],
            ..Conversation::default()
        };
        fill(&mut tools);
        let parameters = json!({"type": "object", "properties": {}});
        assert_eq!(
            tools.tools[0]["function"],
            json!({"name": "f", "description": "", "parameters": parameters})
        );
    }

    #[test]
    fn roles_come_in_turns() {
        let roles = |messages| -> Vec<(String, String)> {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let formed = formed(messages, 2);
            formed.as_array().unwrap().iter().map(|m| (text(&m["role"]), text(&m["content"]))).collect()
        };
        let said = |all: &[(&str, &str)]| -> Vec<_> {
            all.iter().map(|(role, text)| (role.to_string(), text.to_string())).collect()
        };
        let answers = vec![answer(Some("a"), vec![]), answer(Some("b"), vec![]), answer(Some(""), vec![])];
        assert_eq!(roles(answers), said(&[("user", ""), ("assistant", "a\n\nb")]));
        assert_eq!(roles(vec![result(Some("x"), "r"), user("b")]), said(&[("user", "[result]\nr\n\nb")]));
        let system = || Message::new(Role::System, "s".to_owned());
        assert_eq!(roles(vec![system()]), said(&[("system", "s"), ("user", "")]));
    }

    #[test]
    fn a_users_text_behind_a_result_is_a_part_of_it() {
        let calls = vec![call(Some("1"), "f")];
        let joined = formed(vec![user("a"), answer(None, calls), result(Some("1"), "r"), user("b")], 5);
        assert_eq!((&joined[2]["content"], joined.as_array().unwrap().len()), (&json!("r\n\nb"), 3));
    }

    #[test]
    fn calls_get_turns_of_their_own() {
        let calls = vec![call(Some("1"), "f"), call(Some("2"), "g")];
        let parted = formed(vec![user("a"), answer(Some("t"), calls), result(Some("2"), "r2"), user("b")], 4);
        let of = |at: usize| (parted[at]["content"].as_str().unwrap(), parted[at]["role"].as_str().unwrap());
        let all =
            [("a", "user"), ("t", "assistant"), ("no result", "tool"), ("", "assistant"), ("r2", "tool")];
        assert_eq!((0..5).map(of).collect::<Vec<_>>(), all);
        assert_eq!(parted[5]["content"], "b");
    }
}
