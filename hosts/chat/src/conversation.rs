//! The messages so far. A system message is the first one; after it, users and assistants take turns.
use bn::Message;

const SYSTEM: &str = "system";

#[derive(Default)]
pub struct Conversation {
    messages: Vec<Message>,
}

impl Conversation {
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|first| first.role == SYSTEM).map(|first| first.content.as_str())
    }

    /// Sets the system message, or removes it if the text is empty.
    pub fn set_system(&mut self, text: &str) {
        self.messages.drain(..self.first_turn());
        if !text.is_empty() {
            self.messages.insert(0, Message::system(text));
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
        self.messages.truncate(self.first_turn());
    }

    /// Forgets the oldest question and its answer.
    pub fn forget_oldest(&mut self) {
        let first = self.first_turn();
        self.messages.drain(first..first + 2);
    }

    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub fn pop(&mut self) -> Option<Message> {
        self.messages.pop()
    }

    /// Makes a conversation of these messages. The error says why they are none: after a system message, users and
    /// assistants must take turns.
    pub fn of(messages: Vec<Message>) -> Result<Self, &'static str> {
        let all = Self { messages };
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
    fn messages_must_take_turns() {
        let of =
            |roles: &[&str]| Conversation::of(roles.iter().map(|role| Message::new(*role, "x")).collect());
        assert!(of(&[]).is_ok() && of(&["system"]).is_ok() && of(&["user", "assistant"]).is_ok());
        assert!(of(&["system", "user", "assistant", "user", "assistant"]).is_ok());
        for wrong in [&["assistant"][..], &["user"], &["user", "system", "assistant"], &["user", "user"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
