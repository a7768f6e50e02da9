//! Which instructions this machine has.

use once_cell::sync::Lazy;

/// The instruction sets that kernels are written for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable code, the reference.
    Scalar,
    /// AVX2, FMA and F16C on x86-64. Only to be passed where `isa()` returned it: kernels rely on it
    /// without looking again. Elsewhere than on x86-64 kernels read it as `Scalar`.
    Avx2,
}

static DETECTED: Lazy<Isa> = Lazy::new(detect);

/// The best set of this machine.
pub fn isa() -> Isa {
    *DETECTED
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let all = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    if all { Isa::Avx2 } else { Isa::Scalar }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Scalar
}
