//! SIMD over plain slices with run-time dispatch, and the worker pool.
//!
//! Each kernel takes the instruction set to use and gives the same bits with any of them, with any
//! number of threads, and for a row whatever other rows come along. The portable one is the reference.

pub mod attention;
pub mod gemm;
pub mod pack;
pub mod pool;
pub mod rows;
pub mod simd;

pub use gemm::matrix::{Arithmetic, DType, Matrix};
pub use pool::Pool;
pub use simd::isa::{Isa, available, isa};
