//! Allocations of a step: `workspace_bytes` bounds the peak, and a decode step has a few, whatever its rows.

mod common;
mod counting;

use bn_engine::kernels::attention::KvType;
use bn_engine::model::{Facts, LoadOptions, Outputs, Source};
use bn_engine::ops::{Memory, RaggedBatch, SeqRows, StateRows};
use common::{Running, SPARE_STATES};
use counting::{CALLS, LIVE, PEAK};
use std::sync::atomic::Ordering::SeqCst;

/// One step of `sequences` sequences, each in a block of its own: rows `from..from + rows`, with logits of
/// the last one.
fn batch(sequences: u32, from: u32, rows: u32) -> RaggedBatch {
    let mut batch = RaggedBatch::default();
    for s in 0..sequences {
        batch.seqs.push(SeqRows { row: s * rows, rows, table: s, table_len: 1 });
        batch.block_tables.push(s);
        batch.tokens.extend((0..rows).map(|i| (7 * i + s) % 60));
        batch.positions.extend(from..from + rows);
        batch.logits_rows.push((s + 1) * rows - 1);
    }
    batch
}

/// (peak bytes, allocations) of one step.
fn measure(
    model: &Running,
    batch: &RaggedBatch,
    memory: &mut dyn Memory,
    out: &mut Outputs,
) -> (usize, usize) {
    let mut batch = batch.clone();
    if model.has_states() {
        let slots = SPARE_STATES..SPARE_STATES + batch.seqs.len();
        batch.states.extend(slots.map(|slot| StateRows { slot: slot as u32, ..StateRows::default() }));
    }
    let (live, calls) = (LIVE.load(SeqCst), CALLS.load(SeqCst));
    PEAK.store(live, SeqCst);
    model.forward(&batch, memory, out).expect("forward");
    (PEAK.load(SeqCst) - live, CALLS.load(SeqCst) - calls)
}

/// The highest peak and the fewest allocations of some equal steps: a thread's own buffers grow when it first has a task.
fn settled(
    model: &Running,
    batch: &RaggedBatch,
    memory: &mut dyn Memory,
    out: &mut Outputs,
) -> (usize, usize) {
    let steps = [(); 4].map(|()| measure(model, batch, memory, out));
    steps.iter().fold((0, usize::MAX), |(peak, calls), step| (peak.max(step.0), calls.min(step.1)))
}

/// One test: the counters are the process's.
#[test]
fn steps_stay_within_their_workspace() {
    // The last nine have biases, windows and two ropes, norms of projections, experts, latent attention, recurrent layers,
    // and blocks that draft.
    for path in [
        "models/bn-demo.gguf",
        "tests/golden/llama-tiny-f32.gguf",
        "tests/golden/models/qwen2.gguf",
        "tests/golden/models/gemma3.gguf",
        "tests/golden/models/bitnet-embedding-qwen3-i2_s.gguf",
        "tests/golden/models/qwen3moe-mixed",
        "tests/golden/models/deepseek-v3",
        "tests/golden/models/qwen35moe",
        "tests/golden/models/qwen3next",
        "tests/golden/mtp/qwen35",
        "tests/golden/mtp/qwen35moe",
    ] {
        let source = Source::File(common::root().join(path).to_string_lossy().into_owned());
        let options = LoadOptions { mtp: path.contains("/mtp/"), ..LoadOptions::default() };
        let model = &common::load_source(&source, &options, 2).expect(path);
        let memory = &mut *model.memory(KvType::F32, 8, 64, 8);
        let Facts { layers, vocab_size: vocab, hidden_size: hidden, .. } = *model.model.facts();
        let mut out = Outputs {
            logits: Vec::with_capacity(8 * vocab),
            hidden: Vec::with_capacity(480 * hidden),
            ..Outputs::default()
        };
        let (first, decode) = (batch(8, 0, 60), batch(8, 60, 1));
        // A smaller one first: memory that grows gets no more than it needs.
        let before = LIVE.load(SeqCst);
        measure(model, &batch(8, 0, 59), memory, &mut out);
        let held = LIVE.load(SeqCst) - before;
        let peak = held + measure(model, &first, memory, &mut out).0;
        let bound = model.model.workspace_bytes(&*model.ops, 480, 8);
        assert!(peak <= bound, "{path}: a prompt step took {peak} bytes where {bound} are declared");
        let mut with_states = first.clone();
        with_states.hidden_rows = (0..480).collect();
        let (peak, _) = measure(model, &with_states, memory, &mut out);
        assert!(
            peak <= bound,
            "{path}: a step of hidden states took {peak} bytes where {bound} are declared"
        );
        assert_eq!((out.logits.len(), out.hidden.len()), (8 * vocab, 480 * hidden));
        measure(model, &decode, memory, &mut out);
        let at = out.logits.as_ptr();
        let (peak, calls) = settled(model, &decode, memory, &mut out);
        let bound = model.model.workspace_bytes(&*model.ops, 8, 8);
        assert!(peak <= bound, "{path}: a decode step took {peak} bytes where {bound} are declared");
        assert_eq!(at, out.logits.as_ptr(), "{path}: the logits moved");
        // The places in the KV cache, and the states of recurrent layers.
        let most = 6;
        assert!(
            calls <= most,
            "{path}: {calls} allocations in a decode step of {layers} layers; at most {most}"
        );
        let single = batch(1, 60, 1);
        measure(model, &single, memory, &mut out);
        let (_, for_one) = settled(model, &single, memory, &mut out);
        assert_eq!(calls, for_one, "{path}: allocations for eight rows and for one");
        println!(
            "{path}: {calls} allocations in a decode step of {layers} layers, peak {peak} of {bound} bytes"
        );
    }
}
