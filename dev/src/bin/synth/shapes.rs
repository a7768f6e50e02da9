//! The shapes of real models.

use bn_engine::kernels::rows::hadamard;

pub struct Shape {
    pub name: &'static str,
    pub architecture: &'static str,
    pub hidden: usize,
    pub ffn: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// 0: hidden / heads.
    pub head_dim: usize,
    /// Key and value heads of 128 of the layers of Gated DeltaNet, which are three of four; 0: there are none.
    pub delta: (usize, usize),
    /// Number of experts, how many of them a row has, and their width; 0: layers are dense.
    pub experts: (usize, usize, usize),
    pub vocab: usize,
    pub context: u32,
    pub rope_base: f32,
    pub eps: f32,
    pub sub_norms: bool,
    pub qk_norms: bool,
    pub tied: bool,
    /// Whether a block of multi-token prediction stands after the layers.
    pub mtp: bool,
    /// Whether that block alone is written, as a drafter in a file of its own.
    pub alone: bool,
    /// Whether weights are folded with a rotation of their inputs, as in Bonsai 2.
    pub folded: bool,
    /// YaRN's factor and the context that it stretches.
    pub yarn: Option<(f32, u32)>,
}

const BITNET_2B: Shape = Shape {
    name: "bitnet-2b",
    architecture: "bitnet-b1.58",
    hidden: 2560,
    ffn: 6912,
    layers: 30,
    heads: 20,
    kv_heads: 5,
    head_dim: 0,
    delta: (0, 0),
    experts: (0, 0, 0),
    vocab: 128_256,
    context: 4096,
    rope_base: 500_000.0,
    eps: 1e-5,
    sub_norms: true,
    qk_norms: false,
    tied: true,
    mtp: false,
    alone: false,
    folded: false,
    yarn: None,
};

const LLAMA_1B: Shape = Shape {
    name: "llama-1b",
    architecture: "llama",
    hidden: 2048,
    ffn: 8192,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    vocab: 128_256,
    context: 8192,
    rope_base: 500_000.0,
    sub_norms: false,
    ..BITNET_2B
};

const BONSAI: Shape = Shape {
    name: "bonsai-1.7b",
    architecture: "qwen3",
    hidden: 2048,
    ffn: 6144,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 0,
    delta: (0, 0),
    experts: (0, 0, 0),
    vocab: 151_936,
    context: 32_768,
    rope_base: 1e6,
    eps: 1e-6,
    sub_norms: false,
    qk_norms: true,
    tied: true,
    mtp: false,
    alone: false,
    folded: false,
    yarn: None,
};

const QWEN35: Shape = Shape {
    name: "qwen35-4b",
    architecture: "qwen35",
    hidden: 2560,
    ffn: 9216,
    layers: 32,
    heads: 16,
    kv_heads: 4,
    head_dim: 256,
    delta: (16, 32),
    vocab: 248_320,
    context: 262_144,
    rope_base: 1e7,
    ..BONSAI
};

/// Qwen 3.5 27B, the body of both Bonsai 27B.
const QWEN35_27B: Shape = Shape {
    name: "bonsai-27b",
    hidden: 5120,
    ffn: 17_408,
    layers: 64,
    heads: 24,
    delta: (16, 48),
    tied: false,
    ..QWEN35
};

/// Elements of a key and of a value in Gated DeltaNet, and tokens that its convolution sees.
pub const DELTA_DIM: usize = 128;
pub const KERNEL: usize = 4;

/// Sizes of Qwen 3.5 0.8B, 2B and 9B are those of its model cards. They were not compared with a file.
pub const SHAPES: [Shape; 19] = [
    BITNET_2B,
    // The only BitNet architecture that llama.cpp has.
    Shape { name: "bitnet-2b-silu", architecture: "bitnet", ..BITNET_2B },
    Shape {
        name: "bitnet-large",
        architecture: "bitnet",
        hidden: 1536,
        ffn: 4096,
        layers: 24,
        heads: 16,
        kv_heads: 16,
        vocab: 32_002,
        context: 2048,
        rope_base: 10_000.0,
        ..BITNET_2B
    },
    Shape {
        name: "bitnet-3b",
        architecture: "bitnet",
        hidden: 3200,
        ffn: 8640,
        layers: 26,
        heads: 32,
        kv_heads: 32,
        vocab: 32_002,
        context: 2048,
        rope_base: 10_000.0,
        ..BITNET_2B
    },
    LLAMA_1B,
    Shape { name: "llama-8b", hidden: 4096, ffn: 14_336, layers: 32, tied: false, ..LLAMA_1B },
    BONSAI,
    Shape {
        name: "bonsai-8b",
        hidden: 4096,
        ffn: 12_288,
        layers: 36,
        heads: 32,
        context: 65_536,
        tied: false,
        yarn: Some((4.0, 16_384)),
        ..BONSAI
    },
    QWEN35,
    Shape {
        name: "qwen35-0.8b",
        hidden: 1024,
        ffn: 3584,
        layers: 24,
        heads: 8,
        kv_heads: 2,
        delta: (16, 16),
        ..QWEN35
    },
    Shape { name: "qwen35-4b-mtp", mtp: true, ..QWEN35 },
    Shape { name: "qwen35-4b-drafter", mtp: true, alone: true, ..QWEN35 },
    QWEN35_27B,
    Shape { name: "bonsai2-27b", folded: true, ..QWEN35_27B },
    Shape { name: "bonsai2-27b-mtp", folded: true, mtp: true, ..QWEN35_27B },
    Shape {
        name: "bonsai2-9b",
        hidden: 4096,
        ffn: 12_288,
        delta: (16, 32),
        tied: false,
        folded: true,
        ..QWEN35
    },
    Shape { name: "bonsai2-4b", folded: true, ..QWEN35 },
    Shape {
        name: "bonsai2-2b",
        hidden: 2048,
        ffn: 6144,
        layers: 24,
        heads: 8,
        kv_heads: 2,
        delta: (16, 16),
        folded: true,
        ..QWEN35
    },
    Shape {
        name: "maple-20b",
        architecture: "maple",
        ffn: 512,
        layers: 24,
        kv_heads: 4,
        experts: (256, 8, 512),
        context: 131_072,
        tied: false,
        ..BONSAI
    },
];

impl Shape {
    pub fn head_dim(&self) -> usize {
        if self.head_dim == 0 { self.hidden / self.heads } else { self.head_dim }
    }

    /// Elements of a head that are rotated.
    pub fn rotated(&self) -> usize {
        let part = match (self.delta.1, self.experts.0) {
            (1.., _) => 4,
            (0, 1..) => 2,
            (0, 0) => 1,
        };
        self.head_dim() / part
    }

    /// The widths of the inputs of products.
    pub fn widths(&self) -> Vec<usize> {
        let mut widths = vec![self.hidden, self.ffn, self.heads * self.head_dim(), self.delta.1 * DELTA_DIM];
        widths.retain(|width| *width > 0);
        widths.sort_unstable();
        widths.dedup();
        widths
    }

    /// Elements of a block of the weights' rotation: as many as all widths allow. Published files have these blocks
    /// too: 1,024 in 27B, 4,096 in 9B, 512 in 4B. That of 2B is a guess by the same rule.
    pub fn block(&self) -> usize {
        self.widths().into_iter().map(hadamard::rotation).min().unwrap_or(1)
    }
}
