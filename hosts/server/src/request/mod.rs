//! The parts of a request that APIs share: conversations, sampling, constraints, the engine's own fields.
pub mod constraint;
pub mod conversation;
pub mod engine;
pub mod forms;
pub mod length;
pub mod passage;
pub mod passed_over;
pub mod picture;
pub mod prompts;
pub mod roles;
pub mod sampling;
pub mod templating;
pub mod tools;
