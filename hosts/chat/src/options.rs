//! The command line.
use crate::settings::Settings;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Parser, value_parser};
use std::path::PathBuf;

/// Chats with a model: a GGUF file, a Hugging Face folder, hf:OWNER/NAME for one that is downloaded from there, or
/// builtin:echo. Without one, it is the small model inside the library.
#[derive(Parser, Debug)]
#[command(name = "bn-chat", version = bn::version(), args_override_self = true, after_help = AFTER)]
pub struct Options {
    /// The model, or with --model the prompt
    #[arg(value_name = "MODEL")]
    first: Option<String>,
    /// Answer this and end
    #[arg(value_name = "PROMPT")]
    second: Option<String>,
    /// The model
    #[arg(short = 'm', long = "model", value_name = "MODEL", allow_hyphen_values = true)]
    named: Option<String>,
    /// Answer this and end; -: all of standard input
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", allow_hyphen_values = true)]
    asked: Option<String>,
    /// Each line of a pipe is a prompt or a command; without it, all of it is one prompt
    #[arg(long)]
    pub lines: bool,
    /// The system prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    #[command(flatten)]
    pub settings: Settings,
    /// Tokens of conversation (default: what the model and memory allow)
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(2..), allow_hyphen_values = true)]
    pub context: Option<u32>,
    /// A small model with the same vocabulary, which drafts tokens
    #[arg(long, value_name = "PATH", allow_hyphen_values = true)]
    pub draft_model: Option<String>,
    /// 1: the model's own block of multi-token prediction drafts tokens
    #[arg(long, value_name = "0|1", value_parser = switch, action = ArgAction::Set, default_value = "0",
          hide_default_value = true, allow_hyphen_values = true)]
    pub mtp: bool,
    /// A GGUF file of a drafter alone, which drafts tokens from the model's hidden states
    #[arg(long, value_name = "PATH", allow_hyphen_values = true)]
    pub drafter: Option<String>,
    /// A GGUF file of the part that sees images (the mmproj-*.gguf beside the model's file); none: no part
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub pictures: Option<String>,
    /// An image before the first message; several come in their order
    #[arg(long = "image", value_name = "FILE", allow_hyphen_values = true)]
    pub images: Vec<String>,
    /// 1: BitNet b1.58 2B-4T reads no weights that meet zeros; takes more memory
    #[arg(long, value_name = "0|1", value_parser = switch, action = ArgAction::Set, default_value = "0",
          hide_default_value = true, allow_hyphen_values = true)]
    pub skip_zeros: bool,
    /// Computes on cpu (default), or cuda:0 and so on
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub device: Option<String>,
    /// File of earlier prompts, for the arrow keys (see man bn-chat); none: keep none
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub history: Option<PathBuf>,
    /// Compute threads (default: one for each CPU)
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=256), allow_hyphen_values = true)]
    pub threads: Option<u32>,
}

const AFTER: &str = "\
With a prompt, it answers that alone; text from a pipe stands in front of it. Without one, the text is the prompt. At a \
terminal, each line is a prompt, or a command; /help lists these. Sampling values that are not given are those of the model's authors; without any, temperature \
0.8, top-k 40, top-p 0.95 and min-p 0.05.";

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("neither 0 nor 1".to_owned()),
    }
}

/// The parsed command line.
pub struct Command {
    /// None: the model inside the library.
    pub model: Option<String>,
    /// The prompt of the command line; None: a chat.
    pub prompt: Option<String>,
    pub options: Options,
}

/// Reads the command line.
pub fn parse() -> Result<Command, Wrong> {
    let mut options = Options::try_parse().map_err(Wrong::of)?;
    let (model, word) = match (options.named.take(), options.first.take(), options.second.take()) {
        (Some(model), Some(other), Some(_)) => return Err(two("models", &model, &other)),
        (Some(model), word, _) => (Some(model), word),
        (None, model, word) => (model, word),
    };
    if model.as_deref() == Some("") {
        return Err(Wrong::Said("the model's name is empty".to_owned()));
    }
    match (options.asked.take(), word) {
        (Some(asked), Some(word)) => Err(two("prompts", &asked, &word)),
        (asked, word) => Ok(Command { model, prompt: asked.or(word), options }),
    }
}

fn two(what: &str, one: &str, other: &str) -> Wrong {
    Wrong::Said(format!("two {what}: '{one}' and '{other}'"))
}

/// The reasons why the command line cannot be used.
pub enum Wrong {
    Said(String),
    /// --help or --version.
    Shown(clap::Error),
}

impl Wrong {
    fn of(error: clap::Error) -> Self {
        if !error.use_stderr() {
            return Self::Shown(error);
        }
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let option = text(ContextKind::InvalidArg).unwrap_or_default();
        let option = option.split(" <").next().unwrap_or(option);
        Self::Said(match (error.kind(), text(ContextKind::InvalidValue)) {
            (ErrorKind::UnknownArgument, _) if !option.starts_with('-') => {
                format!("'{option}' is too much: a prompt of several words stands between quotes")
            }
            (ErrorKind::UnknownArgument, _) => {
                format!("there is no option '{option}'; bn-chat --help lists them")
            }
            (ErrorKind::InvalidValue, Some("") | None) => format!("{option} needs a value"),
            (_, Some(value)) => format!("{option} cannot be '{value}'"),
            _ => first_line(&error.to_string()),
        })
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
