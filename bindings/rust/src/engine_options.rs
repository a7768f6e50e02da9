//! How an engine's options reach the library.
use crate::handle::Keep;
use crate::settings::EngineOptions;
use crate::shared::on_event;
use crate::{log, span, sys};
use std::mem::{MaybeUninit, size_of};

/// The type of keys and values in the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum KvType {
    /// Half precision.
    #[default]
    F16 = sys::BN_KV_TYPE_F16,
    /// Single precision.
    F32 = sys::BN_KV_TYPE_F32,
    /// 8 bits: half of the memory of `F16`, and less precise.
    Int8 = sys::BN_KV_TYPE_INT8,
    /// 4 bits: half of the memory of `Int8`, and less precise. Not on NVIDIA devices.
    Int4 = sys::BN_KV_TYPE_INT4,
}

/// The instruction set that kernels use. Results are bitwise the same with any; one that the machine lacks is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Instructions {
    /// The best that the machine has.
    #[default]
    Auto = sys::BN_INSTRUCTIONS_AUTO,
    /// Portable code.
    Scalar = sys::BN_INSTRUCTIONS_SCALAR,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2 = sys::BN_INSTRUCTIONS_AVX2,
    /// AVX2 and AVX-VNNI.
    AvxVnni = sys::BN_INSTRUCTIONS_AVX_VNNI,
    /// AVX2 and AVX-512 F, BW, VL and VNNI.
    Avx512Vnni = sys::BN_INSTRUCTIONS_AVX512_VNNI,
    /// The same and AVX-512 VBMI.
    Avx512Vbmi = sys::BN_INSTRUCTIONS_AVX512_VBMI,
    /// The same and AMX tiles of bytes.
    Amx = sys::BN_INSTRUCTIONS_AMX,
    /// aarch64 NEON with dot products.
    Neon = sys::BN_INSTRUCTIONS_NEON,
    /// NEON, and products of matrices of int8 (i8mm).
    NeonI8mm = sys::BN_INSTRUCTIONS_NEON_I8MM,
}

fn defaults() -> sys::bn_engine_config {
    let mut config = MaybeUninit::<sys::bn_engine_config>::zeroed();
    // SAFETY: the library fills a struct of this size, and one of zeros is a valid one.
    unsafe {
        sys::bn_engine_config_init(config.as_mut_ptr(), size_of::<sys::bn_engine_config>() as u32);
        config.assume_init()
    }
}

impl Default for EngineOptions {
    /// The embedded model, and the library's defaults.
    fn default() -> Self {
        Self::of(&defaults())
    }
}

impl EngineOptions {
    /// Everything that the engine's threads will use.
    pub(crate) fn keep(&self) -> Keep {
        Keep {
            log: self.log.clone(),
            on_span: self.on_span.clone(),
            _models: [self.model.clone(), self.draft_model.clone()],
        }
    }

    /// Valid while this is, with hooks that are valid while `keep` is and does not move.
    pub(crate) fn raw(&self, keep: &Keep) -> sys::bn_engine_config {
        let mut config = defaults();
        self.set(&mut config);
        (config.log, config.log_context) = log::hook(keep.log.as_ref());
        (config.on_span, config.on_span_context) = span::hook(keep.on_span.as_ref());
        config.on_event = Some(on_event);
        config
    }
}
