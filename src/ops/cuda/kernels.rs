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
pub(super) const SEGMENTS: usize = 8;
const SEGMENTS_COLUMNS: usize = 256;
const GEMV_THREADS: usize = 128;
const GEMM_THREADS: usize = 256;
/// The widest heads of each compiled variant of attention.
pub(super) const HEADS: [usize; 3] = [64, 128, 256];

/// Weight layouts of the kernels (`cuda/kernels/products.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
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
pub(super) struct Product {
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

pub(super) const PRODUCTS: [Product; 22] = [
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
    blocks("iq4_nl", 4, false, 32),
    blocks("mxfp4", 4, false, 32),
    supers("q2_k", 2),
    supers("q3_k", 3),
    supers("q4_k", 4),
    supers("q5_k", 5),
    supers("q6_k", 6),
    supers("iq4_xs", 4),
    dense("f32", Weights::Dense, 32, 16),
    dense("f16", Weights::Halves, 16, 8),
    dense("bf16", Weights::Halves, 16, 8),
];

/// Range of the dense ones, in the order of `bn_embed`'s numbers.
pub(super) const DENSE: std::ops::Range<usize> = 19..22;

/// The types that experts have kernels of.
const OF_EXPERTS: [&str; 12] =
    ["ternary", "int8", "q8_0", "q4_0", "iq4_nl", "mxfp4", "q4_k", "q6_k", "iq4_xs", "f32", "f16", "bf16"];

/// How the pairs of a row and one of its experts are cut into tiles of pairs of one expert (`cuda/kernels/experts.cu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// The most pairs of a tile.
    pub tile: usize,
    /// Tiles of a launch, some of which may have no pairs.
    pub slots: usize,
    /// Index among `ProductKernels::experts`.
    kernel: usize,
}

impl Tiling {
    /// The tiles of `pairs` pairs with `experts` experts, whose weights `products` multiply with.
    pub(super) fn new(pairs: usize, experts: usize, products: impl Iterator<Item = usize>) -> Self {
        if pairs <= experts {
            return Self { tile: 1, slots: pairs, kernel: 0 };
        }
        let (tile, kernel) = match pairs <= FEW * experts {
            true => (FEW, 1),
            false => (products.map(|product| PRODUCTS[product].of_experts(2).0).min().unwrap_or(1), 2),
        };
        Self { tile, slots: pairs / tile + experts, kernel }
    }
}

/// Pairs of a tile while experts have few.
const FEW: usize = 4;

/// One of a product's kernels, and the shape of its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// Index among the GEMVs; `None`: a GEMM.
    pub gemv: Option<usize>,
    /// Index among the GEMMs, if it is one.
    pub gemm: usize,
    pub grid: [usize; 3],
    pub threads: usize,
    pub shared: usize,
    /// Whether activations are split into parts by another kernel before it.
    pub split: bool,
}

/// One of a product's GEMMs. They have the same bits, and differ in the tile of the outputs that a block computes.
struct Tile {
    name: &'static str,
    tokens: usize,
    /// Rows of weights.
    outputs: usize,
    /// Bytes of shared memory.
    shared: usize,
    /// Time of a block, relative to those of the product's other tiles.
    cost: usize,
}

impl Product {
    pub(super) fn gemv_tokens(&self) -> [usize; 4] {
        if self.weights == Weights::Halves { HALVES_TOKENS } else { GEMV_TOKENS }
    }

    fn gemv_names(&self) -> [String; 4] {
        let halves = self.weights == Weights::Halves;
        let kind = |tokens: usize| if halves && tokens > 8 { "gemm" } else { "gemv" };
        self.gemv_tokens().map(|tokens| format!("{}_{tokens}", kind(tokens)))
    }

    /// Rows of weights per block of the GEMV `which`, its threads, and its shared memory in bytes.
    fn gemv(&self, which: usize) -> (usize, usize, usize) {
        let (outputs, shared) = match self.weights {
            Weights::Whole => ([8, 32, 64, 64][which], 0),
            Weights::Blocks if self.minima => (16, 4752 * GEMV_TOKENS[which] + 2112),
            Weights::Blocks | Weights::Supers => (16, 4224 * GEMV_TOKENS[which]),
            Weights::Scaled => (16, 2112 * GEMV_TOKENS[which]),
            Weights::Dense => ([32, 32, 64, 64][which], 0),
            Weights::Halves => ([16, 32, 128, 128][which], [6144, 10240, 100_352, 101_376][which]),
        };
        (outputs, if self.weights == Weights::Halves { GEMM_THREADS } else { GEMV_THREADS }, shared)
    }

    /// The GEMM `which`, the one with the largest tile first.
    fn gemm(&self, which: usize) -> Option<Tile> {
        let bits = self.bits;
        // Blocks wait for the bytes that they read of each column.
        let whole = |name, tokens, outputs, columns: usize, stages: usize| {
            let cost = tokens + outputs * bits / 8;
            Some(Tile { name, tokens, outputs, shared: cost * columns * stages, cost })
        };
        let large = |shared| Some(Tile { name: "gemm_64x128", tokens: 64, outputs: 128, shared, cost: 4 });
        let small = |shared| Some(Tile { name: "gemm_32x32", tokens: 32, outputs: 32, shared, cost: 1 });
        let only = |name, tokens, outputs, shared| Some(Tile { name, tokens, outputs, shared, cost: 1 });
        let minima = |bytes| if self.minima { bytes } else { 0 };
        match (self.weights, which) {
            (Weights::Whole, 0) => whole("gemm_128x128", 128, 128, 128, if bits == 2 { 4 } else { 3 }),
            (Weights::Whole, 1) => whole("gemm_64x128", 64, 128, 128, if bits == 2 { 6 } else { 3 }),
            (Weights::Whole, 2) => whole("gemm_64x32", 64, 32, 256, 4),
            (Weights::Blocks, 0) => large(32896 + 6144 * bits + minima(6240)),
            (Weights::Blocks, 1) => small(50176 + 3072 * bits + minima(17152)),
            (Weights::Supers, 0) => large(35328 + 6144 * bits),
            (Weights::Supers, 1) => small(32256 + 3072 * bits),
            (Weights::Scaled, 0) => large(24576 + 6144 * bits),
            (Weights::Scaled, 1) => small(24576 + 3072 * bits),
            (Weights::Dense, 0) => only("gemm", 32, 32, 32768),
            (Weights::Halves, 0) => only("gemm_128", 128, 128, 76800),
            _ => None,
        }
    }

    /// All GEMMs.
    fn gemms(&self) -> impl Iterator<Item = Tile> {
        (0..).map_while(|which| self.gemm(which))
    }

    /// The launch for `tokens` tokens and matrices with these numbers of `rows` of `cols` columns, on a device with
    /// `multiprocessors` multiprocessors. All kernels of a product give the same bits.
    pub(super) fn launch(
        &self,
        tokens: usize,
        rows: &[usize],
        cols: usize,
        multiprocessors: usize,
    ) -> Launch {
        let (most, multiprocessors) = (self.gemv_tokens(), multiprocessors.max(1));
        let grid = |tile: usize, outputs: usize| {
            [tokens.div_ceil(tile), rows.iter().map(|rows| rows.div_ceil(outputs)).sum::<usize>(), 1]
        };
        let gemv = most.iter().position(|most| tokens <= *most);
        let (gemm, mut grid, threads, shared) = match gemv {
            Some(which) => {
                let (outputs, threads, shared) = self.gemv(which);
                (0, grid(most[which], outputs), threads, shared)
            }
            None => {
                // Small tiles read more, large ones leave multiprocessors without a block.
                let time = |tile: &Tile| {
                    grid(tile.tokens, tile.outputs).iter().product::<usize>().div_ceil(multiprocessors)
                        * tile.cost
                };
                let fastest = self.gemms().enumerate().min_by_key(|(_, tile)| time(tile));
                let (gemm, tile) = fastest.unwrap_or_else(|| unreachable!("each has a GEMM"));
                (gemm, grid(tile.tokens, tile.outputs), GEMM_THREADS, tile.shared)
            }
        };
        let split = self.weights == Weights::Halves && gemv.is_none_or(|which| which >= 2);
        if split {
            grid[2] = shares(grid[0] * grid[1], cols, multiprocessors);
        } else if gemv.is_some() {
            grid.swap(0, 1);
        }
        Launch { gemv, gemm, grid, threads, shared, split }
    }

    /// The launch for the tiles of experts whose matrices have these numbers of `rows`. `gemv` is an index among
    /// `ProductKernels::experts`.
    pub(super) fn expert_launch(&self, tiling: Tiling, rows: &[usize]) -> Launch {
        let (_, outputs, threads, shared) = self.of_experts(tiling.kernel);
        let blocks = rows.iter().map(|rows| rows.div_ceil(outputs)).sum::<usize>();
        let in_y = tiling.kernel == 2 && self.weights != Weights::Halves;
        let grid = if in_y { [1, blocks, tiling.slots] } else { [tiling.slots, 1, blocks] };
        Launch { gemv: Some(tiling.kernel), gemm: 0, grid, threads, shared, split: false }
    }

    /// Pairs of a tile and rows of weights per block of the kernel `which` of experts, its threads and its shared memory.
    fn of_experts(&self, which: usize) -> (usize, usize, usize, usize) {
        let tile = self.gemms().find(|tile| tile.tokens <= 64);
        match tile {
            // Products of halves have no GEMM whose rows may begin anywhere.
            Some(tile) if which == 2 && self.weights != Weights::Halves => {
                (tile.tokens, tile.outputs, GEMM_THREADS, tile.shared)
            }
            _ => {
                let gemv = self.expert_gemv(which);
                let (outputs, threads, shared) = self.gemv(gemv);
                (self.gemv_tokens()[gemv], outputs, threads, shared)
            }
        }
    }

    /// Which GEMV the kernel `which` of experts is like.
    fn expert_gemv(&self, which: usize) -> usize {
        self.gemv_tokens().iter().position(|tokens| *tokens >= [1, FEW, 2 * FEW][which]).unwrap_or(0)
    }
}

/// Number of blocks that share a row's columns in a product of halves of `blocks` tiles: where those are fewer than 9/20
/// of the multiprocessors, as many as make them 7/10.
fn shares(blocks: usize, cols: usize, multiprocessors: usize) -> usize {
    if cols < SEGMENTS_COLUMNS || 20 * blocks >= 9 * multiprocessors {
        return 1;
    }
    [2, 4].into_iter().find(|shares| 10 * blocks * shares >= 7 * multiprocessors).unwrap_or(SEGMENTS)
}

/// The kernels of one of `PRODUCTS`.
pub(crate) struct ProductKernels {
    pub gemv: [Function; 4],
    pub gemm: Vec<Function>,
    /// Makes parts of activations; of halves.
    pub split: Option<Function>,
    /// For experts with one pair a tile, with few, and with many. `None`: there are none.
    pub experts: Option<[Function; 3]>,
    /// Reads rows of a table of this type. The dense types share one kernel.
    pub embed: Function,
}

/// Attention's kernels for one type of KV.
pub(crate) struct AttentionKernels {
    pub write: Function,
    /// Indexed like `HEADS`.
    pub decode: [Function; 3],
    pub prefill: [Function; 3],
}

/// The kernels of recurrent layers. Recurrences: that with 128 keys, and that with any number.
pub(crate) struct RecurrentKernels {
    pub delta_prepare: Function,
    pub delta_recur: [Function; 2],
    pub delta_norm: Function,
    pub mamba_prepare: Function,
    pub mamba_recur: [Function; 2],
    pub mamba_gate: Function,
    pub short_conv: Function,
}

impl RecurrentKernels {
    fn new(of: &dyn Fn(&str) -> Result<Function>) -> Result<Self> {
        Ok(Self {
            delta_prepare: of("delta_prepare")?,
            delta_recur: [of("delta_recur_128")?, of("delta_recur")?],
            delta_norm: of("delta_norm")?,
            mamba_prepare: of("mamba_prepare")?,
            mamba_recur: [of("mamba_recur_128")?, of("mamba_recur")?],
            mamba_gate: of("mamba_gate")?,
            short_conv: of("short_conv")?,
        })
    }
}

pub(crate) struct Kernels {
    pub gather_rows: Function,
    pub add: Function,
    pub add_rms_norm: Function,
    pub norm_columns: Function,
    pub add_norm: Function,
    pub unrotate_rows: Function,
    pub unfold_rows: Function,
    pub split_gate: Function,
    pub gate: Function,
    pub scale: Function,
    pub add_norm_quantize: Function,
    pub gated_norm: Function,
    pub gated_norm_quantize: Function,
    pub quantize_blocks32: Function,
    pub quantize_blocks256: Function,
    pub merge: Function,
    pub add_segments: Function,
    pub sample: Function,
    pub route: Function,
    pub group: Function,
    pub mix: Function,
    pub recurrent: RecurrentKernels,
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
    pub(crate) fn new(module: &Arc<Module>, shared: usize) -> Result<Self> {
        let of = |name: &str| named(module, name, shared);
        let product = |p: &Product| {
            let of = |which: &str| named(module, &format!("{}_{which}", p.name), shared);
            let gemv = all(p.gemv_names(), |name| of(&name))?;
            let split = (p.weights == Weights::Halves).then(|| of("split")).transpose()?;
            let is_dense = p.arithmetic == Arithmetic::Float;
            let embed = if is_dense { named(module, "embed", shared)? } else { of("embed")? };
            let gemm = p.gemms().map(|tile| of(tile.name)).collect::<Result<_>>()?;
            let expert = |which: usize| match which == 2 && p.weights != Weights::Halves {
                true => of("experts_gemm"),
                false => of(&format!("experts_{}", p.gemv_tokens()[p.expert_gemv(which)])),
            };
            let experts = || Ok([expert(0)?, expert(1)?, expert(2)?]);
            let experts = OF_EXPERTS.contains(&p.name).then(experts).transpose()?;
            Ok(ProductKernels { gemv, gemm, split, experts, embed })
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
            unrotate_rows: of("unrotate_rows")?,
            unfold_rows: of("unfold_rows")?,
            split_gate: of("split_gate")?,
            gate: of("gate")?,
            scale: of("scale")?,
            add_norm_quantize: of("add_norm_quantize")?,
            gated_norm: of("gated_norm")?,
            gated_norm_quantize: of("gated_norm_quantize")?,
            quantize_blocks32: of("quantize_blocks32")?,
            quantize_blocks256: of("quantize_blocks256")?,
            merge: of("attention_merge")?,
            add_segments: of("add_segments")?,
            sample: of("sample")?,
            route: of("route")?,
            group: of("group")?,
            mix: of("mix")?,
            recurrent: RecurrentKernels::new(&of)?,
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
        let gemv = |which, grid, threads, shared| Launch {
            gemv: Some(which),
            gemm: 0,
            grid,
            threads,
            shared,
            split: false,
        };
        let of_tile =
            |gemm, grid, shared| Launch { gemv: None, gemm, grid, threads: 256, shared, split: false };
        let gemm = |grid, shared| of_tile(0, grid, shared);
        assert_eq!(at("ternary", 3, &[100, 64, 1]), gemv(2, [4, 1, 1], 128, 0));
        assert_eq!(at("ternary", 9, &[100, 129]), of_tile(2, [1, 9, 1], 73728));
        assert_eq!(at("ternary", 64, &[13824]), of_tile(1, [1, 108, 1], 73728));
        assert_eq!(at("ternary", 2048, &[2560]), gemm([16, 20, 1], 81920));
        assert_eq!(at("int8", 9, &[33]), of_tile(2, [1, 2, 1], 98304));
        assert_eq!(at("q8_0", 64, &[2048, 512, 512]), of_tile(1, [2, 96, 1], 74752));
        assert_eq!(at("q8_0", 64, &[8192, 8192]), gemm([1, 128, 1], 82048));
        assert_eq!(at("q4_1", 9, &[33]), of_tile(1, [1, 2, 1], 79616));
        assert_eq!(at("q4_k", 9, &[33]), of_tile(1, [1, 2, 1], 44544));
        assert_eq!(at("tq2_0", 9, &[33]), of_tile(1, [1, 2, 1], 30720));
        assert_eq!(at("f32", 33, &[33]), gemm([2, 2, 1], 32768));
        assert_eq!(at("bf16", 1, &[2048, 17]), gemv(0, [130, 1, 1], 256, 6144));
        let parts = |gemv, grid, shared| Launch { gemv, gemm: 0, grid, threads: 256, shared, split: true };
        assert_eq!(at("f16", 64, &[128256]), parts(Some(3), [1, 1002, 1], 101_376));
        assert_eq!(at("f16", 65, &[128256]), parts(None, [1, 1002, 1], 76800));
        // Few blocks share the columns.
        assert_eq!(at("bf16", 9, &[3072]), parts(Some(2), [1, 24, 4], 100_352));
        assert_eq!(at("bf16", 64, &[2048]), parts(Some(3), [1, 16, 8], 101_376));
        assert_eq!(at("bf16", 512, &[2048]), parts(None, [4, 16, 1], 76800));
        assert_eq!(at("bf16", 256, &[3072]), parts(None, [2, 24, 2], 76800));
        assert_eq!(product("bf16").launch(64, &[2048], 248, 132), parts(Some(3), [1, 16, 1], 101_376));
    }

    #[test]
    fn tiles_of_experts_cover_all_pairs() {
        let at = |name: &str, pairs| {
            let of = PRODUCTS.iter().position(|product| product.name == name);
            let tiling = Tiling::new(pairs, 128, of.into_iter());
            (tiling.tile, product(name).expert_launch(tiling, &[768, 768]))
        };
        let launch = |gemv, grid, threads, shared| Launch {
            gemv: Some(gemv),
            gemm: 0,
            grid,
            threads,
            shared,
            split: false,
        };
        assert_eq!(at("q4_0", 8), (1, launch(0, [8, 1, 96], 128, 4224)));
        assert_eq!(at("q4_0", 129), (4, launch(1, [160, 1, 96], 128, 4 * 4224)));
        assert_eq!(at("q4_0", 513), (64, launch(2, [1, 12, 136], 256, 57472)));
        assert_eq!(at("bf16", 513), (8, launch(2, [192, 1, 48], 256, 10240)));
        assert_eq!(at("ternary", 129), (4, launch(1, [160, 1, 24], 128, 0)));
        assert_eq!(at("bf16", 8), (1, launch(0, [8, 1, 96], 256, 6144)));
        assert_eq!(at("bf16", 129), (4, launch(1, [160, 1, 96], 256, 6144)));
    }
}
