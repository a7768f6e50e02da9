//! Drafters in files of their own: they draft as in their model's file, others are refused, and alone they are no
//! models.

use crate::common::gguf::{
    File, HIDDEN, Tensor, VOCAB, Value, deepseek2, llama, qwen3next, qwen35, qwen35moe,
};
use crate::common::{Rng, Running, alone, bits, load_source, root};
use crate::model_bad_files::{refused, unsupported};
use crate::model_mtp::{Chat, open, with_block};
use bn_engine::base::{Bytes, Error, Status};
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Source, WeightType, load};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const TABLE: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
/// Copies of the model's parts that llama.cpp's converter puts beside the block.
const COPIES: [&str; 3] = [TABLE, "output_norm.weight", HEAD];

/// A file that is removed after the test.
pub struct Saved(PathBuf);

impl Saved {
    pub fn new(bytes: &[u8]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bn-drafter-{}-{n}.gguf", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub fn path(&self) -> String {
        self.0.to_str().unwrap().to_owned()
    }

    /// Options with this file as the drafter.
    pub fn options(&self) -> LoadOptions {
        LoadOptions { drafter: Some(self.path()), ..LoadOptions::default() }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn source(file: &File) -> Source {
    Source::Memory { bytes: Bytes::new(file.bytes()), what: "test file".into() }
}

fn open_with(model: &File, drafter: &File) -> Result<Running, Error> {
    load_source(&source(model), &Saved::new(&drafter.bytes()).options(), 1)
}

/// A file with a block in two: the model, and the block, with copies of those of the model's tensors.
fn split(whole: &File, name: &str, copies: &[&str]) -> [File; 2] {
    let of_block = |tensor: &Tensor| tensor.name.starts_with("blk.2.");
    let [count, further] = ["block_count", "nextn_predict_layers"].map(|key| format!("{name}.{key}"));
    let mut model = whole.clone().u32(&count, 2).without_key(&further);
    model.tensors.retain(|tensor| !of_block(tensor));
    let mut drafter = whole.clone();
    drafter.tensors.retain(|tensor| of_block(tensor) || copies.contains(&&*tensor.name));
    [model, drafter]
}

/// A model with a block and a head of its own.
fn untied(file: fn() -> File, name: &str) -> File {
    with_block(file(), name).random(HEAD, &[HIDDEN, VOCAB], 8)
}

/// The logits of a chain of drafts, the hidden state that it begins with, and the model's own logits.
fn results(model: &Running) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let to_bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect();
    let mut chat = Chat::new(model);
    let mut all = Vec::new();
    for tokens in [&[1, 2, 3][..], &[30, 31, 32, 33, 34], &[7]] {
        chat.run(tokens, 0, &[]);
        all.extend((0..4).map(|ahead| to_bits(chat.draft(5 + ahead, ahead))));
        all.push(to_bits(chat.hidden(1)));
    }
    let own = bits(&alone(model, &[(0..20).map(|n| n * 7 % 40).collect()], 16));
    (all, vec![own.into_iter().flatten().collect()])
}

#[test]
fn a_block_in_a_file_of_its_own_drafts_the_same() {
    let families = [(qwen35 as fn() -> File, "qwen35"), (qwen35moe, "qwen35moe"), (qwen3next, "qwen3next")];
    for (file, name) in families {
        for whole in [with_block(file(), name), untied(file, name)] {
            let one = open(whole.clone()).unwrap();
            let want = results(&one);
            for copies in [&[][..], &COPIES, &COPIES[1..]] {
                let [model, drafter] = split(&whole, name, copies);
                let two = open_with(&model, &drafter).unwrap();
                assert!(results(&two) == want, "{name} with copies of {copies:?}");
                assert!(two.model.drafts() && two.model.kv_shape() == one.model.kv_shape());
                let [one, two] = [&one, &two].map(|model| model.model.facts());
                assert_eq!(two.layers, 2);
                let sizes = |bytes: u64, parameters: u64| (bytes, parameters);
                match copies {
                    [] => assert_eq!(two.parameters, one.parameters),
                    _ => assert!(
                        sizes(two.weight_bytes, two.parameters) > sizes(one.weight_bytes, one.parameters)
                    ),
                }
            }
        }
    }
}

/// A block's own embedding and head, in the model's file by the block's names and in a file of its own by the model's.
#[test]
fn a_drafter_uses_its_own_embedding_and_head() {
    let other = |file: File, name: &str, seed| file.random(name, &[HIDDEN, VOCAB], seed);
    let as_block = |whole: File, head| {
        let whole = other(whole, "blk.2.nextn.embed_tokens.weight", 301);
        other(whole, "blk.2.nextn.shared_head_head.weight", head)
    };
    let norm = |file: File| {
        let copy =
            file.tensors.iter().find(|tensor| tensor.name == "blk.2.nextn.enorm.weight").unwrap().clone();
        let mut file = file;
        file.tensors.push(Tensor { name: "output_norm.weight".into(), ..copy });
        file
    };
    // Of a model whose head is its embedding, the drafter's is its own embedding too.
    for (whole, head) in [(untied(qwen35, "qwen35"), 302), (with_block(qwen35(), "qwen35"), 301)] {
        let [model, drafter] = split(&whole, "qwen35", &[]);
        let drafter = other(drafter, TABLE, 301);
        let drafter = if head == 301 { drafter } else { other(drafter, HEAD, head) };
        let want = results(&open(as_block(whole.clone(), head)).unwrap());
        let got = results(&open_with(&model, &drafter).unwrap());
        let plain = results(&open(whole).unwrap());
        assert!(got == want);
        assert!(got.0 != plain.0 && got.1 == plain.1, "the drafts alone differ");
        let normed = results(&open_with(&model, &norm(drafter)).unwrap());
        assert!(normed.0 != got.0 && normed.1 == got.1);
    }
}

/// A file whose weights of these names, and whose embedding if `table`, count as folded with a rotation.
fn rotated(file: File, weights: &[&str], table: bool) -> File {
    let key = |key: &str| format!("prism.hadamard.{key}");
    let names = weights.iter().map(|name| format!("{name}.ffn_down.weight")).collect();
    let file = file
        .u32(&key("version"), 1)
        .u32(&key("block_size"), 32)
        .str(&key("transform"), "normalized-sylvester-walsh-hadamard")
        .str(&key("axis"), "input-last-dimension")
        .str(&key("sign_mode"), "identity")
        .set(&key("weight_names"), Value::Strs(names));
    match table {
        true => file.set(&key("inverse_weight_names"), Value::Strs(vec![TABLE.into()])),
        false => file,
    }
}

/// Each file says which of its weights are rotated (Bonsai 2).
#[test]
fn rotations_are_those_of_each_file() {
    let plain = untied(qwen35, "qwen35");
    let [model, drafter] = split(&plain, "qwen35", &[]);
    let [_, copied] = split(&plain, "qwen35", &[TABLE]);
    let target = rotated(model, &["blk.1"], true);
    let of = |weights: &[&str]| results(&open(rotated(plain.clone(), weights, true)).unwrap());
    let (neither, both) = (of(&["blk.1"]), of(&["blk.1", "blk.2"]));
    let beside = |drafter: &File| results(&open_with(&target, drafter).unwrap());
    assert!(neither.0 != both.0 && neither.1 == both.1);
    assert!(beside(&drafter) == neither);
    assert!(beside(&rotated(drafter, &["blk.2"], false)) == both);
    assert!(beside(&rotated(copied.clone(), &["blk.2"], true)) == both);
    assert!(beside(&rotated(copied, &["blk.2"], false)) != both);
}

/// A model whose file has a block too drafts with that of the other file, and says so.
#[test]
fn the_file_that_is_named_drafts() {
    let whole = untied(qwen35, "qwen35");
    let other = whole.clone().without("blk.2.nextn.eh_proj.weight");
    let other = other.random("blk.2.nextn.eh_proj.weight", &[2 * HIDDEN, HIDDEN], 77);
    let [_, drafter] = split(&other, "qwen35", &[]);
    let [want, own] = [&other, &whole].map(|file| results(&open(file.clone()).unwrap()));
    assert!(want != own);
    let saved = Saved::new(&drafter.bytes());
    let logged = Mutex::new(String::new());
    let log = |_: u32, line: &str| *logged.lock().unwrap() += line;
    let pool = Pool::new(1).unwrap();
    let loaded = load(&source(&whole), &saved.options(), &pool, &log, &mut |_, _| false).unwrap();
    assert!(results(&Running::new(loaded, 1).unwrap()) == want);
    let logged = logged.into_inner().unwrap();
    assert!(logged.contains("test file: its block") && logged.contains("drafter_path drafts"), "{logged}");
}

#[test]
fn weights_of_a_drafter_are_converted_and_counted_with_the_models() {
    let whole = untied(qwen35, "qwen35");
    let [model, drafter] = split(&whole, "qwen35", &[]);
    let saved = Saved::new(&drafter.bytes());
    let (weights, head) = (WeightType::Q8_0, WeightType::Q4_0);
    let mtp = LoadOptions { weights, head, mtp: true, ..LoadOptions::default() };
    let one = load_source(&source(&whole), &mtp, 1).unwrap();
    let converted = LoadOptions { weights, head, ..saved.options() };
    let two = load_source(&source(&model), &converted, 1).unwrap();
    assert!(results(&two) == results(&one));
    assert_ne!(results(&two), results(&open(whole.clone()).unwrap()));

    let bytes =
        |options: &LoadOptions| load_source(&source(&model), options, 1).unwrap().model.facts().weight_bytes;
    let (alone, both) = (bytes(&LoadOptions::default()), bytes(&saved.options()));
    let limited = |max_weight_bytes| {
        load_source(&source(&model), &LoadOptions { max_weight_bytes, ..saved.options() }, 1).map(|_| ())
    };
    refused(limited(alone), Status::MemoryLimit, &[&saved.path()]);
    limited(both).unwrap();
}

#[test]
fn progress_goes_on_through_both_files() {
    let whole = untied(qwen35, "qwen35");
    let [model, drafter] = split(&whole, "qwen35", &COPIES);
    let (saved, pool) = (Saved::new(&drafter.bytes()), Pool::new(1).unwrap());
    let mut seen = Vec::new();
    let mut watch = |fraction: f32, tensor: &str| {
        seen.push((fraction, tensor.to_owned()));
        false
    };
    load(&source(&model), &saved.options(), &pool, &|_, _| (), &mut watch).unwrap();
    assert!(seen.is_sorted_by(|a, b| a.0 <= b.0) && seen.last().unwrap().0 > 0.99, "{seen:?}");
    assert!(seen.iter().any(|(fraction, tensor)| *fraction < 0.9 && tensor == "blk.1.ffn_down.weight"));
    let mut stop = |_: f32, tensor: &str| tensor == "blk.2.nextn.eh_proj.weight";
    let stopped = load(&source(&model), &saved.options(), &pool, &|_, _| (), &mut stop);
    refused(stopped, Status::Cancelled, &[]);
}

#[test]
fn a_drafter_of_another_model_is_refused_with_both_sizes() {
    let [model, drafter] = split(&untied(qwen35, "qwen35"), "qwen35", &[]);
    let wrong = |drafter: &File, words: &[&str]| {
        let saved = Saved::new(&drafter.bytes());
        let result = load_source(&source(&model), &saved.options(), 1);
        let files = ["drafter_path", &saved.path(), "test file"];
        refused(result, Status::InvalidArgument, &[&files, words].concat());
    };
    let key = |key: &str, value: u32| drafter.clone().u32(&format!("qwen35.{key}"), value);
    wrong(&key("block_count", 4), &["layers", "is 3, and 2"]);
    wrong(&key("embedding_length", 64), &["embedding_length is 64, and 128"]);
    wrong(&key("vocab_size", 41), &["vocab_size is 41, and 40"]);
    wrong(&key("attention.head_count", 4), &["attention.head_count is 4, and 2"]);
    wrong(&key("attention.head_count_kv", 2), &["attention.head_count_kv is 2, and 1"]);
    wrong(&key("attention.key_length", 32), &["attention.key_length is 32, and 64"]);
    wrong(&key("rope.dimension_count", 8), &["rope.dimension_count is 8, and 16"]);
    wrong(&key("full_attention_interval", 1), &["0 are recurrent, and 1"]);
    wrong(&drafter.clone().f32("qwen35.rope.freq_base", 5e5), &["500000", "10000"]);
    let [_, next] = split(&untied(qwen3next, "qwen3next"), "qwen3next", &[]);
    wrong(&next, &["qwen3next, and qwen35"]);
    // Without the key, the model's vocabulary counts, or that of the drafter's own embedding.
    let silent = drafter.clone().without_key("qwen35.vocab_size");
    assert!(open_with(&model, &silent).is_ok());
    wrong(&silent.random(TABLE, &[HIDDEN, 41], 1), &["vocab_size is 41, and 40"]);
}

#[test]
fn files_that_are_no_sound_drafter_are_refused() {
    let [model, drafter] = split(&untied(qwen35, "qwen35"), "qwen35", &[]);
    let bytes = drafter.bytes();
    let of_bytes = |bytes: &[u8], status, words: &[&str]| {
        let saved = Saved::new(bytes);
        let result = load_source(&source(&model), &saved.options(), 1);
        refused(result, status, &[&[&*saved.path()], words].concat());
    };
    of_bytes(&bytes[..bytes.len() - 100], Status::BadModel, &["drafter_path"]);
    of_bytes(&bytes[..100], Status::BadModel, &["drafter_path"]);
    of_bytes(b"hello, world", Status::BadModel, &["drafter_path"]);
    let of = |file: File, status, words: &[&str]| of_bytes(&file.bytes(), status, words);
    let (bad, unknown) = (Status::BadModel, Status::Unsupported);
    of(llama(), unknown, &["drafter_path", "no drafter alone", "draft_model"]);
    of(untied(qwen35, "qwen35"), unknown, &["drafter_path", "no drafter alone"]);
    let bare = |architecture: &str| File::default().str("general.architecture", architecture);
    of(bare("dflash"), unknown, &["drafter_path", "a DFlash drafter"]);
    of(bare("eagle3"), bad, &["eagle3.embedding_length"]);
    let two = drafter.clone().u32("qwen35.block_count", 4).u32("qwen35.nextn_predict_layers", 2);
    of(two, unknown, &["drafter_path", "2 blocks"]);
    for missing in ["nextn.enorm", "nextn.hnorm", "attn_k", "attn_norm", "ffn_down"] {
        let name = format!("blk.2.{missing}.weight");
        of(drafter.clone().without(&name), bad, &[&format!("'{name}'")]);
    }
    of(
        drafter.clone().random("blk.2.nextn.other.weight", &[HIDDEN], 1),
        unknown,
        &["nextn.other", "no part"],
    );
    let narrow = drafter.clone().without("blk.2.nextn.hnorm.weight");
    of(narrow.random("blk.2.nextn.hnorm.weight", &[HIDDEN - 1], 1), bad, &["hnorm"]);
    of(block_alone(0), bad, &["nextn_predict_layers"]);
}

/// Whatever is cut off or changed, the result is a model or an error that names the file.
#[test]
fn damaged_drafters_make_no_panic() {
    let [model, drafter] = split(&untied(qwen35, "qwen35"), "qwen35", &[]);
    let (source, bytes, mut rng) = (source(&model), drafter.bytes(), Rng(11));
    let header = bytes.len() - drafter.tensors.iter().map(|tensor| tensor.data.len()).sum::<usize>();
    let mut opened = 0;
    for n in 0..160 {
        let mut damaged = bytes.clone();
        match n % 2 {
            0 => damaged.truncate(rng.below(bytes.len())),
            _ => damaged[rng.below(header)] ^= 1 << rng.below(8),
        }
        let saved = Saved::new(&damaged);
        match load_source(&source, &saved.options(), 1) {
            Ok(_) => opened += 1,
            Err(e) => assert!(e.message.contains(&saved.path()), "{e}"),
        }
    }
    assert!(opened < 40, "{opened} of 80 flipped bits mattered to nobody");
}

#[test]
fn drafters_are_refused_where_they_would_have_no_effect() {
    let [model, drafter] = split(&untied(qwen35, "qwen35"), "qwen35", &[]);
    let saved = Saved::new(&drafter.bytes());
    let both = LoadOptions { mtp: true, ..saved.options() };
    let open = |source: &Source, options: &LoadOptions| load_source(source, options, 1);
    let invalid = Status::InvalidArgument;
    refused(open(&source(&model), &both), invalid, &["mtp and drafter_path are set"]);
    let missing = LoadOptions { drafter: Some("/nonexistent/mtp.gguf".into()), ..LoadOptions::default() };
    refused(open(&source(&model), &missing), Status::Io, &["drafter_path", "/nonexistent/mtp.gguf"]);
    let echo = Source::parse(Some("builtin:echo")).unwrap();
    refused(open(&echo, &saved.options()), Status::Unsupported, &["drafter_path is set", "builtin:echo"]);
    let encoder = root().join("tests/golden/models/bert-embedding.gguf").to_string_lossy().into_owned();
    let encoder = open(&Source::File(encoder), &saved.options());
    refused(encoder, Status::Unsupported, &["drafter_path is set", "encoder"]);
    refused(open(&source(&deepseek2()), &saved.options()), Status::Unsupported, &["drafter_path", "latent"]);
}

/// The block of a model of two layers, as block `index` of a file of its own.
fn block_alone(index: u32) -> File {
    let mut file = with_block(qwen35(), "qwen35").u32("qwen35.block_count", index + 1);
    file.tensors.retain(|tensor| !tensor.name.starts_with("blk.0.") && !tensor.name.starts_with("blk.1."));
    let rename = |tensor: &mut Tensor| {
        tensor.name = tensor.name.replacen("blk.2.", &format!("blk.{index}."), 1);
    };
    file.tensors.iter_mut().for_each(rename);
    file
}

#[test]
fn a_block_of_multi_token_prediction_without_its_model_is_refused_by_name() {
    let words = ["test file", "block of multi-token prediction", "without the model", "drafter_path"];
    for index in [0, 2] {
        unsupported(block_alone(index), &words);
        refused(open(block_alone(index)), Status::Unsupported, &words);
        // The converter may leave out what the model's file has.
        unsupported(block_alone(index).without("token_embd.weight"), &words);
        let folded = Value::Strs(vec!["blk.0.ffn_down.weight".into()]);
        unsupported(block_alone(index).set("prism.hadamard.weight_names", folded), &words);
    }
    let other = block_alone(0).str("general.architecture", "qwen35_mtp");
    unsupported(other, &["'qwen35_mtp'", "block of multi-token prediction"]);
}

#[test]
fn drafters_of_other_kinds_are_refused_by_name() {
    let file = |architecture: &str| {
        File::default()
            .str("general.architecture", architecture)
            .random("fc.weight", &[2 * HIDDEN, HIDDEN], 1)
            .random("output.weight", &[HIDDEN, VOCAB], 2)
    };
    for (architecture, kind, how) in [
        ("dflash", "a DFlash drafter", "draft_model"),
        ("qwen35-dflash", "a DFlash drafter", "draft_model"),
        ("eagle3", "an EAGLE drafter", "drafter_path"),
    ] {
        let named = format!("'{architecture}'");
        unsupported(file(architecture), &["test file", &named, kind, how]);
    }
    // A body of a known architecture, with keys of the drafter.
    unsupported(file("qwen3").u32("qwen3.dflash.block_size", 16), &["'qwen3'", "a DFlash drafter"]);
    // Other files do not look like drafters.
    unsupported(file("strange"), &["'strange' is not supported"]);
    assert!(crate::model_bad_files::open(with_block(qwen35(), "qwen35").bytes()).is_ok());
}
