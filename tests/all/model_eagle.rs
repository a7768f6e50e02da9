//! EAGLE-3 heads in a file beside the model: their drafts against a plain reference, the states that they continue
//! from, and files that are wrong or of another model.

use crate::common::gguf::{F16, File, HIDDEN, Tensor, VOCAB, Value, deepseek2};
use crate::common::{Running, alone, argmax, bits, load_source, relative_error, root};
use crate::eagle_support::{Head, Reference, drafts, models, whole_numbers};
use crate::model_bad_files::{refused, unsupported};
use crate::model_drafters::Saved;
use crate::model_mtp::{Chat, SLOT};
use bn_engine::base::{Bytes, Error, Status};
use bn_engine::model::{LoadOptions, Source, WeightType};
use bn_engine::ops::{Accepted, KvLayers};

fn source(file: &File) -> Source {
    Source::Memory { bytes: Bytes::new(file.bytes()), what: "test file".into() }
}

/// Opens a model with the bytes of a head's file beside it.
fn open_bytes(model: &Source, bytes: &[u8]) -> Result<Running, Error> {
    load_source(model, &Saved::new(bytes).options(), 1)
}

fn open_beside(model: &File, head: &File) -> Result<Running, Error> {
    open_bytes(&source(model), &head.bytes())
}

/// The heads that there are, by their parts and sizes.
fn heads() -> [Head; 6] {
    let whole = Head { every: 1, ..Head::new() };
    [
        Head::new(),
        Head { norm_before_residual: true, every: 2, ..Head::new() },
        Head { norm_before_fc: true, taps: [0, 1, 5], ..Head::new() },
        // The model's embedding as head, and a head over all of its tokens.
        Head { output: false, ..whole },
        Head { embedding: true, ..whole },
        // Narrower than the model, with heads of its own.
        Head { hidden: 64, heads: 4, kv_heads: 2, head_dim: 32, embedding: true, ..Head::new() },
    ]
}

fn tokens(len: u32) -> Vec<u32> {
    (0..len).map(|n| (n * n * 3 + 11 * n + 5) % VOCAB as u32).collect()
}

/// The logits that are those of the head's tokens, after a look at the others.
fn own(head: &Head, logits: &[f32]) -> Vec<f32> {
    let ids = head.ids();
    for (id, logit) in logits.iter().enumerate() {
        assert_eq!(logit.is_finite(), ids.contains(&(id as i64)), "token {id} has {logit}");
    }
    ids.iter().map(|id| logits[*id as usize]).collect()
}

fn error(got: &[f32], want: &[f64]) -> f64 {
    relative_error(got, &want.iter().map(|x| *x as f32).collect::<Vec<_>>())
}

#[test]
fn drafts_are_those_of_the_reference() {
    const AHEAD: usize = 3;
    let text = tokens(21);
    for (m, model) in models().iter().enumerate() {
        // The reference's model is this one, so that its states are too.
        let plain = load_source(&source(model), &LoadOptions::default(), 1).unwrap();
        let logits = alone(&plain, std::slice::from_ref(&text), 16).concat();
        let want = Reference::new(model, 6, &text).logits.concat();
        assert!(error(&logits, &want) < 1e-5, "model {m}: {:.1e}", error(&logits, &want));
        for (n, head) in heads().iter().enumerate() {
            let want = drafts(head, model, &text, AHEAD);
            let loaded = open_beside(model, &head.file()).unwrap();
            for chunk in [1, 7, 16] {
                let (mut chat, mut seen) = (Chat::new(&loaded), 0.0f64);
                let last = text.len() - 1 - AHEAD;
                while (chat.done as usize) < last {
                    let from = chat.done as usize;
                    let to = (from + chunk).min(last);
                    chat.run(&text[from..to], 0, &[]);
                    let logits = own(head, &chat.draft(text[to], 0));
                    seen = seen.max(error(&logits, &want[to - 1]));
                }
                for ahead in 1..=AHEAD {
                    let logits = own(head, &chat.draft(text[last + ahead], ahead as u32));
                    seen = seen.max(error(&logits, &want[last + ahead - 1]));
                }
                println!("model {m}, head {n} in chunks of {chunk}: {seen:.1e}");
                // Scores of such weights are large, so that attention magnifies the rounding of f32.
                assert!(seen < 1e-4, "model {m}, {head:?} in chunks of {chunk}: {seen:.1e}");
            }
        }
    }
}

/// The model's own results are those without a head.
#[test]
fn a_head_changes_no_bit_of_the_model() {
    let text = vec![tokens(40)];
    for model in &models() {
        let without = load_source(&source(model), &LoadOptions::default(), 1).unwrap();
        assert!(!without.model.drafts() && without.model.state_shape().is_empty());
        for head in heads() {
            let with = open_beside(model, &head.file()).unwrap();
            assert!(with.model.drafts());
            assert!(bits(&alone(&with, &text, 16)) == bits(&alone(&without, &text, 16)), "{head:?}");
            let (own, shape) = (with.model.kv_shape(), without.model.kv_shape());
            let apart = head.heads != 2;
            let others = KvLayers { layers: 1, kv_heads: 2, head_dim: 32 };
            assert_eq!(own.layers, shape.layers + usize::from(!apart));
            assert_eq!(own.others, apart.then_some(others));
            assert_eq!(with.model.state_shape().hidden as u64, head.hidden);
        }
    }
}

/// The state that drafts continue from is that after the last certain token, whatever drafts came behind it.
#[test]
fn states_follow_what_is_certain() {
    let [model, _] = models();
    let loaded = open_beside(&model, &Head::new().file()).unwrap();
    let text = tokens(24);
    let after = |count: usize| {
        let mut chat = Chat::new(&loaded);
        chat.run(&text[..count], 0, &[]);
        chat
    };
    let mut chat = after(20);
    chat.run(&text[20..24], 3, &[]);
    assert!(chat.hidden(SLOT) == after(21).hidden(SLOT));
    let accepted = [Accepted { slot: SLOT, first: 0, rows: 2 }];
    loaded.model.advance(&*loaded.ops, &mut *chat.memory, &accepted).unwrap();
    chat.done = 23;
    let mut same = after(23);
    assert!(chat.hidden(SLOT) == same.hidden(SLOT));
    assert!(chat.draft(5, 0) == same.draft(5, 0));
    // A draft is one of the head's tokens.
    assert!(Head::new().ids().contains(&(argmax(&chat.draft(5, 0)) as i64)));
}

/// Other types of weights, and weights of the model that are converted.
#[test]
fn heads_keep_their_types() {
    let [model, _] = models();
    let halves = |tensor: &mut Tensor| {
        let floats = tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        tensor.data = floats.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect();
        tensor.type_id = F16;
    };
    let file = Head::new().file().change("fc.weight", halves).change("blk.0.attn_q.weight", halves);
    let file = Saved::new(&file.bytes());
    let options =
        LoadOptions { drafter: Some(file.path()), weights: WeightType::Q8_0, ..LoadOptions::default() };
    let loaded = load_source(&source(&model), &options, 1).unwrap();
    let mut chat = Chat::new(&loaded);
    chat.run(&tokens(9), 0, &[]);
    assert!(own(&Head::new(), &chat.draft(4, 0)).iter().any(|x| *x != 0.0));
    let bytes =
        |options: &LoadOptions| load_source(&source(&model), options, 1).unwrap().model.facts().weight_bytes;
    let alone = bytes(&LoadOptions { drafter: None, ..options.clone() });
    let expected = std::fs::metadata(file.path()).unwrap().len();
    assert!((alone + expected * 9 / 10..=alone + expected).contains(&bytes(&options)));
    let limit = LoadOptions { max_weight_bytes: alone, ..options };
    refused(load_source(&source(&model), &limit, 1), Status::MemoryLimit, &["memory_limit_bytes"]);
}

fn key(key: &str) -> String {
    format!("eagle3.{key}")
}

#[test]
fn heads_of_other_models_are_refused() {
    let [model, _] = models();
    let invalid = |head: Head, words: &[&str]| {
        let opened = open_beside(&model, &head.file());
        refused(opened, Status::InvalidArgument, &[&["drafter_path", "bn-drafter"], words].concat());
    };
    let own = Head::new();
    invalid(Head { width: HIDDEN / 2, ..own }, &["target_hidden_size is 64", "test file"]);
    invalid(Head { taps: [1, 3, 6], ..own }, &["target_layers", "[1, 3, 6]", "6 layers"]);
    invalid(Head { taps: [3, 1, 4], ..own }, &["target_layers", "ascend"]);
    invalid(Head { vocab: VOCAB - 2, embedding: true, ..own }, &["token_embd.weight", "38", "40"]);
    invalid(Head { hidden: 64, ..own }, &["no token_embd.weight", "64"]);
    invalid(Head { output: false, ..own }, &["no output.weight", "40"]);
    // A vocabulary that is larger than the model's.
    let more = open_beside(&model, &Head { vocab: 64, ..own }.file());
    refused(more, Status::BadModel, &["'d2t' holds 42", "40 tokens"]);
    let whole = open_beside(&model, &Head { vocab: 64, every: 1, ..own }.file());
    refused(whole, Status::BadModel, &["'output.weight'", "64"]);
    // Models whose K and V have no room beside them for the head's.
    let path = root().join("tests/golden/models/gemma4.gguf").to_string_lossy().into_owned();
    let wide = Head { width: 32, taps: [0, 1, 2], ..own }.file();
    let opened = open_bytes(&Source::File(path), &wide.bytes());
    refused(opened, Status::Unsupported, &["EAGLE-3", "two shapes of attention", "gemma4"]);
    let opened = open_beside(&deepseek2(), &own.file());
    refused(opened, Status::Unsupported, &["drafter_path", "latent attention"]);
}

#[test]
fn damaged_heads_are_refused() {
    let [model, _] = models();
    let source = source(&model);
    let file = Head { norm_before_fc: true, ..Head::new() }.file();
    let check = |file: File, status: Status, words: &[&str]| {
        refused(open_bytes(&source, &file.bytes()), status, words);
    };
    for name in file.tensors.iter().map(|tensor| &tensor.name).filter(|name| *name != "d2t") {
        let words = if name == "output.weight" { "no output.weight" } else { name };
        let status = if name == "output.weight" { Status::InvalidArgument } else { Status::BadModel };
        check(file.clone().without(name), status, &["bn-drafter", words]);
        let shorter = |tensor: &mut Tensor| {
            let rows = tensor.dims.last_mut().expect("dimensions");
            tensor.data.truncate(tensor.data.len() / *rows as usize * (*rows as usize - 1));
            *rows -= 1;
        };
        check(file.clone().change(name, shorter), Status::BadModel, &["bn-drafter", name]);
    }
    check(file.clone().without("d2t"), Status::BadModel, &["'output.weight'"]);
    let strange = "blk.0.nextn.strange.weight";
    check(file.clone().random(strange, &[4], 1), Status::Unsupported, &[strange, "no part"]);
    for (ids, words) in [
        (&[0i64, 3, 40][..], "holds 40, and the model has 40 tokens"),
        (&[-1, 3, 4], "holds -1"),
        (&[0, i64::MAX, i64::MIN], "holds 9223372036854775807"),
        (&[0, 3, 3], "holds 3 after 3"),
        (&[5, 4, 9], "holds 4 after 5"),
        (&[], "truncated"),
    ] {
        let ids = whole_numbers(ids);
        check(file.clone().change("d2t", |own| *own = ids), Status::BadModel, &["'d2t'", words]);
    }
    let floats = |tensor: &mut Tensor| (tensor.type_id, tensor.data) = (0, tensor.data[..56].to_vec());
    check(file.clone().change("d2t", floats), Status::Unsupported, &["'d2t'", "whole numbers"]);
    let matrix = |tensor: &mut Tensor| tensor.dims = vec![7, 2];
    check(file.clone().change("d2t", matrix), Status::BadModel, &["'d2t'", "a vector"]);
    // The numbers end with the file.
    let long = |tensor: &mut Tensor| tensor.dims = vec![1 << 40];
    check(file.clone().change("d2t", long), Status::BadModel, &["'d2t'", "truncated"]);
}

#[test]
fn heads_that_are_described_wrongly_are_refused() {
    let [model, _] = models();
    let (source, file) = (source(&model), Head::new().file());
    let check = |file: File, status: Status, words: &[&str]| {
        refused(open_bytes(&source, &file.bytes()), status, words);
    };
    let layers = |layers: Value| file.clone().set(&key("target_layers"), layers);
    check(layers(Value::I32s(vec![1, 3])), Status::BadModel, &["target_layers", "three layers"]);
    check(layers(Value::I32s(vec![-1, 3, 4])), Status::BadModel, &["target_layers"]);
    check(layers(Value::Str("1".into())), Status::BadModel, &["target_layers"]);
    check(
        file.clone().without_key(&key("target_layers")),
        Status::BadModel,
        &["target_layers", "three layers"],
    );
    check(file.clone().u32(&key("block_count"), 2), Status::Unsupported, &["block_count", "2"]);
    check(file.clone().u32(&key("attention.head_count"), 0), Status::BadModel, &["head_count"]);
    let odd = file.clone().u32(&key("attention.key_length"), 33).u32(&key("attention.value_length"), 33);
    check(odd, Status::BadModel, &["key_length", "even"]);
    check(file.clone().u32(&key("expert_count"), 4), Status::Unsupported, &["expert_count"]);
    check(
        file.clone().u32("prism.hadamard.block_size", 4),
        Status::Unsupported,
        &["prism.hadamard.block_size"],
    );
    let other = file.clone().str("general.architecture", "eagle");
    check(other, Status::Unsupported, &["an EAGLE drafter of architecture 'eagle'", "eagle3 is read"]);
    // Alone, it is no model.
    let words = ["test file", "an EAGLE drafter", "without the model", "drafter_path"];
    unsupported(file.clone(), &words);
    // The key that files had before llama.cpp's release.
    let old = file.clone().without_key(&key("target_layers"));
    let old = old.set(&key("extract_layers"), Value::I32s(Head::new().taps.into()));
    let logits = |file: &File| {
        let loaded = open_beside(&model, file).unwrap();
        let mut chat = Chat::new(&loaded);
        chat.run(&tokens(9), 0, &[]);
        chat.draft(4, 0)
    };
    assert_eq!(logits(&old), logits(&file));
}

/// Beginnings of a file, and a file with any of its bytes changed: errors, or a head that drafts something.
#[test]
fn any_bytes_of_a_head_are_an_error_or_a_head() {
    let [model, _] = models();
    let (source, file) = (source(&model), Head::new().file());
    let bytes = file.bytes();
    let header = bytes.len() - file.tensors.iter().map(|tensor| tensor.data.len()).sum::<usize>();
    let ends = (0..header).step_by(37).chain((header..bytes.len()).step_by(41_011));
    for end in ends {
        assert!(open_bytes(&source, &bytes[..end]).is_err(), "{end} bytes");
    }
    let mut opened = 0;
    for at in (0..header).step_by(13) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let Ok(loaded) = open_bytes(&source, &changed) else { continue };
        let mut chat = Chat::new(&loaded);
        chat.run(&[1, 2, 3], 0, &[]);
        assert_eq!(chat.draft(4, 0).len(), VOCAB as usize);
        opened += 1;
    }
    assert!(opened > 0);
}
