#[path = "../../../src/kernels/pool.rs"]
pub mod pool;
#[cfg(test)]
#[path = "../../../src/kernels/pool_tests.rs"]
mod pool_tests;
#[allow(unused_imports)]
pub use pool::Pool;
