//! The kinds of layers. Each file has one kind: its weights, how they are read, and how a step runs them.

pub mod attention;
pub mod delta_net;
pub mod experts;
pub mod gated;
mod inputs;
mod inventory;
mod kind;
mod latent;
mod layer;
pub mod mamba;
pub mod mtp;
mod products;
mod read;
mod ropes;
mod short_conv;
mod step;

pub use inputs::LayerInputs;
pub use inventory::{Inventory, Product};
pub use layer::Layer;
pub use mtp::Mtp;
pub use products::{Products, Update};
pub use ropes::Ropes;
pub use step::Step;
