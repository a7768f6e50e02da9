//! The `echo` model's replies, its refusals of steps, and the names that models are loaded by.

use crate::common;
use crate::common::{Running, Session, argmax, load_source};
use bn_engine::base::{Error, Status};
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Outputs, Source};
use bn_engine::ops::{HostMemory, KvLayout, Memory, MemoryLayout, RaggedBatch, SeqRows};
use std::time::{Duration, Instant};

const END: u32 = 256;
const SEPARATOR: u32 = 257;
const VOCAB: usize = 258;

fn echo(path: &str) -> Running {
    let source = Source::parse(Some(path)).expect("a source");
    load_source(&source, &LoadOptions::default(), 1).expect("echo")
}

/// The model's reply after each of `tokens`.
fn replies(logits: &[f32]) -> Vec<u32> {
    for row in logits.chunks_exact(VOCAB) {
        assert_eq!(row.iter().filter(|&&x| x == 0.0).count(), VOCAB - 1, "10 once, 0 else");
        assert_eq!(row[argmax(row)], 10.0);
    }
    logits.chunks_exact(VOCAB).map(|row| argmax(row) as u32).collect()
}

/// `text`, the separator, `text` and the end, repeated `again` times.
fn conversation(text: &str, again: usize) -> Vec<u32> {
    let text: Vec<u32> = text.bytes().map(u32::from).collect();
    let mut tokens = text.clone();
    tokens.push(SEPARATOR);
    (0..again).for_each(|_| tokens.extend(text.iter().chain([&END])));
    tokens
}

#[test]
fn it_repeats_the_prompt_ends_and_starts_over() {
    let texts = ["hello, engine", "x", "", "a longer one that goes over the edge of a block of sixteen"];
    let sequences: Vec<_> = texts.iter().map(|text| conversation(text, 3)).collect();
    for chunk in [1, 3, 7, 100] {
        let loaded = echo("builtin:echo");
        let mut session = Session::new(&loaded, &sequences, 16, chunk as u64);
        session.interleave(chunk);
        for (text, (tokens, logits)) in texts.iter().zip(sequences.iter().zip(&session.logits)) {
            // From the separator on, each position predicts the token that follows it.
            let separator = text.len();
            assert_eq!(replies(logits)[separator..tokens.len() - 1], tokens[separator + 1..], "'{text}'");
        }
    }
}

#[test]
fn without_a_separator_it_repeats_the_last_token() {
    let sequences = [vec![7, 9, 0, 255]];
    let loaded = echo("builtin:echo");
    let mut session = Session::new(&loaded, &sequences, 16, 1);
    session.step(&[(0, 4)]);
    assert_eq!(replies(&session.logits[0]), sequences[0]);
}

#[test]
fn its_tokenizer_and_facts_fit() {
    let loaded = echo("builtin:echo");
    let tokenizer = loaded.tokenizer.as_ref().expect("bytes");
    assert_eq!(tokenizer.encode("hi", true, false).unwrap(), [104, 105, SEPARATOR]);
    assert_eq!(tokenizer.end_tokens(), [END]);
    let facts = loaded.model.facts();
    assert_eq!((facts.vocab_size, facts.weight_bytes), (tokenizer.vocab_size(), 0));
}

fn memory() -> HostMemory {
    let kind = KvType::F32;
    HostMemory::new(MemoryLayout::of(KvLayout {
        kind,
        layers: 1,
        kv_heads: 1,
        head_dim: 2,
        others: None,
        joint: false,
        blocks: 4,
        block_size: 16,
    }))
    .expect("memory")
}

fn one_row() -> RaggedBatch {
    RaggedBatch {
        tokens: vec![1, 2],
        positions: vec![0, 1],
        seqs: vec![SeqRows { row: 0, rows: 2, table: 0, table_len: 1 }],
        block_tables: vec![3],
        logits_rows: vec![1],
        ..RaggedBatch::default()
    }
}

fn run(change: impl FnOnce(&mut RaggedBatch)) -> Result<(), Error> {
    let mut batch = one_row();
    change(&mut batch);
    echo("builtin:echo").forward(&batch, &mut memory(), &mut Outputs::default())
}

#[test]
fn a_step_out_of_bounds_is_refused() {
    run(|_| ()).expect("the batch that the others bend");
    type Change = fn(&mut RaggedBatch);
    let wrong: [(Change, &str); 14] = [
        (|b| b.tokens[1] = 258, "token id 258"),
        (|b| b.block_tables[0] = 4, "KV block 4"),
        (|b| b.positions[1] = 2, "positions"),
        (|b| b.positions = vec![65535, 65536], "positions"),
        (|b| b.positions = vec![15, 16], "block table"),
        (|b| b.seqs[0].table_len = 2, "block table"),
        (|b| b.seqs[0].table = u32::MAX, "block table"),
        (|b| b.seqs[0].rows = 1, "belong to no sequence"),
        (|b| b.seqs[0].rows = u32::MAX, "rows"),
        (|b| b.seqs[0].row = 1, "rows"),
        (|b| b.logits_rows = vec![2], "logits rows"),
        (|b| b.hidden_rows = vec![0, 2], "hidden rows"),
        (|b| b.hidden_rows = vec![1, 0], "hidden rows"),
        (|b| b.tokens.clear(), "0 tokens"),
    ];
    for (change, words) in wrong {
        let error = run(change).expect_err(words);
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
        assert!(error.message.contains(words), "'{words}' is not in: {error}");
    }
}

#[test]
fn memory_of_another_sequence_shows() {
    let model = echo("builtin:echo");
    let (mut memory, mut out) = (memory(), Outputs::default());
    let mut writer = one_row();
    (writer.tokens, writer.positions) = (vec![SEPARATOR; 10], (16..26).collect());
    (writer.block_tables, writer.seqs[0].rows, writer.seqs[0].table_len) = (vec![0, 3], 10, 2);
    model.forward(&writer, &mut memory, &mut out).expect("separators at 16 to 25");
    // The same block as the first of another sequence: its slot 0 was written for position 16.
    let mut reader = one_row();
    (reader.tokens, reader.positions, reader.seqs[0].rows) = (vec![1], vec![1], 1);
    reader.logits_rows = vec![0];
    let error = model.forward(&reader, &mut memory, &mut out).expect_err("not its own");
    assert!(error.status == Status::Internal && error.message.contains("position 1"), "{error}");
}

#[test]
fn the_cost_is_spent_and_can_be_stopped() {
    let (model, mut memory) = (echo("builtin:echo?us_per_token=3000"), memory());
    let start = Instant::now();
    model.forward(&one_row(), &mut memory, &mut Outputs::default()).expect("two rows");
    // A lower bound: no machine is too slow for it.
    assert!(start.elapsed() >= Duration::from_micros(6000), "{:?}", start.elapsed());
    let slow = echo("builtin:echo?us_per_token=1000000");
    // Two seconds in slices of one millisecond: `stop` is called long before they are over.
    let (asked, error) = stopped_after(10, &slow, &mut memory);
    assert_eq!((asked, error.status), (10, Status::Cancelled));
}

/// Number of calls of `stop`, which returns true from time `n` on, and the pass's result.
fn stopped_after(n: usize, model: &Running, memory: &mut dyn Memory) -> (usize, Error) {
    let mut asked = 0;
    let stop = &mut || {
        asked += 1;
        asked >= n
    };
    let result = model.model.forward(&*model.ops, &one_row(), memory, stop, &mut Outputs::default());
    (asked, result.expect_err("stopped"))
}

#[test]
fn a_decoder_stops_between_layers_and_before_the_head() {
    let model = common::load_file("tests/golden/llama-tiny-f32.gguf", 1).expect("load");
    let memory = &mut *model.memory(KvType::F32, 4, 16, 1);
    for n in 1..=model.model.facts().layers + 1 {
        let (asked, error) = stopped_after(n, &model, memory);
        assert_eq!((asked, error.status), (n, Status::Cancelled));
    }
    model.forward(&one_row(), memory, &mut Outputs::default()).expect("a pass behind stopped ones");
}

#[test]
fn names_of_models() {
    let parse = |path| {
        let source = Source::parse(path).map_err(|error| error.message)?;
        Ok::<_, String>(format!("{source:?}"))
    };
    assert_eq!(parse(None).unwrap(), "Embedded");
    assert_eq!(parse(Some("builtin:echo")).unwrap(), "Echo(EchoOptions { us_per_token: 0, load_ms: 0 })");
    assert_eq!(
        parse(Some("builtin:echo?us_per_token=250&load_ms=7")).unwrap(),
        "Echo(EchoOptions { us_per_token: 250, load_ms: 7 })"
    );
    assert_eq!(parse(Some("./models/a?b.gguf")).unwrap(), "File(\"./models/a?b.gguf\")");
    for (path, word) in [
        ("", "NULL"),
        ("builtin:llama", "builtin:llama"),
        ("builtin:", "builtin:echo"),
        ("builtin:echo?", "us_per_token"),
        ("builtin:echo?us_per_token=1000001", "1000001"),
        ("builtin:echo?us_per_token=-1", "-1"),
        ("builtin:echo?us_per_token=", "us_per_token="),
        ("builtin:echo?speed=9", "speed=9"),
        ("builtin:echo?us_per_token=1&us_per_token=2", "us_per_token"),
    ] {
        let error = parse(Some(path)).expect_err(path);
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}
