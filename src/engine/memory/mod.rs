//! Memory: the plan made at create, grants to requests, and the machine's free memory.

pub mod free;
pub mod grants;
pub mod plan;
pub mod states;

#[cfg(test)]
mod grammar_tests;
