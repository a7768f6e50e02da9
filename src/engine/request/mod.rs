//! A request as the engine thread holds it: the sequence, what all requests have (times, memory, drawing, events)
//! and what only some have (drafts, an answer to parse, scores, an embedding, an adapter).

pub mod account;
pub mod adapters;
pub mod answer;
pub mod drawing;
pub mod embedding;
pub mod ending;
pub mod event;
pub mod lookup;
#[cfg(test)]
mod lookup_tests;
pub mod scores;
pub mod sequence;
pub mod speculation;
pub mod thinking;
pub mod times;
pub mod tool_calls;
pub mod writer;
