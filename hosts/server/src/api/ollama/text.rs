//! POST /api/chat and /api/generate.
use super::duration::KeepAlive;
use super::line::{Said, call, end, line};
use super::{messages, options};
use crate::api::infill;
use crate::api::openai::{MOST_ALTERNATIVES, TokenLogprob, effort, token_logprobs};
use crate::api::write;
use crate::failure::{Failure, Result, Shape};
use crate::fields::{Fields, Whole};
use crate::models::Held;
use crate::options::UnseenImages;
use crate::request::constraint::Format;
use crate::request::conversation::{Content, Conversation, Message, Role};
use crate::request::engine::generating;
use crate::run::{Api, Call, Generation, Totals};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The fields of both.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Common {
    stream: Option<bool>,
    options: Option<Map<String, Value>>,
    format: Option<Value>,
    think: Option<Value>,
    pub keep_alive: Option<KeepAlive>,
    logprobs: Option<bool>,
    top_logprobs: Option<Whole<0, MOST_ALTERNATIVES>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatFields {
    messages: Vec<Value>,
    tools: Vec<Map<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerateFields {
    prompt: String,
    system: String,
    suffix: String,
    raw: bool,
    template: String,
    context: Vec<Value>,
    images: Vec<Value>,
}

impl Common {
    fn format(&self) -> Result<Format> {
        let mut format = Format::default();
        match &self.format {
            None => {}
            Some(Value::String(name)) if name.is_empty() => {}
            Some(Value::String(name)) if name == "json" => format.object("format")?,
            Some(schema @ Value::Object(_)) => format.schema("format", schema)?,
            Some(_) => return Err(Failure::invalid("'format' must be \"json\" or a JSON schema")),
        }
        Ok(format)
    }

    fn think(&self, conversation: &mut Conversation) -> Result<()> {
        match &self.think {
            None => {}
            Some(Value::Bool(on)) => conversation.think(*on, None),
            Some(degree) => {
                if let Some((on, degree)) = effort("think", degree)? {
                    conversation.think(on, degree);
                }
            }
        }
        Ok(())
    }

    fn chat(
        &self,
        call: &Call,
        held: &Held,
        fields: &mut Fields,
        mut conversation: Conversation,
    ) -> Result<bn::Request> {
        self.think(&mut conversation)?;
        let mut request = generating(call, held, fields, self.format()?, Some(&conversation))?;
        held.told(conversation)?.put(&mut request);
        Ok(request)
    }
}

impl GenerateFields {
    fn check(&self) -> Result<()> {
        let all = [
            ("context", self.context.is_empty(), "earlier turns are messages of /api/chat"),
            ("template", self.template.is_empty(), "the model's own is used, or none with 'raw'"),
        ];
        match all.iter().find(|(_, empty, _)| !empty) {
            Some((name, _, why)) => Err(Failure::invalid(format!("'{name}' is not supported: {why}"))),
            None => Ok(()),
        }
    }

    /// Whether the prompt becomes a user's message, because the model has a chat template.
    fn is_chat(&self, held: &Held) -> bool {
        !self.raw && self.suffix.is_empty() && held.info.has_chat_template
    }

    fn conversation(&self) -> Result<Conversation> {
        let mut content = Content::default();
        messages::show(&mut content, &self.images, "images");
        content.text.push_str(&self.prompt);
        let system = (!self.system.is_empty()).then(|| Message::new(Role::System, self.system.clone()));
        let messages = system.into_iter().chain([content.message(Role::User)]).collect();
        Ok(Conversation { messages, ..Conversation::default() })
    }

    /// The prompt as a text.
    fn text(self, held: &Held) -> Result<bn::Prompt> {
        let left_out = !held.info.sees && held.options.unseen_images == UnseenImages::LeaveOut;
        if !self.images.is_empty() && !held.info.sees && !left_out {
            return Err(Failure::invalid("'images' are there: this model takes only text, no images"));
        }
        if !self.images.is_empty() && !left_out {
            return Err(Failure::invalid(
                "'images' are for models with a chat template, without 'raw' and 'suffix'",
            ));
        }
        let prompt = match self.system.as_str() {
            system if !self.raw && !system.is_empty() => format!("{system}\n\n{}", self.prompt),
            _ => self.prompt,
        };
        if self.suffix.is_empty() {
            return Ok(bn::Prompt::Text(prompt));
        }
        infill::prompt(held, bn::Prompt::Text(prompt), &self.suffix)
    }
}

/// A chat, or else a text to continue.
pub struct Text<const CHAT: bool> {
    model_name: String,
    model: bn::Model,
    loading: Duration,
    /// A call in a stream that is not complete yet.
    call: Option<bn::ToolCallPart>,
}

impl<const CHAT: bool> Text<CHAT> {
    /// Whether a request has a prompt. Others only load their model.
    pub fn says(fields: &Fields) -> bool {
        let is_there = |name: &str| match fields.get(name) {
            None => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(_) => true,
        };
        let names: &[&str] = if CHAT { &["messages"] } else { &["prompt", "suffix"] };
        names.iter().any(|name| is_there(name))
    }

    fn request(call: &Call, held: &Held, fields: &mut Fields, common: &Common) -> Result<bn::Request> {
        if CHAT {
            let own: ChatFields = fields.take()?;
            return common.chat(call, held, fields, messages::conversation(&own.messages, &own.tools)?);
        }
        let own: GenerateFields = fields.take()?;
        own.check()?;
        if own.is_chat(held) {
            return common.chat(call, held, fields, own.conversation()?);
        }
        let prompt = own.text(held)?;
        Ok(bn::Request { prompt, ..generating(call, held, fields, common.format()?, None)? })
    }

    fn write(&self, out: &mut String, said: Said, logprobs: Option<Vec<TokenLogprob>>, end: Option<Value>) {
        let mut written = line(&self.model_name, CHAT, said, end);
        if let Some(logprobs) = logprobs {
            written["logprobs"] = json!(logprobs);
        }
        write::line(out, &written);
    }

    /// Writes the call that is now complete.
    fn write_call(&mut self, out: &mut String) {
        if let Some(held) = self.call.take() {
            let (id, name) = (held.id.unwrap_or_default(), held.name.unwrap_or_default());
            let calls = vec![call(&id, &name, &held.arguments)];
            self.write(out, Said { calls, ..Said::default() }, None, None);
        }
    }

    fn logprobs(&self, entries: &[bn::Logprob], per_token: usize) -> Option<Vec<TokenLogprob>> {
        (!entries.is_empty()).then(|| token_logprobs(&self.model, entries, per_token))
    }
}

impl<const CHAT: bool> Api for Text<CHAT> {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let mut common: Common = fields.take()?;
        let mut request = Self::request(call, held, fields, &common)?;
        options::apply(common.options.take().unwrap_or_default(), fields, &mut request)?;
        request.logprobs = common.logprobs == Some(true);
        if request.logprobs {
            request.top_logprobs = common.top_logprobs.map_or(0, Whole::u32);
        }
        if let Some(KeepAlive(time)) = common.keep_alive {
            held.keep(time);
        }
        let api = Self {
            model_name: held.shown().to_owned(),
            model: held.model.clone(),
            loading: call.loading,
            call: None,
        };
        Ok((Generation::one(request, common.stream != Some(false)), api))
    }

    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn event(&mut self, out: &mut String, _at: usize, event: &bn::Event) {
        let logprobs = self.logprobs(&event.logprobs, event.logprobs_per_token);
        if !event.text.is_empty() || !event.reasoning.is_empty() || logprobs.is_some() {
            let said = Said { text: &event.text, reasoning: &event.reasoning, calls: Vec::new() };
            self.write(out, said, logprobs, None);
        }
        for part in &event.tool_calls {
            if part.id.is_some() {
                self.write_call(out);
            }
            match &mut self.call {
                Some(call) => call.arguments.push_str(&part.arguments),
                None => self.call = Some(part.clone()),
            }
        }
        if let Some(finish) = &event.finish {
            self.write_call(out);
            self.write(out, Said::default(), None, Some(end(finish, self.loading)));
        }
    }

    fn failed(&mut self, out: &mut String, _at: usize, failure: &Failure) {
        write::line(out, &failure.object(Shape::Ollama));
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, _totals: &Totals) -> Result<String> {
        let mut out = String::new();
        for answer in &answers {
            let calls =
                answer.tool_calls.iter().map(|made| call(&made.id, &made.name, &made.arguments)).collect();
            let said = Said { text: &answer.text, reasoning: &answer.reasoning, calls };
            let logprobs = self.logprobs(&answer.logprobs, answer.logprobs_per_token);
            self.write(&mut out, said, logprobs, Some(end(&answer.finish, self.loading)));
        }
        Ok(out)
    }
}
