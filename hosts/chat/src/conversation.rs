//! The messages so far. A system message is the first one; after it, users and assistants take turns.
use crate::image;
use bn::{Chat, Message, Picture};
use serde_json::json;

const SYSTEM: &str = "system";

#[derive(Default)]
pub struct Conversation {
    messages: Vec<Message>,
    /// Those before the text of each message.
    pictures: Vec<Vec<Picture>>,
}

impl Conversation {
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The pictures of each message.
    pub fn pictures(&self) -> &[Vec<Picture>] {
        &self.pictures
    }

    /// The conversation and its pictures for a request.
    pub fn prompt(&self) -> (Chat, Vec<Picture>) {
        let pictures = self.pictures.concat();
        if pictures.is_empty() {
            return (Chat::Messages(self.messages.clone()), pictures);
        }
        let message = |(message, pictures): (&Message, &Vec<Picture>)| {
            let content = image::content(pictures, &message.content, image::place);
            json!({"role": message.role, "content": content})
        };
        let messages: Vec<_> = self.messages.iter().zip(&self.pictures).map(message).collect();
        (Chat::Json(json!({ "messages": messages }).to_string()), pictures)
    }

    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|first| first.role == SYSTEM).map(|first| first.content.as_str())
    }

    /// Sets the system message, or removes it if the text is empty.
    pub fn set_system(&mut self, text: &str) {
        let first = self.first_turn();
        self.messages.drain(..first);
        self.pictures.drain(..first);
        if !text.is_empty() {
            self.messages.insert(0, Message::system(text));
            self.pictures.insert(0, Vec::new());
        }
    }

    /// The messages except the system message.
    pub fn turns(&self) -> &[Message] {
        &self.messages[self.first_turn()..]
    }

    fn first_turn(&self) -> usize {
        usize::from(self.system().is_some())
    }

    /// Forgets all turns.
    pub fn clear(&mut self) {
        let first = self.first_turn();
        self.messages.truncate(first);
        self.pictures.truncate(first);
    }

    /// Forgets the oldest question and its answer.
    pub fn forget_oldest(&mut self) {
        let first = self.first_turn();
        self.messages.drain(first..first + 2);
        self.pictures.drain(first..first + 2);
    }

    pub fn push(&mut self, message: Message) {
        self.push_with(message, Vec::new());
    }

    /// Adds a message with pictures before its text.
    pub fn push_with(&mut self, message: Message, pictures: Vec<Picture>) {
        self.messages.push(message);
        self.pictures.push(pictures);
    }

    pub fn pop(&mut self) -> Option<Message> {
        self.pictures.pop();
        self.messages.pop()
    }

    /// Makes a conversation of these messages with their pictures. The error says why they are none: after a system
    /// message, users and assistants must take turns.
    pub fn of(all: Vec<(Message, Vec<Picture>)>) -> Result<Self, &'static str> {
        let (messages, pictures) = all.into_iter().unzip();
        let all = Self { messages, pictures };
        let turns = all.turns();
        let roles = ["user", "assistant"].into_iter().cycle();
        if turns.iter().zip(roles).any(|(message, role)| message.role != role) {
            return Err("its messages do not take turns: system (if any), then user, assistant and so on");
        }
        if !turns.len().is_multiple_of(2) {
            return Err("its last message has no answer");
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_message_is_the_first_one() {
        let mut all = Conversation::default();
        all.push(Message::user("a"));
        all.set_system("be brief");
        assert_eq!((all.system(), all.turns().len()), (Some("be brief"), 1));
        all.set_system("");
        assert_eq!((all.system(), all.messages().len()), (None, 1));
    }

    #[test]
    fn pictures_stay_with_their_messages() {
        let picture = |byte: u8| Picture::new([byte]);
        let mut all = Conversation::default();
        all.push_with(Message::user("a"), vec![picture(1)]);
        all.push(Message::assistant("b"));
        all.push_with(Message::user("c"), vec![picture(2), picture(3)]);
        all.set_system("be brief");
        let (chat, pictures) = all.prompt();
        let image = json!({"type": "image"});
        let wanted = json!({"messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [image, {"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": [image, image, {"type": "text", "text": "c"}]},
        ]});
        assert_eq!((chat, pictures), (Chat::Json(wanted.to_string()), [1, 2, 3].map(picture).to_vec()));
        all.forget_oldest();
        assert_eq!(all.prompt().1, [2, 3].map(picture));
        all.pop();
        assert_eq!(all.prompt(), (Chat::Messages(vec![Message::system("be brief")]), vec![]));
    }

    #[test]
    fn messages_must_take_turns() {
        let of = |roles: &[&str]| {
            Conversation::of(roles.iter().map(|role| (Message::new(*role, "x"), vec![])).collect())
        };
        assert!(of(&[]).is_ok() && of(&["system"]).is_ok() && of(&["user", "assistant"]).is_ok());
        assert!(of(&["system", "user", "assistant", "user", "assistant"]).is_ok());
        for wrong in [&["assistant"][..], &["user"], &["user", "system", "assistant"], &["user", "user"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
