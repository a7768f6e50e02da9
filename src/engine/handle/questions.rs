//! Makes the tokens of a request's questions.

use super::limits::{Prompted, RequestLimits};
use crate::base::{Error, Result, reserve};
use crate::engine::api::{Prompt, Question, QuestionKind, RequestParams};
use crate::engine::request::decision::{Asked, Decider};
use crate::engine::request::pictures::{Picture, Pictures};
use crate::text::chat::no_template;
use crate::text::{Chat, Message};
use std::sync::Arc;

/// Maximum number of questions of a request.
pub const MAX_QUESTIONS: usize = 4096;
/// Maximum number of options of a question.
pub const MAX_OPTIONS: usize = 255;

/// Questions as tokens, and what all of them begin with.
#[derive(Default)]
struct Gathered {
    shared: Vec<u32>,
    asked: Vec<Asked>,
    /// The same for all questions, which come after them.
    pictures: Option<Pictures>,
}

impl Gathered {
    /// Adds a question. `ids`: the prompt's tokens with its text's.
    fn add(&mut self, kind: QuestionKind, label: &str, ids: Vec<u32>, options: Vec<Vec<u32>>) -> Result<()> {
        if self.asked.is_empty() {
            self.shared = ids;
            self.asked.push(Asked { kind, label: label.into(), rest: Vec::new(), options });
            return Ok(());
        }
        let common = self.shared.iter().zip(&ids).take_while(|(a, b)| a == b).count();
        // What this one does not begin with belongs to each of those before it.
        let cut = &self.shared[common..];
        for asked in self.asked.iter_mut().filter(|_| !cut.is_empty()) {
            reserve(&mut asked.rest, cut.len(), "a question's tokens")?;
            asked.rest.splice(0..0, cut.iter().copied());
        }
        self.shared.truncate(common);
        let mut rest = Vec::new();
        reserve(&mut rest, ids.len() - common, "a question's tokens")?;
        rest.extend_from_slice(&ids[common..]);
        self.asked.push(Asked { kind, label: label.into(), rest, options });
        Ok(())
    }
}

impl RequestLimits<'_> {
    /// The tokens of the questions of a request that is otherwise checked.
    pub(super) fn questions(&self, params: &RequestParams, questions: &[Question]) -> Result<Prompted> {
        if questions.is_empty() || questions.len() > MAX_QUESTIONS {
            let n = questions.len();
            return Err(Error::invalid(format!("{n} questions; a request has 1 to {MAX_QUESTIONS}")));
        }
        let mut gathered = Gathered::default();
        reserve(&mut gathered.asked, questions.len(), "questions")?;
        // A conversation is another one with each question.
        let (mut prompt, mut chat, mut spread) = (Vec::new(), Chat::default(), false);
        match &params.prompt {
            Prompt::ChatJson(source) => (chat, spread) = (Chat::parse(source)?, true),
            Prompt::Pair(..) => return Err(Error::invalid("a pair of texts is given beside questions")),
            _ => {}
        }
        let pictures = self.seen(params, &std::mem::take(&mut chat.pictures))?;
        match &params.prompt {
            Prompt::Tokens(ids) => prompt = self.given(ids)?,
            Prompt::Text(text) => (prompt, spread) = self.encode_seen(text, params, &pictures)?,
            _ => {}
        }
        for (at, question) in questions.iter().enumerate() {
            let label = label(at, question);
            let named = |mut error: Error| {
                error.message = format!("{label}: {}", error.message);
                error
            };
            let options = self.options(question).map_err(named)?;
            let asked = match &params.prompt {
                Prompt::Chat(messages) => self.with_question(messages, &question.text),
                Prompt::ChatJson(_) => self.with_question_in(chat.clone(), &question.text, &pictures),
                _ => self.continued(&prompt, &question.text, params.parse_special),
            };
            let placed = |ids| self.placed(ids, pictures.clone(), spread);
            let (ids, placed) = asked.and_then(placed).map_err(named)?;
            gathered.pictures = gathered.pictures.or(placed);
            let most = ids.len() + options.iter().map(Vec::len).max().unwrap_or(0);
            self.fits(most, most, "tokens with its longest option").map_err(named)?;
            gathered.add(question.kind, &label, ids, options)?;
        }
        let Gathered { shared, asked, pictures } = gathered;
        if pictures.as_ref().is_some_and(|pictures| pictures.end() as usize > shared.len()) {
            return Err(Error::invalid("a question stands before a picture"));
        }
        let decider = Some(Box::new(Decider::new(asked, shared.len())?));
        Ok(Prompted { ids: shared, decider, pictures, ..Prompted::default() })
    }

    /// The tokens of a conversation whose last message, which is a user's, has the question at its end.
    fn with_question(&self, messages: &[Message], text: &str) -> Result<Vec<u32>> {
        if text.is_empty() {
            return self.conversation(messages);
        }
        // Many templates refuse two messages of a user in a row.
        let (before, content) = match messages.split_last() {
            Some((last, before)) if last.role == "user" => (before, format!("{}\n\n{text}", last.content)),
            _ => (messages, text.to_owned()),
        };
        let mut all = Vec::new();
        reserve(&mut all, before.len() + 1, "messages")?;
        all.extend_from_slice(before);
        all.push(Message { role: "user", content: &content });
        self.conversation(&all)
    }

    /// Like `with_question`, of a conversation as JSON.
    fn with_question_in(&self, mut chat: Chat, text: &str, pictures: &[Arc<Picture>]) -> Result<Vec<u32>> {
        let template = self.chat.ok_or_else(no_template)?;
        if !text.is_empty() {
            chat.ask(text)?;
        }
        let made = template.render_chat(&chat)?;
        self.tokenizer()?.encode_chat(&*self.spread(&made, pictures)?)
    }

    fn continued(&self, prompt: &[u32], text: &str, parse_special: bool) -> Result<Vec<u32>> {
        let more = match text {
            "" => Vec::new(),
            text => self.tokenizer()?.encode(text, false, parse_special)?,
        };
        let mut ids = Vec::new();
        reserve(&mut ids, prompt.len() + more.len(), "a question's tokens")?;
        ids.extend_from_slice(prompt);
        ids.extend_from_slice(&more);
        match ids.len() {
            0 => Err(Error::invalid("neither the prompt nor the question has a token")),
            _ => Ok(ids),
        }
    }

    /// The tokens of the options.
    fn options(&self, question: &Question) -> Result<Vec<Vec<u32>>> {
        let count = question.options.len();
        match question.kind {
            QuestionKind::YesNo if count != 2 => {
                return Err(Error::invalid(format!("{count} options; yes or no has two, or none for these")));
            }
            _ if count == 0 || count > MAX_OPTIONS => {
                return Err(Error::invalid(format!("{count} options; a question has 1 to {MAX_OPTIONS}")));
            }
            _ => {}
        }
        let mut made: Vec<Vec<u32>> = Vec::new();
        reserve(&mut made, count, "options")?;
        for (at, text) in question.options.iter().enumerate() {
            let ids = self.tokenizer()?.encode(text, false, false)?;
            if ids.is_empty() {
                return Err(Error::invalid(format!("option {at} is empty")));
            }
            self.check_ids("an option", ids.iter().copied())?;
            if let Some(same) = made.iter().position(|other| *other == ids) {
                return Err(Error::invalid(format!("options {same} and {at} are the same")));
            }
            made.push(ids);
        }
        Ok(made)
    }
}

/// Names a question in messages.
fn label(at: usize, question: &Question) -> String {
    match &*question.name {
        "" => format!("question {at}"),
        name => {
            let name: String = name.chars().take(64).collect();
            format!("question {at} ({name:?})")
        }
    }
}
