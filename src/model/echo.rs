//! The `echo` model. It has no weights, its reply is a function of the prompt, and its cost per token can be set.
//!
//! Its vocabulary is the 256 bytes, an end token and a separator. The prompt is bytes and then the separator; the
//! reply is the same bytes and then the end. It reads the past from the paged KV cache through the block tables, as a
//! decoder does, so a paging error shows as wrong text.
//!
//! A row's hidden state is 1 at its token's id modulo 16 and 0 elsewhere. So a prompt's embedding, their mean, is a
//! histogram of its bytes.

use super::check::{check_batch, check_tokens_alone};
use super::{Facts, KvShape, Model, Outputs, Pooling, check_stop};
use crate::base::{Error, Result};
use crate::kernels::attention::KvType;
use crate::ops::{AttentionShape, HostMemory, Memory, OpSet, Paging, RaggedBatch};
use crate::text::ChatTemplate;
use candle_core::{CpuStorage, InplaceOp1, Layout};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The bytes, [`END`] and [`SEPARATOR`]: the ids of `Tokenizer::bytes`.
const VOCAB: usize = 258;
pub(super) const END: u32 = 256;
/// Separates a prompt from its reply.
pub(super) const SEPARATOR: u32 = 257;
/// Positions are stored as f32, exact below 2^24.
const CONTEXT: usize = 1 << 16;
/// The predicted token's logit; all others are 0.
const PEAK: f32 = 10.0;
/// Elements of a KV slot: a position's token, and the position of the last separator plus 1 (0: there is none).
const HEAD_DIM: usize = 2;
/// Elements of a hidden state.
const HIDDEN: usize = 16;

/// The model; see the module's documentation.
pub(super) struct Echo {
    facts: Facts,
    cost_per_row: Duration,
}

impl Echo {
    /// Creates a model that spends `us_per_token` microseconds on each row of a step.
    pub(super) fn new(us_per_token: u32) -> Self {
        let facts = Facts {
            architecture: "echo".into(),
            name: "echo".into(),
            vocab_size: VOCAB,
            context_length: CONTEXT,
            layers: 1,
            hidden_size: HIDDEN,
            heads: 1,
            kv_heads: 1,
            head_dim: HEAD_DIM,
            pooling: Pooling::Mean,
            ..Facts::default()
        };
        Self { facts, cost_per_row: Duration::from_micros(us_per_token.into()) }
    }

    /// One line per message, `role: content`, so that hosts can try their conversations too.
    pub(super) fn chat_template() -> Result<ChatTemplate> {
        let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                      {% if add_generation_prompt %}assistant: {% endif %}";
        ChatTemplate::new(source, Vec::new())
    }
}

impl Model for Echo {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn kv_shape(&self) -> KvShape {
        // Ids and positions, which F16 would round.
        let kind = Some(KvType::F32);
        KvShape { layers: 1, kv_heads: 1, head_dim: HEAD_DIM, kind, ..KvShape::default() }
    }

    fn workspace_bytes(&self, _: &dyn OpSet, _: usize, _: usize) -> usize {
        0
    }

    fn forward(
        &self,
        _: &dyn OpSet,
        batch: &RaggedBatch,
        memory: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        let layout = memory.layout().kv;
        Paging::new(batch, &layout, &AttentionShape::new(1, 1, HEAD_DIM))?;
        check_batch(batch, &layout, self.kv_shape(), &self.facts)?;
        check_tokens_alone(batch)?;
        spend(self.cost_per_row.saturating_mul(batch.tokens.len() as u32), stop)?;
        out.tokens.clear();
        zeros(&mut out.logits, batch.logits_rows.len() * VOCAB)?;
        let step = EchoStep { batch, block_size: layout.block_size, logits: RefCell::new(&mut out.logits) };
        let memory: &HostMemory = memory.of()?;
        memory.layer(0)?.inplace_op1(&step).map_err(|e| Error::internal(format!("echo: {e}")))?;
        zeros(&mut out.hidden, batch.hidden_rows.len() * HIDDEN)?;
        for (&row, state) in batch.hidden_rows.iter().zip(out.hidden.chunks_exact_mut(HIDDEN)) {
            state[batch.tokens[row as usize] as usize % HIDDEN] = 1.0;
        }
        Ok(())
    }
}

fn zeros(out: &mut Vec<f32>, len: usize) -> Result<()> {
    out.clear();
    out.try_reserve(len).map_err(|_| Error::out_of_memory("a step's outputs", len * 4))?;
    out.resize(len, 0.0);
    Ok(())
}

/// Waits as a busy core would, but sleeps if the time is longer than the clock's resolution.
fn spend(cost: Duration, stop: &mut dyn FnMut() -> bool) -> Result<()> {
    const SLICE: Duration = Duration::from_millis(1);
    const SPIN: Duration = Duration::from_micros(200);
    let start = Instant::now();
    loop {
        check_stop(stop)?;
        let left = cost.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        match left.checked_sub(SPIN) {
            Some(sleep) => std::thread::sleep(sleep.min(SLICE)),
            None => std::hint::spin_loop(),
        }
    }
}

/// Stores the batch's rows in the KV layer `[2, blocks, 1, block_size, 2]`, and predicts.
struct EchoStep<'a> {
    batch: &'a RaggedBatch,
    block_size: usize,
    /// Zeros, `[logits_rows, VOCAB]`.
    logits: RefCell<&'a mut [f32]>,
}

impl InplaceOp1 for EchoStep<'_> {
    fn name(&self) -> &'static str {
        "bn-echo"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(data), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("the KV layer is no contiguous f32 tensor")
        };
        // The first half is K, where echo stores everything.
        let keys = &mut data[start..start + (end - start) / 2];
        let mut wanted = self.batch.logits_rows.iter().copied().peekable();
        let mut logits = self.logits.borrow_mut();
        let mut predictions = logits.chunks_exact_mut(VOCAB);
        for seq in &self.batch.seqs {
            let table = &self.batch.block_tables[seq.table as usize..][..seq.table_len as usize];
            let slot = |p: usize| {
                (table[p / self.block_size] as usize * self.block_size + p % self.block_size) * HEAD_DIM
            };
            let first = self.batch.positions[seq.row as usize] as usize;
            let mut separator = if first == 0 { 0.0 } else { keys[slot(first - 1) + 1] };
            for i in 0..seq.rows as usize {
                let (row, p) = (seq.row as usize + i, first + i);
                let token = self.batch.tokens[row];
                if token == SEPARATOR {
                    separator = (p + 1) as f32;
                }
                keys[slot(p)] = token as f32;
                keys[slot(p) + 1] = separator;
                if wanted.next_if_eq(&(row as u32)).is_some() {
                    let next = predict(p, token, separator, |i| keys[slot(i)]);
                    // This fails only if the memory was never written for this sequence.
                    let Some(next) = next else {
                        candle_core::bail!("position {p} reads a KV slot not its own")
                    };
                    if let Some(row) = predictions.next() {
                        row[next as usize] = PEAK;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The token after position `p`. `separator` is the last separator's position plus 1; `at` reads a position's token.
/// `None` if no sequence of this model can have written these.
fn predict(p: usize, token: u32, separator: f32, at: impl Fn(usize) -> f32) -> Option<u32> {
    if separator == 0.0 {
        return Some(token);
    }
    // Conversion from f32 to an integer saturates, and NaN gives 0: neither passes for a position.
    let s = (separator as usize).checked_sub(1).filter(|&s| s <= p && separator.fract() == 0.0)?;
    let index = (p - s) % (s + 1);
    if index == s {
        return Some(END);
    }
    let stored = at(index);
    Some(stored as u32).filter(|&t| (t as usize) < VOCAB && t as f32 == stored)
}
