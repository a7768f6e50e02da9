//! The device kernels of the operations, grouped by purpose. `cuda/kernels` documents their arguments.

use crate::base::Result;
use crate::device::{Function, Module};
use crate::kernels::Arithmetic;
use crate::kernels::attention::KvType;
use std::sync::Arc;

/// Maximum tokens per block of each of a product's GEMVs.
const GEMV_TOKENS: [usize; 4] = [1, 2, 4, 8];
/// The same of products of halves, of which the last two are GEMMs with smaller tiles, that take parts.
const HALVES_TOKENS: [usize; 4] = [4, 8, 32, 64];
/// Segments that a row of halves is summed in, and columns from which on each has some.
pub const SEGMENTS: usize = 8;
const SEGMENTS_COLUMNS: usize = 256;
const GEMV_THREADS: usize = 128;
const GEMM_THREADS: usize = 256;
/// The widest heads of each compiled variant of attention.
pub const HEADS: [usize; 3] = [64, 128, 256];

/// Weight layouts of the kernels (`cuda/kernels/products.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Rows with one scale each.
    Whole,
    /// Blocks with a scale and perhaps a minimum, for activations that have scales in blocks too.
    Blocks,
    Supers,
    /// Blocks with a scale, for activations with one scale per row.
    Scaled,
    /// F32.
    Dense,
    /// F16 and BF16, on tensor cores.
    Halves,
}

/// The types of K and V that kernels read, by their numbers.
const ATTENTION: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

/// A kind of product: the arithmetic of its kernels, and the shape of their launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    pub name: &'static str,
    pub arithmetic: Arithmetic,
    pub weights: Weights,
    /// Bits per weight, which determine how much is staged in shared memory.
    bits: usize,
    minima: bool,
    /// The number of columns is a multiple of this.
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

const fn dense(name: &'static str, weights: Weights, bits: usize, columns: usize) -> Product {
    Product { name, arithmetic: Arithmetic::Float, weights, bits, minima: false, columns }
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
    dense("f32", Weights::Dense, 32, 16),
    dense("f16", Weights::Halves, 16, 8),
    dense("bf16", Weights::Halves, 16, 8),
];

/// Range of the dense ones, in the order of `bn_embed`'s numbers.
pub const DENSE: std::ops::Range<usize> = 16..19;

/// One of a product's kernels, and the shape of its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Index among the GEMVs; `None`: the GEMM.
    pub gemv: Option<usize>,
    pub grid: [usize; 3],
    pub threads: usize,
    pub shared: usize,
    /// Whether activations are split into parts by another kernel before it.
    pub split: bool,
}

impl Product {
    pub fn gemv_tokens(&self) -> [usize; 4] {
        if self.weights == Weights::Halves { HALVES_TOKENS } else { GEMV_TOKENS }
    }

    /// Names of the GEMVs' kernels, and of the GEMM's.
    fn names(&self) -> ([String; 4], &'static str) {
        let halves = self.weights == Weights::Halves;
        let kind = |tokens: usize| if halves && tokens > 8 { "gemm" } else { "gemv" };
        let names = self.gemv_tokens().map(|tokens| format!("{}_{tokens}", kind(tokens)));
        (names, if halves { "gemm_128" } else { "gemm" })
    }

    /// Rows of weights per block of the GEMV `which`, its threads, and its shared memory in bytes.
    fn gemv(&self, which: usize) -> (usize, usize, usize) {
        let (outputs, shared) = match self.weights {
            Weights::Whole => ([16, 32, 64, 64][which], 0),
            Weights::Blocks if self.minima => (16, 4752 * GEMV_TOKENS[which] + 2112),
            Weights::Blocks | Weights::Supers => (16, 4224 * GEMV_TOKENS[which]),
            Weights::Scaled => (16, 2112 * GEMV_TOKENS[which]),
            Weights::Dense => ([32, 32, 64, 64][which], 0),
            Weights::Halves => ([16, 32, 128, 128][which], [6144, 10240, 100_352, 101_376][which]),
        };
        (outputs, if self.weights == Weights::Halves { GEMM_THREADS } else { GEMV_THREADS }, shared)
    }

    /// Tokens and rows of weights per block of the GEMM, and its shared memory in bytes.
    fn gemm(&self) -> ([usize; 2], usize) {
        match self.weights {
            Weights::Whole | Weights::Scaled => ([64, 128], 16384 + 4096 * self.bits),
            Weights::Blocks => ([64, 128], 24576 + 4096 * self.bits + if self.minima { 6144 } else { 0 }),
            Weights::Supers => ([64, 128], 27136 + 4096 * self.bits),
            Weights::Dense => ([32, 32], 32768),
            Weights::Halves => ([128, 128], 76800),
        }
    }

    /// The launch for `tokens` tokens and matrices with these numbers of `rows` of `cols` columns, on a device with
    /// `multiprocessors` multiprocessors. All kernels of a product give the same bits.
    pub fn launch(&self, tokens: usize, rows: &[usize], cols: usize, multiprocessors: usize) -> Launch {
        let blocks = |outputs: usize| rows.iter().map(|rows| rows.div_ceil(outputs)).sum::<usize>();
        let most = self.gemv_tokens();
        let gemv = most.iter().position(|most| tokens <= *most);
        let ([tile, outputs], threads, shared) = match gemv {
            Some(which) => {
                let (outputs, threads, shared) = self.gemv(which);
                ([most[which], outputs], threads, shared)
            }
            None => {
                let (tile, shared) = self.gemm();
                (tile, GEMM_THREADS, shared)
            }
        };
        let (x, y) = (tokens.div_ceil(tile), blocks(outputs));
        let split = self.weights == Weights::Halves && gemv.is_none_or(|which| which >= 2);
        let grid = match gemv {
            Some(_) if !split => [y, x, 1],
            // Where there are fewer than 9/20 of the multiprocessors, blocks share columns until they are 7/10.
            _ if split && cols >= SEGMENTS_COLUMNS && 20 * x * y < 9 * multiprocessors => {
                let shares = [2, 4].into_iter().find(|shares| 10 * x * y * shares >= 7 * multiprocessors);
                [x, y, shares.unwrap_or(SEGMENTS)]
            }
            _ => [x, y, 1],
        };
        Launch { gemv, grid, threads, shared, split }
    }
}

/// The kernels of one of `PRODUCTS`.
pub struct ProductKernels {
    pub gemv: [Function; 4],
    pub gemm: Function,
    /// Makes parts of activations; of halves.
    pub split: Option<Function>,
    /// Reads rows of a table of this type. The dense types share one kernel.
    pub embed: Function,
}

/// Attention's kernels for one type of KV.
pub struct AttentionKernels {
    pub write: Function,
    /// Indexed like `HEADS`.
    pub decode: [Function; 3],
    pub prefill: [Function; 3],
}

pub struct Kernels {
    pub gather_rows: Function,
    pub add: Function,
    pub add_rms_norm: Function,
    pub norm_columns: Function,
    pub add_norm: Function,
    pub add_norm_quantize: Function,
    pub gated_norm: Function,
    pub gated_norm_quantize: Function,
    pub quantize_blocks32: Function,
    pub quantize_blocks256: Function,
    pub merge: Function,
    pub add_segments: Function,
    pub sample: Function,
    /// Indexed like `DENSE`.
    pub lora_up: [Function; 3],
    /// Indexed like `PRODUCTS`.
    pub products: Vec<ProductKernels>,
    /// Indexed by `KvType`.
    pub attention: Vec<AttentionKernels>,
}

impl Kernels {
    /// Looks up all kernels in `module`. `shared`: maximum bytes of dynamic shared memory that the device has for a
    /// block.
    pub fn new(module: &Arc<Module>, shared: usize) -> Result<Self> {
        let of = |name: &str| named(module, name, shared);
        let product = |p: &Product| {
            let of = |which: &str| named(module, &format!("{}_{which}", p.name), shared);
            let (gemvs, gemm) = p.names();
            let gemv = all(gemvs, |name| of(&name))?;
            let split = (p.weights == Weights::Halves).then(|| of("split")).transpose()?;
            let is_dense = p.arithmetic == Arithmetic::Float;
            let embed = if is_dense { named(module, "embed", shared)? } else { of("embed")? };
            Ok(ProductKernels { gemv, gemm: of(gemm)?, split, embed })
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
            norm_columns: of("norm_columns")?,
            add_norm: of("add_norm")?,
            add_norm_quantize: of("add_norm_quantize")?,
            gated_norm: of("gated_norm")?,
            gated_norm_quantize: of("gated_norm_quantize")?,
            quantize_blocks32: of("quantize_blocks32")?,
            quantize_blocks256: of("quantize_blocks256")?,
            merge: of("attention_merge")?,
            add_segments: of("add_segments")?,
            sample: of("sample")?,
            lora_up: [of("lora_up_f32")?, of("lora_up_f16")?, of("lora_up_bf16")?],
            products: PRODUCTS.iter().map(product).collect::<Result<_>>()?,
            attention: ATTENTION.iter().map(attention).collect::<Result<_>>()?,
        })
    }
}

/// Looks up one kernel and allows it `shared` bytes of dynamic shared memory.
fn named(module: &Arc<Module>, name: &str, shared: usize) -> Result<Function> {
    let function = module.function(&format!("bn_{name}"))?;
    function.allow_shared(shared as u32)?;
    Ok(function)
}

fn all<T, const N: usize>(of: [T; N], make: impl Fn(T) -> Result<Function>) -> Result<[Function; N]> {
    let made = of.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    Ok(made.try_into().unwrap_or_else(|_| unreachable!("one for each")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(name: &str) -> &'static Product {
        PRODUCTS.iter().find(|product| product.name == name).unwrap()
    }

    #[test]
    fn launches_cover_all_outputs() {
        let at = |name: &str, tokens, rows: &[usize]| product(name).launch(tokens, rows, 2048, 132);
        let gemv =
            |which, grid, threads, shared| Launch { gemv: Some(which), grid, threads, shared, split: false };
        let gemm = |grid, shared| Launch { gemv: None, grid, threads: 256, shared, split: false };
        assert_eq!(at("ternary", 3, &[100, 64, 1]), gemv(2, [4, 1, 1], 128, 0));
        assert_eq!(at("ternary", 9, &[100, 129]), gemm([1, 3, 1], 24576));
        assert_eq!(at("f32", 33, &[33]), gemm([2, 2, 1], 32768));
        assert_eq!(at("bf16", 1, &[2048, 17]), gemv(0, [130, 1, 1], 256, 6144));
        let parts = |gemv, grid, shared| Launch { gemv, grid, threads: 256, shared, split: true };
        assert_eq!(at("f16", 64, &[128256]), parts(Some(3), [1, 1002, 1], 101_376));
        assert_eq!(at("f16", 65, &[128256]), parts(None, [1, 1002, 1], 76800));
        // Few blocks share the columns.
        assert_eq!(at("bf16", 9, &[3072]), parts(Some(2), [1, 24, 4], 100_352));
        assert_eq!(at("bf16", 64, &[2048]), parts(Some(3), [1, 16, 8], 101_376));
        assert_eq!(at("bf16", 512, &[2048]), parts(None, [4, 16, 1], 76800));
        assert_eq!(at("bf16", 256, &[3072]), parts(None, [2, 24, 2], 76800));
        assert_eq!(product("bf16").launch(64, &[2048], 248, 132), parts(Some(3), [1, 16, 1], 101_376));
    }
}
