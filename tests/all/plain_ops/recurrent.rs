//! Gated DeltaNet and Mamba-2 token by token in f64, after the formulas of their papers (arXiv 2412.06464, 2405.21060),
//! attention's gate, and short convolutions.

use bn_engine::base::Result;
use bn_engine::ops::{
    AttentionShape, DeltaNet, DeltaShape, HeadOrder, Mamba, MambaNorm, Memory, Norm, RaggedBatch, ShortConv,
    Unit,
};
use candle_core::{Device, Tensor};

fn rows(x: &Tensor) -> Vec<Vec<f32>> {
    x.to_vec2().unwrap()
}

fn owned(rows: Vec<Vec<f32>>) -> Tensor {
    let (height, width) = (rows.len(), rows[0].len());
    Tensor::from_vec(rows.concat(), (height, width), &Device::Cpu).unwrap()
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// As `Op::split_gate`.
pub fn split_gate(x: &Tensor, shape: &AttentionShape) -> [Tensor; 2] {
    let dim = shape.head_dim;
    let part = |row: &Vec<f32>, odd: bool| -> Vec<f32> {
        let (both, kv) = row.split_at(2 * shape.heads * dim);
        let halves = both.chunks_exact(dim).skip(usize::from(odd)).step_by(2).flatten();
        halves.chain(if odd { &[] } else { kv }).copied().collect()
    };
    [false, true].map(|odd| owned(rows(x).iter().map(|row| part(row, odd)).collect()))
}

/// As `Op::gate`.
pub fn gate(x: &Tensor, gate: &Tensor) -> Tensor {
    let times = |x: &f32, gate: &f32| (f64::from(*x) * logistic(f64::from(*gate))) as f32;
    let pairs = rows(x).into_iter().zip(rows(gate));
    let row = |(x, gate): (Vec<f32>, Vec<f32>)| {
        let part = x.len() / gate.len();
        x.iter().enumerate().map(|(at, x)| times(x, &gate[at / part])).collect()
    };
    owned(pairs.map(row).collect())
}

/// A sequence's past in one layer: inputs of the convolution, the oldest first, and `[value_heads, key, value]`.
struct Past {
    inputs: Vec<Vec<f64>>,
    state: Vec<Vec<Vec<f64>>>,
}

impl Past {
    fn zero(s: &DeltaShape) -> Self {
        let state = vec![vec![vec![0.0; s.value_dim]; s.key_dim]; s.value_heads];
        Self { inputs: vec![vec![0.0; s.channels()]; s.kernel - 1], state }
    }

    /// In a layout of its own, which takes no more than the engine's.
    fn read(s: &DeltaShape, floats: &[f32]) -> Self {
        let mut past = Self::zero(s);
        let mut from = floats.iter().map(|x| f64::from(*x));
        let all = past.inputs.iter_mut().chain(past.state.iter_mut().flatten()).flatten();
        all.for_each(|x| *x = from.next().unwrap());
        past
    }

    fn write(&self, floats: &mut [f32]) {
        let all = self.inputs.iter().chain(self.state.iter().flatten()).flatten();
        floats.iter_mut().zip(all).for_each(|(to, x)| *to = *x as f32);
    }

    /// The output of the next token, before its norm.
    fn token(&mut self, net: &DeltaNet, row: &[f32], gates: &[f32]) -> Vec<f64> {
        let s = &net.shape;
        let (channels, keys) = (s.channels(), s.keys());
        self.inputs.push(row[..channels].iter().map(|x| f64::from(*x)).collect());
        let conv = |c: usize| {
            let sum: f64 =
                (0..s.kernel).map(|t| self.inputs[t][c] * f64::from(net.conv[t * channels + c])).sum();
            sum * logistic(sum)
        };
        let mixed: Vec<f64> = (0..channels).map(conv).collect();
        self.inputs.remove(0);
        let mut out = Vec::new();
        for head in 0..s.value_heads {
            let key = match s.order {
                HeadOrder::Grouped => head / (s.value_heads / s.key_heads),
                HeadOrder::Tiled => head % s.key_heads,
            };
            let unit = |from: usize| -> Vec<f64> {
                let x = &mixed[from + key * s.key_dim..][..s.key_dim];
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / length).collect()
            };
            let (q, k) = (unit(0), unit(keys));
            let v = &mixed[2 * keys + head * s.value_dim..][..s.value_dim];
            let beta = logistic(f64::from(gates[head]));
            let step = f64::from(gates[s.value_heads + head] + net.dt_bias[head]);
            let decay = (f64::from(net.a[head]) * step.exp().ln_1p()).exp();
            let state = &mut self.state[head];
            for column in 0..s.value_dim {
                state.iter_mut().for_each(|row| row[column] *= decay);
                let memory: f64 = state.iter().zip(&k).map(|(row, k)| row[column] * k).sum();
                let u = beta * (v[column] - memory);
                state.iter_mut().zip(&k).for_each(|(row, k)| row[column] += k * u);
                let sum: f64 = state.iter().zip(&q).map(|(row, q)| row[column] * q).sum();
                out.push(sum / (s.key_dim as f64).sqrt());
            }
        }
        out
    }
}

fn norm(net: &DeltaNet, x: &[f64], gate: &[f32]) -> Vec<f32> {
    let heads = x.chunks_exact(net.shape.value_dim).zip(gate.chunks_exact(net.shape.value_dim));
    let normed = heads.flat_map(|(x, gate)| {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let by = 1.0 / (mean + f64::from(net.norm.eps)).sqrt();
        x.iter().zip(net.norm.weight.iter()).zip(gate).map(move |((x, w), gate)| {
            let gate = f64::from(*gate);
            (x * by * f64::from(*w) * gate * logistic(gate)) as f32
        })
    });
    normed.collect()
}

/// As `Op::delta_net`, for batches without drafted rows and saves.
pub fn delta_net(
    mixed: &Tensor,
    gates: &Tensor,
    batch: &RaggedBatch,
    memory: &mut dyn Memory,
    layer: usize,
    net: &DeltaNet,
) -> Result<Tensor> {
    let (mixed, gates, shape) = (rows(mixed), rows(gates), &net.shape);
    let token = |past: &mut Past, row: usize| {
        let o = past.token(net, &mixed[row], &gates[row]);
        norm(net, &o, &mixed[row][shape.channels()..])
    };
    by_token(
        batch,
        memory,
        layer,
        &|floats| match floats {
            Some(floats) => Past::read(shape, floats),
            None => Past::zero(shape),
        },
        &token,
        &|past, floats| past.write(floats),
    )
}

/// As `Op::short_conv`, for batches without drafted rows and saves.
pub fn short_conv(
    x: &Tensor,
    batch: &RaggedBatch,
    memory: &mut dyn Memory,
    layer: usize,
    net: &ShortConv,
) -> Result<Tensor> {
    let (x, channels, kernel) = (rows(x), net.shape.channels, net.shape.kernel);
    let token = |past: &mut Vec<f64>, row: usize| {
        let [b, c, x] = [0, 1, 2].map(|part| &x[row][part * channels..(part + 1) * channels]);
        past.extend(b.iter().zip(x).map(|(b, x)| f64::from(*b) * f64::from(*x)));
        let out = |channel: usize| {
            let taps = (0..kernel)
                .map(|tap| past[tap * channels + channel] * f64::from(net.weights[tap * channels + channel]));
            (taps.sum::<f64>() * f64::from(c[channel])) as f32
        };
        let out = (0..channels).map(out).collect();
        past.drain(..channels);
        out
    };
    let begin = |floats: Option<&[f32]>| match floats {
        Some(floats) => floats.iter().map(|x| f64::from(*x)).collect(),
        None => vec![0.0; (kernel - 1) * channels],
    };
    by_token(batch, memory, layer, &begin, &token, &|past, floats| {
        floats.iter_mut().zip(past).for_each(|(to, x)| *to = *x as f32);
    })
}

/// As `Op::mamba`, for batches without drafted rows and saves. The past is in a layout of its own: inputs of the
/// convolution, the oldest first, then `[heads, head_dim, state_dim]`.
pub fn mamba(
    x: &Tensor,
    batch: &RaggedBatch,
    memory: &mut dyn Memory,
    layer: usize,
    net: &Mamba,
) -> Result<Tensor> {
    let (x, s) = (rows(x), &net.shape);
    let before = (s.kernel - 1) * s.channels();
    let token = |past: &mut Vec<f64>, row: usize| {
        let (z, rest) = x[row].split_at(s.inner());
        let (inputs, steps) = rest.split_at(s.channels());
        let state = past.split_off(before);
        past.extend(inputs.iter().map(|x| f64::from(*x)));
        let mixed = convolved(past, net);
        past.drain(..s.channels());
        past.extend(state);
        let y = state_space(&mut past[before..], &mixed, steps, net);
        gated(y, z, net)
    };
    let begin = |floats: Option<&[f32]>| match floats {
        Some(floats) => floats[..before + s.inner() * s.state_dim].iter().map(|x| f64::from(*x)).collect(),
        None => vec![0.0; before + s.inner() * s.state_dim],
    };
    by_token(batch, memory, layer, &begin, &token, &|past, floats| {
        floats.iter_mut().zip(past).for_each(|(to, x)| *to = *x as f32);
    })
}

/// SiLU of the convolution of the last tokens' inputs.
fn convolved(inputs: &[f64], net: &Mamba) -> Vec<f64> {
    let channels = net.shape.channels();
    let one = |channel: usize| {
        let tap = |t: usize| inputs[t * channels + channel] * f64::from(net.conv[t * channels + channel]);
        let sum = (0..net.shape.kernel).map(tap).sum::<f64>() + f64::from(net.conv_bias[channel]);
        sum * logistic(sum)
    };
    (0..channels).map(one).collect()
}

/// The next token's output of each head, before the gate.
fn state_space(state: &mut [f64], mixed: &[f64], steps: &[f32], net: &Mamba) -> Vec<f64> {
    let s = &net.shape;
    let (inner, vectors, n) = (s.inner(), s.groups * s.state_dim, s.state_dim);
    let mut out = Vec::new();
    for (head, step) in steps.iter().enumerate() {
        let group = head / (s.heads / s.groups) * n;
        let (b, c) = (&mixed[inner + group..][..n], &mixed[inner + vectors + group..][..n]);
        let step = f64::from(*step) * f64::from(net.factors.step) + f64::from(net.dt_bias[head]);
        let step = step.exp().ln_1p().max(f64::from(net.steps[0])).min(f64::from(net.steps[1]));
        let decay = (step * f64::from(net.a[head])).exp();
        for p in head * s.head_dim..(head + 1) * s.head_dim {
            let own = &mut state[p * n..(p + 1) * n];
            own.iter_mut().zip(b).for_each(|(h, b)| *h = *h * decay + step * mixed[p] * b);
            let sum: f64 = own.iter().zip(c).map(|(h, c)| h * c).sum();
            out.push(sum + f64::from(net.d[head]) * mixed[p]);
        }
    }
    out
}

/// The gate, with the norm of each group before it or after it.
fn gated(mut y: Vec<f64>, z: &[f32], net: &Mamba) -> Vec<f32> {
    let normed = |y: &mut [f64], norm: &Norm| {
        let width = y.len() / net.shape.groups;
        for (group, weights) in y.chunks_exact_mut(width).zip(norm.weight.chunks_exact(width)) {
            let mean = group.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let by = 1.0 / (mean + f64::from(norm.eps)).sqrt();
            group.iter_mut().zip(weights).for_each(|(x, w)| *x *= by * f64::from(*w));
        }
    };
    if let MambaNorm::BeforeGate(norm) = &net.norm {
        normed(&mut y, norm);
    }
    for (y, z) in y.iter_mut().zip(z) {
        let z = f64::from(*z) * f64::from(net.factors.gate);
        *y *= z * logistic(z) * f64::from(net.factors.output);
    }
    if let MambaNorm::AfterGate(norm) = &net.norm {
        normed(&mut y, norm);
    }
    y.into_iter().map(|y| y as f32).collect()
}

/// The outputs of each row, token by token from each sequence's state. `begin` makes a past of a state, or of none.
fn by_token<P>(
    batch: &RaggedBatch,
    memory: &mut dyn Memory,
    layer: usize,
    begin: &dyn Fn(Option<&[f32]>) -> P,
    token: &dyn Fn(&mut P, usize) -> Vec<f32>,
    end: &dyn Fn(&P, &mut [f32]),
) -> Result<Tensor> {
    let (len, mut out) = (memory.layout().states.shape.floats, Vec::new());
    for (seq, state) in batch.seqs.iter().zip(&batch.states) {
        let mut bytes = Vec::new();
        memory.read(Unit::State, state.slot, &mut bytes)?;
        let mut floats: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let own = &mut floats[layer * len..][..len];
        let mut past = begin(Some(&*own).filter(|_| batch.positions[seq.row as usize] > 0));
        out.extend((seq.row as usize..(seq.row + seq.rows) as usize).map(|row| token(&mut past, row)));
        end(&past, own);
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        memory.write(Unit::State, state.slot, &bytes)?;
    }
    Ok(owned(out))
}
