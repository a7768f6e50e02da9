//! bn-convert: a folder and the file made from it give the same outputs.

use crate::common::{Golden, alone, argmax, bits, load_file, relative_error, root};
use bn_engine::base::Error;
use bn_engine::formats::gguf::Gguf;
use bn_engine::kernels::{DType, Pool};
use bn_engine::model::SamplingDefaults;
use bn_engine::model::{Checkpoint, ExportTypes, HfFolder, export};
use bn_engine::text::Message;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bn-convert-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the rest stays in the system's folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const KEEP: ExportTypes = ExportTypes { ternary: None, weights: None, embedding: None };

fn converted(folder: &str, types: ExportTypes, out: &Path) -> Result<(), Error> {
    let files = HfFolder::open(&root().join(folder).to_string_lossy())?;
    let pool = Pool::new(2)?;
    export(&files, types, Vec::new(), &pool, out, &mut |_, _| ())
}

/// Logits of every token of all sequences.
fn logits(path: &str, golden: &Golden) -> Vec<Vec<f32>> {
    let loaded = load_file(path, 1).unwrap_or_else(|e| panic!("{path}: {e}"));
    alone(&loaded, &golden.sequences, 16)
}

/// Messages of refusals: for parts that bn-convert does not write, and for values in these models for which GGUF has
/// no key.
const UNWRITTEN: [&str; 11] = [
    "LFM3 and LFM2's mixtures are not written",
    "Granite's mixtures are not written",
    "Mamba-2 are not written",
    "latent attention is not written",
    "layers whose heads differ are not written",
    "attention sinks are not written",
    "too few for I2_S",
    "the eps of the projections' own norms",
    "layers with experts beside others have no key",
    "sliding windows in these layers have no key",
    "experts of this type are not written",
];
/// The architectures that bn-convert writes: all of these have to be among the files.
const WRITTEN: [&str; 24] = [
    "bitnet-b1.58",
    "llama",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "gemma2",
    "gemma3",
    "olmo2",
    "granite",
    "minicpm",
    "maple",
    "seed_oss",
    "ernie4_5",
    "smollm3",
    "exaone4",
    "glm4",
    "phi3",
    "mistral3",
    "hunyuan-dense",
    "starcoder2",
    "lfm2",
];

#[test]
fn every_folder_becomes_a_file_that_computes_the_same() {
    let scratch = Scratch::new("all");
    let (mut same, mut near, mut written) = (0, 0, BTreeSet::new());
    for golden in Golden::models(|format| format.starts_with("hf-")) {
        // Use a file for each model, because Windows cannot replace a mapped file.
        let out = scratch.file(&format!("{}.gguf", golden.case));
        match converted(&golden.model, KEEP, &out) {
            Err(error) if UNWRITTEN.iter().any(|part| error.message.contains(part)) => {
                assert!(!out.exists(), "{}", golden.case);
                eprintln!("{}: {error}", golden.case);
                continue;
            }
            result => result.unwrap_or_else(|e| panic!("{}: {e}", golden.case)),
        }
        let (folder, file) = (logits(&golden.model, &golden), logits(&out.to_string_lossy(), &golden));
        // Reordered rows of q and k, or columns of an output, give the same products, added up in another order.
        let gguf = Gguf::open(&out.to_string_lossy()).unwrap();
        let architecture: &str = gguf.get("general.architecture").unwrap();
        written.insert(architecture.to_owned());
        let heads = |key: &str| gguf.find::<u32>(&format!("{architecture}.ssm.{key}")).unwrap();
        let tiled = architecture.starts_with("qwen35") && heads("group_count") != heads("time_step_rank");
        let turned = ["llama", "granite", "minicpm", "mistral3", "smollm3"].contains(&architecture);
        if turned || tiled {
            let error = relative_error(&file.concat(), &folder.concat());
            assert!(error < 1e-5, "{}: {error:.1e}", golden.case);
            near += 1;
        } else {
            assert!(bits(&file) == bits(&folder), "{}: the file computes something else", golden.case);
            same += 1;
        }
    }
    assert!(same >= 7 && near >= 15, "{same} the same, {near} near");
    assert_eq!(written, WRITTEN.map(String::from).into());
}

/// The architecture that llama.cpp's own converter writes, since it cannot load a `granitehybrid` without
/// Mamba-2.
#[test]
fn granite_4_without_mamba_is_granite() {
    let scratch = Scratch::new("granite");
    let out = scratch.file("model.gguf");
    let rotates = |position: &str| {
        let copy = crate::folder_support::Copy::of("granitemoehybrid-attention");
        copy.config(|config| config["position_embedding_type"] = json!(position));
        converted(&copy.path(), KEEP, &out).unwrap();
        let gguf = Gguf::open(&out.to_string_lossy()).unwrap();
        assert_eq!(gguf.get::<&str>("general.architecture").unwrap(), "granite");
        gguf.find::<bool>("granite.rope.scaling.finetuned").unwrap()
    };
    assert_eq!([rotates("rope"), rotates("nope")], [None, Some(false)]);
}

/// A value without a key in GGUF is refused, because the file would be read with another value.
#[test]
fn a_file_that_reads_back_otherwise_is_not_kept() {
    let scratch = Scratch::new("otherwise");
    let copy = crate::folder_support::Copy::of("ministral3");
    // The outer value belongs to the rotation, the inner one to the growth of queries; GGUF has one key for
    // both.
    copy.config(|config| config["original_max_position_embeddings"] = json!(32));
    let out = scratch.file("model.gguf");
    let error = converted(&copy.path(), KEEP, &out).unwrap_err();
    assert!(error.message.contains("keeps its 'layer 0, rope.frequencies'"), "{error}");
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
}

#[test]
fn an_encoder_is_called_one() {
    let scratch = Scratch::new("encoder");
    let folder = root().join("tests/golden/models/bert-embedding").to_string_lossy().into_owned();
    let failed = program(&[&folder, &scratch.file("out.gguf").to_string_lossy()]);
    let stderr = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(failed.status.code() == Some(1) && stderr.contains("'bert'; it is an encoder"), "{stderr}");
}

/// Keys, tensors and their dimensions as llama.cpp reads them.
#[test]
fn hybrids_have_the_tensors_of_their_architectures() {
    let scratch = Scratch::new("hybrids");
    // Use a file for each model, because Windows cannot replace a mapped file.
    let open = |name: &str, types| {
        let out = scratch.file(&format!("{name}.gguf"));
        converted(&format!("tests/golden/models/{name}"), types, &out).unwrap();
        Gguf::open(&out.to_string_lossy()).unwrap()
    };
    let moe = open("qwen35moe", KEEP);
    let sizes = [
        ("full_attention_interval", 4),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 16),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("ssm.inner_size", 64),
        ("rope.dimension_count", 8),
        ("expert_shared_feed_forward_length", 56),
    ];
    for (key, size) in sizes {
        assert_eq!(moe.get::<u32>(&format!("qwen35moe.{key}")).unwrap(), size, "{key}");
    }
    let sections: Vec<i32> = moe.get("qwen35moe.rope.dimension_sections").unwrap();
    assert_eq!(sections, [2, 1, 1, 0]);
    let dims = |gguf: &Gguf, name: &str| gguf.tensor(name).map(|tensor| tensor.dims);
    for (name, of) in [
        ("blk.0.attn_qkv.weight", [32, 128, 1, 1]),
        ("blk.0.attn_gate.weight", [32, 64, 1, 1]),
        ("blk.0.ssm_beta.weight", [32, 4, 1, 1]),
        ("blk.0.ssm_conv1d.weight", [4, 128, 1, 1]),
        ("blk.0.ssm_a", [4, 1, 1, 1]),
        ("blk.0.ssm_out.weight", [64, 32, 1, 1]),
        ("blk.3.attn_q.weight", [32, 128, 1, 1]),
        ("blk.3.ffn_gate_inp_shexp.weight", [32, 1, 1, 1]),
        ("blk.3.ffn_down_shexp.weight", [56, 32, 1, 1]),
    ] {
        assert_eq!(dims(&moe, name), Some(of), "{name}");
    }
    assert!(dims(&moe, "blk.0.attn_q_norm.weight").is_none() && dims(&moe, "blk.0.ssm_ba.weight").is_none());
    // llama.cpp rounds activations to the type of the weights.
    for name in
        ["ssm_conv1d", "ffn_gate_inp", "ffn_gate_inp_shexp"].map(|name| format!("blk.0.{name}.weight"))
    {
        assert_eq!(moe.tensor(&name).unwrap().type_id, DType::F32 as u32, "{name}");
    }
    // llama.cpp expects Qwen3-Next's gates in one tensor, and its heads in Hugging Face's order.
    let next = open("qwen3next", KEEP);
    assert_eq!(dims(&next, "blk.0.ssm_ba.weight"), Some([32, 8, 1, 1]));
    assert!(dims(&next, "blk.0.ssm_beta.weight").is_none());
    assert!(next.find::<Vec<i32>>("qwen3next.rope.dimension_sections").unwrap().is_none());
    let small = open("qwen35-tied", ExportTypes { weights: Some(DType::Q8_0), ..KEEP });
    let kind = |name: &str| small.tensor(name).unwrap().type_id;
    assert_eq!(kind("blk.0.ssm_out.weight"), DType::Q8_0 as u32);
    assert_eq!(kind("blk.0.ssm_alpha.weight"), DType::BF16 as u32);
}

#[test]
fn layers_of_attention_at_odd_places_have_no_key() {
    let copy = crate::folder_support::Copy::of("qwen35");
    copy.config(|config| {
        let types = config["layer_types"].as_array_mut().unwrap();
        types.insert(0, json!("full_attention"));
        config["num_hidden_layers"] = json!(types.len());
    });
    let files = HfFolder::open(&copy.path()).unwrap();
    let out = Scratch::new("odd");
    let error = export(&files, KEEP, Vec::new(), &Pool::new(1).unwrap(), &out.file("x.gguf"), &mut |_, _| ());
    assert!(error.unwrap_err().message.contains("no key in GGUF"));
}

#[test]
fn weights_take_the_types_asked_for() {
    let scratch = Scratch::new("types");
    let golden = Golden::models(|_| true).into_iter().find(|g| g.case == "llama-f32").expect("llama-f32");
    let out = scratch.file("q8_0.gguf");
    let types = ExportTypes { weights: Some(DType::Q8_0), embedding: Some(DType::Q8_0), ..KEEP };
    converted(&golden.model, types, &out).unwrap();
    let gguf = Gguf::open(&out.to_string_lossy()).unwrap();
    for name in ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"] {
        assert_eq!(gguf.tensor(name).unwrap().type_id, DType::Q8_0 as u32, "{name}");
    }
    let error = relative_error(&logits(&out.to_string_lossy(), &golden).concat(), &golden.logits);
    assert!((1e-4..0.1).contains(&error), "{error:.1e}");
}

#[test]
fn ternary_weights_in_tq2_0_keep_their_answers() {
    let scratch = Scratch::new("tq2_0");
    let golden = Golden::models(|_| true).into_iter().find(|g| g.case == "bitnet-offline").expect("a case");
    let out = scratch.file("tq2_0.gguf");
    let types = ExportTypes { ternary: Some(DType::TQ2_0), ..KEEP };
    match converted(&golden.model, types, &out) {
        // TQ2_0 stores multiples of 256.
        Err(error) => assert!(error.message.contains("TQ2_0"), "{error}"),
        Ok(()) => {
            let ours = logits(&out.to_string_lossy(), &golden).concat();
            let theirs = golden.logits.chunks_exact(golden.vocab);
            let same = ours.chunks_exact(golden.vocab).zip(theirs).filter(|(a, b)| argmax(a) == argmax(b));
            assert!(same.count() * 100 >= 99 * golden.logits.len() / golden.vocab);
        }
    }
}

/// qwen3 of the golden models with an embedding five times as long: room for a byte-level vocabulary.
fn put_wide_model(scratch: &Scratch) {
    let from = root().join("tests/golden/models/qwen3");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config["vocab_size"] = json!(320);
    config["eos_token_id"] = json!(256);
    std::fs::write(scratch.file("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let (length, bytes) = bytes.split_at(8);
    let (header, data) = bytes.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let mut wide = Vec::new();
    for (name, tensor) in
        header.as_object_mut().unwrap().iter_mut().filter(|(name, _)| *name != "__metadata__")
    {
        let at = |i: usize| tensor["data_offsets"][i].as_u64().unwrap() as usize;
        let times = if is_table(name) { 5 } else { 1 };
        let data = data[at(0)..at(1)].repeat(times);
        tensor["data_offsets"] = json!([wide.len(), wide.len() + data.len()]);
        tensor["shape"][0] = json!(tensor["shape"][0].as_u64().unwrap() * times as u64);
        wide.extend(data);
    }
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(wide);
    std::fs::write(scratch.file("model.safetensors"), file).unwrap();
}

fn is_table(name: &str) -> bool {
    name.ends_with("embed_tokens.weight") || name == "lm_head.weight"
}

/// GPT-2's bytes, "ab" as 256, and special tokens from 257 on.
fn byte_level() -> Value {
    let plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    let others =
        (0..=255u8).filter(|byte| !plain(byte)).zip(256u32..).map(|(_, c)| char::from_u32(c).unwrap());
    let chars = (0..=255u8).filter(plain).map(char::from).chain(others);
    let mut vocab: serde_json::Map<_, _> =
        chars.enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    vocab.insert("ab".into(), json!(256));
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    json!({
        "added_tokens": [special(257, "</s>"), special(258, "<|im_end|>"), special(259, "<pad>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
    })
}

/// A folder's text reaches the file: tokenizer, end tokens (eos_token first, for templates), chat template.
#[test]
fn the_file_ends_and_chats_as_the_folder_does() {
    let scratch = Scratch::new("text");
    put_wide_model(&scratch);
    let put = |name: &str, json: Value| std::fs::write(scratch.file(name), json.to_string()).unwrap();
    let folder = scratch.0.to_string_lossy().into_owned();
    // Use a file for each model, because Windows cannot replace a mapped file.
    let mut names = (0..).map(|i| scratch.file(&format!("out-{i}.gguf")).to_string_lossy().into_owned());
    let mut both = |said: &str| {
        let out = names.next().unwrap();
        let done = program(&[&folder, &out]);
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() && stderr.contains(said) && !stderr.contains('\x1b'), "{stderr}");
        (load_file(&folder, 1).unwrap().loaded, load_file(&out, 1).unwrap().loaded)
    };
    put("generation_config.json", json!({"eos_token_id": [9, 3]}));
    let (ours, file) = both("there is no tokenizer.json");
    assert!(file.tokenizer.is_none() && file.chat.is_none());
    assert_eq!((ours.end_tokens, file.end_tokens), (vec![3, 9], vec![3, 9]));
    put("tokenizer.json", byte_level());
    let template = "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}{{ pad_token }}";
    let tokens = json!({"eos_token": {"content": "</s>"}, "pad_token": "<pad>", "chat_template": template});
    put("tokenizer_config.json", tokens);
    for (generation, ends) in [(Some(json!([1, 257])), [1, 257, 258]), (None, [256, 257, 258])] {
        match generation {
            Some(ids) => put("generation_config.json", json!({ "eos_token_id": ids })),
            None => std::fs::remove_file(scratch.file("generation_config.json")).unwrap(),
        }
        let (ours, file) = both("is written");
        assert_eq!((&ours.end_tokens[..], &file.end_tokens[..]), (&ends[..], &ends[..]));
        let tokenizers = [ours.tokenizer.unwrap(), file.tokenizer.unwrap()];
        let cut = tokenizers.each_ref().map(|t| t.encode("abba</s>", true, true).unwrap());
        assert_eq!(cut[0], [256, 65, 64, 257]);
        assert_eq!(cut[0], cut[1]);
        // The model's ids beyond the tokenizer's stand for nothing.
        assert_eq!(tokenizers.each_ref().map(|t| t.decode(&[256, 300, 65]).unwrap()), ["abb", "abb"]);
        let chats = [ours.chat.unwrap(), file.chat.unwrap()];
        let message = Message { role: "user", content: "hi" };
        assert_eq!(
            chats.map(|chat| chat.render(&[message], true).unwrap().text),
            ["hi</s><pad>", "hi</s><pad>"]
        );
    }
    let advice =
        json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 2});
    put("generation_config.json", advice);
    let (ours, file) = both("is written");
    let want = SamplingDefaults {
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: None,
        repetition_penalty: Some(2.0),
    };
    assert_eq!((ours.model.facts().sampling, file.model.facts().sampling), (want, want));
    put("generation_config.json", json!({"eos_token_id": [0, 1, 2]}));
    let (ours, file) = both("[2] will not end an output");
    assert_eq!(
        (&ours.end_tokens[..], &file.end_tokens[..]),
        (&[0, 1, 2, 257, 258][..], &[0, 1, 257, 258][..])
    );
}

/// A tokenizer without a name in GGUF: the message names the field at fault.
#[test]
fn a_tokenizer_that_has_no_name_is_refused_for_the_right_field() {
    let scratch = Scratch::new("nameless");
    put_wide_model(&scratch);
    let (folder, out) = (scratch.0.to_string_lossy().into_owned(), scratch.file("out.gguf"));
    let refused = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let mut file = byte_level();
        change(&mut file);
        std::fs::write(scratch.file("tokenizer.json"), file.to_string()).unwrap();
        let failed = program(&[&folder, &out.to_string_lossy()]);
        let stderr = String::from_utf8_lossy(&failed.stderr).into_owned();
        let said = words.iter().all(|word| stderr.contains(word));
        assert!(failed.status.code() == Some(1) && said, "{words:?}: {stderr}");
    };
    let qwen35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split = |pattern: &str| {
        let split =
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        json!({"type": "Sequence", "pretokenizers": [split, bytes]})
    };
    refused(&|f| f["pre_tokenizer"] = split(qwen35), &["'normalizer' is missing", "'qwen35'", "NFC"]);
    refused(&|f| f["pre_tokenizer"] = split("[a-c]+"), &["'pre_tokenizer' is a rule that has no name"]);
    let smollm = |f: &mut Value| {
        let digits = json!({"type": "Digits", "individual_digits": true});
        f["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [digits, f["pre_tokenizer"]]});
    };
    refused(
        &|f| {
            smollm(f);
            f["model"]["ignore_merges"] = json!(true);
        },
        &["'ignore_merges' is true", "'smollm'"],
    );
}

/// Gemma's folders have runs of SentencePiece's sign for a space as added tokens, which texts hardly hold: a warning.
#[test]
fn a_text_of_signs_for_spaces_may_be_cut_otherwise() {
    let scratch = Scratch::new("signs");
    put_wide_model(&scratch);
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = ["<unk>", "<s>"].map(String::from).into_iter().chain(bytes);
    let tokens = tokens.chain(["▁", "a", "▁▁"].map(String::from)).collect::<Vec<_>>();
    let vocab: serde_json::Map<_, _> = tokens.iter().cloned().zip((0..).map(Value::from)).collect();
    let run = json!({"id": tokens.len() - 1, "content": "▁▁", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false});
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), run],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["▁", "▁"]], "unk_token": "<unk>", "byte_fallback": true,
            "fuse_unk": true},
    });
    std::fs::write(scratch.file("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(scratch.file("generation_config.json"), json!({"eos_token_id": 1}).to_string()).unwrap();
    let (folder, out) = (scratch.0.to_string_lossy().into_owned(), scratch.file("out.gguf"));
    let done = program(&[&folder, &out.to_string_lossy()]);
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && stderr.matches("cuts '▁under").count() == 1, "{stderr}");
}

/// Only its model card says that the folder is a Qwen3-Reranker.
#[test]
fn a_folder_whose_card_makes_it_a_reranker_scores_as_a_file_too() {
    let scratch = Scratch::new("card");
    let model = root().join("tests/golden/models/qwen3-reranker");
    let folder = scratch.file("plain");
    std::fs::create_dir(&folder).unwrap();
    for file in std::fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path()) {
        std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.join("README.md"), "# Qwen3-Reranker-0.6B\n").unwrap();
    // In the form that GGUF's rule for Qwen's texts expects.
    let tokenizer = folder.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&tokenizer).unwrap()).unwrap();
    json["normalizer"] = json!({"type": "NFC"});
    std::fs::write(&tokenizer, json.to_string()).unwrap();
    let out = scratch.file("model.gguf");
    let made = program(&[&folder.to_string_lossy(), &out.to_string_lossy()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for path in [&folder, &out] {
        let loaded = load_file(&path.to_string_lossy(), 1).unwrap();
        assert!(loaded.model.facts().scores.is_some(), "{}", path.display());
    }
}

#[test]
fn rows_of_scores_are_not_written() {
    let scratch = Scratch::new("scores");
    let made = converted("tests/golden/models/qwen3-classifier", KEEP, &scratch.file("model.gguf"));
    assert!(made.unwrap_err().message.contains("rows of scores"));
}

#[test]
fn a_type_that_no_weight_takes_is_refused() {
    let scratch = Scratch::new("refused");
    for (folder, types, word) in [
        (
            "tests/golden/models/bitnet-offline",
            ExportTypes { weights: Some(DType::Q8_0), ..KEEP },
            "is ternary",
        ),
        ("tests/golden/models/qwen3", ExportTypes { ternary: Some(DType::I2S), ..KEEP }, "is not ternary"),
    ] {
        let error = converted(folder, types, &scratch.file("model.gguf")).unwrap_err();
        assert!(error.message.contains(word) && error.message.contains("blk.0."), "{error}");
    }
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
}

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bn-convert")).args(args).output().expect("bn-convert runs")
}

#[test]
fn the_program_converts_and_says_what_is_wrong() {
    let scratch = Scratch::new("program");
    let folder = root().join("tests/golden/models/qwen3").to_string_lossy().into_owned();
    let out = scratch.file("qwen3.gguf").to_string_lossy().into_owned();
    let done = program(&[&folder, &out]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(Gguf::open(&out).unwrap().config(&|_| ()).unwrap().architecture, "qwen3");
    let size = std::fs::metadata(&out).unwrap().len() as f64 / (1 << 20) as f64;
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(stderr.ends_with(&format!("{out} is written: {size:.2} MiB\n")) && size > 0.005, "{stderr}");
    assert!(!stderr.contains('\r'), "progress where no terminal is: {stderr}");
    for (flag, said) in [("--help", "--ternary"), ("-h", "usage"), ("--version", env!("CARGO_PKG_VERSION"))] {
        let done = program(&[flag]);
        assert!(done.status.success() && String::from_utf8_lossy(&done.stdout).contains(said), "{flag}");
    }
    for (args, words) in [
        (vec!["/nowhere", &out], "/nowhere"),
        (vec![folder.as_str()], "usage"),
        (vec![&folder, &out, "--ternary", "q9"], "q9"),
        (vec![&folder, &out, "--quick"], "--quick"),
        (vec![&folder, "/nowhere/out.gguf"], "/nowhere/out.gguf"),
        (vec![&folder, if cfg!(unix) { "/dev/null" } else { "." }], "no regular file"),
        (vec![&folder, &scratch.0.to_string_lossy()], "no regular file"),
    ] {
        let failed = program(&args);
        let stderr = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(failed.status.code() == Some(1) && stderr.contains(words), "{args:?}: {stderr}");
    }
    let failed =
        Command::new(env!("CARGO_BIN_EXE_bn-convert")).arg(no_text()).output().expect("bn-convert runs");
    let stderr = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(failed.status.code() == Some(1) && stderr.contains("not text in Unicode"), "{stderr}");
}

/// An argument that the system permits and no text has.
fn no_text() -> OsString {
    #[cfg(unix)]
    return std::os::unix::ffi::OsStringExt::from_vec(vec![b'a', 0xff]);
    #[cfg(windows)]
    return std::os::windows::ffi::OsStringExt::from_wide(&[0x61, 0xd800]);
}
