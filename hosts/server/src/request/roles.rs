//! The roles that a model's template accepts. Clients put system messages anywhere, and several user messages in a row;
//! many templates refuse or ignore that. When a model is loaded, small conversations are rendered to find out what its
//! template accepts.
use super::conversation::{Message, Role};
use super::passage::Passage;
use serde_json::{Value, json};

/// The arrangements of roles that a template accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    /// A system message in front.
    pub system_first: bool,
    /// Later system messages, after a user's message and an answer.
    pub system_later: bool,
    /// Two user messages in a row.
    pub users_in_a_row: bool,
    /// A tool's result without its call.
    pub lone_results: bool,
    /// Pictures in a tool's result.
    pub seen_results: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            system_first: true,
            system_later: true,
            users_in_a_row: true,
            lone_results: true,
            seen_results: true,
        }
    }
}

impl Manners {
    /// Tries the template of `model`.
    pub fn of(model: &bn::Model) -> Self {
        let takes = |roles: &[&str]| {
            let message = |(i, role): (usize, &&str)| {
                let mut message = json!({"role": role, "content": format!("zq{i}zq")});
                if *role == "tool" {
                    message["tool_call_id"] = "abcdefgh1".into(); // some templates want nine letters and digits
                }
                message
            };
            let messages: Vec<_> = roles.iter().enumerate().map(message).collect();
            let chat = bn::Chat::Json(json!({"messages": messages}).to_string());
            let text = model.chat_format(&chat);
            text.is_ok_and(|text| (0..roles.len()).all(|i| text.contains(&format!("zq{i}zq"))))
        };
        if !takes(&["user"]) {
            return Self::default();
        }
        let system_first = takes(&["system", "user"]);
        Self {
            system_first,
            system_later: system_first
                && takes(&["system", "user", "assistant", "system", "user"])
                && takes(&["user", "system"]),
            users_in_a_row: takes(&["user", "user"]),
            lone_results: takes(&["user", "tool"]),
            seen_results: !model.info().sees
                || shows_results(&|messages| {
                    model.chat_format(&bn::Chat::Json(json!({ "messages": messages }).to_string())).ok()
                }),
        }
    }

    /// The same conversation in roles that the template accepts. Leading system messages become one; later ones become
    /// part of the user's text beside them, so that the text before them is unchanged.
    pub fn arrange(self, mut messages: Vec<Message>) -> Vec<Message> {
        if !self.lone_results {
            spell_lone_results(&mut messages);
        }
        if !self.seen_results {
            pass_on(&mut messages);
        }
        let mut out: Vec<Message> = Vec::with_capacity(messages.len());
        for message in messages {
            let front = out.iter().all(|message| message.role == Role::System);
            match message.role {
                Role::System if front && out.is_empty() => out.push(message),
                Role::System if front => out[0].join(&message),
                Role::System if !self.system_later => {
                    self.push_user(&mut out, Message { role: Role::User, ..message })
                }
                Role::User => self.push_user(&mut out, message),
                _ => out.push(message),
            }
        }
        if !self.system_first && out.first().is_some_and(|message| message.role == Role::System) {
            let system = out.remove(0);
            self.begin_with(&mut out, system);
        }
        out
    }

    fn push_user(self, out: &mut Vec<Message>, message: Message) {
        match out.last_mut().filter(|last| last.role == Role::User) {
            Some(last) if !self.users_in_a_row => last.join(&message),
            _ => out.push(message),
        }
    }

    /// Puts the system's text in front of the first user's.
    fn begin_with(self, out: &mut Vec<Message>, system: Message) {
        let text = system.content.unwrap_or_default();
        match out.first_mut().filter(|first| first.role == Role::User) {
            Some(first) => {
                let own = first.content.replace(text).unwrap_or_default();
                first.content.get_or_insert_default().append(&own);
            }
            None => out.insert(0, Message::of_user(text)),
        }
    }
}

/// Whether the template, by which `format` renders messages, puts the same for a picture of a tool's result as for a
/// user's.
fn shows_results(format: &dyn Fn(&Value) -> Option<String>) -> bool {
    let form = |user: &Value, result: &Value| {
        let call = json!({"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": {}}});
        format(&json!([
            {"role": "user", "content": user},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefgh1", "content": result},
        ]))
    };
    let seen = |text: &str| json!([{"type": "text", "text": text}, {"type": "image"}]);
    let (asked, found) = ("zq0zq", "zq1zq");
    let shown = || {
        let plain = form(&asked.into(), &found.into())?;
        let (head, tail) = plain.split_once(asked)?;
        let shown = form(&seen(asked), &found.into())?;
        let picture = shown.strip_prefix(head)?.strip_prefix(asked)?.strip_suffix(tail)?;
        let wanted = plain.replacen(found, &format!("{found}{picture}"), 1);
        Some(!picture.is_empty() && form(&asked.into(), &seen(found))? == wanted)
    };
    shown().unwrap_or(false)
}

/// Moves pictures of results into a user's message behind them.
fn pass_on(messages: &mut Vec<Message>) {
    let mut moved = Passage::default();
    for mut message in std::mem::take(messages) {
        let is_result = message.role == Role::Tool;
        if !is_result && !moved.is_empty() {
            messages.push(Message::of_user(std::mem::take(&mut moved)));
        }
        let content =
            message.content.as_mut().filter(|content| is_result && content.pictures().next().is_some());
        if let Some(content) = content {
            let words = if moved.is_empty() { "Images of the results:" } else { "" };
            moved.push_str(words);
            content.move_pictures(&mut moved, "[image: in the next message]");
        }
        messages.push(message);
    }
    if !moved.is_empty() {
        messages.push(Message::of_user(moved));
    }
}

/// Turns results without their calls into user messages, for clients that have cut their history.
pub fn spell_lone_results(messages: &mut [Message]) {
    let mut open = 0;
    for message in messages {
        match message.role {
            Role::Assistant => open = message.calls.len(),
            Role::User => open = 0,
            Role::System => {}
            Role::Tool if open > 0 => open -= 1,
            Role::Tool => *message = message.in_words(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::passage::Shown;

    const STRICT: Manners = Manners {
        system_first: true,
        system_later: false,
        users_in_a_row: false,
        lone_results: false,
        seen_results: false,
    };

    fn arranged(manners: Manners, messages: &[(Role, &str)]) -> Vec<(Role, String)> {
        let messages = messages.iter().map(|(role, text)| Message::new(*role, text.to_string())).collect();
        let text = |message: Message| (message.role, message.content.unwrap_or_default().to_string());
        manners.arrange(messages).into_iter().map(text).collect()
    }

    fn said(messages: &[(Role, &str)]) -> Vec<(Role, String)> {
        messages.iter().map(|(role, text)| (*role, text.to_string())).collect()
    }

    #[test]
    fn systems_in_front_become_one() {
        use Role::{System, User};
        for manners in [STRICT, Manners::default()] {
            let got = arranged(manners, &[(System, "a"), (System, "b"), (User, "c")]);
            assert_eq!(got, said(&[(System, "a\n\nb"), (User, "c")]));
        }
    }

    #[test]
    fn later_systems_go_where_the_template_takes_them() {
        use Role::{Assistant, System, User};
        let given = [(User, "a"), (System, "b"), (User, "c"), (Assistant, "d"), (System, "e")];
        assert_eq!(arranged(Manners::default(), &given), said(&given));
        let merged = [(User, "a\n\nb\n\nc"), (Assistant, "d"), (User, "e")];
        assert_eq!(arranged(STRICT, &given), said(&merged));
    }

    #[test]
    fn a_template_without_system_messages_gets_the_text_from_the_user() {
        use Role::{Assistant, System, User};
        let manners = Manners { system_first: false, ..STRICT };
        let got = arranged(manners, &[(System, "a"), (User, "b"), (Assistant, "c")]);
        assert_eq!(got, said(&[(User, "a\n\nb"), (Assistant, "c")]));
        assert_eq!(arranged(manners, &[(System, "a")]), said(&[(User, "a")]));
    }

    #[test]
    fn results_without_calls_are_a_users() {
        use Role::{Assistant, Tool, User};
        let given = [(User, "a"), (Tool, "b"), (Assistant, "c"), (Tool, "d")];
        assert_eq!(arranged(Manners::default(), &given), said(&given));
        let spelled = [(User, "a\n\n[result]\nb"), (Assistant, "c"), (User, "[result]\nd")];
        assert_eq!(arranged(STRICT, &given), said(&spelled));
    }

    #[test]
    fn templates_show_pictures_of_results_or_do_not() {
        let rendered = |messages: &Value, sees: &dyn Fn(&str) -> bool| {
            let mut out = String::new();
            for message in messages.as_array().unwrap() {
                let role = message["role"].as_str().unwrap();
                out += &format!("<{role}>");
                match message["content"].as_array() {
                    Some(parts) if sees(role) => {
                        parts.iter().for_each(|part| out += part["text"].as_str().unwrap_or("<image>"));
                    }
                    Some(parts) => out += &json!(parts).to_string(),
                    None => out += message["content"].as_str().unwrap(),
                }
                out += "</>";
            }
            Some(out)
        };
        assert!(shows_results(&|messages| rendered(messages, &|_| true)));
        assert!(!shows_results(&|messages| rendered(messages, &|role| role == "user")));
        assert!(!shows_results(&|messages| rendered(messages, &|_| false)));
        let blind = |messages: &Value| rendered(messages, &|_| true).map(|text| text.replace("<image>", ""));
        assert!(!shows_results(&blind));
        assert!(!shows_results(&|_| None));
    }

    #[test]
    fn pictures_of_results_go_to_the_user_if_the_template_has_no_place_for_them() {
        let result = |text: &str, byte: u8| {
            let mut content = Passage::from(text);
            content.show(Shown { at: String::new(), picture: Ok(bn::Picture::new([byte])) });
            Message { content: Some(content), ..Message::new(Role::Tool, None) }
        };
        let said = |role, text: &str| Message::new(role, text.to_owned());
        let given = vec![
            said(Role::User, "a"),
            said(Role::Assistant, "b"),
            result("c", 1),
            result("d", 2),
            said(Role::User, "e"),
        ];
        let arranged = |manners: Manners| json!(manners.arrange(given.clone()));
        let kept = arranged(Manners::default());
        assert_eq!(kept[2]["content"], json!([{"type": "text", "text": "c"}, {"type": "image"}]));
        let moved = arranged(Manners { seen_results: false, ..Manners::default() });
        assert_eq!(moved[2]["content"], "c\n[image: in the next message]\n");
        assert_eq!(moved[3]["content"], "d\n[image: in the next message]\n");
        let (image, words) =
            (json!({"type": "image"}), json!({"type": "text", "text": "Images of the results:"}));
        assert_eq!(moved[4], json!({"role": "user", "content": [words, image, image]}));
        assert_eq!(moved[5]["content"], "e");
        let text = json!({"type": "text", "text": "\n\ne"});
        let merged = arranged(Manners { users_in_a_row: false, seen_results: false, ..Manners::default() });
        assert_eq!(merged[4], json!({"role": "user", "content": [words, image, image, text]}));
    }
}
