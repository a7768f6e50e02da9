//! A chat: the model, the conversation, and a turn of it. Each request has the whole conversation; the engine's session
//! keeps its computed part, so that only new tokens are computed.
use crate::conversation::Conversation;
use crate::failure::{Failure, Result, failed};
use crate::open::Opened;
use crate::say::note;
use crate::screen::Screen;
use crate::settings::{Settings, Sources};
use crate::stop::Stop;
use bn::{Engine, Finish, FinishReason, Message, Model, Picture, Request, Sampling, Stream};
use std::time::Duration;

/// Name of the engine's session that holds the conversation's keys and values.
pub const SESSION: &str = "chat";
/// Interval at which a SIGINT is checked for during an answer.
const SOON: Duration = Duration::from_millis(50);

pub struct Chat {
    pub engine: Engine,
    pub model: Model,
    pub context: u64,
    pub sources: Sources,
    /// The user is a person at a terminal.
    pub interactive: bool,
    pub screen: Screen,
    pub stop: Stop,
    pub conversation: Conversation,
    /// Pictures for the next message, with the names of their files.
    pub shown: Vec<(String, Picture)>,
    /// Answers since the seed was set.
    pub turns: u64,
    /// How the last answer ended.
    pub last: Option<Finish>,
    /// The last prompt of a model without a chat template.
    asked: Option<String>,
}

impl Chat {
    pub fn new(opened: Opened, interactive: bool, screen: Screen, stop: Stop) -> Self {
        let Opened { engine, model, sources, context } = opened;
        let conversation = Conversation::default();
        Self {
            engine,
            model,
            context,
            sources,
            interactive,
            screen,
            stop,
            conversation,
            shown: Vec::new(),
            turns: 0,
            last: None,
            asked: None,
        }
    }

    pub fn has_template(&self) -> bool {
        self.model.info().has_chat_template
    }

    /// Asks the model a question, and prints the answer as it arrives.
    pub fn ask(&mut self, question: String) -> Result<()> {
        if !self.has_template() {
            self.asked = Some(question.clone());
            return self.complete(question);
        }
        let shown = std::mem::take(&mut self.shown);
        let pictures = shown.iter().map(|(_, picture)| picture.clone()).collect();
        self.conversation.push_with(Message::user(question), pictures);
        let answer = self.reply();
        match &answer {
            Ok(text) if !text.is_empty() => self.conversation.push(Message::assistant(text)),
            // Without an answer, drop the question: templates want users and assistants to take turns.
            _ => _ = self.conversation.pop(),
        }
        answer.map(drop).map_err(|failure| self.refused(failure, shown))
    }

    /// A failure about a picture of the last question names its file, and the question's other pictures stay for the
    /// next one.
    fn refused(&mut self, failure: Failure, mut shown: Vec<(String, Picture)>) -> Failure {
        let earlier = self.conversation.pictures().iter().map(Vec::len).sum();
        let numbered = match &failure {
            Failure::Said(line) => line.strip_prefix("picture ").and_then(|rest| rest.split_once(": ")),
            _ => None,
        };
        let of_last = |number: &str| number.parse::<usize>().ok()?.checked_sub(earlier);
        let found = numbered.and_then(|(number, why)| Some((of_last(number)?, why)));
        let Some((at, why)) = found.filter(|(at, _)| *at < shown.len()) else { return failure };
        let (name, _) = shown.remove(at);
        let kept = match (self.interactive, shown.len()) {
            (true, 1) => " (the other image is kept for your next message)",
            (true, 2..) => " (the other images are kept for your next message)",
            _ => "",
        };
        self.shown = shown;
        Failure::Said(format!("{name}: {why}{kept}"))
    }

    /// Replaces the last answer with a new one.
    pub fn ask_again(&mut self) -> Result<()> {
        const NONE: &str = "there is no answer yet that another one could replace";
        if !self.has_template() {
            return match self.asked.clone() {
                Some(question) => self.complete(question),
                None => failed(NONE),
            };
        }
        if self.conversation.turns().is_empty() {
            return failed(NONE);
        }
        let Some(old) = self.conversation.pop() else { return failed(NONE) };
        let answer = self.reply();
        self.conversation.push(match &answer {
            Ok(text) if !text.is_empty() => Message::assistant(text),
            _ => old,
        });
        answer.map(drop)
    }

    /// Continues a text.
    fn complete(&mut self, text: String) -> Result<()> {
        self.answer(Request::prompt(text)).map(drop)
    }

    /// Answers the question at the end of the conversation.
    fn reply(&mut self) -> Result<String> {
        self.fit()?;
        let (chat, pictures) = self.conversation.prompt();
        self.answer(Request { session: Some(SESSION.to_owned()), pictures, ..Request::prompt(chat) })
    }

    /// Drops the oldest turns of a conversation that leaves no room for an answer, down to half of the context. A
    /// conversation with a new beginning is computed from scratch, so this should not happen in every turn.
    fn fit(&mut self) -> Result<()> {
        let quarter = self.context / 4;
        let longest = self.sources.effective().max_tokens.map(u64::from).filter(|&longest| longest > 0);
        let mut most = self.context - longest.unwrap_or(quarter).min(quarter);
        let mut dropped = 0;
        // The question is always kept.
        while self.conversation.turns().len() >= 3 && self.prompt_tokens()? > most {
            self.conversation.forget_oldest();
            dropped += 1;
            most = self.context / 2;
        }
        if dropped > 0 {
            let are = if dropped == 1 { " is" } else { "s are" };
            note(format_args!(
                "(the conversation has outgrown the context of {} tokens: the oldest {dropped} turn{are} forgotten)",
                self.context
            ));
        }
        Ok(())
    }

    /// Tokens of the whole conversation as a prompt.
    fn prompt_tokens(&self) -> Result<u64> {
        let (chat, pictures) = self.conversation.prompt();
        let mut tokens = self.model.chat_tokenize(&chat)?.len() as u64;
        for picture in &pictures {
            // One token has its place.
            tokens += self.engine.picture_positions(picture)?.saturating_sub(1);
        }
        Ok(tokens)
    }

    fn answer(&mut self, mut request: Request) -> Result<String> {
        let values = self.sources.effective();
        request.max_new_tokens = values.max_tokens.unwrap_or_default();
        request.sampling = sampling(&values, self.turns);
        self.turns += 1;
        let stream = self.engine.submit(&request)?;
        let result = self.print(stream);
        self.stop.take();
        let (text, finish) = result?;
        let end = self.print_end(&finish);
        self.last = Some(finish);
        end.map(|()| text)
    }

    /// Prints an answer as it arrives, and returns it with its finish. A SIGINT cancels it.
    fn print(&mut self, mut stream: Stream) -> Result<(String, Finish)> {
        let mut text = String::new();
        let mut cancelled = false;
        loop {
            let event = stream.recv_timeout(SOON);
            if self.stop.is_set() && !cancelled {
                stream.cancel();
                cancelled = true;
            }
            let Some(event) = event else { continue };
            self.screen.add(&event.text)?;
            text.push_str(&event.text);
            if let Some(finish) = event.finish {
                self.screen.end()?;
                return Ok((text, finish));
            }
        }
    }

    /// Reports an unusual end of an answer in one line.
    fn print_end(&self, finish: &Finish) -> Result<()> {
        match finish.reason {
            FinishReason::Failed => {
                let error = finish.error.clone();
                return Err(
                    error.map_or_else(|| Failure::Said("the answer failed".to_owned()), Failure::from)
                );
            }
            FinishReason::Cancelled => note("(cancelled)"),
            FinishReason::Length if self.interactive => note(format_args!(
                "(cut after {}; see --max-tokens and --context)",
                bn_hub::counted(finish.usage.generated_tokens.into(), "token")
            )),
            _ => {}
        }
        Ok(())
    }
}

/// Sampling of a turn. Each turn uses the next seed, so that the same question gets another answer.
fn sampling(values: &Settings, turns: u64) -> Sampling {
    let defaults = Sampling::default();
    Sampling {
        seed: values.seed.unwrap_or_default().wrapping_add(turns),
        temperature: values.temperature.unwrap_or(defaults.temperature),
        top_k: values.top_k.unwrap_or(defaults.top_k),
        top_p: values.top_p.unwrap_or(defaults.top_p),
        min_p: values.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: values.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        ..defaults
    }
}
