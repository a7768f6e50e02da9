//! Lines that begin with '/'.
use crate::chat::{Chat, SESSION};
use crate::edit::KEYS;
use crate::failure::{Result, failed};
use crate::say::note;
use crate::{image, saved, set};
use std::fmt::Write;

pub enum Flow {
    GoOn,
    Quit,
}

pub struct Command {
    /// The first one is the name that /help shows first.
    pub names: &'static [&'static str],
    /// Empty: no text after the name.
    pub takes: &'static str,
    help: &'static str,
    run: fn(&mut Chat, &str) -> Result<Flow>,
}

pub static COMMANDS: &[Command] = &[
    Command { names: &["/help", "/?"], takes: "", help: "this list", run: help },
    Command {
        names: &["/set"],
        takes: "[NAME [VALUE]]",
        help: "temperature, top_k, system ...; without VALUE the default; alone a list",
        run: |chat, rest| set::set(chat, rest).map(go_on),
    },
    Command {
        names: &["/system"],
        takes: "[TEXT]",
        help: "another system prompt, none without TEXT; the conversation goes on",
        run: |chat, rest| set::system(chat, rest).map(go_on),
    },
    Command {
        names: &["/image"],
        takes: "FILE",
        help: "a picture before your next message, for models that see",
        run: |chat, rest| image::show(chat, rest).map(go_on),
    },
    Command {
        names: &["/regen", "/regenerate"],
        takes: "",
        help: "another answer to the last question",
        run: |chat, _| chat.ask_again().map(go_on),
    },
    Command {
        names: &["/save"],
        takes: "FILE",
        help: "write the conversation, and what was computed of it to FILE.kv",
        run: |chat, rest| saved::save(chat, rest).map(go_on),
    },
    Command {
        names: &["/load"],
        takes: "FILE",
        help: "go on with a conversation that was saved",
        run: |chat, rest| saved::load(chat, rest).map(go_on),
    },
    Command {
        names: &["/reset", "/clear"],
        takes: "",
        help: "forget the conversation, but not the system prompt",
        run: reset,
    },
    Command {
        names: &["/stats"],
        takes: "",
        help: "the last turn's timing, and the engine's report",
        run: stats,
    },
    Command { names: &["/quit", "/bye"], takes: "", help: "or Ctrl-D", run: |_, _| Ok(Flow::Quit) },
];

fn go_on(_: ()) -> Flow {
    Flow::GoOn
}

/// Runs a line that begins with '/'.
pub fn run(chat: &mut Chat, line: &str) -> Result<Flow> {
    let line = line.trim_end_matches(' ');
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim_start_matches(' ');
    let known = COMMANDS.iter().find(|command| command.names.contains(&name));
    match known.filter(|command| rest.is_empty() || !command.takes.is_empty()) {
        Some(command) => (command.run)(chat, rest),
        None => failed(format!("there is no command '{line}'; /help lists them")),
    }
}

fn help(chat: &mut Chat, _: &str) -> Result<Flow> {
    let mut text = String::new();
    for command in COMMANDS {
        let names = format!("{} {}", command.names.join(", "), command.takes);
        _ = writeln!(text, "{names:<23} {}", command.help);
    }
    _ = writeln!(text, "{:<23} begins and ends a prompt of several lines", r#"""""#);
    if chat.interactive {
        _ = writeln!(text, "{:<23} at a line's end: the prompt goes on in the next line", "\\");
    }
    text.push_str("Ctrl-C stops an answer. A line that begins with a space is never a command.\n");
    text.push_str(KEYS);
    chat.screen.show(&text)?;
    Ok(Flow::GoOn)
}

fn reset(chat: &mut Chat, _: &str) -> Result<Flow> {
    chat.conversation.clear();
    chat.shown.clear();
    _ = chat.engine.session_free(SESSION); // there is none before the first turn
    if chat.interactive {
        note("(the conversation is forgotten)");
    }
    Ok(Flow::GoOn)
}

fn stats(chat: &mut Chat, _: &str) -> Result<Flow> {
    let mut text = String::new();
    if let Some(last) = &chat.last {
        let (usage, times) = (&last.usage, &last.times);
        let seconds = times.decode.as_secs_f64();
        let rate =
            if seconds > 0.0 { f64::from(usage.generated_tokens.saturating_sub(1)) / seconds } else { 0.0 };
        _ = writeln!(
            text,
            "last turn: {}, {} of them cached, the first token after {:.1} ms; {}, {rate:.1} per second",
            bn_hub::counted(usage.prompt_tokens.into(), "prompt token"),
            usage.cached_tokens,
            times.first_token.as_secs_f64() * 1e3,
            bn_hub::counted(usage.generated_tokens.into(), "token"),
        );
    }
    let seed = chat.sources.effective().seed.unwrap_or_default();
    _ = writeln!(text, "seed {seed}, context {} tokens", chat.context);
    text.push_str(&chat.engine.report()?);
    chat.screen.show(&text)?;
    Ok(Flow::GoOn)
}
