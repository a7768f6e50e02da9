//! The operations on an NVIDIA device. They take the same steps as `CpuOps`, with the kernels of
//! `cuda/kernels`. The bits are the same, except for products of F16 and BF16 weights and attention with KV
//! in F16.
//!
//! All work is given to one stream, so each operation sees the results of earlier ones. The host waits only
//! when it reads.

mod attention;
mod draw;
mod experts;
mod gates;
mod graphs;
mod inputs;
mod kernels;
mod launch;
mod linear;
mod lora;
mod memory;
mod ops;
mod parts;
mod recur;
mod repack;
mod set;
mod spans;
mod weights;

pub use ops::CudaOps;
