//! Prompts from a person or a pipe.
use crate::edit::Editor;
use crate::failure::{Halt, Result};
use crate::plain::Plain;
use crate::say::complain;
use crate::stop::Stop;
use std::io::{Write, stdout};

const FENCE: &str = r#"""""#;
/// Maximum length of a line in terminals that edit lines themselves.
const TERMINAL_LINE: usize = 4095;

/// A prompt or a command. A prompt between two fences is never a command.
pub struct Prompt {
    pub text: String,
    pub block: bool,
}

/// The source of prompts.
pub enum Source {
    Person(Box<Editor>),
    /// A person at a terminal without editing keys.
    Simple(Plain),
    Pipe(Plain),
}

impl Source {
    pub fn next(&mut self, stop: &Stop) -> Result<Prompt, Halt> {
        let line = self.line("> ", stop)?;
        let (mut text, block) = match line.strip_prefix(FENCE) {
            Some(first) => (self.block(first, stop)?, true),
            None => (self.joined(line, stop)?, false),
        };
        if !self.is_pipe() {
            trim_breaks(&mut text); // of a paste
        }
        if let Self::Person(editor) = self
            && !text.is_empty()
        {
            // Keep the fences, so that a prompt from the history is read in the same way again.
            let fence = if block { FENCE } else { "" };
            editor.remember(&format!("{fence}{text}{fence}"));
        }
        Ok(Prompt { text, block })
    }

    fn is_pipe(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    fn line(&mut self, prompt: &str, stop: &Stop) -> Result<String, Halt> {
        // The SIGINT came while no input was awaited.
        if stop.take() {
            return Err(Halt::Interrupted);
        }
        match self {
            Self::Person(editor) => editor.line(prompt),
            Self::Pipe(lines) => lines.line(stop),
            Self::Simple(lines) => loop {
                show(prompt)?;
                match lines.line(stop) {
                    Ok(line) if line.len() < TERMINAL_LINE => return Ok(line),
                    Ok(_) => complain(format_args!(
                        "the terminal cuts lines at {TERMINAL_LINE} bytes: break it up between two lines of {FENCE}"
                    )),
                    Err(halt) => {
                        show("\n")?;
                        return Err(halt);
                    }
                }
            },
        }
    }

    /// The rest of a block after its first line, without blank lines at its ends.
    fn block(&mut self, first: &str, stop: &Stop) -> Result<String, Halt> {
        let mut text = String::new();
        let mut line = first.to_owned();
        loop {
            if let Some(last) = line.strip_suffix(FENCE) {
                text.push_str(last);
                trim_breaks(&mut text);
                return Ok(text);
            }
            text.push_str(&line);
            if !text.is_empty() {
                text.push('\n');
            }
            line = self.line("... ", stop)?;
        }
    }

    /// Joins lines that a person ends with a backslash.
    fn joined(&mut self, first: String, stop: &Stop) -> Result<String, Halt> {
        let mut text = first;
        while !self.is_pipe() && text.ends_with('\\') {
            text.pop();
            text.push('\n');
            text.push_str(&self.line("... ", stop)?);
        }
        Ok(text)
    }
}

fn show(text: &str) -> Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn trim_breaks(text: &mut String) {
    text.truncate(text.trim_end_matches('\n').len());
}
