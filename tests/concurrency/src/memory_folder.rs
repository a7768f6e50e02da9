#[path = "../../../src/engine/memory/grants.rs"]
pub mod grants;
