//! See Cargo.toml.
#![allow(dead_code)]

#[path = "base_layer.rs"]
mod base;
#[path = "engine_layer.rs"]
mod engine;
// Code that reads and writes the caller's memory, for Miri.
#[cfg(not(loom))]
#[path = "ffi_layer.rs"]
mod ffi;
// The worker pool, which has unsafe code and lock-free parts of its own.
#[cfg(not(loom))]
#[path = "kernels_layer.rs"]
mod kernels;
