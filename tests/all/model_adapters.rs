//! LoRA adapters: PEFT's results, in any batch, and bad files.

use crate::common::gguf::{File, Tensor};
use crate::common::parity::agreement;
use crate::common::{
    Golden, Running, SPARE_STATES, Session, alone, bits, json, load_file, load_on, load_source, root,
};
use crate::folder_support::Copy;
use crate::plain_ops::PlainOps;
use bn_engine::base::{Error, Result, Status};
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{Adapter, AdapterFile, LoadOptions, Outputs, Source};
use bn_engine::ops::{Lora, RaggedBatch, SeqRows, StateRows};
use serde_json::{Value, json};
use std::sync::Arc;

fn cases() -> Vec<Value> {
    json(&root().join("tests/golden/adapters/index.json")).as_array().unwrap().clone()
}

fn paths(case: &Value, field: &str) -> Vec<String> {
    case[field].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_owned()).collect()
}

fn open(model: &Running, path: &str) -> Result<Adapter> {
    model.model.adapter(&AdapterFile::open(&root().join(path).to_string_lossy())?)
}

fn lora(model: &Running, path: &str) -> Arc<Lora> {
    Arc::new(open(model, path).unwrap_or_else(|e| panic!("{path}: {e}")).lora)
}

/// Runs every sequence with `lora`, in chunks and in turns.
fn run(model: &Running, sequences: &[Vec<u32>], lora: &Arc<Lora>, chunk: usize) -> Vec<Vec<f32>> {
    let mut session = Session::new(model, sequences, 16, chunk as u64);
    session.adapters.fill(Some((lora.clone(), 1.0)));
    session.interleave(chunk);
    session.logits
}

/// For models from folders and GGUF files, each with adapters from folders and GGUF files: the order of their
/// q and k rows differs.
#[test]
fn peft_computes_the_same() {
    let mut checked = 0;
    for case in cases() {
        for (model, adapter) in paths(&case, "models")
            .iter()
            .flat_map(|m| paths(&case, "adapters").into_iter().map(move |a| (m, a)))
        {
            let what = format!("{model} with {adapter}");
            let golden = Golden {
                tolerance: case["tolerance"].as_f64().unwrap(),
                ..Golden::of(&what, model, &root().join(case["logits"].as_str().unwrap()), &case)
            };
            let mut expected = None;
            for threads in [1, 2] {
                let model = load_file(model, threads).unwrap();
                let opened = open(&model, &adapter).unwrap_or_else(|e| panic!("{adapter}: {e}"));
                // It takes no more than an engine sets aside for it.
                let file = AdapterFile::open(&root().join(&adapter).to_string_lossy()).unwrap();
                assert_eq!(opened.bytes, file.bytes(), "{what}");
                let lora = Arc::new(opened.lora);
                for chunk in [64, 3, 1] {
                    let logits = run(&model, &golden.sequences, &lora, chunk);
                    let (error, same, rows) = agreement(&golden, &logits);
                    assert!(
                        error <= golden.tolerance && same == rows,
                        "{what}: {error:.2e}, {same} of {rows}"
                    );
                    let expected = expected.get_or_insert_with(|| bits(&logits));
                    assert!(bits(&logits) == *expected, "{what}: {threads} threads, chunks of {chunk}");
                }
            }
            let plain = load_on(&golden.model, Arc::new(PlainOps)).unwrap();
            let plain = run(&plain, &golden.sequences, &lora(&plain, &adapter), 64);
            assert!(agreement(&golden, &plain).0 <= golden.tolerance, "{what}, plain");
            checked += 1;
        }
    }
    assert!(checked >= 24, "{checked} pairs of a model and an adapter");
}

/// Sequences of one batch with two adapters, with one at another scale, and with none.
#[test]
fn company_changes_no_bit() {
    for case in cases() {
        let (name, adapter) = (&paths(&case, "models")[0], &paths(&case, "adapters")[0]);
        let model = load_file(name, 2).unwrap();
        let [first, mut second] = [0, 1].map(|_| lora(&model, adapter));
        // Another adapter: the same updates at other places.
        Arc::make_mut(&mut second).layers.iter_mut().for_each(|pairs| pairs[0] = Default::default());
        let adapters = [None, Some((first.clone(), 1.0)), Some((second, 1.0)), Some((first, 0.25)), None];
        let ids = |n: usize| (0..n as u32).map(|i| 1 + (i * 7 + n as u32) % 60).collect::<Vec<u32>>();
        let sequences = [12, 12, 12, 12, 31].map(ids);
        let mut all = Session::new(&model, &sequences, 16, 3);
        all.adapters = adapters.to_vec();
        all.interleave(4);
        let mut outputs: Vec<_> = bits(&all.logits);
        for (i, adapter) in adapters.iter().enumerate() {
            let mut one = Session::new(&model, &sequences[i..=i], 16, 5);
            one.adapters[0] = adapter.clone();
            one.step(&[(0, 64)]);
            assert!(bits(&one.logits)[0] == outputs[i], "{name}: sequence {i}");
        }
        assert!(bits(&alone(&model, &sequences[..1], 16))[0] == outputs[0], "{name}: none is none");
        outputs.truncate(4);
        outputs.sort();
        outputs.dedup();
        assert_eq!(outputs.len(), 4, "{name}: each adapter does something of its own");
    }
}

/// If few rows are wanted, the last layer runs only for them.
#[test]
fn rows_that_are_wanted_alone_are_the_same() {
    for case in cases() {
        let model = load_file(&paths(&case, "models")[0], 2).unwrap();
        let lora = lora(&model, &paths(&case, "adapters")[0]);
        let ids: Vec<u32> = (0..20).map(|i| 1 + i * 3 % 60).collect();
        let all = run(&model, &[ids.clone(), ids.clone()], &lora, 64).remove(0);
        // The second half of the batch has no adapter.
        let mut batch = RaggedBatch::default();
        for seq in 0..2 {
            batch.seqs.push(SeqRows { row: 20 * seq, rows: 20, table: 2 * seq, table_len: 2 });
            batch.tokens.extend(&ids);
            batch.positions.extend(0..20);
            batch.block_tables.extend([2 * seq, 2 * seq + 1]);
            if !model.model.state_shape().is_empty() {
                batch.states.push(StateRows { slot: SPARE_STATES as u32 + seq, ..StateRows::default() });
            }
        }
        batch.logits_rows = vec![7, 19, 39];
        batch.hidden_rows = vec![3, 7];
        batch.adapt(&lora, 1.0, 0, 20);
        let (mut memory, mut out) = (model.memory(KvType::F32, 4, 16, 2), Outputs::default());
        model.forward(&batch, &mut *memory, &mut out).unwrap();
        let vocab = model.model.facts().vocab_size;
        for (n, row) in [7, 19].into_iter().enumerate() {
            assert!(
                out.logits[n * vocab..][..vocab] == all[row * vocab..][..vocab],
                "{}: row {row}",
                case["name"]
            );
        }
        let none = alone(&model, &[ids], 16).remove(0);
        assert!(out.logits[2 * vocab..] == none[19 * vocab..], "{}: a row without", case["name"]);
    }
}

fn refused(model: &Running, path: &str, status: Status, words: &[&str]) {
    let error: Error = open(model, path).err().unwrap_or_else(|| panic!("{path} was taken"));
    assert_eq!(error.status, status, "{error}");
    words.iter().for_each(|word| assert!(error.message.contains(word), "no '{word}' in: {error}"));
}

/// Products that accept no adapter, and files whose rows or factors are in another form than the model's.
#[test]
fn what_takes_no_adapter_is_refused_by_name() {
    let copy = Copy::of_folder("adapters", "llama");
    let path = format!("{}/x.gguf", copy.path());
    for (model, architecture, product, [rows, cols]) in [
        ("deepseek-v2", "deepseek2", "blk.0.attn_kv_b", [8, 8]),
        ("deepseek-v2", "deepseek2", "blk.1.ffn_up_exps", [8, 8]),
        ("qwen35moe", "qwen35moe", "blk.0.ffn_up_shexp", [8, 8]),
        ("lfm2", "lfm2", "blk.0.shortconv.conv", [8, 8]),
        ("gemma4-inputs", "gemma4", "per_layer_model_proj", [8, 8]),
    ] {
        let file = File::default().str("general.architecture", architecture).str("general.type", "adapter");
        let file = file.str("adapter.type", "lora").f32("adapter.lora.alpha", 8.0);
        let file = file.random(&format!("{product}.weight.lora_a"), &[cols, 2], 1);
        std::fs::write(&path, file.random(&format!("{product}.weight.lora_b"), &[2, rows], 2).bytes())
            .unwrap();
        let model = load_file(&format!("tests/golden/models/{model}"), 1).unwrap();
        refused(&model, &path, Status::Unsupported, &[product, "none that takes an adapter"]);
    }
    for name in ["qwen35", "falcon-h1"] {
        let model = load_file(&format!("tests/golden/models/{name}.gguf"), 1).unwrap();
        let adapter = format!("tests/golden/adapters/{name}");
        refused(&model, &adapter, Status::Unsupported, &["open a folder with PEFT's adapters"]);
    }
    let options = LoadOptions { mtp: true, ..LoadOptions::default() };
    let path = root().join("tests/golden/mtp/qwen35").to_string_lossy().into_owned();
    let model = load_source(&Source::File(path), &options, 1).unwrap();
    refused(&model, "tests/golden/adapters/qwen35", Status::Unsupported, &["mtp"]);
}

#[test]
fn files_that_are_wrong_are_refused_by_name() {
    let model = load_file("tests/golden/models/llama-llama3", 1).unwrap();
    let refused = |path: &str, status, words: &[&str]| refused(&model, path, status, words);
    refused("/nonexistent", Status::Io, &["/nonexistent"]);
    refused("tests/golden/models/llama-llama3", Status::Io, &["adapter_config.json"]);
    refused("tests/golden/models/llama-llama3.gguf", Status::Unsupported, &["general.type"]);
    refused("tests/golden/adapters/qwen3", Status::BadModel, &["blk.0.attn_q", "where the model has"]);
    refused("tests/golden/adapters/lfm2", Status::Unsupported, &["layers.0.", "no such product"]);
    refused("tests/golden/adapters/qwen3.gguf", Status::BadModel, &["for 'qwen3'", "'llama'"]);
    let echo = crate::common::load_source(
        &bn_engine::model::Source::parse(Some("builtin:echo")).unwrap(),
        &Default::default(),
        1,
    );
    let file = AdapterFile::open(&root().join("tests/golden/adapters/llama").to_string_lossy()).unwrap();
    assert_eq!(echo.unwrap().model.adapter(&file).err().unwrap().status, Status::Unsupported);

    let lora = |change: &dyn Fn(File) -> File| {
        let file = File::default().str("general.architecture", "llama").str("general.type", "adapter");
        let file = file.str("adapter.type", "lora").f32("adapter.lora.alpha", 8.0);
        let file = file.random("blk.0.ffn_down.weight.lora_a", &[64, 32], 1);
        change(file.random("blk.0.ffn_down.weight.lora_b", &[32, 32], 2)).bytes()
    };
    let copy = Copy::of_folder("adapters", "llama");
    let path = format!("{}/x.gguf", copy.path());
    let case = |change: &dyn Fn(File) -> File, words: &[&str]| {
        std::fs::write(&path, lora(change)).unwrap();
        refused(&path, Status::Unsupported, words);
    };
    // Q8_0: 34 bytes for 32 numbers.
    let quantized = |tensor: &mut Tensor| (tensor.type_id, tensor.data) = (8, vec![0; 32 * 34]);
    case(&|file| file.change("blk.0.ffn_down.weight.lora_b", quantized), &[&path, "blk.0.ffn_down", "Q8_0"]);
    case(&|file| file.u32("adapter.lora.rotated", 1), &[&path, "'adapter.lora.rotated'"]);
    case(&|file| file.u32("prism.hadamard.version", 1), &[&path, "'prism.hadamard.version'", "'prism'"]);

    let changed = |change: &dyn Fn(&mut Value)| {
        let copy = Copy::of_folder("adapters", "llama");
        let mut config: Value = serde_json::from_slice(&copy.read("adapter_config.json")).unwrap();
        change(&mut config);
        copy.put("adapter_config.json", config.to_string());
        copy
    };
    for (key, value) in [
        ("peft_type", json!("LOHA")),
        ("use_dora", json!(true)),
        ("bias", json!("all")),
        ("modules_to_save", json!(["lm_head"])),
        ("fan_in_fan_out", json!(true)),
        ("alpha_pattern", json!({"q_.*": "three"})),
        ("alpha_pattern", json!({"q_(": 3})),
        ("alpha_pattern", Value::Object((0..300).map(|n| (format!("q_{n}.*"), json!(n))).collect())),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("olora")),
        ("layer_replication", json!([[0, 1]])),
    ] {
        let copy = changed(&|config| config[key] = value.clone());
        refused(&copy.path(), Status::Unsupported, &["adapter_config.json", key]);
    }
    refused(&changed(&|config| config["lora_alpha"] = json!("x")).path(), Status::BadModel, &["lora_alpha"]);
    refused(&changed(&|config| config["lora_alpha"] = json!(1e39)).path(), Status::BadModel, &["lora_alpha"]);

    let copy = Copy::of_folder("adapters", "llama");
    let bytes = copy.read("adapter_model.safetensors");
    let renamed = |from: &str, to: &str| {
        let text = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect(from);
        let mut bytes = bytes.clone();
        bytes[text..text + from.len()].copy_from_slice(to.as_bytes());
        copy.put("adapter_model.safetensors", bytes);
        copy.path()
    };
    let names = &["layers.0.self_attn.q_proj.lora_A", "layers.7.self_attn.q_proj.lora_A"];
    refused(&renamed(names[0], names[1]), Status::BadModel, &["layers.7.self_attn.q_proj", "lora_B"]);
    // A name of a product inside the model would be that of another model.
    refused(&renamed("q_proj.lora_A", "q_.base_layer"), Status::Unsupported, &["no pair"]);
    refused(&renamed("q_proj.lora_A", "q_proj.lora_X"), Status::Unsupported, &["no pair"]);
    refused(
        &renamed("self_attn.k_proj.lora_A", "self_attn.j_proj.lora_A"),
        Status::BadModel,
        &["j_proj", "lora_B"],
    );
    copy.put("adapter_model.safetensors", &bytes[..bytes.len() - 4]);
    refused(&copy.path(), Status::BadModel, &["adapter_model.safetensors"]);
    let mut nan = bytes.clone();
    let end = nan.len();
    nan[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    copy.put("adapter_model.safetensors", nan);
    refused(&copy.path(), Status::BadModel, &["not finite"]);
    std::fs::remove_file(copy.0.join("adapter_model.safetensors")).unwrap();
    refused(&copy.path(), Status::Io, &["adapter_model.safetensors"]);
}
