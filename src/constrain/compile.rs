//! From a constraint to a parser that stands at the beginning of an output.

use super::source::{Constraint, refused};
use super::vocabulary::Vocabulary;
use crate::base::{Error, Result, panics, threads};
use llguidance::TokenParser;

/// For recursion over grammars within the bounds of `source`.
pub const STACK: usize = 256 << 20;

/// `InvalidArgument` with llguidance's reason.
pub fn compile(vocabulary: &Vocabulary, constraint: &Constraint) -> Result<TokenParser> {
    threads::run_on_stack("bn-grammar", STACK, || {
        // A panic inside of llguidance is an error of its own; this is for what runs around it.
        panics::catch(|| {
            let grammar = constraint.grammar()?;
            let mut parser = vocabulary.factory.create_parser(grammar).map_err(reason)?;
            parser.start_without_prompt();
            Ok(parser)
        })
        .unwrap_or_else(|panic| Err(refused(panic)))
    })?
}

/// What llguidance says, without the parser's state.
pub fn reason(error: impl std::fmt::Display) -> Error {
    let text = format!("{error:#}");
    let end =
        ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].iter().filter_map(|mark| text.find(mark)).min();
    refused(text[..end.unwrap_or(text.len())].replace(" without 'referencing' feature", ""))
}
