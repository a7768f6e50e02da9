//! An engine on several devices has several replicas, each an engine thread with its device. This module chooses
//! the replica of each request and call, and moves waiting requests from busy and sick replicas to others.

pub mod balance;
pub mod blocks;
mod calls;
pub mod placement;
pub mod replica;
pub mod team;
