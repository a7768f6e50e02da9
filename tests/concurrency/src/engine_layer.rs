#![allow(unused_imports)]

#[path = "../../../src/engine/hub/mod.rs"]
pub mod hub;
#[path = "memory_folder.rs"]
pub mod memory;
#[path = "replicas_folder.rs"]
pub mod replicas;
