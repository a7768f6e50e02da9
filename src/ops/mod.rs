//! The operations of models: their lists (`pass`), and the backends that run them.

mod attention;
pub mod batch;
mod blend;
mod cpu;
mod cuda;
mod delta;
mod embed;
mod encode;
mod experts;
mod fold;
mod kv;
mod latent;
mod linear;
pub mod lora;
mod mamba;
mod memory;
mod mixture;
mod net;
mod paging;
pub mod pass;
mod prepare;
mod recurrence;
mod rows;
mod set;
mod short_conv;
mod size;
mod spans;
mod state;
mod tensors;
mod tiles;
mod types;
mod weight;

pub use batch::{
    Draw, Draws, Edit, MAX_EDITS, MAX_LISTED, MAX_TOPS, Outputs, RaggedBatch, Report, Reported, SeqRows,
    StateRows,
};
pub use blend::{Blends, Tap};
pub use cpu::CpuOps;
pub use cuda::CudaOps;
pub use delta::{DeltaNet, DeltaShape, MAX_HEAD};
pub use experts::{Choice, Expert, Experts, Gate, Groups, Shared};
pub use fold::{Fold, Regrouped};
pub use kv::{KvLayers, KvLayout};
pub use latent::{Latent, LatentShape};
pub use lora::{Adapted, Lora, Site, Slot};
pub use mamba::{Mamba, MambaFactors, MambaNorm, MambaShape};
pub use memory::{HostMemory, Memory, MemoryLayout, Unit};
pub use net::{Host, Net};
pub use paging::Paging;
pub use recurrence::RecurrentScratch;
pub use rows::On;
pub use set::OpSet;
pub use short_conv::{ConvShape, ShortConv};
pub use size::{Extent, step_bytes};
pub use spans::Span;
pub use state::{Accepted, Kept, StateLayout, StatePart, StateShape};
pub use types::{
    Activation, Attention, AttentionShape, Axes, HeadOrder, Norm, Projections, Rope, RopeStyle, Temperature,
};
pub use weight::{Distinct, Weight};
