//! bn_engine: a continuous-batching LLM engine (BitNet b1.58 and other 1-bit models, the Llama family, hybrids,
//! mixtures of experts) behind a C ABI.
//!
//! The supported interface is C: `include/bn_engine.h`. The Rust modules are public for this
//! project's own tests and benchmarks and follow no stability promise.
//!
//! Layers, top to bottom; each imports only what lies below it (tests/all/layers.rs checks):
//! `ffi`, `engine`, `schedule`, `cache`, `sample`, `model`, `constrain`, `text`, `picture`, `formats`, `ops`,
//! `kernels`, `device`, `base`.

pub mod base;
pub mod cache;
pub mod constrain;
pub mod device;
pub mod engine;
pub mod ffi;
pub mod formats;
pub mod kernels;
pub mod model;
pub mod ops;
pub mod picture;
pub mod sample;
pub mod schedule;
pub mod text;

#[cfg(test)]
#[path = "../tests/common/rng.rs"]
mod rng;
