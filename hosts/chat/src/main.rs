//! bn-chat: a chat with a model in the terminal, or with prompts from a pipe or the command line.
mod chat;
mod commands;
mod complete;
mod conversation;
mod edit;
mod failure;
mod files;
mod image;
mod open;
mod options;
mod past;
mod plain;
mod prompts;
mod saved;
mod say;
mod screen;
mod set;
mod settings;
mod stop;
mod wrap;

use bn::FinishReason;
use chat::Chat;
use commands::Flow;
use edit::Editor;
use failure::{Failure, Halt, Result, failed, words_of_system};
use options::{Command, Wrong};
use plain::Plain;
use prompts::{Prompt, Source};
use say::{complain, note};
use screen::Screen;
use std::io::{ErrorKind, IsTerminal, stdin, stdout};
use std::process::ExitCode;
use stop::{EXIT_INTERRUPTED, Stop};

fn main() -> ExitCode {
    let result = match options::parse() {
        Ok(command) => run(command),
        Err(Wrong::Said(line)) => failed(line),
        Err(Wrong::Shown(help)) => help.print().map(|()| 0).map_err(Failure::Output),
    };
    ExitCode::from(result.unwrap_or_else(|failure| match failure {
        Failure::Said(line) => {
            complain(line);
            1
        }
        // A reader that closed the pipe does not want more output.
        Failure::Output(error) if error.kind() == ErrorKind::BrokenPipe => 1,
        Failure::Output(error) => {
            complain(format_args!("cannot write the output: {}", words_of_system(&error)));
            1
        }
        Failure::Interrupted => EXIT_INTERRUPTED,
    }))
}

/// Returns the exit code.
fn run(command: Command) -> Result<u8> {
    let Ok(stop) = Stop::install() else { return failed("SIGINT cannot be caught") };
    let terminal = stdout().is_terminal();
    let interactive = command.prompt.is_none() && terminal && stdin().is_terminal();
    let opened = open::open(&command, &stop)?;
    if interactive {
        open::introduce(&opened);
    }
    open::warn(&opened, command.model.is_some());
    let mut chat = Chat::new(opened, interactive, Screen::new(terminal), stop);
    if let Some(system) = &command.options.system {
        chat.conversation.set_system(system);
    }
    for image in &command.options.images {
        image::show(&mut chat, image)?;
    }
    match command.prompt {
        Some(prompt) => answer_one(&mut chat, &prompt),
        None if !command.options.lines && !stdin().is_terminal() => answer_one(&mut chat, "-"),
        None => talk(&mut chat, source(interactive, &command.options)?),
    }
}

/// Answers the prompt of the command line, with the text of standard input in front of it.
fn answer_one(chat: &mut Chat, prompt: &str) -> Result<u8> {
    let all = prompt == "-";
    let input = match all || !stdin().is_terminal() {
        false => String::new(),
        true => match plain::everything(&chat.stop) {
            Ok(input) => input,
            Err(Halt::Failed(failure)) => return Err(failure),
            Err(_) => return Err(Failure::Interrupted),
        },
    };
    let question = match (all, input.is_empty()) {
        (true, true) => return failed("there is no prompt: standard input is empty"),
        (true, false) => input,
        (false, true) => prompt.to_owned(),
        (false, false) => format!("{input}\n\n{prompt}"),
    };
    chat.ask(question)?;
    let cancelled = chat.last.as_ref().is_some_and(|last| last.reason == FinishReason::Cancelled);
    if cancelled { Err(Failure::Interrupted) } else { Ok(0) }
}

fn source(interactive: bool, options: &options::Options) -> Result<Source> {
    if !interactive {
        return Ok(Source::Pipe(Plain::start()));
    }
    if !edit::can_edit() {
        return Ok(Source::Simple(Plain::start()));
    }
    match Editor::start(options.history.as_deref()) {
        Ok(editor) => Ok(Source::Person(Box::new(editor))),
        Err(error) => failed(format!("the terminal cannot be prepared: {error}")),
    }
}

/// Reads and answers until the end. Returns the exit code.
fn talk(chat: &mut Chat, mut source: Source) -> Result<u8> {
    let mut again = false; // the last line was a Ctrl-C
    loop {
        let next = source.next(&chat.stop);
        let second = std::mem::take(&mut again);
        let prompt = match next {
            Ok(prompt) => prompt,
            Err(Halt::End) => return Ok(0),
            Err(Halt::Failed(failure)) => return Err(failure),
            Err(Halt::Dropped) => continue,
            Err(Halt::Interrupted) if !chat.interactive => return Err(Failure::Interrupted),
            Err(Halt::Interrupted) if second => return Ok(0),
            Err(Halt::Interrupted) => {
                note("(Ctrl-C again or Ctrl-D to end)");
                again = true;
                continue;
            }
        };
        match handle(chat, prompt) {
            Ok(Flow::GoOn) => {}
            Ok(Flow::Quit) => return Ok(0),
            Err(Failure::Said(line)) if chat.interactive => complain(line),
            // End, because later prompts would continue another conversation.
            Err(failure) => return Err(failure),
        }
    }
}

fn handle(chat: &mut Chat, prompt: Prompt) -> Result<Flow> {
    let Prompt { text, block } = prompt;
    if text.trim_matches([' ', '\t']).is_empty() {
        return Ok(Flow::GoOn);
    }
    if !block && text.starts_with('/') {
        return commands::run(chat, &text);
    }
    chat.ask(text).map(|()| Flow::GoOn)
}
