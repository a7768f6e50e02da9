//! Outputs that must match a grammar: a JSON schema, a regular expression or a context-free grammar.
//! llguidance compiles grammars and computes which tokens may come next. This module adds bounds, a cache,
//! threads to run it on, and rewrites of schemas (`schema`) after which every accepted output is valid.
//!
//! A grammar is untrusted input. Its source is bounded in bytes, nesting and work (`bounds`), its compilation
//! and each mask in steps and time, its lexer in states. llguidance recurses over grammars, so it runs only
//! on a few threads of ours with large stacks (`queue`).

mod bounds;
mod cache;
mod compile;
mod depth;
mod gbnf;
mod guide;
mod products;
mod queue;
mod read;
mod schema;
mod script;
mod source;
mod vocabulary;
mod weigh;
mod workers;

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod compile_tests;
#[cfg(test)]
mod dead_end_tests;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod hostile_random;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod number_tests;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod suite_tests;
#[cfg(test)]
mod tests;

pub use cache::{Counted, Grammars, uncounted};
pub use guide::{Guide, SLOW_NS};
pub use schema::{JsonOptions, WhiteSpace};
pub use source::{Constraint, ConstraintKind, MAX_BYTES};
pub use vocabulary::{LazyVocabulary, STACK, Vocabulary};
pub use weigh::Totals;
