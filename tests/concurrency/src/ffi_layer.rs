#![allow(unused_imports)]

#[path = "../../../src/ffi/growth.rs"]
pub mod growth;
#[path = "../../../src/ffi/guard.rs"]
pub mod guard;
#[path = "../../../src/ffi/status.rs"]
#[allow(non_camel_case_types)]
pub mod status;
#[path = "../../../src/ffi/string.rs"]
#[allow(non_camel_case_types)]
pub mod string;
