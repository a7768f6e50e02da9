//! The reasons for a failure.
use std::io;

pub enum Failure {
    /// A message for the user. An interactive chat goes on.
    Said(String),
    /// Standard output cannot be written.
    Output(io::Error),
    /// A SIGINT ended it.
    Interrupted,
}

/// The reasons why no line of input came.
pub enum Halt {
    End,
    Interrupted,
    /// Interrupted after something was typed.
    Dropped,
    Failed(Failure),
}

impl<F: Into<Failure>> From<F> for Halt {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

pub type Result<T, F = Failure> = std::result::Result<T, F>;

/// A failure with these words.
pub fn failed<T>(words: impl Into<String>) -> Result<T> {
    Err(Failure::Said(words.into()))
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<bn::Error> for Failure {
    fn from(error: bn::Error) -> Self {
        Self::Said(words_of_library(error.message()))
    }
}

/// The library's words. It names fields where this program has options, and may quote names from files.
pub fn words_of_library(message: &str) -> String {
    const OPTIONS: [(&str, &str); 4] = [
        ("context_length", "--context"),
        ("draft_model", "--draft-model"),
        ("drafter_path", "--drafter"),
        ("pictures_path", "--pictures"),
    ];
    bn_hub::fields_as_options(&bn_hub::printable_lines(message), &OPTIONS)
}

/// The system's words, without its number for them.
pub fn words_of_system(error: &io::Error) -> String {
    let words = error.to_string();
    words.split(" (os error ").next().unwrap_or(&words).trim_end_matches('.').to_owned()
}
