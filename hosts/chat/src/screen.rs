//! Standard output: answers, and texts of commands.
use crate::wrap::{Wrap, columns, wrapped};
use console::Term;
use std::io::{self, Write, stdout};

/// The output of answers.
pub struct Screen {
    /// Output is a terminal: text is filtered, and lines are broken between words.
    terminal: bool,
    wrap: Wrap,
    /// The last character of the answer so far.
    last: Option<char>,
}

impl Screen {
    pub fn new(terminal: bool) -> Self {
        Self { terminal, wrap: Wrap::default(), last: None }
    }

    /// Prints the next part of an answer.
    pub fn add(&mut self, text: &str) -> io::Result<()> {
        self.last = text.chars().last().or(self.last);
        if !self.terminal {
            return write(text);
        }
        let mut out = String::new();
        self.wrap.columns = columns(&Term::stdout());
        self.wrap.add(&bn_hub::printable_lines(text), &mut out);
        write(&out)
    }

    /// Ends an answer, and its last line.
    pub fn end(&mut self) -> io::Result<()> {
        let ended = self.last.take() == Some('\n');
        let mut out = String::new();
        self.wrap.flush(&mut out);
        if !ended {
            out.push('\n');
        }
        self.wrap = Wrap::default();
        write(&out)
    }

    /// Prints a text of this program, which may quote untrusted texts.
    pub fn show(&self, text: &str) -> io::Result<()> {
        match self.terminal {
            true => write(&wrapped(&bn_hub::printable_lines(text), columns(&Term::stdout()))),
            false => write(text),
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
