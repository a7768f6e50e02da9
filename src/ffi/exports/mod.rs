//! The functions of `include/bn_engine.h`. Each checks its pointers, converts, and calls the engine.

// The comments are the C header's: it says once, for all of them, what pointers must be.
#![allow(clippy::missing_safety_doc)]

pub mod adapter;
pub mod chat;
pub mod constraint;
pub mod embed;
pub mod engine;
pub mod event;
pub mod info;
pub mod lifecycle;
pub mod model;
pub mod picture;
pub mod request;
pub mod request_info;
pub mod session;
pub mod stats;
