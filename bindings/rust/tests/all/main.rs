//! Tests of the package against the library. Numbers in comments are those of the list in `bindings/README.md`.
mod adapters;
mod answers;
mod cache;
mod callbacks;
mod chats;
mod constraints;
mod embeddings;
mod errors;
mod generated;
#[rustfmt::skip]
mod layout;
mod lifetimes;
mod many;
mod models;
mod pictures;
mod running;
mod sampling;
mod speculation;
mod streams;
mod support;
