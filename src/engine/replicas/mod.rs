//! An engine on several devices has several replicas, each an engine thread with its device. This room decides which
//! of them gets a request.

pub mod balance;
pub mod health;
pub mod placement;
