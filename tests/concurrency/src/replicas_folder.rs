#[path = "../../../src/engine/replicas/balance.rs"]
pub mod balance;
