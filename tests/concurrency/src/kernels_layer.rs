#[path = "../../../src/kernels/pool/mod.rs"]
pub mod pool;
#[allow(unused_imports)]
pub use pool::Pool;
