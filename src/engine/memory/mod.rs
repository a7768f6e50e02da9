//! Memory: the plan made at create, grants to requests, and the machine's free memory.

pub(super) mod free;
pub(super) mod grants;
pub(super) mod plan;
pub(super) mod states;

#[cfg(test)]
mod grammar_tests;
