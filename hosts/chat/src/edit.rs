//! A line editor with a history and completion.
use crate::complete::Words;
use crate::failure::{Failure, Halt, Result, words_of_system};
use crate::past;
use crate::say::note;
use rustyline::config::CompletionType;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Cmd, ConditionalEventHandler, Config, Event, EventContext, EventHandler, KeyEvent};
use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The keys, for /help.
pub const KEYS: &str = "Up, down and Ctrl-R find earlier prompts; Tab completes commands and file names.\n";

/// Whether the terminal supports the sequences that the editor needs.
pub fn can_edit() -> bool {
    let terminal = env::var("TERM").unwrap_or_default();
    cfg!(windows) || !["", "dumb", "cons25", "emacs"].contains(&terminal.as_str())
}

pub struct Editor {
    lines: rustyline::Editor<Words, MemHistory>,
    /// Whether Ctrl-C found text in the line.
    typed: Arc<AtomicBool>,
    /// The file of earlier prompts.
    file: Option<PathBuf>,
}

/// Notes whether the line has text before Ctrl-C takes effect.
struct OnInterrupt(Arc<AtomicBool>);

impl ConditionalEventHandler for OnInterrupt {
    fn handle(&self, _: &Event, _: u16, _: bool, line: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(!line.line().is_empty(), Ordering::Relaxed);
        None
    }
}

impl Editor {
    /// `history` is the option's value.
    pub fn start(history: Option<&Path>) -> rustyline::Result<Self> {
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .max_history_size(past::KEPT)?
            .build();
        let history_of_keys = MemHistory::with_config(&config);
        let mut lines = rustyline::Editor::with_history(config, history_of_keys)?;
        lines.set_helper(Some(Words));
        let typed = Arc::new(AtomicBool::new(false));
        let on_interrupt = EventHandler::Conditional(Box::new(OnInterrupt(typed.clone())));
        lines.bind_sequence(KeyEvent::ctrl('C'), on_interrupt);
        let file = past::file(history);
        for prompt in file.iter().flat_map(|file| past::read(file)) {
            lines.add_history_entry(prompt)?;
        }
        Ok(Self { lines, typed, file })
    }

    /// The next line, after a prompt.
    pub fn line(&mut self, prompt: &str) -> Result<String, Halt> {
        self.typed.store(false, Ordering::Relaxed);
        let error = match self.lines.readline(prompt) {
            Ok(line) => return Ok(line),
            Err(error) => error,
        };
        Err(match error {
            ReadlineError::Eof => Halt::End,
            ReadlineError::Interrupted if self.typed.load(Ordering::Relaxed) => Halt::Dropped,
            ReadlineError::Interrupted => Halt::Interrupted,
            ReadlineError::Io(error) if error.kind() == ErrorKind::InvalidData => {
                note("(the line is dropped: it is not UTF-8)");
                Halt::Dropped
            }
            error => Failure::Said(format!("cannot read the input: {error}")).into(),
        })
    }

    /// Adds a prompt to the history.
    pub fn remember(&mut self, prompt: &str) {
        _ = self.lines.add_history_entry(prompt); // in memory only, which does not fail
        let Some(file) = &self.file else { return };
        if let Err(error) = past::add(file, prompt) {
            let file = file.to_string_lossy();
            let (file, wrong) = (bn_hub::printable(&file), words_of_system(&error));
            note(format_args!("(no more prompts are kept: {file}: {wrong})"));
            self.file = None;
        }
    }
}
