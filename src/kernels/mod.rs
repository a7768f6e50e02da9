//! SIMD over plain slices with run-time dispatch, and the worker pool. `scalar` is each one's reference.

pub mod matrix;
pub mod pool;

pub use matrix::{DType, Matrix};
pub use pool::Pool;
