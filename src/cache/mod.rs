//! Paged KV: the block pool and the storage.
