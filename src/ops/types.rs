//! The parameters and weights of operations.

use super::fold::Fold;
use crate::base::Error;
use crate::kernels::Matrix;
use crate::kernels::attention::Seen;
use crate::kernels::gemm::ternary::Columns;
use std::ops::Range;
use std::sync::Arc;

/// How a feed-forward combines `gate` and `up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up` (Llama).
    SwiGlu,
    /// `silu(min(gate, limit)) * clamp(up, -limit, limit)` (DeepSeek-V4, Maple).
    ClampedSwiGlu { limit: f32 },
    /// `silu(by gate) * output up`, for the factors `by` and `output` (Falcon-H1).
    ScaledSwiGlu { by: f32, output: f32 },
    /// `g / (1 + e^-(alpha g)) * (u + 1)`, g = min(gate, limit), u = clamp(up, -limit, limit) (gpt-oss).
    SteepSwiGlu { alpha: f32, limit: f32 },
    /// `relu(gate)^2 * up` (BitNet b1.58 2B-4T).
    Relu2,
    /// `gelu(gate) * up`, GELU in its tanh form (Gemma).
    GeGlu,
    /// `gelu(up)` in the same form, without a gate (StarCoder 2).
    Gelu,
    /// `gelu(gate) * up`, GELU in its own form with erf (ModernBERT).
    GeGluErf,
    /// `gelu(up)` in that form, without a gate (BERT).
    GeluErf,
}

impl Activation {
    /// Whether there is a gate.
    pub fn gated(self) -> bool {
        !matches!(self, Self::Gelu | Self::GeluErf)
    }

    /// Its name, if devices lack it.
    pub fn cpu_only(self) -> Option<&'static str> {
        match self {
            Self::SwiGlu
            | Self::ClampedSwiGlu { .. }
            | Self::ScaledSwiGlu { .. }
            | Self::SteepSwiGlu { .. }
            | Self::Relu2
            | Self::GeGlu => None,
            Self::GeGluErf => Some("gates of GELU with erf"),
            Self::Gelu | Self::GeluErf => Some("feed-forwards without a gate"),
        }
    }
}

/// Which elements of a head are rotated as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (i, i + rot/2): NEOX, Hugging Face.
    Neox,
    /// (2i, 2i + 1): ERNIE, GLM-4, and GGUF files of the `llama` architecture, whose q and k rows are permuted for it.
    Interleaved,
}

/// The key head that a value head belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value heads of one key head follow each other (Hugging Face).
    Grouped,
    /// Value head j belongs to key head j mod key_heads (GGUF).
    Tiled,
}

/// The parameters of a model's attention. A row has the q heads, then the k heads, then the v heads.
#[derive(Clone, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// The norms of q and k heads come after their rotation.
    pub norms_last: bool,
    pub temperature: Option<Temperature>,
    /// Scores s become `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// The eps of the norm of v heads, which has no weights. `None`: they have no norm.
    pub value_eps: Option<f32>,
    /// V is K before its norm and rotation: a row has no v heads.
    pub keys_are_values: bool,
    /// V is K after its rotation, and stored once. A row has no v heads either.
    pub joint: bool,
}

/// Queries grow with their position: times `1 + scale * ln(1 + floor(position / length))` (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    pub length: usize,
}

impl Temperature {
    pub fn at(&self, position: usize) -> f32 {
        (1.0 + f64::from(self.scale) * ((position / self.length) as f64).ln_1p()) as f32
    }
}

impl AttentionShape {
    /// Scores scaled by 1/sqrt(head_dim), as in nearly every model.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let scale = 1.0 / (head_dim as f32).sqrt();
        Self {
            heads,
            kv_heads,
            head_dim,
            scale,
            norms_last: false,
            temperature: None,
            cap: None,
            value_eps: None,
            keys_are_values: false,
            joint: false,
        }
    }

    /// The factor on the scores of a row at `position`.
    pub fn scale_at(&self, position: usize) -> f32 {
        self.scale * self.temperature.map_or(1.0, |temperature| temperature.at(position))
    }

    /// The part of it that devices lack, if it has one.
    pub(super) fn cpu_only(&self) -> Option<&'static str> {
        let parts = [
            (self.norms_last, "norms of rotated heads"),
            (self.temperature.is_some(), "queries that grow with their position"),
            (self.cap.is_some(), "capped scores"),
            (self.value_eps.is_some(), "normed values"),
            (self.keys_are_values || self.joint, "values that are keys"),
        ];
        parts.into_iter().find_map(|(has, part)| has.then_some(part))
    }
}

/// RMSNorm (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight`. With a bias LayerNorm (Ba et al. 2016),
/// which subtracts the mean first: `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
#[derive(Clone)]
pub struct Norm {
    pub weight: Arc<[f32]>,
    pub bias: Option<Arc<[f32]>>,
    pub eps: f32,
}

impl Norm {
    /// The same with its results times `by`.
    pub fn times(&self, by: f32) -> Self {
        if by == 1.0 {
            return self.clone();
        }
        let all = |vector: &Arc<[f32]>| vector.iter().map(|w| w * by).collect();
        Self { weight: all(&self.weight), bias: self.bias.as_ref().map(all), eps: self.eps }
    }
}

/// Rotary embedding (Su et al. 2021); `inv_freq[i]` for pair i, `inv_freq.len() * 2 <= head_dim`.
#[derive(Clone)]
pub struct Rope {
    pub inv_freq: Arc<[f32]>,
    pub style: RopeStyle,
    /// Factor on cos and sin (YaRN; otherwise 1).
    pub factor: f32,
    /// `None`: all pairs turn by the first of a row's numbers (`RaggedBatch::rotations`).
    pub axes: Option<Axes>,
}

/// For each pair of a rope, which of a row's three numbers it turns by: that of time, height or width (M-RoPE, Wang et
/// al. 2024).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes(Arc<[u8]>);

impl Axes {
    /// `sections` has the number of pairs for each axis. Those of one axis follow each other (Qwen2-VL) or, if
    /// `interleaved`, pairs take turns. Height and width stop after their number, and time has the pairs in their place
    /// (Qwen3-VL).
    pub fn new(sections: [usize; 3], interleaved: bool) -> Self {
        let [time, height, width] = sections;
        let axis = |pair: usize| match interleaved {
            true if pair / 3 < sections[pair % 3] => (pair % 3) as u8,
            true => 0,
            false => u8::from(pair >= time) + u8::from(pair >= time + height),
        };
        Self((0..time + height + width).map(axis).collect())
    }

    /// Number of pairs.
    pub fn pairs(&self) -> usize {
        self.0.len()
    }

    /// The axis of a pair: 0 is time, 1 height, 2 width.
    pub fn of(&self, pair: usize) -> usize {
        self.0[pair].into()
    }
}

/// The weights of one product with their bias and norms: q, k and v; gate and up; or one matrix.
#[derive(Clone)]
pub struct Projections {
    /// All have the same `cols`; all are ternary, or none.
    pub matrices: Vec<Matrix>,
    /// Added to the product: `[sum of rows]`.
    pub bias: Option<Arc<[f32]>>,
    /// Each matrix's own norm of its input, applied after the shared one: none, or one per matrix.
    pub norms: Vec<Norm>,
    /// The rotation of the inputs that all matrices are folded with. It comes after the norms.
    pub fold: Option<Arc<Fold>>,
    /// A copy of the matrix, if there is one and it is ternary, for inputs with many zeros.
    pub columns: Option<Arc<Columns>>,
    /// All passes use the kernels for many rows (`dense::whole`), also those of a few rows: their sums have an order of
    /// their own, which pays for many rows alone.
    pub whole: bool,
}

impl Projections {
    /// Elements of a row of the product.
    pub fn width(&self) -> usize {
        self.matrices.iter().map(|matrix| matrix.rows).sum()
    }
}

impl<M: Into<Vec<Matrix>>> From<M> for Projections {
    fn from(matrices: M) -> Self {
        Self {
            matrices: matrices.into(),
            bias: None,
            norms: Vec::new(),
            fold: None,
            columns: None,
            whole: false,
        }
    }
}

/// How one layer attends.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    pub shape: &'a AttentionShape,
    pub rope: &'a Rope,
    /// Number of positions that a row sees, including its own. `None`: all up to its own.
    pub window: Option<usize>,
    /// Rows of `RaggedBatch::mutual` see each other in both directions.
    pub mutual: bool,
    /// The first position that has a key; on the CPU only. Rows before it see their own.
    pub from: usize,
    /// A score of each head that has no value: its weight is left out after the softmax (Xiao et al. 2023).
    pub sinks: Option<&'a [f32]>,
    /// RMSNorm of each q head and of each k head, before the rotation or after it (`AttentionShape::norms_last`).
    pub norms: Option<&'a [Norm; 2]>,
    /// The norm of each v head, for `AttentionShape::value_eps`.
    pub value_norm: Option<&'a Norm>,
    /// K and V are those of an earlier layer, which has written them: a row has q heads alone, and the norm of k is not
    /// used.
    pub shared: bool,
}

impl<'a> Attention<'a> {
    /// Over all positions, without norms.
    pub fn plain(shape: &'a AttentionShape, rope: &'a Rope) -> Self {
        Self {
            shape,
            rope,
            window: None,
            mutual: true,
            from: 0,
            norms: None,
            value_norm: None,
            shared: false,
            sinks: None,
        }
    }

    /// Elements of a row.
    pub(super) fn width(&self) -> usize {
        if self.shared { self.shape.heads * self.shape.head_dim } else { self.shape.qkv() }
    }
}

impl Attention<'_> {
    /// The positions that a row at `position` sees, also those of `mutual` after it. A window bounds what it sees
    /// before itself, as in transformers from 5.23 on (it is never shorter than a picture in published models).
    pub(super) fn seen(&self, position: usize, mutual: Option<Range<usize>>) -> Seen {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window.max(1)));
        let last = mutual.filter(|_| self.mutual).map_or(position, |mutual| mutual.end - 1);
        Seen { first: first.max(self.from.min(position)), last }
    }
}

/// The error of operations that devices lack.
pub(super) fn cpu_only(what: &str) -> Error {
    Error::unsupported(format!("{what} run on the CPU only"))
}
