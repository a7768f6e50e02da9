//! The device kernels of the operations, grouped by purpose. `cuda/kernels` documents their arguments.

use crate::base::Result;
use crate::device::{Function, Module};
use crate::kernels::Arithmetic;
use crate::kernels::attention::KvType;
use std::sync::Arc;

/// Maximum tokens per block of each of a product's GEMVs.
const GEMV_TOKENS: [usize; 4] = [1, 2, 4, 8];
const HALVES_GEMV_TOKENS: [usize; 4] = [4, 8, 32, 64];
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

/// The types that experts have kernels of.
const OF_EXPERTS: [&str; 9] = ["ternary", "int8", "q8_0", "q4_0", "q4_k", "q6_k", "f32", "f16", "bf16"];

/// How the pairs of a row and one of its experts are cut into tiles of pairs of one expert (`cuda/kernels/experts.cu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// The most pairs of a tile.
    pub tile: usize,
    /// Tiles of a launch, some of which may have no pairs.
    pub slots: usize,
    /// Index among `ProductKernels::experts`.
    kernel: usize,
}

impl Tiling {
    /// The tiles of `pairs` pairs with `experts` experts, whose weights `products` multiply with.
    pub fn new(pairs: usize, experts: usize, products: impl Iterator<Item = usize>) -> Self {
        if pairs <= experts {
            return Self { tile: 1, slots: pairs, kernel: 0 };
        }
        let (tile, kernel) = match pairs <= FEW * experts {
            true => (FEW, 1),
            false => (products.map(|product| PRODUCTS[product].gemm().0[0]).min().unwrap_or(1), 2),
        };
        Self { tile, slots: pairs / tile + experts, kernel }
    }
}

/// Pairs of a tile while experts have few.
const FEW: usize = 4;

/// One of a product's kernels, and the shape of its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Index among the GEMVs; `None`: the GEMM.
    pub gemv: Option<usize>,
    pub grid: [usize; 3],
    pub threads: usize,
    pub shared: usize,
}

impl Product {
    pub fn gemv_tokens(&self) -> [usize; 4] {
        if self.weights == Weights::Halves { HALVES_GEMV_TOKENS } else { GEMV_TOKENS }
    }

    /// Rows of weights per block of the GEMV `which`, its threads, and its shared memory in bytes.
    fn gemv(&self, which: usize) -> (usize, usize, usize) {
        let (outputs, shared) = match self.weights {
            Weights::Whole => ([16, 32, 64, 64][which], 0),
            Weights::Blocks if self.minima => (16, 4752 * GEMV_TOKENS[which] + 2112),
            Weights::Blocks | Weights::Supers => (16, 4224 * GEMV_TOKENS[which]),
            Weights::Scaled => (16, 2112 * GEMV_TOKENS[which]),
            Weights::Dense => ([32, 32, 64, 64][which], 0),
            Weights::Halves => ([16, 32, 32, 64][which], [6144, 10240, 20480, 36864][which]),
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
            Weights::Halves => ([128, 128], 67584),
        }
    }

    /// The launch for `tokens` tokens and matrices with these numbers of `rows`, on a device with `multiprocessors`
    /// multiprocessors. All kernels of a product give the same bits.
    pub fn launch(&self, tokens: usize, rows: &[usize], multiprocessors: usize) -> Launch {
        let blocks = |outputs: usize| rows.iter().map(|rows| rows.div_ceil(outputs)).sum::<usize>();
        let ([tile, outputs], shared) = self.gemm();
        let gemm = [tokens.div_ceil(tile), blocks(outputs), 1];
        let most = self.gemv_tokens();
        let mut gemv = most.iter().position(|most| tokens <= *most);
        if gemv.is_none() && self.weights == Weights::Halves && 2 * gemm[0] * gemm[1] < multiprocessors {
            // The large tiles of the GEMM would use less than half of the device.
            gemv = Some(most.len() - 1);
        }
        let Some(which) = gemv else { return Launch { gemv, grid: gemm, threads: GEMM_THREADS, shared } };
        let (outputs, threads, shared) = self.gemv(which);
        Launch { gemv, grid: [blocks(outputs), tokens.div_ceil(most[which]), 1], threads, shared }
    }

    /// The launch for the tiles of experts whose matrices have these numbers of `rows`. `gemv` is an index among
    /// `ProductKernels::experts`.
    pub fn expert_launch(&self, tiling: Tiling, rows: &[usize]) -> Launch {
        let blocks = |outputs: usize| rows.iter().map(|rows| rows.div_ceil(outputs)).sum::<usize>();
        let (gemv, slots) = (Some(tiling.kernel), tiling.slots);
        if tiling.kernel == 2 {
            let ([_, outputs], shared) = self.gemm();
            return Launch { gemv, grid: [1, blocks(outputs), slots], threads: GEMM_THREADS, shared };
        }
        let (outputs, threads, shared) = self.gemv(self.expert_gemv(tiling.kernel));
        Launch { gemv, grid: [blocks(outputs), 1, slots], threads, shared }
    }

    /// Which GEMV the kernel `which` of experts is like.
    fn expert_gemv(&self, which: usize) -> usize {
        self.gemv_tokens().iter().position(|tokens| *tokens >= [1, FEW][which]).unwrap_or(0)
    }
}

/// The kernels of one of `PRODUCTS`.
pub struct ProductKernels {
    pub gemv: [Function; 4],
    pub gemm: Function,
    /// For experts with one pair a tile, with few, and with many. `None`: there are none.
    pub experts: Option<[Function; 3]>,
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
    pub sample: Function,
    pub route: Function,
    pub group: Function,
    pub mix: Function,
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
            let gemv = all(p.gemv_tokens(), |tokens| of(&format!("gemv_{tokens}")))?;
            let is_dense = p.arithmetic == Arithmetic::Float;
            let embed = if is_dense { named(module, "embed", shared)? } else { of("embed")? };
            let few = |which: usize| of(&format!("experts_{}", p.gemv_tokens()[p.expert_gemv(which)]));
            let experts = || Ok([few(0)?, few(1)?, of("experts_gemm")?]);
            let experts = OF_EXPERTS.contains(&p.name).then(experts).transpose()?;
            Ok(ProductKernels { gemv, gemm: of("gemm")?, experts, embed })
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
            sample: of("sample")?,
            route: of("route")?,
            group: of("group")?,
            mix: of("mix")?,
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

fn all<const N: usize>(of: [usize; N], make: impl Fn(usize) -> Result<Function>) -> Result<[Function; N]> {
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
        let at = |name: &str, tokens, rows: &[usize]| product(name).launch(tokens, rows, 132);
        let gemv = |which, grid, threads, shared| Launch { gemv: Some(which), grid, threads, shared };
        let gemm = |grid, shared| Launch { gemv: None, grid, threads: 256, shared };
        assert_eq!(at("ternary", 3, &[100, 64, 1]), gemv(2, [4, 1, 1], 128, 0));
        assert_eq!(at("ternary", 9, &[100, 129]), gemm([1, 3, 1], 24576));
        assert_eq!(at("f32", 33, &[33]), gemm([2, 2, 1], 32768));
        assert_eq!(at("bf16", 1, &[2048, 17]), gemv(0, [130, 1, 1], 256, 6144));
        assert_eq!(at("f16", 64, &[128256]), gemv(3, [2004, 1, 1], 256, 36864));
        assert_eq!(at("f16", 65, &[128256]), gemm([1, 1002, 1], 67584));
        // 64 tiles would use less than half of 132 multiprocessors.
        assert_eq!(at("bf16", 512, &[2048]), gemv(3, [32, 8, 1], 256, 36864));
        assert_eq!(at("bf16", 513, &[2048]), gemm([5, 16, 1], 67584));
    }

    #[test]
    fn tiles_of_experts_cover_all_pairs() {
        let at = |name: &str, pairs| {
            let of = PRODUCTS.iter().position(|product| product.name == name);
            let tiling = Tiling::new(pairs, 128, of.into_iter());
            (tiling.tile, product(name).expert_launch(tiling, &[768, 768]))
        };
        let launch = |gemv, grid, threads, shared| Launch { gemv: Some(gemv), grid, threads, shared };
        assert_eq!(at("q4_0", 8), (1, launch(0, [96, 1, 8], 128, 4224)));
        assert_eq!(at("q4_0", 129), (4, launch(1, [96, 1, 160], 128, 4 * 4224)));
        assert_eq!(at("q4_0", 513), (64, launch(2, [1, 12, 136], 256, 40960)));
        assert_eq!(at("ternary", 129), (4, launch(1, [24, 1, 160], 128, 0)));
        assert_eq!(at("bf16", 8), (1, launch(0, [96, 1, 8], 256, 6144)));
        assert_eq!(at("bf16", 129), (4, launch(1, [96, 1, 160], 256, 6144)));
    }
}
