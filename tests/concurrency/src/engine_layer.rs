#[path = "../../../src/engine/grants.rs"]
pub mod grants;
#[path = "../../../src/engine/hub.rs"]
pub mod hub;
#[path = "../../../src/engine/ids.rs"]
pub mod ids;
#[path = "../../../src/engine/slots.rs"]
pub mod slots;
