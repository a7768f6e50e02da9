#[path = "../../../src/engine/hub.rs"]
pub mod hub;
#[path = "../../../src/engine/ids.rs"]
pub mod ids;
#[path = "../../../src/engine/inbox.rs"]
pub mod inbox;
