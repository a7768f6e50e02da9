//! An answer's pieces in order, for APIs that separate reasoning, texts and calls.
use std::mem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Reasoning,
    Text,
    Call { id: String, name: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index in the answer.
    pub index: usize,
    pub kind: Kind,
    /// The text; of a call, its arguments.
    pub text: String,
}

/// A change of a piece.
pub enum Step<'a> {
    /// The piece begins, without text.
    Begin(&'a Piece),
    /// This text was appended to the piece.
    More(&'a Piece, &'a str),
    End(Piece),
}

/// The pieces of an answer that comes in events.
#[derive(Debug, Default)]
pub struct Pieces {
    open: Option<Piece>,
    begun: usize,
    /// A call came, and no text after it.
    behind_call: bool,
}

type Each<'a> = &'a mut dyn FnMut(Step);

impl Pieces {
    /// Takes an event: the rest of an open call comes first, then reasoning, then the text with the calls within it.
    pub fn event(&mut self, event: &bn::Event, each: Each) {
        let mut parts = event.tool_calls.iter().peekable();
        if let Some(rest) = parts.next_if(|part| part.id.is_none()) {
            self.more(&rest.arguments, each);
        }
        self.say(Kind::Reasoning, &event.reasoning, each);
        let mut passed = 0;
        for part in parts {
            self.say(Kind::Text, event.text.get(passed..part.text_before).unwrap_or_default(), each);
            passed = part.text_before.max(passed);
            if let Some(id) = part.id.clone() {
                self.begin(Kind::Call { id, name: part.name.clone().unwrap_or_default() }, each);
                self.behind_call = true;
            }
            self.more(&part.arguments, each);
        }
        self.say(Kind::Text, event.text.get(passed..).unwrap_or_default(), each);
    }

    /// Ends the last piece. An empty answer becomes an empty text.
    pub fn finish(&mut self, each: Each) {
        if self.begun == 0 {
            self.begin(Kind::Text, each);
        }
        self.end(each);
    }

    /// All pieces of a whole answer, which is treated as one event.
    pub fn of(text: String, reasoning: String, calls: Vec<bn::ToolCall>) -> Vec<Piece> {
        let part = |call: bn::ToolCall| bn::ToolCallPart {
            index: 0,
            id: Some(call.id),
            name: Some(call.name),
            arguments: call.arguments,
            text_before: call.text_before,
        };
        let tool_calls = calls.into_iter().map(part).collect();
        let event = bn::Event { text, reasoning, tool_calls, ..bn::Event::default() };
        let (mut pieces, mut all) = (Self::default(), Vec::new());
        let mut each = |step: Step| {
            if let Step::End(piece) = step {
                all.push(piece);
            }
        };
        pieces.event(&event, &mut each);
        pieces.finish(&mut each);
        all
    }

    /// Appends to a piece of this kind, which begins unless one is open.
    fn say(&mut self, kind: Kind, mut text: &str, each: Each) {
        if kind == Kind::Text && !text.is_empty() && mem::take(&mut self.behind_call) {
            // The engine adds this line break between texts; here each text is a piece.
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.begin(kind, each);
        }
        self.more(text, each);
    }

    fn begin(&mut self, kind: Kind, each: Each) {
        self.end(each);
        let piece = Piece { index: self.begun, kind, text: String::new() };
        each(Step::Begin(&piece));
        self.begun += 1;
        self.open = Some(piece);
    }

    fn more(&mut self, text: &str, each: Each) {
        if let Some(open) = self.open.as_mut().filter(|_| !text.is_empty()) {
            open.text.push_str(text);
            each(Step::More(open, text));
        }
    }

    fn end(&mut self, each: Each) {
        if let Some(piece) = self.open.take() {
            each(Step::End(piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: u32, id: &str, arguments: &str, text_before: usize) -> bn::ToolCallPart {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        bn::ToolCallPart { index, id: some(id), name: some(id), arguments: arguments.to_owned(), text_before }
    }

    /// The kinds and texts of the pieces of these events. Checks that they agree with the steps.
    fn pieces_of(events: &[(&str, &str, &[bn::ToolCallPart])]) -> Vec<(String, String)> {
        let (mut pieces, mut open, mut all) = (Pieces::default(), String::new(), Vec::new());
        let mut each = |step: Step| match step {
            Step::Begin(piece) => assert!(piece.text.is_empty()),
            Step::More(_, text) => open.push_str(text),
            Step::End(piece) => {
                assert_eq!(mem::take(&mut open), piece.text);
                assert_eq!(piece.index, all.len());
                let kind = match piece.kind {
                    Kind::Reasoning => "reasoning".to_owned(),
                    Kind::Text => "text".to_owned(),
                    Kind::Call { id, .. } => id,
                };
                all.push((kind, piece.text));
            }
        };
        for (reasoning, text, calls) in events {
            let event = bn::Event {
                reasoning: reasoning.to_string(),
                text: text.to_string(),
                tool_calls: calls.to_vec(),
                ..bn::Event::default()
            };
            pieces.event(&event, &mut each);
        }
        pieces.finish(&mut each);
        all
    }

    fn wanted(pieces: &[(&str, &str)]) -> Vec<(String, String)> {
        pieces.iter().map(|(kind, text)| (kind.to_string(), text.to_string())).collect()
    }

    #[test]
    fn pieces_stand_where_they_came() {
        let calls = [call(0, "a", "{", 3)];
        let rest = [call(0, "", "}", 0), call(1, "b", "{}", 4)];
        let got = pieces_of(&[("hm", "", &[]), ("", "One", &calls), ("", "\nTwo\nThree", &rest)]);
        let all = [
            ("reasoning", "hm"),
            ("text", "One"),
            ("a", "{}"),
            ("text", "Two"),
            ("b", "{}"),
            ("text", "Three"),
        ];
        assert_eq!(got, wanted(&all));
    }

    #[test]
    fn texts_are_apart_behind_calls_alone() {
        let got = pieces_of(&[
            ("", "\nOne", &[]),
            ("", "", &[call(0, "a", "{}", 0)]),
            ("", "\n", &[]),
            ("", "\nTwo", &[]),
        ]);
        assert_eq!(got, wanted(&[("text", "\nOne"), ("a", "{}"), ("text", "\nTwo")]));
    }

    #[test]
    fn nothing_is_an_empty_text() {
        assert_eq!(pieces_of(&[]), wanted(&[("text", "")]));
        assert_eq!(pieces_of(&[("hm", "", &[])]), wanted(&[("reasoning", "hm")]));
    }
}
