//! SIMD over plain slices with run-time dispatch, and the worker pool. `scalar` is each one's reference.
//!
//! Each kernel takes the instruction set to use and gives the same bits with any of them, with any
//! number of threads, and for a row whatever other rows come along.

pub mod attention;
pub mod blocks;
pub mod buffer;
#[cfg(target_arch = "x86_64")]
mod decode_avx2;
#[cfg(target_arch = "aarch64")]
mod decode_neon;
pub mod dense;
#[cfg(target_arch = "x86_64")]
mod dense_avx2;
#[cfg(target_arch = "aarch64")]
mod dense_neon;
#[cfg(test)]
mod dense_tests;
pub mod dispatch;
pub mod elementwise;
pub mod exp;
#[cfg(test)]
mod golden_tests;
pub mod kv;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
pub mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod norm;
pub mod pack;
pub mod pool;
#[cfg(test)]
mod pool_tests;
pub mod quantize;
pub mod quantize_blocks;
pub mod quantized;
#[cfg(target_arch = "x86_64")]
mod quantized_avx2;
#[cfg(target_arch = "x86_64")]
mod quantized_avx512;
#[cfg(target_arch = "x86_64")]
mod quantized_k_avx2;
#[cfg(target_arch = "x86_64")]
mod quantized_k_avx512;
#[cfg(target_arch = "x86_64")]
mod quantized_k_panel;
#[cfg(target_arch = "aarch64")]
mod quantized_neon;
#[cfg(target_arch = "x86_64")]
mod quantized_pairs_avx2;
#[cfg(test)]
mod quantized_tests;
mod quants;
pub mod requantize;
pub mod rope;
pub mod rows;
pub mod ternary;
#[cfg(target_arch = "x86_64")]
mod ternary_256;
#[cfg(target_arch = "x86_64")]
mod ternary_avx2;
#[cfg(target_arch = "x86_64")]
mod ternary_avx512;
#[cfg(target_arch = "aarch64")]
mod ternary_neon;
#[cfg(test)]
mod ternary_tests;
pub mod tl;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use dispatch::{Isa, available, isa};
pub use matrix::{Arithmetic, DType, Matrix};
pub use pool::Pool;
