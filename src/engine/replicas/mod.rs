//! An engine on several devices has several replicas, each an engine thread with its device. This module chooses
//! the replica of each request and call, and moves the waiting requests of a replica that fails to others.

pub(super) mod balance;
pub(super) mod blocks;
mod calls;
pub(super) mod placement;
pub(super) mod replica;
pub(super) mod team;
