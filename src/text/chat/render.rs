//! Renders conversations with tools.

use super::conversation::Chat;
use super::described::described;
use super::methods::is_space;
use super::print::{self, JsonStyle};
use super::text::Piece;
use super::value::{Dict, List, Outcome, Run};
use super::{ChatTemplate, MESSAGE_BYTES, ROLES, Rendered, allowed};
use crate::base::{Error, Result, Status};
use crate::text::json::Json;
use minijinja::machinery::Instruction;
use minijinja::value::Value;

/// Bytes of input that a JSON value counts as, for its object and its marks.
const VALUE_BYTES: usize = 16;
/// Number of values that count as one message for the step budget: templates go through tools one value at a time.
const VALUES_A_MESSAGE: usize = 8;

/// The field of Phi-4-mini's template, which reads no `tools`: it takes them as a text in a system message.
const CARRIED: &str = "message['tools']";
/// Variables for tools in SmolLM3's template, which reads no `tools`. Tools come in the first, unless a chat sets one.
const OTHER_TOOLS: [&str; 2] = ["xml_tools", "python_tools"];

/// Appended to the last message while the template runs, to find where it ends. The space at the end shows whether
/// the template trims.
const END: &str = "END_OF_WHAT_IS_CONTINUED ";

impl ChatTemplate {
    /// Renders the conversation as one text, with the continuation that it asks for. Every text in `chat` is
    /// untrusted, including names, except the usual roles. If the template does not know tools, they are described
    /// in words.
    ///
    /// `InvalidArgument` if the template refuses the messages, or omits the message that is to be continued. Other
    /// errors as for [`Self::render`].
    pub fn render_chat(&self, chat: &Chat) -> Result<Rendered> {
        let made = self.of(chat).render_this(chat);
        made.map_err(|error| super::needs_messages(error, chat.messages.is_empty()))
    }

    fn render_this(&self, chat: &Chat) -> Result<Rendered> {
        let values = chat.values.saturating_mul(VALUE_BYTES);
        let input = chat.bytes.saturating_add(values).saturating_add(chat.messages.len() * MESSAGE_BYTES);
        let budget = allowed(input, chat.messages.len() + chat.values / VALUES_A_MESSAGE);
        let run = |messages: &[Json], tools: &[Json]| {
            let made = self.run(budget, &|run| self.chat_variables(run, chat, messages, tools))?;
            if chat.continue_final { cut(made) } else { Ok(made) }
        };
        if self.knows_tools() || !chat.has_tools() {
            return run(&chat.messages, &chat.tools);
        }
        match run(&described(chat, "system"), &[]) {
            // Some templates refuse a system message.
            Err(error) if error.status == Status::InvalidArgument && !chat.begins_with("system") => {
                run(&described(chat, "user"), &[])
            }
            made => made,
        }
    }

    /// Returns whether the template appears to write tools, judging by its source.
    pub fn knows_tools(&self) -> bool {
        self.source.contains("tools") || self.source.contains("tool_call")
    }

    fn chat_variables(&self, run: &Run, chat: &Chat, messages: &[Json], tools: &[Json]) -> Outcome<Value> {
        let last = messages.len().wrapping_sub(1);
        let messages = messages.iter().enumerate();
        let messages = messages.map(|(i, fields)| message(run, fields, chat.continue_final && i == last));
        let messages = match self.source.contains(CARRIED) && !tools.is_empty() {
            true => carried(run, tools, run.collect(messages)?)?,
            false => run.collect(messages)?,
        };
        let messages = List::make(run, messages)?;
        let tools = match tools.is_empty() {
            true => Value::from(()),
            false => List::make(run, run.collect(tools.iter().map(|tool| value(run, tool)))?)?,
        };
        let documents =
            chat.documents.as_ref().map_or(Ok(Value::from(())), |documents| value(run, documents))?;
        // A variable's name is not part of the text.
        let given = chat.variables.iter().map(|(name, json)| Ok((Value::from(&**name), value(run, json)?)));
        let mut given = run.collect(given)?;
        let chosen = chat.variables.iter().any(|(name, _)| OTHER_TOOLS.contains(&&**name));
        if !chosen && self.reads(OTHER_TOOLS[0]) && !self.reads("tools") {
            given.push((Value::from(OTHER_TOOLS[0]), tools.clone()));
        }
        let prompt = Value::from(chat.add_generation_prompt);
        self.root(run, given, [messages, prompt, tools, documents])
    }

    /// Returns whether the template looks up this variable.
    fn reads(&self, variable: &str) -> bool {
        let code = self.code.as_ref().ok();
        let mut steps = code.into_iter().flat_map(|code| (0..).map_while(|at| code.get(at)));
        steps.any(|step| matches!(step, Instruction::Lookup(name) if *name == variable))
    }
}

/// `messages`, beginning with a system message that holds the functions as a JSON text. A first message that
/// already has `tools` is unchanged.
fn carried(run: &Run, tools: &[Json], mut messages: Vec<Value>) -> Outcome<Vec<Value>> {
    let functions = tools.iter().map(|tool| value(run, tool.get("function").unwrap_or(tool)));
    let functions = List::make(run, run.collect(functions)?)?;
    let separators = [", ", ": "].map(Piece::trusted);
    let style = JsonStyle { indent: None, separators, ensure_ascii: false, sort_keys: false };
    let functions = (Value::from("tools"), print::json(run, &functions, &style)?);
    let [role, content, system] = ["role", "content", "system"].map(Value::from);
    let first = messages.first().and_then(|first| first.downcast_object_ref::<Dict>());
    let who = first.map_or(Ok(None), |first| first.get(run, &role))?.and_then(Piece::of);
    let fields = match first.filter(|_| who.is_some_and(|who| who.text == "system")) {
        Some(first) => first.pairs.clone(),
        None => {
            run.grow(&mut messages, 1)?;
            messages.insert(0, Value::from(()));
            vec![(role, system), (content, Value::from(""))]
        }
    };
    // If names are equal, the last one counts.
    messages[0] = Dict::make(run, std::iter::once(functions).chain(fields))?;
    Ok(messages)
}

/// A message. If it is `continued`, its content ends with `END`.
fn message(run: &Run, message: &Json, continued: bool) -> Outcome<Value> {
    let Json::Map(fields) = message else { return value(run, message) };
    let pairs = fields.iter().map(|(name, field)| {
        let made = match (&**name, field) {
            ("role", Json::Text(role)) => run.string_as(role, !ROLES.contains(&&**role))?,
            ("content", Json::Text(text)) if continued => run.string_as(&format!("{text}{END}"), true)?,
            _ => value(run, field)?,
        };
        Ok((run.string_as(name, true)?, made))
    });
    let pairs = run.collect(pairs)?;
    Dict::make(run, pairs.into_iter())
}

fn value(run: &Run, json: &Json) -> Outcome<Value> {
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (_, Some(number)) => Value::from(number),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::Text(text) => run.string_as(text, true)?,
        Json::List(items) => {
            let items = run.collect(items.iter().map(|item| value(run, item)))?;
            List::make(run, items)?
        }
        Json::Map(fields) => {
            let pairs =
                fields.iter().map(|(name, field)| Ok((run.string_as(name, true)?, value(run, field)?)));
            let pairs = run.collect(pairs)?;
            Dict::make(run, pairs.into_iter())?
        }
    })
}

/// Cuts the text before `END`, as transformers does; if the template trims, also the blanks before it.
fn cut(made: Rendered) -> Result<Rendered> {
    let Rendered { mut text, mut untrusted } = made;
    let Some(at) = text.rfind(END.trim_end()) else {
        return Err(Error::invalid(
            "chat.json: continue_final_message: the template leaves the last message out, or changes it",
        ));
    };
    let trims = !text[at..].starts_with(END);
    text.truncate(at);
    if trims {
        text.truncate(text.trim_end_matches(is_space).len());
    }
    untrusted.retain_mut(|range| {
        range.end = range.end.min(text.len());
        range.start < range.end
    });
    Ok(Rendered { text, untrusted })
}
