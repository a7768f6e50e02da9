//! Matrix tiles on arrays, with each set's vectors beside them.

use super::amx::{Model, Set};
use super::wide::Many;
use super::{ints, lanes};

macro_rules! models {
    ($($name:ident: $wide:ty;)+) => {$(
        pub struct $name;
        impl Set for $name {
            type Tiles = Model;
            type Lanes = lanes::$name;
            type Wide = $wide;
            type Ints = ints::$name;
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
models! {
    Avx512: std::arch::x86_64::__m512i;
    Avx2: Many<std::arch::x86_64::__m256i, 2>;
}
#[cfg(target_arch = "aarch64")]
models! { Neon: Many<std::arch::aarch64::uint8x16_t, 4>; }
