//! The functions of `include/bn_engine.h`. Each checks its pointers, converts, and calls the engine.

pub mod engine;
pub mod info;
pub mod request;
pub mod text;
