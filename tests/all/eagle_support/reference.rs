//! A plain reference, token by token in f64: of a Llama of any depth, and of an EAGLE-3 head, after the published
//! implementation (SafeAILab/EAGLE, eagle/model/cnets.py).

use super::Head;
use crate::common::gguf::{File, Value};

type Row = Vec<f64>;

const EPS: f64 = 1e-5;

/// Keys and values of a layer so far.
#[derive(Default)]
struct Past {
    keys: Vec<Row>,
    values: Vec<Row>,
}

/// A file's tensors and the sizes of its layers.
struct Layers<'a> {
    file: &'a File,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    base: f64,
}

fn tensor(file: &File, name: &str) -> Row {
    let name = format!("{name}.weight");
    let found = file.tensors.iter().find(|tensor| tensor.name == name).expect(&name);
    found.data.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
}

fn product(weights: &[f64], x: &[f64]) -> Row {
    weights.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn norm(x: &[f64], weights: &[f64]) -> Row {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weights).map(|(x, w)| x / (mean + EPS).sqrt() * w).collect()
}

fn add(x: &mut [f64], y: &[f64], factor: f64) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
}

impl Layers<'_> {
    /// Rotates pairs of neighbours of each head, the order of GGUF's files of Llama.
    fn rotate(&self, x: &mut [f64], position: usize) {
        for head in x.chunks_exact_mut(self.head_dim) {
            for (n, pair) in head.chunks_exact_mut(2).enumerate() {
                let angle = position as f64 * self.base.powf(-2.0 * n as f64 / self.head_dim as f64);
                let (sin, cos) = angle.sin_cos();
                (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
            }
        }
    }

    /// The update by attention for `x`, at `position`.
    fn attention(&self, block: usize, past: &mut Past, x: &[f64], position: usize) -> Row {
        let of = |part: &str| product(&tensor(self.file, &format!("blk.{block}.{part}")), x);
        let (mut q, mut k, v) = (of("attn_q"), of("attn_k"), of("attn_v"));
        self.rotate(&mut q, position);
        self.rotate(&mut k, position);
        past.keys.push(k);
        past.values.push(v);
        let dim = self.head_dim;
        let mut out = Row::new();
        for (n, q) in q.chunks_exact(dim).enumerate() {
            let at = n / (self.heads / self.kv_heads) * dim;
            let score =
                |k: &Row| q.iter().zip(&k[at..]).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt();
            let scores: Row = past.keys.iter().map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Row = scores.iter().map(|score| (score - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut head = vec![0.0; dim];
            weights.iter().zip(&past.values).for_each(|(w, v)| add(&mut head, &v[at..at + dim], w / sum));
            out.extend(head);
        }
        product(&tensor(self.file, &format!("blk.{block}.attn_output")), &out)
    }

    /// The update by the feed-forward for the residual `x`.
    fn feed_forward(&self, block: usize, x: &[f64]) -> Row {
        let own = |part: &str| tensor(self.file, &format!("blk.{block}.{part}"));
        let x = norm(x, &own("ffn_norm"));
        let (gate, up) = (product(&own("ffn_gate"), &x), product(&own("ffn_up"), &x));
        let gated: Row = gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        product(&own("ffn_down"), &gated)
    }
}

/// What a model computes of a text.
pub struct Reference {
    /// The inputs of each layer, by token.
    pub inputs: Vec<Vec<Row>>,
    /// Logits after each token.
    pub logits: Vec<Row>,
}

/// A factor of the model in `file`, 1 if it has none.
fn factor(file: &File, name: &str) -> f64 {
    let key = file.keys.iter().find(|(key, _)| key.ends_with(name));
    key.map_or(1.0, |(_, value)| match value {
        Value::F32(factor) => f64::from(*factor),
        _ => unreachable!("{name} is no float"),
    })
}

impl Reference {
    pub fn new(file: &File, layers: usize, tokens: &[u32]) -> Self {
        let head_dim = super::HIDDEN as usize / 2;
        let model = Layers { file, heads: 2, kv_heads: 1, head_dim, base: 10_000.0 };
        let (embedding, norm_weights) = (tensor(file, "token_embd"), tensor(file, "output_norm"));
        let scale = factor(file, ".residual_scale");
        let mut past: Vec<Past> = (0..layers).map(|_| Past::default()).collect();
        let (mut inputs, mut logits) = (vec![Vec::new(); layers], Vec::new());
        for (position, token) in tokens.iter().enumerate() {
            let width = norm_weights.len();
            let row = &embedding[*token as usize * width..][..width];
            let mut x: Row = row.iter().map(|x| x * factor(file, ".embedding_scale")).collect();
            for block in 0..layers {
                inputs[block].push(x.clone());
                let normed = norm(&x, &tensor(file, &format!("blk.{block}.attn_norm")));
                let update = model.attention(block, &mut past[block], &normed, position);
                add(&mut x, &update, scale);
                let update = model.feed_forward(block, &x);
                add(&mut x, &update, scale);
            }
            let row = product(&embedding, &norm(&x, &norm_weights));
            logits.push(row.iter().map(|x| x / factor(file, ".logit_scale")).collect());
        }
        Self { inputs, logits }
    }
}

/// The logits of the head's tokens after each of `tokens` from the second on. The last `ahead` tokens are drafts: the
/// head continues from its own states there, and from those of the model before.
pub fn drafts(head: &Head, model: &File, tokens: &[u32], ahead: usize) -> Vec<Row> {
    let file = &head.file();
    let certain = tokens.len() - ahead;
    let of_model = Reference::new(model, super::LAYERS as usize, &tokens[..certain]);
    let fc = tensor(file, "fc");
    let mut states: Vec<Row> = (0..certain - 1)
        .map(|at| {
            let mut x: Row =
                head.taps.iter().flat_map(|tap| of_model.inputs[*tap as usize][at].clone()).collect();
            if head.norm_before_fc {
                x = norm(&x, &tensor(file, "enc.output_norm"));
            }
            product(&fc, &x)
        })
        .collect();
    let table = tensor(if head.embedding { file } else { model }, "token_embd");
    let rows =
        tensor(if head.output { file } else { model }, if head.output { "output" } else { "token_embd" });
    let [heads, kv_heads, head_dim] = [head.heads, head.kv_heads, head.head_dim].map(|size| size as usize);
    let (layers, mut past) = (Layers { file, heads, kv_heads, head_dim, base: 500.0 }, Past::default());
    let width = head.hidden as usize;
    let mut logits = Vec::new();
    for (position, token) in tokens[1..].iter().enumerate() {
        let state = states[position].clone();
        let normed = norm(&state, &tensor(file, "blk.0.attn_norm_2"));
        let token = norm(&table[*token as usize * width..][..width], &tensor(file, "blk.0.attn_norm"));
        let mut x = if head.norm_before_residual { normed.clone() } else { state };
        let update = layers.attention(0, &mut past, &[token, normed].concat(), position);
        add(&mut x, &update, 1.0);
        let update = layers.feed_forward(0, &x);
        add(&mut x, &update, 1.0);
        logits.push(product(&rows, &norm(&x, &tensor(file, "output_norm"))));
        if position + 1 >= states.len() {
            states.push(x);
        }
    }
    logits
}
