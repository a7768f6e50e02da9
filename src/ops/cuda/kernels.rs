//! The device kernels that operations launch, by what they are for; `cuda/kernels` says what each takes.

use crate::base::Result;
use crate::device::{Function, Module};
use crate::kernels::Arithmetic;
use crate::kernels::attention::KvType;
use std::sync::Arc;

/// Rows that a GEMV takes at most.
pub const GEMV_ROWS: [usize; 4] = [1, 2, 4, 8];
/// The widest heads that attention is compiled for.
pub const HEADS: [usize; 3] = [64, 128, 256];

/// How kernels have weights (`cuda/kernels/products.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Rows with a scale each.
    Whole,
    /// In blocks with a scale, and perhaps a minimum, for activations that have scales in blocks too.
    Blocks,
    Supers,
    /// In blocks with a scale, for activations with a scale for each row.
    Scaled,
    Dense,
}

/// What kernels of a product compute with, and the shape of their launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    pub name: &'static str,
    pub arithmetic: Arithmetic,
    pub weights: Weights,
    /// Of a weight; what is staged in shared memory goes by it.
    bits: usize,
    minima: bool,
    /// Columns are a multiple of it.
    pub columns: usize,
}

const fn whole(name: &'static str, arithmetic: Arithmetic, bits: usize) -> Product {
    Product { name, arithmetic, weights: Weights::Whole, bits, minima: false, columns: 128 }
}

const fn blocks(name: &'static str, bits: usize, minima: bool, columns: usize) -> Product {
    Product { name, arithmetic: Arithmetic::Blocks32, weights: Weights::Blocks, bits, minima, columns }
}

const fn supers(name: &'static str, bits: usize) -> Product {
    Product {
        name,
        arithmetic: Arithmetic::Blocks256,
        weights: Weights::Supers,
        bits,
        minima: false,
        columns: 256,
    }
}

const fn dense(name: &'static str, bits: usize) -> Product {
    Product { name, arithmetic: Arithmetic::Float, weights: Weights::Dense, bits, minima: false, columns: 16 }
}

const TQ2_0: Product = Product {
    name: "tq2_0",
    arithmetic: Arithmetic::Ternary,
    weights: Weights::Scaled,
    bits: 2,
    minima: false,
    columns: 256,
};

pub const PRODUCTS: [Product; 19] = [
    whole("ternary", Arithmetic::Ternary, 2),
    whole("int8", Arithmetic::Int8, 8),
    TQ2_0,
    blocks("q8_0", 8, false, 32),
    blocks("q4_0", 4, false, 32),
    blocks("q4_1", 4, true, 32),
    blocks("q5_0", 5, false, 32),
    blocks("q5_1", 5, true, 32),
    blocks("q2_0", 2, false, 64),
    blocks("q2_0_128", 2, false, 128),
    blocks("q1_0", 1, false, 128),
    supers("q2_k", 2),
    supers("q3_k", 3),
    supers("q4_k", 4),
    supers("q5_k", 5),
    supers("q6_k", 6),
    dense("f32", 32),
    dense("f16", 16),
    dense("bf16", 16),
];

/// The dense ones, in the order in which `bn_embed` numbers them.
pub const DENSE: std::ops::Range<usize> = 16..19;

impl Product {
    /// Rows of weights that a block of the GEMV for `GEMV_ROWS[which]` rows has, and its shared memory.
    pub fn gemv(&self, which: usize) -> (usize, usize) {
        match self.weights {
            Weights::Whole => ([16, 32, 64, 64][which], 0),
            Weights::Blocks if self.minima => (16, 4752 * GEMV_ROWS[which] + 2112),
            Weights::Blocks | Weights::Supers => (16, 4224 * GEMV_ROWS[which]),
            Weights::Scaled => (16, 2112 * GEMV_ROWS[which]),
            Weights::Dense => ([32, 32, 64, 64][which], 0),
        }
    }

    /// Tokens and rows of weights that a block of the GEMM has, and its shared memory.
    pub fn gemm(&self) -> ([usize; 2], usize) {
        match self.weights {
            Weights::Whole | Weights::Scaled => ([64, 128], 16384 + 4096 * self.bits),
            Weights::Blocks => ([64, 128], 24576 + 4096 * self.bits + if self.minima { 6144 } else { 0 }),
            Weights::Supers => ([64, 128], 27136 + 4096 * self.bits),
            Weights::Dense => ([32, 32], 16384 + 512 * self.bits),
        }
    }
}

/// The kernels of one of `PRODUCTS`.
pub struct ProductKernels {
    pub gemv: [Function; 4],
    pub gemm: Function,
    /// Rows of a table of this type; the dense ones share one.
    pub embed: Function,
}

/// Attention for one type of KV.
pub struct AttentionKernels {
    pub write: Function,
    /// By `HEADS`.
    pub decode: [Function; 3],
    pub prefill: [Function; 3],
}

pub struct Kernels {
    pub gather_rows: Function,
    pub add: Function,
    pub add_rms_norm: Function,
    pub add_norm: Function,
    pub add_norm_quantize: Function,
    pub gated_norm: Function,
    pub gated_norm_quantize: Function,
    pub quantize_blocks32: Function,
    pub quantize_blocks256: Function,
    pub merge: Function,
    pub sample: Function,
    /// Of `DENSE`.
    pub lora_up: [Function; 3],
    /// As `PRODUCTS`.
    pub products: Vec<ProductKernels>,
    /// By `KvType`.
    pub attention: Vec<AttentionKernels>,
}

impl Kernels {
    /// Those of `module`; `shared`: the dynamic shared memory that the device has for a block, at most.
    pub fn new(module: &Arc<Module>, shared: usize) -> Result<Self> {
        let of = |name: &str| named(module, name, shared);
        let product = |p: &Product| {
            let of = |which: &str| named(module, &format!("{}_{which}", p.name), shared);
            let gemv = all(GEMV_ROWS, |rows| of(&format!("gemv_{rows}")))?;
            let is_dense = p.arithmetic == Arithmetic::Float;
            let embed = if is_dense { named(module, "embed", shared)? } else { of("embed")? };
            Ok(ProductKernels { gemv, gemm: of("gemm")?, embed })
        };
        let attention = |kind: &KvType| {
            let kind = kind.name();
            let of_heads = |which: &str| all(HEADS, |heads| of(&format!("attention_{which}_{kind}_{heads}")));
            let write = of(&format!("rope_kv_write_{kind}"))?;
            Ok(AttentionKernels { write, decode: of_heads("decode")?, prefill: of_heads("prefill")? })
        };
        Ok(Self {
            gather_rows: of("gather_rows")?,
            add: of("add")?,
            add_rms_norm: of("add_rms_norm")?,
            add_norm: of("add_norm")?,
            add_norm_quantize: of("add_norm_quantize")?,
            gated_norm: of("gated_norm")?,
            gated_norm_quantize: of("gated_norm_quantize")?,
            quantize_blocks32: of("quantize_blocks32")?,
            quantize_blocks256: of("quantize_blocks256")?,
            merge: of("attention_merge")?,
            sample: of("sample")?,
            lora_up: [of("lora_up_f32")?, of("lora_up_f16")?, of("lora_up_bf16")?],
            products: PRODUCTS.iter().map(product).collect::<Result<_>>()?,
            attention: KvType::ALL.iter().map(attention).collect::<Result<_>>()?,
        })
    }
}

/// One kernel, which may have so much dynamic shared memory.
fn named(module: &Arc<Module>, name: &str, shared: usize) -> Result<Function> {
    let function = module.function(&format!("bn_{name}"))?;
    function.allow_shared(shared as u32)?;
    Ok(function)
}

fn all<const N: usize>(of: [usize; N], make: impl Fn(usize) -> Result<Function>) -> Result<[Function; N]> {
    let made = of.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    Ok(made.try_into().unwrap_or_else(|_| unreachable!("one for each")))
}
