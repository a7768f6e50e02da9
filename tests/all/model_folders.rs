//! Hugging Face folders that are wrong in one place, and weights requantized at load.

use crate::common::{Golden, Rng, alone, bits, relative_error, root};
use crate::folder_support::{Copy, open, parts};
use bn_engine::base::{Error, Status};
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Source, WeightType, load};
use bn_engine::text::Message;
use serde_json::{Value, json};
use std::path::PathBuf;

fn golden(name: &str) -> Golden {
    Golden::models(|_| true).into_iter().find(|golden| golden.case == name).expect(name)
}

const Q_PROJ: &str = "model.layers.0.self_attn.q_proj.weight";
const SCALE: &str = "model.layers.0.self_attn.q_proj.weight_scale";

#[test]
fn a_folder_must_have_its_files() {
    let copy = Copy::of("llama-f32");
    std::fs::remove_file(copy.0.join("config.json")).unwrap();
    copy.refused(Status::Io, &["no config.json"]);
    copy.put("config.json", "{").refused(Status::BadModel, &["config.json: "]);
    copy.put("config.json", vec![b' '; (1 << 18) + 1])
        .refused(Status::BadModel, &["config.json", "at most 262144"]);
    let copy = Copy::of("llama-f32");
    std::fs::remove_file(copy.0.join("model.safetensors")).unwrap();
    copy.refused(Status::Io, &["neither model.safetensors"]);
    let copy = Copy::of("llama-sharded");
    let shard = std::fs::read_dir(&copy.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let shard = shard.filter(|name| name.ends_with(".safetensors")).max().unwrap();
    std::fs::remove_file(copy.0.join(&shard)).unwrap();
    copy.refused(Status::BadModel, &["weight_map", &shard, "no such file"]);
    // Windows lets few users make links.
    #[cfg(unix)]
    {
        let elsewhere = root().join("tests/golden/models/llama-sharded").join(&shard);
        std::os::unix::fs::symlink(elsewhere, copy.0.join(&shard)).unwrap();
        copy.refused(Status::BadModel, &[&shard, "outside of the folder"]);
    }
}

/// The layout that `hf download` leaves in its cache.
#[cfg(unix)] // links
#[test]
fn a_snapshot_of_a_cache_is_a_folder() {
    let copy = Copy::of("llama-sharded");
    let cache = copy.0.join("models--owner--tiny-llama");
    let (snapshot, blobs) = (cache.join("snapshots/c0ffee"), cache.join("blobs"));
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir(&blobs).unwrap();
    let files = std::fs::read_dir(&copy.0).unwrap().map(|e| e.unwrap()).filter(|e| e.path().is_file());
    for (i, file) in files.collect::<Vec<_>>().into_iter().enumerate() {
        std::fs::rename(file.path(), blobs.join(i.to_string())).unwrap();
        let link = snapshot.join(file.file_name());
        std::os::unix::fs::symlink(format!("../../blobs/{i}"), link).unwrap();
    }
    let loaded = open(snapshot.to_str().unwrap(), &LoadOptions::default()).unwrap().loaded;
    assert_eq!(loaded.model.facts().name, "tiny-llama");
    let error = open(cache.to_str().unwrap(), &LoadOptions::default()).err().expect("no snapshot");
    assert!(error.status == Status::Io && error.message.contains("in its 'snapshots'"), "{error}");
}

#[test]
fn weights_beyond_the_limit_are_refused_as_they_are_read() {
    let folder = root().join("tests/golden/models/bitnet-offline");
    let path = folder.to_str().unwrap();
    let with = |max_weight_bytes: u64| {
        let mut tensors = 0;
        let options = LoadOptions { max_weight_bytes, ..LoadOptions::default() };
        let mut progress = |_: f32, _: &str| {
            tensors += 1;
            false
        };
        let source = Source::parse(Some(path)).unwrap();
        let loaded = load(&source, &options, &Pool::new(2).unwrap(), &|_, _| (), &mut progress);
        (loaded.map(|loaded| loaded.model.facts().weight_bytes), tensors)
    };
    let (bytes, all) = with(0);
    let bytes = bytes.unwrap();
    assert!(with(bytes).0.is_ok());
    let (refused, read) = with(bytes / 2);
    let e = refused.unwrap_err();
    assert!(e.status == Status::MemoryLimit && e.message.contains("memory_limit_bytes"), "{}", e.message);
    assert!(read > 0 && read < all, "{read} of {all} tensors");
}

#[test]
fn every_cut_of_the_weights_is_refused() {
    let copy = Copy::of("llama-ternary-rms-norm");
    let whole = copy.read("model.safetensors");
    for len in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
        copy.put("model.safetensors", &whole[..len]).refused(Status::BadModel, &["model.safetensors"]);
    }
}

#[test]
fn tensors_missing_odd_and_of_wrong_shape_or_type() {
    let bad = |name: &str, change: &dyn Fn(&mut Value), status, parts: &[&str]| {
        Copy::of(name).header(|header| change(header)).refused(status, parts);
    };
    let rename = |header: &mut Value, from: &str, to: &str| {
        let tensor = header.as_object_mut().unwrap().remove(from).unwrap();
        header[to] = tensor;
    };
    let norm = "model.layers.0.input_layernorm.weight";
    bad("llama-f32", &|h| rename(h, norm, "x"), Status::BadModel, &[norm]);
    bad("llama-f32", &|h| rename(h, Q_PROJ, "x"), Status::BadModel, &[Q_PROJ]);
    bad(
        "llama-f32",
        &|h| h["score.weight"] = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
        Status::Unsupported,
        &["score.weight"],
    );
    bad(
        "llama-f32",
        &|h| h["norm.weight"] = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
        Status::BadModel,
        &["'norm.weight'", "'model.norm.weight'", "same part"],
    );
    let turned = |h: &mut Value| h[Q_PROJ]["shape"].as_array_mut().unwrap().push(json!(1));
    bad("llama-f32", &turned, Status::BadModel, &[Q_PROJ, "shape"]);
    let integers = |h: &mut Value| h[Q_PROJ]["dtype"] = json!("I32");
    bad("llama-f32", &integers, Status::Unsupported, &[Q_PROJ, "I32", "BF16"]);
    // Packed weights without a quantization_config, and a quantization_config without packed weights.
    Copy::of("falcon3-ternary")
        .config(|c| c["quantization_config"] = Value::Null)
        .refused(Status::BadModel, &[Q_PROJ, "shape"]);
    Copy::of("llama-bf16")
        .config(|c| c["quantization_config"] = json!({"quant_method": "bitnet"}))
        .refused(Status::Unsupported, &["BF16", "packed ternary"]);
    Copy::of("llama-bf16")
        .config(|c| c["hidden_size"] = json!(48))
        .refused(Status::BadModel, &["embed_tokens", "shape"]);
    Copy::of("llama-bf16")
        .config(|c| c["num_hidden_layers"] = json!(9))
        .refused(Status::BadModel, &["model.layers.2."]);
}

#[test]
fn scales_of_packed_weights_are_one_number_each() {
    let name = "falcon3-ternary";
    for (bits, shown) in [(0u16, "inf"), (0x7fc0, "NaN"), (0x0001, "inf")] {
        Copy::of(name).tensor(SCALE, &bits.to_le_bytes()).refused(Status::BadModel, &[SCALE, shown]);
    }
    let gone = |h: &mut Value| {
        let scale = h.as_object_mut().unwrap().remove(SCALE).unwrap();
        h["model.layers.0.self_attn.k_proj.rms_norm.weight"] = scale;
    };
    Copy::of(name).header(gone).refused(Status::BadModel, &[SCALE, "missing"]);
    // A scalar is accepted; two elements are not.
    assert!(Copy::of(name).header(|h| h[SCALE]["shape"] = json!([])).load().is_ok());
    let (_, data) = parts(&Copy::of(name).read("model.safetensors"));
    assert!(data.len() > 64);
    let codes = vec![0xffu8; 16 * 64];
    Copy::of(name).tensor(Q_PROJ, &codes).refused(Status::BadModel, &[Q_PROJ, "code"]);
}

#[test]
fn bitlinear_divides_and_autobitlinear_multiplies() {
    let logits = |copy: &Copy| {
        let loaded = copy.load().unwrap();
        alone(&loaded, &[vec![5, 9, 2, 40]], 16).concat()
    };
    let golden = Copy::of("falcon3-ternary");
    let as_it_is = logits(&golden);
    let other = logits(golden.config(|c| c["quantization_config"]["linear_class"] = json!("autobitlinear")));
    assert!(relative_error(&other, &as_it_is) > 0.05);
}

#[test]
fn a_tied_head_in_the_files_is_left_alone() {
    let name = "llama-tied";
    let plain = Copy::of(name).load().unwrap().model.facts().weight_bytes;
    let head = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
    let with = Copy::of(name);
    with.header(|h| h["lm_head.weight"] = head);
    assert!(with.load().unwrap().model.facts().weight_bytes <= plain + 200);
    // An untied head is read, and this one has no elements.
    with.config(|c| c["tie_word_embeddings"] = json!(false))
        .refused(Status::BadModel, &["lm_head.weight", "shape"]);
}

#[test]
fn the_tokenizer_of_a_folder() {
    let copy = Copy::of("llama-f32");
    assert!(copy.load().unwrap().tokenizer.is_none());
    copy.put("tokenizer.model", "x");
    assert!(copy.load().unwrap().tokenizer.is_none());
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 3, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    });
    copy.put("tokenizer.json", tokenizer.to_string())
        .put("generation_config.json", r#"{"eos_token_id": [3]}"#);
    let loaded = copy.load().unwrap().loaded.tokenizer.expect("a tokenizer");
    assert_eq!(loaded.encode("abba", false, false).unwrap(), [2, 1, 0]);
    assert_eq!(loaded.end_tokens(), [3]);
    // Without a generation_config.json, the model's own configuration names the end tokens.
    std::fs::remove_file(copy.0.join("generation_config.json")).unwrap();
    copy.config(|c| c["eos_token_id"] = json!(1));
    assert_eq!(copy.load().unwrap().loaded.tokenizer.unwrap().end_tokens(), [1]);
    copy.put("tokenizer.json", "{}").refused(Status::BadModel, &["tokenizer.json"]);
}

#[test]
fn end_tokens_of_a_folder_without_tokenizer() {
    let copy = Copy::of("llama-f32");
    let ends = |copy: &Copy| copy.load().unwrap().loaded.end_tokens;
    assert_eq!(ends(copy.put("generation_config.json", r#"{"eos_token_id": [9, 3, 9]}"#)), [3, 9]);
    assert_eq!(ends(copy.put("generation_config.json", r#"{"eos_token_id": 5}"#)), [5]);
    assert_eq!(ends(copy.put("generation_config.json", r#"{"eos_token_id": null}"#)), [0; 0]);
    for id in ["64", "-1", "\"</s>\"", "[1.5]"] {
        copy.put("generation_config.json", format!(r#"{{"eos_token_id": {id}}}"#));
        copy.refused(Status::BadModel, &["generation_config.json", "eos_token_id", "64 tokens"]);
    }
    std::fs::remove_file(copy.0.join("generation_config.json")).unwrap();
    assert_eq!(ends(copy.config(|c| c["eos_token_id"] = json!(1))), [1]);
    copy.config(|c| c["eos_token_id"] = json!(64)).refused(Status::BadModel, &["config.json", "64 tokens"]);
}

#[test]
fn the_chat_template_of_a_folder() {
    let copy = Copy::of("llama-f32");
    let render = |copy: &Copy| {
        let chat = copy.load().unwrap().loaded.chat?;
        let message = Message { role: "user", content: "hi" };
        Some(chat.render(&[message], true).unwrap().text)
    };
    assert_eq!(render(&copy), None);
    let template = |start: &str| format!("{start}{{{{ bos_token }}}}{{{{ messages[0]['content'] }}}}");
    let config = json!({"bos_token": {"content": "<s>", "special": true}, "chat_template": template("c")});
    copy.put("tokenizer_config.json", config.to_string());
    assert_eq!(render(&copy).unwrap(), "c<s>hi");
    copy.put("chat_template.json", json!({ "chat_template": template("j") }).to_string());
    assert_eq!(render(&copy).unwrap(), "j<s>hi");
    copy.put("chat_template.jinja", template("f"));
    assert_eq!(render(&copy).unwrap(), "f<s>hi");
    copy.put("chat_template.jinja", [0xff]).refused(Status::BadModel, &["chat_template.jinja", "UTF-8"]);
    std::fs::remove_file(copy.0.join("chat_template.jinja")).unwrap();
    copy.put("chat_template.json", r#"{"chat_template": 1}"#)
        .refused(Status::BadModel, &["chat_template.json"]);
    copy.put("chat_template.json", "[").refused(Status::BadModel, &["chat_template.json"]);
}

#[test]
fn mutated_folders_never_panic() {
    let mut rng = Rng(7);
    for name in [
        "bitnet-offline",
        "bitnet-1bitllm",
        "gemma3-embedding",
        "llama-yarn",
        "qwen35moe-fused",
        "qwen3next",
        "phi3-long",
        "ministral3",
        "smollm3",
        "starcoder2",
        "granitemoehybrid",
        "falcon-h1",
    ] {
        let copy = Copy::of(name);
        let weights = copy.read("model.safetensors");
        let header = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
        let config = copy.read("config.json");
        let mutate = |bytes: &mut Vec<u8>, within: usize, rng: &mut Rng| {
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(within);
                match rng.below(4) {
                    0 => bytes[at] = rng.next() as u8,
                    1 => bytes[at] = b"0123456789,:[]{}\"-e."[rng.below(20)],
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, bytes[at]),
                }
            }
        };
        for i in 0..400 {
            let (mut w, mut c) = (weights.clone(), config.clone());
            if i % 2 == 0 {
                mutate(&mut w, header, &mut rng);
            } else {
                let within = c.len() - 2;
                mutate(&mut c, within, &mut rng);
            }
            copy.put("model.safetensors", w).put("config.json", c);
            if let Err(error) = copy.load() {
                assert!(error.message.contains(&copy.path()), "{error}");
            }
        }
    }
}

fn options(weights: WeightType, embedding: WeightType, head: WeightType) -> LoadOptions {
    LoadOptions { weights, embedding, head, ..LoadOptions::default() }
}

use WeightType::{Int8, Keep, Q4_0, Q8_0, Ternary};

#[test]
fn weights_become_smaller_and_stay_close() {
    for name in ["llama-f32", "llama-f16", "llama-bf16", "llama-sharded", "qwen2"] {
        let golden = golden(name);
        let path = root().join(&golden.model).to_string_lossy().into_owned();
        let kept = open(&path, &LoadOptions::default()).unwrap().model.facts().weight_bytes;
        let mut before = (kept, 0.0);
        // The error includes both roundings: of weights, and of activations to int8.
        for (ty, most) in [(Q8_0, 0.06), (Q4_0, 0.7)] {
            let loaded = open(&path, &options(ty, ty, ty)).unwrap();
            let bytes = loaded.model.facts().weight_bytes;
            let ours = alone(&loaded, &golden.sequences, 16).concat();
            let error = relative_error(&ours, &golden.logits);
            assert!(error > before.1 && error < most, "{name} as {ty:?}: {error}");
            assert!(bytes < before.0, "{name} as {ty:?}: {bytes} bytes, {} before", before.0);
            before = (bytes, error);
        }
    }
}

/// A scale for each row and token, instead of Q8_0's one for each 32 columns: less accurate, but not by much.
#[test]
fn weights_become_int8_and_stay_close() {
    for (name, most) in [("llama-f32", 0.1), ("llama-bf16", 0.1), ("llama-sharded", 0.1), ("qwen2", 0.1)] {
        let golden = golden(name);
        let path = root().join(&golden.model).to_string_lossy().into_owned();
        let error = |ty| {
            let loaded = open(&path, &options(ty, ty, ty)).unwrap();
            relative_error(&alone(&loaded, &golden.sequences, 16).concat(), &golden.logits)
        };
        let (int8, q8) = (error(Int8), error(Q8_0));
        assert!(int8 > 0.0 && int8 < most && int8 < 1.5 * q8, "{name}: {int8}, and {q8} as Q8_0");
    }
}

/// Weights in blocks too; a file that is already ternary is refused.
#[test]
fn quantized_weights_become_int8() {
    for name in ["type-q8_0", "type-q4_0", "type-q6_k", "type-q4_k"] {
        let golden = golden(name);
        let path = root().join(&golden.model).to_string_lossy().into_owned();
        let run = |options| {
            let loaded = open(&path, &options).unwrap();
            alone(&loaded, &golden.sequences, 16).concat()
        };
        let (kept, int8) = (run(LoadOptions::default()), run(options(Int8, Keep, Int8)));
        let error = relative_error(&int8, &kept);
        assert!(error > 0.0 && error < 0.1, "{name}: {error}");
    }
    let path = root().join("tests/golden/models/bitnet-online").to_string_lossy().into_owned();
    let error = open(&path, &options(Int8, Keep, Keep)).err().unwrap();
    assert!(error.status == Status::Unsupported && error.message.contains("Int8"), "{error}");
}

#[test]
fn what_is_counted_is_what_is_held() {
    let golden = golden("llama-f32");
    let path = root().join(&golden.model).to_string_lossy().into_owned();
    let (header, _) = parts(&std::fs::read(PathBuf::from(&path).join("model.safetensors")).unwrap());
    let of = |name: &str| -> u64 {
        header[name]["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product()
    };
    let bytes = |options| open(&path, &options).unwrap().model.facts().weight_bytes;
    let kept = bytes(LoadOptions::default());
    let (embedding, head) = (of("model.embed_tokens.weight"), of("lm_head.weight"));
    // 32 elements take 128 bytes in f32, 34 as Q8_0, 18 as Q4_0.
    assert_eq!(kept - bytes(options(Keep, Q8_0, Keep)), embedding / 32 * (128 - 34));
    assert_eq!(kept - bytes(options(Keep, Keep, Q4_0)), head / 32 * (128 - 18));
    let layers: u64 =
        header.as_object().unwrap().keys().filter(|n| n.ends_with("_proj.weight")).map(|n| of(n)).sum();
    assert_eq!(kept - bytes(options(Q8_0, Keep, Keep)), layers / 32 * (128 - 34));
}

#[test]
fn a_tied_table_is_requantized_once() {
    let golden = golden("llama-tied");
    let path = root().join(&golden.model).to_string_lossy().into_owned();
    let run = |options| {
        let loaded = open(&path, &options).unwrap();
        (bits(&alone(&loaded, &golden.sequences, 16)), loaded.model.facts().weight_bytes)
    };
    let either = run(options(Keep, Q8_0, Keep));
    assert!(either == run(options(Keep, Keep, Q8_0)) && either == run(options(Keep, Q8_0, Q8_0)));
    let error = open(&path, &options(Keep, Q8_0, Q4_0)).err().unwrap();
    assert!(error.status == Status::InvalidArgument && error.message.contains("head_type"), "{error}");
}

#[test]
fn gguf_files_too() {
    let path = root().join("tests/golden/llama-tiny-f32.gguf").to_string_lossy().into_owned();
    let run = |options| {
        let loaded = open(&path, &options).unwrap();
        (alone(&loaded, &[vec![1, 2, 3, 4, 5]], 16).concat(), loaded.model.facts().weight_bytes)
    };
    let (kept, q8) = (run(LoadOptions::default()), run(options(Q8_0, Q8_0, Q8_0)));
    let error = relative_error(&q8.0, &kept.0);
    assert!(error > 0.0 && error < 0.05, "{error}");
    assert!(q8.1 < kept.1 / 2, "{} bytes of {}", q8.1, kept.1);
}

/// Ternary weights that a converter wrote as floats: the same numbers, multiplied as BitNet does.
#[test]
fn ternary_weights_for_who_was_trained_for_them() {
    let refused = |model: &str, options: LoadOptions, status: Status, parts: &[&str]| {
        let error: Error = open(model, &options).err().unwrap_or_else(|| panic!("{model} was taken"));
        assert_eq!(error.status, status, "{error}");
        parts.iter().for_each(|part| assert!(error.message.contains(part), "no '{part}' in: {error}"));
    };
    let path = |name: &str| root().join("tests/golden/models").join(name).to_string_lossy().into_owned();
    let run = |name: &str, options| {
        let loaded = open(&path(name), &options).unwrap();
        bits(&alone(&loaded, &[vec![1, 2, 3, 4, 5]], 16))
    };
    // The weights are stored as ternary, so nothing is left to convert.
    for name in ["bitnet-online", "bitnet-offline", "falcon3-ternary", "bitnet-1bitllm"] {
        assert_eq!(run(name, options(Ternary, Keep, Keep)), run(name, LoadOptions::default()), "{name}");
    }
    refused(
        &path("llama-bf16"),
        options(Ternary, Keep, Keep),
        Status::Unsupported,
        &["weight_type", "attn_q"],
    );
    refused(
        &path("bitnet-online"),
        options(Q8_0, Keep, Keep),
        Status::Unsupported,
        &["attn_q", "Ternary", "BF16"],
    );
    for (e, h, field) in [(Ternary, Keep, "embedding_type"), (Keep, Ternary, "head_type")] {
        refused(&path("bitnet-online"), options(Keep, e, h), Status::InvalidArgument, &[field]);
    }
    refused("builtin:echo", options(Q8_0, Keep, Keep), Status::InvalidArgument, &["builtin:echo"]);
    let ini = LoadOptions { kernel_config: Some("x.ini".into()), ..LoadOptions::default() };
    refused(&path("llama-bf16"), ini.clone(), Status::InvalidArgument, &["kernel_config_path"]);
    refused("builtin:echo", ini, Status::InvalidArgument, &["kernel_config_path"]);
    assert!(crate::common::load_source(&Source::Embedded, &LoadOptions::default(), 1).is_ok());
}
