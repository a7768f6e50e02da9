//! The prefix cache's tier on disk: blocks and states that left memory, each in a file of its own.
//!
//! Files are found by the keys of the prefix index, and read only as what they are wanted for: a record names its scope
//! (the model, the types and the layout), its salt, its parent's key and its contents, and has a checksum. So a
//! damaged, foreign or old file is a miss. The files may be in the machine's memory instead, for devices. One thread
//! reads and writes; engine threads order and collect.

mod folder;
mod host;
mod index;
mod record;
mod store;

pub use folder::{Claim, Files, Folder};
pub use host::Host;
pub use index::Name;
pub use record::Place;
pub use store::{Arrival, Bounds, DiskCounts, Port, Sizes, Store};

use crate::base::Result;

/// A unit of memory that has records of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Block,
    State,
}

/// A tier below the memory of the prefix index, as the scheduler sees it.
pub trait Lower: Send {
    fn has(&self, name: Name) -> bool;
    /// Predicted nanoseconds until this many more records have been read.
    fn read_ns(&self, blocks: usize, states: usize) -> f64;
    /// Orders a record. It arrives later, under the ticket and the index.
    fn order(&mut self, ticket: u64, index: u32, place: Place) -> Result<()>;
    /// Withdraws the orders under a ticket. Some of them may arrive all the same.
    fn cancel(&mut self, ticket: u64);
}

impl Place {
    pub fn name(&self) -> Name {
        Name { kind: self.kind, key: self.key }
    }
}
