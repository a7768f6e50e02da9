//! A request and its parts: prompt, sequence, drafts, answer, scores, embedding, and events.

pub mod adapters;
pub mod answer;
pub mod embedding;
pub mod event;
pub mod lookup;
pub mod prompt;
pub mod scores;
pub mod sequence;
pub mod speculation;
pub mod tool_calls;
