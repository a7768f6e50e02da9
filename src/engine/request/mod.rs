//! A request as the engine thread holds it: the sequence, what all requests have (times, memory, drawing, events)
//! and what only some have (drafts, an answer to parse, scores, questions, an embedding, an adapter).

pub(super) mod account;
pub(super) mod adapters;
pub(super) mod answer;
pub(super) mod decision;
pub(super) mod decoders;
pub(super) mod drawing;
pub(super) mod embedding;
pub(super) mod ending;
pub(super) mod event;
pub(super) mod eyes;
pub(super) mod lookup;
#[cfg(test)]
mod lookup_tests;
pub(super) mod pictures;
pub(super) mod scores;
pub(super) mod sequence;
pub(super) mod speculation;
pub(super) mod thinking;
pub(super) mod times;
pub(super) mod tool_calls;
pub(super) mod writer;
