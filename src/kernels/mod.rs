//! SIMD over plain slices with run-time dispatch, and the worker pool. `scalar` is each one's reference.
//!
//! Each kernel takes the instruction set to use and gives the same bits with any of them, with any
//! number of threads, and for a row whatever other rows come along.

pub mod attention;
pub mod blocks;
pub mod dense;
pub mod dispatch;
pub mod elementwise;
pub mod exp;
pub mod matrix;
pub mod norm;
pub mod pool;
pub mod quantize;
pub mod rope;
pub mod rows;
pub mod ternary;

pub use dispatch::{Isa, isa};
pub use matrix::{DType, Matrix};
pub use pool::Pool;
