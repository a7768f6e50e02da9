//! The only `extern "C"`: C types, the panic guard, copy-in and checks, thin exports. This layer
//! only converts; the behavior is in `engine` and below. `build.rs` turns the doc comments of this
//! layer into `include/bn_engine.h`.

#![allow(non_camel_case_types)]

pub mod callbacks;
pub mod chat;
pub mod config;
pub mod constraint;
pub mod event;
pub mod exports;
pub mod growth;
pub mod guard;
pub mod log;
pub mod model;
pub mod picture;
pub mod pooling;
pub mod question;
mod registry;
pub mod request;
pub mod sampling;
pub mod session;
pub mod span;
pub mod speculation;
pub mod stats;
pub mod status;
pub mod string;
pub mod tool_call;
pub mod trace;
pub mod types;
pub mod version;
