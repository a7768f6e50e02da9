//! Matrix tiles on arrays, with each set's vectors beside them.

use super::amx::{Model, Set};
use super::bytes::Portable;
use super::{ints, lanes};

macro_rules! models {
    ($($name:ident: $bytes:ty, $wide:ty;)+) => {$(
        pub struct $name;
        impl Set for $name {
            type Tiles = Model;
            type Lanes = lanes::$name;
            type Bytes = $bytes;
            type Wide = $wide;
            type Ints = ints::$name;
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
models! {
    Avx512: std::arch::x86_64::__m256i, std::arch::x86_64::__m512i;
    Avx2: std::arch::x86_64::__m256i, Portable<64>;
}
#[cfg(target_arch = "aarch64")]
models! { Neon: super::bytes::Neon, Portable<64>; }
