//! Chat templates: a model's own Jinja template turns a conversation into one text.
//!
//! A template comes from a file, so it is an untrusted program. minijinja parses and runs it with its steps
//! counted. Everything that can grow is done by `ops`, `filters` and `methods` here, which count bytes
//! (`value::Run`). The semantics are transformers': Jinja2 with trimmed blocks, loop controls, `raise_exception`,
//! `strftime_now`, its `tojson`, `{% generation %}`, and Python's string methods.

mod checks;
mod conversation;
#[cfg(test)]
mod conversation_tests;
mod described;
mod filters;
#[cfg(test)]
mod mark_tests;
mod methods;
mod ops;
pub mod pair;
mod parts;
mod print;
mod render;
mod rewrite;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod value;

pub use conversation::{Chat, Tool, ToolChoice, is_name};
pub use parts::PictureSource;
pub use source::{template_for_tools, template_of_json};

use crate::base::{Error, Result, Status, threads};
use crate::formats::Gguf;
pub use crate::text::json::Json;
use minijinja::machinery::{self, CodeGenerator, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use text::Text;
use value::{Dict, List, OBJECT_BYTES, Outcome, Run};

/// Maximum size of a template's source in bytes; real ones have less than 32 KiB.
pub const MAX_SOURCE: usize = 256 << 10;
/// Maximum number of bytes of all roles and contents of a conversation.
pub const MAX_INPUT: usize = 64 << 20;
/// Maximum number of messages of a conversation.
pub const MAX_MESSAGES: usize = 1 << 16;

/// Roles with these names count as the template's own words, because some templates write a role into a control
/// token, `<|user|>`.
const ROLES: [&str; 7] = ["system", "user", "assistant", "tool", "developer", "function", "model"];

/// Bytes that a rendering may allocate in total, including freed ones: a base, and a number for each byte of the
/// input, in which a message counts `MESSAGE_BYTES` more. `WORK` limits units of work in the same way; `STEPS`
/// has a number for each message instead.
const MEMORY: (usize, usize) = (6 << 20, 32);
const WORK: (usize, usize) = (64 << 20, 64);
const STEPS: (usize, usize) = (200_000, 1_000);
const MESSAGE_BYTES: usize = 256;

/// Memory, work and steps of a rendering.
type Budget = [u64; 3];

/// The budget for an input of `input` bytes in `messages` messages.
fn allowed(input: usize, messages: usize) -> Budget {
    let of = |(base, per): (usize, usize), n: usize| (base as u64).saturating_add(per as u64 * n as u64);
    [of(MEMORY, input), of(WORK, input), of(STEPS, messages)]
}

/// Maximum nesting of loops, blocks and macros. A macro counts 5, so 40 of them can nest.
const MAX_RECURSION: usize = 200;
/// The parser and code generator recurse as deep as expressions nest; `source` bounds that.
const COMPILE_STACK: usize = 64 << 20;
/// Nested macros, up to `MAX_RECURSION`, and nested lists: the worst found take less than 192 KiB, unoptimized.
const RENDER_STACK: usize = 2 << 20;

/// Bytes of a compiled step with its line, and of its constant besides the text.
const STEP_BYTES: usize = 192;
/// Bytes of a template without steps.
const LEAST_BYTES: usize = 16 << 10;

/// Maximum length of a template's own words in an error message, in characters.
const MAX_MESSAGE: usize = 500;

/// One message of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub role: &'a str,
    pub content: &'a str,
}

/// A conversation as rendered by the model's template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// The parts of `text` that come from contents and unusual roles, or that the template derived from them: byte
    /// ranges, sorted, disjoint and not adjacent, on character boundaries. The rest is the template's own.
    pub untrusted: Vec<Range<usize>>,
}

/// Renders a small template, so that minijinja's one-time initialization is done.
pub fn warm_up() -> Result<()> {
    ChatTemplate::new("{% for m in messages %}{{ m.role }}{% endfor %}", Vec::new())?
        .render(&[], true)
        .map(|_| ())
}

/// A compiled template. Immutable: any number of threads may render at once.
pub struct ChatTemplate {
    /// Borrows from `source`, so it is dropped before that. An error if `keep` kept a template that failed to
    /// compile.
    code: Result<Instructions<'static>>,
    source: Arc<str>,
    /// Variables like `bos_token` and their texts.
    tokens: Vec<(String, String)>,
    /// The template for conversations with tools, if there is a separate one.
    for_tools: Option<Box<ChatTemplate>>,
}

impl ChatTemplate {
    /// Compiles `source`; `tokens` are variables for it, above all `bos_token` and `eos_token`. `Unsupported`,
    /// with the line, for a template that this build does not understand.
    pub fn new(source: &str, tokens: Vec<(String, String)>) -> Result<Self> {
        source::check_size(source).map_err(|e| refused(&e))?;
        let text = source.to_owned();
        let (code, source) = threads::run_on_stack("bn-template", COMPILE_STACK, move || {
            let syntax = syntax()?;
            let source: Arc<str> = source::prepare(&text, &syntax).map_err(|e| refused(&e))?.into();
            // SAFETY: the text lies on the heap and never changes. It lives as long as a clone of the Arc, one of
            // which is kept beside the instructions and dropped after them; they are not given out.
            let text: &'static str = unsafe { &*Arc::as_ptr(&source) };
            compile(text, syntax).map(|code| (code, source)).map_err(|e| refused(&e))
        })??;
        Ok(Self { code: Ok(code), source, tokens, for_tools: None })
    }

    /// Like `new`, but logs the error of a template that is not understood. Each `render` then fails, while the
    /// model still runs.
    pub fn keep(source: &str, tokens: Vec<(String, String)>, log: &dyn Fn(&str)) -> Self {
        Self::new(source, tokens).unwrap_or_else(|error| {
            log(&error.message);
            Self { code: Err(error), source: Arc::from(""), tokens: Vec::new(), for_tools: None }
        })
    }

    /// Adds another template for conversations with tools, which files call `tool_use`.
    pub fn with_tools(mut self, template: Option<Self>) -> Self {
        self.for_tools = template.map(Box::new);
        self
    }

    /// The template for `chat`.
    pub fn of(&self, chat: &Chat) -> &Self {
        self.for_tools.as_deref().filter(|_| !chat.tools.is_empty()).unwrap_or(self)
    }

    /// The template in a GGUF file's metadata; None if there is none. `BadModel` for keys of another type.
    pub fn from_gguf(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Option<Self>> {
        source::from_gguf(gguf, log)
    }

    /// The source; empty if the template was not understood.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Heap bytes of the compiled template.
    pub fn table_bytes(&self) -> usize {
        let code = self.code.as_ref().ok();
        let steps = code.map_or(0, |code| (0..).take_while(|&at| code.get(at).is_some()).count());
        let more = self.for_tools.as_ref().map_or(0, |template| template.table_bytes());
        LEAST_BYTES + self.source.len() * 2 + steps * STEP_BYTES + more
    }

    /// Renders the conversation as one text, for [`Tokenizer::encode_chat`](crate::text::Tokenizer::encode_chat). With
    /// `add_generation_prompt`, the beginning of the assistant's answer follows.
    ///
    /// `InvalidArgument`, with the template's words, if it refuses the messages; `TooLong` above `MAX_INPUT` or
    /// `MAX_MESSAGES`; `Unsupported` if the template fails, or exceeds its steps, work or memory; `OutOfMemory`.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Rendered> {
        let size = messages.iter().fold(0usize, |sum, message| {
            sum.saturating_add(message.role.len()).saturating_add(message.content.len())
        });
        if size > MAX_INPUT || messages.len() > MAX_MESSAGES {
            let (count, most) = (messages.len(), MAX_MESSAGES);
            return Err(Error::new(
                Status::TooLong,
                format!("{count} messages of {size} bytes; at most {most} of {MAX_INPUT} are taken"),
            ));
        }
        let input = size.saturating_add(messages.len().saturating_mul(MESSAGE_BYTES));
        let made = self.render_within(allowed(input, messages.len()), messages, add_generation_prompt);
        made.map_err(|error| needs_messages(error, messages.is_empty()))
    }

    fn render_within(
        &self,
        budget: Budget,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Rendered> {
        self.run(budget, &|run| self.variables(run, messages, add_generation_prompt))
    }

    /// Runs the template with the variables that `root` makes.
    fn run(
        &self,
        [memory, work, steps]: Budget,
        root: &(dyn Fn(&Run) -> Outcome<Value> + Sync),
    ) -> Result<Rendered> {
        let code = self.code.as_ref().map_err(Error::clone)?;
        let run = Arc::new(Run::new(memory, work));
        let result = threads::run_on_stack("bn-template", RENDER_STACK, || {
            evaluate(&run, code, steps, root).map_err(|error| {
                run.stopped().unwrap_or_else(|| {
                    Error::unsupported(format!("the model's chat template failed: {}", explained(&error)))
                })
            })
        })?;
        result.map(|Text { text, untrusted }| Rendered { text, untrusted })
    }

    fn variables(&self, run: &Run, messages: &[Message], add_generation_prompt: bool) -> Outcome<Value> {
        let list = messages.iter().map(|message| {
            let role_untrusted = !ROLES.contains(&message.role);
            let pairs = [("role", message.role, role_untrusted), ("content", message.content, true)];
            let [role, content] = pairs.map(|(name, text, untrusted)| {
                run.string_as(text, untrusted).map(|text| (Value::from(name), text))
            });
            Dict::make(run, [role?, content?].into_iter())
        });
        let list = List::make(run, run.collect(list)?)?;
        let prompt = Value::from(add_generation_prompt);
        self.root(run, Vec::new(), [list, prompt, Value::from(()), Value::from(())])
    }

    /// All variables: `given` ones, the messages, whether to add a generation prompt, tools, documents, and tokens.
    fn root(&self, run: &Run, given: Vec<(Value, Value)>, fixed: [Value; 4]) -> Outcome<Value> {
        let names = ["messages", "add_generation_prompt", "tools", "documents"].map(Value::from);
        let tokens = self.tokens.iter().map(|(name, text)| (Value::from(&**name), Value::from(&**text)));
        Dict::make(run, given.into_iter().chain(names.into_iter().zip(fixed)).chain(tokens))
    }
}

/// A template may fail just because there are no messages, which is the caller's fault.
fn needs_messages(error: Error, none: bool) -> Error {
    match error.status {
        Status::Unsupported if none => Error::invalid(format!("there are no messages: {}", error.message)),
        _ => error,
    }
}

fn evaluate(
    run: &Arc<Run>,
    code: &Instructions<'static>,
    steps: u64,
    root: &dyn Fn(&Run) -> Outcome<Value>,
) -> Outcome<Text> {
    let env = environment(run, steps);
    let root = root(run)?;
    let mut written = String::new();
    let mut out = machinery::make_string_output(&mut written);
    // The values that the template left in its variables are dropped here.
    machinery::eval(&env, code, root, &BTreeMap::new(), &mut out, AutoEscape::None)?;
    run.read(&written)
}

fn syntax() -> Result<SyntaxConfig> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(|e| Error::internal(format!("the syntax of templates: {e}")))
}

fn compile(text: &'static str, syntax: SyntaxConfig) -> Outcome<Instructions<'static>> {
    let parsed = machinery::parse(text, "chat_template", syntax)?;
    let bounded = rewrite::template(&parsed)?;
    let mut generator = CodeGenerator::new("chat_template", text);
    generator.compile_stmt(&bounded);
    Ok(generator.finish().0)
}

/// Everything that a template can name. Made for each rendering, since its functions hold the remaining budget.
fn environment<'a>(run: &Arc<Run>, steps: u64) -> Environment<'a> {
    let mut env = Environment::empty();
    env.set_fuel(Some(steps));
    env.set_recursion_limit(MAX_RECURSION);
    ops::register(&mut env, run);
    filters::register(&mut env, run);
    checks::register(&mut env, run);
    let output = run.clone();
    env.set_formatter(move |out, _, value| {
        let string = print::text(&output, value)?;
        Ok(out.write_str(&output.write(string)?)?)
    });
    env
}

fn refused(error: &minijinja::Error) -> Error {
    Error::unsupported(format!("the model's chat template is not understood: {}", explained(error)))
}

fn explained(error: &minijinja::Error) -> String {
    let what = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "it takes more steps than a template may".into(),
        (_, Some(detail)) => cut(detail),
        (kind, None) => kind.to_string(),
    };
    error.line().map_or(what.clone(), |line| format!("{what} (line {line})"))
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).collect()
}

/// The error for a model without a template.
pub fn no_template() -> Error {
    Error::unsupported("this model has no chat template: submit prompts as the model expects them")
}

const _: () = assert!(OBJECT_BYTES >= 4 * size_of::<usize>());
