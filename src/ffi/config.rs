//! `bn_engine_config`, and its conversion to `EngineConfig`.

use super::callbacks::{bn_event_callback, bn_log_callback, bn_span_callback};
use super::event::bn_event;
use super::growth::grown;
use super::guard;
use super::log::log_sink;
use super::model::path;
use super::registry;
use super::span::span_sink;
use super::speculation::speculation;
use super::types::*;
use crate::base::{Error, Result};
use crate::engine::api::{EngineConfig, EventSink, Isa, KvType, LOG_WARN};
use crate::engine::settings::settings;
use crate::model::Loaded;
use std::ffi::c_void;

/// Half precision.
pub const BN_KV_TYPE_F16: u32 = 0;
/// Single precision.
pub const BN_KV_TYPE_F32: u32 = 1;
/// int8, with a scale for each token and head, after a Walsh-Hadamard transform of the head: half
/// of the memory of F16, and less precise.
pub const BN_KV_TYPE_INT8: u32 = 2;
/// Four bits, with a scale for 32 elements of a head, transformed like int8: half of the memory of
/// int8, and less precise. Not on NVIDIA devices.
pub const BN_KV_TYPE_INT4: u32 = 3;

/// The best that the machine has.
pub const BN_INSTRUCTIONS_AUTO: u32 = 0;
/// Portable code.
pub const BN_INSTRUCTIONS_SCALAR: u32 = 1;
/// x86-64 with AVX2, FMA and F16C.
pub const BN_INSTRUCTIONS_AVX2: u32 = 2;
/// AVX2 and AVX-VNNI.
pub const BN_INSTRUCTIONS_AVX_VNNI: u32 = 3;
/// AVX2 and AVX-512 F, BW, VL and VNNI.
pub const BN_INSTRUCTIONS_AVX512_VNNI: u32 = 4;
/// AVX512_VNNI and AVX-512 VBMI, which looks up the entries of codebook weights (IQ2, IQ3).
pub const BN_INSTRUCTIONS_AVX512_VBMI: u32 = 5;
/// AVX512_VBMI and AMX tiles of bytes, if the system lets the process use them. An engine that
/// wants them, by default too, asks when it is created: from then on the system refuses signal
/// stacks (`sigaltstack`) without room for tiles, some 11 KiB.
pub const BN_INSTRUCTIONS_AMX: u32 = 6;
/// aarch64 NEON with dot products.
pub const BN_INSTRUCTIONS_NEON: u32 = 7;
/// NEON, and products of matrices of int8 (i8mm).
pub const BN_INSTRUCTIONS_NEON_I8MM: u32 = 8;

/// Makes `bn_engine_config` of the table of settings, and takes the numbers of an `EngineConfig` from it.
macro_rules! engine_config {
    ($(#[doc = $about:literal])+ pub struct $engine:ident {$(
        $(#[doc = $doc:literal])+
        $field:ident: $c:ty $(, $context:ident: $pointer:ty)?
            $(=> $rust:ty)? $(= $default:expr $(, $range:expr)?)?;
    )+}) => {
        $(#[doc = $about])+
        #[repr(C)]
        pub struct bn_engine_config {
            pub struct_size: u32,
            $($(#[doc = $doc])+ pub $field: $c, $(pub $context: $pointer,)?)+
        }

        grown!(bn_engine_config { struct_size, $($field, $($context,)?)+ } $($(, $field: $default)?)+);

        impl bn_engine_config {
            fn numbers(&self) -> $engine {
                $engine {
                    $($($field: engine_config!(@first self.$field, $default),)?)+
                    ..$engine::default()
                }
            }
        }
    };
    (@first $first:expr, $second:expr) => { $first };
}
settings!(engine_config);

/// The value that a constant `family_*` stands for.
pub(super) fn choice<T: Copy>(field: &str, value: u32, family: &str, choices: &[(u32, T)]) -> Result<T> {
    let found = choices.iter().find(|(number, _)| *number == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let (low, high) = (choices[0].0, choices[choices.len() - 1].0);
        Error::invalid(format!("{field} is {value}; it is a {family}_*, {low} to {high}"))
    })
}

impl bn_engine_config {
    /// # Safety
    /// Pointers are NULL or as the fields say.
    pub(super) unsafe fn as_engine(&self) -> Result<EngineConfig> {
        // SAFETY: the caller's promise.
        let model_path = unsafe { path("model_path", self.model_path) }?;
        let model = match (self.model.is_null(), model_path) {
            (true, _) => None,
            (false, None) => Some((*registry::model(self.model)?).clone()),
            (false, Some(_)) => return Err(Error::invalid("model and model_path are both set")),
        };
        let kv_types = [
            (BN_KV_TYPE_F16, KvType::F16),
            (BN_KV_TYPE_F32, KvType::F32),
            (BN_KV_TYPE_INT8, KvType::Int8),
            (BN_KV_TYPE_INT4, KvType::Int4),
        ];
        Ok(EngineConfig {
            model,
            model_path: model_path.map(str::to_owned),
            // SAFETY: the caller's promise.
            model_name: unsafe { guard::optional_text("model_name", self.model_name) }?.map(str::to_owned),
            draft_model: self.draft_model()?,
            // SAFETY: the caller's promise.
            device: unsafe { guard::optional_text("device", self.device) }?.unwrap_or_default().to_owned(),
            instructions: self.instructions()?,
            kv_type: choice("kv_type", self.kv_type, "BN_KV_TYPE", &kv_types)?,
            speculation: speculation(self.speculation)?,
            log: log_sink(self.log, self.log_context),
            on_event: self.event_sink(),
            on_span: span_sink(self.on_span, self.on_span_context),
            // SAFETY: the caller's promise.
            cache_path: unsafe { path("cache_path", self.cache_path) }?.map(str::to_owned),
            ..self.numbers()
        })
    }

    fn draft_model(&self) -> Result<Option<Loaded>> {
        match self.draft_model.is_null() {
            true => Ok(None),
            false => Ok(Some((*registry::model(self.draft_model)?).clone())),
        }
    }

    fn instructions(&self) -> Result<Option<Isa>> {
        let sets = [
            (BN_INSTRUCTIONS_AUTO, None),
            (BN_INSTRUCTIONS_SCALAR, Some(Isa::Scalar)),
            (BN_INSTRUCTIONS_AVX2, Some(Isa::Avx2)),
            (BN_INSTRUCTIONS_AVX_VNNI, Some(Isa::AvxVnni)),
            (BN_INSTRUCTIONS_AVX512_VNNI, Some(Isa::Avx512Vnni)),
            (BN_INSTRUCTIONS_AVX512_VBMI, Some(Isa::Avx512Vbmi)),
            (BN_INSTRUCTIONS_AMX, Some(Isa::Amx)),
            (BN_INSTRUCTIONS_NEON, Some(Isa::Neon)),
            (BN_INSTRUCTIONS_NEON_I8MM, Some(Isa::NeonI8mm)),
        ];
        choice("instructions", self.instructions, "BN_INSTRUCTIONS", &sets)
    }

    fn event_sink(&self) -> Option<EventSink> {
        let call = self.on_event?;
        let context = Context::new(self.on_event_context);
        Some(Box::new(move |event| {
            let event = bn_event::new(event, std::ptr::null_mut(), 0);
            // SAFETY: the header's contract for `on_event`; `event` outlives the call.
            unsafe { call(&event, context.get()) }
        }))
    }
}
