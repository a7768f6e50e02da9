//! SIMD kernels over plain slices with run-time dispatch, and the worker pool.
//!
//! Each kernel takes the instruction set to use. It gives the same bits with any instruction set and any number of
//! threads, and the bits of a row do not depend on the other rows of the call. The portable code is the reference.
//! Floats that are multiplied in parts on matrix tiles (`gemm::tiles::floats`) have bits of their own.

pub mod attention;
pub mod gemm;
pub mod pack;
pub mod pool;
pub mod recurrent;
pub mod rows;
pub mod simd;

pub use gemm::matrix::{Arithmetic, DType, Matrix};
pub use pool::Pool;
pub use simd::isa::{Isa, available, isa};
