//! bn_engine: a continuous-batching LLM engine (BitNet b1.58, the Llama family) behind a C ABI.
//!
//! The supported interface is C: `include/bn_engine.h`. The Rust modules are public for this
//! project's own tests and benchmarks and follow no stability promise.
//!
//! Layers, top to bottom; each imports only what lies below it (tests/layers.rs checks):
//! `ffi`, `engine`, `schedule`, `cache`, `sample`, `model`, `text`, `formats`, `ops`, `kernels`, `base`.

#[cfg(not(unix))]
compile_error!("bn_engine supports Linux and macOS; nobody has tested it elsewhere yet");

pub mod base;
#[cfg(not(loom))]
pub mod cache;
pub mod engine;
#[cfg(not(loom))]
pub mod ffi;
#[cfg(not(loom))]
pub mod formats;
#[cfg(not(loom))]
pub mod kernels;
#[cfg(not(loom))]
pub mod model;
#[cfg(not(loom))]
pub mod ops;
#[cfg(not(loom))]
pub mod sample;
#[cfg(not(loom))]
pub mod schedule;
#[cfg(not(loom))]
pub mod text;
