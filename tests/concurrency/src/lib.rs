//! See Cargo.toml.
#![allow(dead_code)]

#[path = "base_layer.rs"]
mod base;
#[path = "engine_layer.rs"]
mod engine;
