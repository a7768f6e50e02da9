//! Lines for the user, on standard error.
use crate::wrap::{columns, wrapped};
use console::Term;
use std::fmt::Display;
use std::io::{Write, stderr, stdout};

pub fn note(line: impl Display) {
    // The answer comes before it. Nobody can be told that standard error is closed.
    _ = stdout().flush();
    _ = writeln!(stderr(), "{}", wrapped(&line.to_string(), columns(&Term::stderr())));
}

pub fn complain(line: impl Display) {
    note(format_args!("bn-chat: {line}"));
}
