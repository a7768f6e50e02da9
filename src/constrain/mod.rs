//! Outputs that must match a grammar: a JSON schema, a regular expression, a context-free grammar. llguidance compiles
//! grammars and says which tokens may come next; here are its bounds, its cache and the threads that it runs on.
//!
//! A grammar is a stranger's program. Its source is bounded in bytes and nesting, its compilation and each mask in
//! steps, its lexer in states. llguidance recurses over grammars, so it only runs on threads of ours with large stacks.

mod cache;
mod compile;
mod gbnf;
mod guide;
mod source;
mod vocabulary;
mod workers;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;

pub use cache::{Grammars, Totals};
pub use guide::Guide;
pub use source::{Constraint, ConstraintKind, MAX_BYTES};
pub use vocabulary::{LazyVocabulary, Vocabulary};
