#[path = "../../../src/engine/replicas/balance.rs"]
pub mod balance;
#[path = "../../../src/engine/replicas/team.rs"]
pub mod team;
