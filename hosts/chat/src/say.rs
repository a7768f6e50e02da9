//! Lines for the user, on standard error.
use crate::wrap::{columns, wrapped};
use console::Term;
use std::fmt::Display;
use std::io::{Write, stderr, stdout};

pub fn note(line: impl Display) {
    // Flush the answer first. Errors are ignored, as nothing can be reported if standard error is closed.
    _ = stdout().flush();
    _ = writeln!(stderr(), "{}", wrapped(&line.to_string(), columns(&Term::stderr())));
}

pub fn complain(line: impl Display) {
    note(format_args!("bn-chat: {line}"));
}
