//! Bad files get an error that names the fault, and never a panic.

use crate::common;
use crate::common::gguf::{F16, FFN, File, HIDDEN, TQ2_0, VOCAB, Value};
use crate::common::gguf::{
    bitnet, deepseek2, falcon_h1, gemma2, gemma3, granitehybrid, llama, maple, minicpm, mistral3, phi3,
    qwen2, qwen3moe, qwen3next, qwen35, qwen35moe, starcoder2,
};
use crate::common::{Rng, Running, SPARE_STATES};
use bn_engine::base::{Bytes, Error, Status};
use bn_engine::formats::gguf::Gguf;
use bn_engine::kernels::Pool;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Outputs, SamplingDefaults, Source, load, load_checkpoint};
use bn_engine::ops::{RaggedBatch, SeqRows, StateRows};

pub fn open(bytes: Vec<u8>) -> Result<Running, Error> {
    let gguf = Gguf::from_bytes(Bytes::new(bytes), "test file")?;
    let pool = Pool::new(1)?;
    Running::new(load_checkpoint(&gguf, &pool, &|_, _| (), &mut |_, _| false)?, 1)
}

fn open_path(path: &str) -> Result<Running, Error> {
    common::load_source(&Source::parse(Some(path))?, &LoadOptions::default(), 1)
}

/// Checks that the file is refused with `status`, and that the message contains each of `words`.
#[track_caller]
pub fn refused<T>(result: Result<T, Error>, status: Status, words: &[&str]) {
    let Err(error) = result else { panic!("loaded where {words:?} should have been refused") };
    assert_eq!(error.status, status, "{error}");
    for word in words {
        assert!(error.message.contains(word), "'{word}' is not in: {error}");
    }
}

#[track_caller]
pub fn bad(file: File, words: &[&str]) {
    refused(open(file.bytes()), Status::BadModel, words);
}

#[track_caller]
pub fn unsupported(file: File, words: &[&str]) {
    refused(open(file.bytes()), Status::Unsupported, words);
}

/// Runs a prompt of one token, or returns the error.
pub fn forward(model: &Running) -> Result<Vec<f32>, Error> {
    let mut memory = model.memory(KvType::F32, 1, 16, 1);
    let mut batch = RaggedBatch {
        tokens: vec![0],
        positions: vec![0],
        seqs: vec![SeqRows { row: 0, rows: 1, table: 0, table_len: 1 }],
        block_tables: vec![0],
        logits_rows: vec![0],
        ..RaggedBatch::default()
    };
    if model.has_states() {
        batch.states.push(StateRows { slot: SPARE_STATES as u32, ..StateRows::default() });
    }
    let mut out = Outputs::default();
    model.forward(&batch, &mut *memory, &mut out)?;
    assert_eq!(out.logits.len(), model.model.facts().vocab_size);
    Ok(out.logits)
}

#[test]
fn the_files_that_the_others_bend_are_fine() {
    let others = [
        minicpm(),
        maple(),
        gemma2(),
        mistral3(),
        phi3(),
        starcoder2(),
        granitehybrid(),
        falcon_h1(),
        deepseek2(),
    ];
    let files = [llama(), bitnet(), qwen2(), gemma3(), qwen3moe(), qwen35(), qwen35moe(), qwen3next()];
    for file in files.into_iter().chain(others) {
        let loaded = open(file.bytes()).expect("load");
        assert!(loaded.tokenizer.is_none(), "there is none in the file");
        assert_eq!(loaded.model.facts().vocab_size, VOCAB as usize);
        let logits = forward(&loaded).expect("forward");
        assert!(logits.iter().all(|x| x.is_finite()) && logits.iter().any(|x| *x != 0.0));
    }
}

#[test]
fn no_file_an_empty_one_and_a_foreign_one() {
    let path = |name: &str| std::env::temp_dir().join(format!("bn-bad-{}-{name}", std::process::id()));
    let missing = path("missing").to_string_lossy().into_owned();
    refused(open_path(&missing), Status::Io, &[&missing]);
    // Without the separator that it ends with on Windows.
    let directory = std::env::temp_dir().components().collect::<std::path::PathBuf>();
    let directory = directory.to_string_lossy().into_owned();
    refused(open_path(&directory), Status::Io, &[&directory, "config.json"]);
    for (name, content, word) in [("empty", &b""[..], "empty"), ("foreign", &b"\x7fELF and more"[..], "GGUF")]
    {
        let path = path(name);
        std::fs::write(&path, content).expect("write");
        let text = path.to_string_lossy().into_owned();
        refused(open_path(&text), Status::BadModel, &[&text, word]);
        std::fs::remove_file(path).expect("remove");
    }
}

#[test]
fn truncated_anywhere() {
    let bytes = bitnet().bytes();
    for at in (0..2048).chain((2048..bytes.len() - 28).step_by(997)) {
        refused(open(bytes[..at].to_vec()), Status::BadModel, &["test file"]);
    }
}

#[test]
fn architectures_and_features_that_are_not_ours() {
    unsupported(llama().str("general.architecture", "gpt2"), &["'gpt2'", "bitnet-b1.58", "llama"]);
    bad(llama().without_key("general.architecture"), &["general.architecture"]);
    unsupported(llama().u32("llama.expert_count", 8), &["llama.expert_count", "8"]);
    unsupported(llama().u32("llama.attention.value_length", 32), &["value_length", "32"]);
    unsupported(llama().random("blk.1.ffn_gate_exps.weight", &[8], 1), &["'blk.1.ffn_gate_exps.weight'"]);
    unsupported(llama().random("blk.2.attn_norm.weight", &[HIDDEN], 1), &["'blk.2.attn_norm.weight'"]);
    // A factor of 1 has no effect; converters write it.
    let harmless = llama().str("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 1.0);
    assert!(open(harmless.bytes()).is_ok());
}

#[test]
fn mixtures_of_experts() {
    let with = |key: &str, value| qwen3moe().u32(&format!("qwen3moe.{key}"), value);
    bad(with("expert_used_count", 0), &["qwen3moe.expert_used_count", "0"]);
    bad(with("expert_used_count", 5), &["qwen3moe.expert_used_count", "5"]);
    bad(qwen3moe().without_key("qwen3moe.expert_used_count"), &["qwen3moe.expert_used_count"]);
    for count in [0, 3, 5, u32::MAX] {
        bad(with("expert_count", count), &["qwen3moe.expert_count", "'blk.0.ffn_gate_exps.weight' has 4"]);
    }
    bad(with("expert_feed_forward_length", 31), &["'blk.0.ffn_gate_exps.weight'", "31"]);
    unsupported(with("expert_shared_count", 1), &["expert_shared_count"]);
    unsupported(with("expert_gating_func", 2), &["expert_gating_func", "2"]);
    unsupported(qwen3moe().f32("qwen3moe.expert_weights_scale", 2.5), &["expert_weights_scale", "2.5"]);
    bad(qwen3moe().without("blk.1.ffn_gate_inp.weight"), &["'blk.1.ffn_gate_inp.weight'", "missing"]);
    bad(qwen3moe().without("blk.1.ffn_up_exps.weight"), &["'blk.1.ffn_up_exps.weight'", "missing"]);
    let extra = "blk.0.ffn_up_exps.1.weight";
    unsupported(qwen3moe().random(extra, &[HIDDEN, 32], 1), &[extra]);
    // Whether a row's weights are renormalized follows from a key.
    let run = |file: File| forward(&open(file.bytes()).expect("load")).expect("forward");
    let renormalized = run(qwen3moe());
    let set = |value| qwen3moe().set("qwen3moe.expert_weights_norm", Value::Bool(value));
    assert_eq!(run(set(true)), renormalized);
    assert_ne!(run(set(false)), renormalized);
}

#[test]
fn features_that_are_not_ours() {
    for (key, value) in [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("attention.temperature_scale", 0.1),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.output_scale", 0.5),
        ("attention.value_scale", 0.5),
        ("logit_scale", 2.0),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.5),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.scaling.yarn_ext_factor", 0.5),
        // Without YaRN it would have no effect.
        ("rope.scaling.attn_factor", 1.2),
    ] {
        let key = format!("llama.{key}");
        unsupported(llama().f32(&key, value), &[&key, &value.to_string()]);
    }
    for (key, value) in [("nextn_predict_layers", 1), ("expert_shared_count", 1), ("swin_norm", 1)] {
        let key = format!("llama.{key}");
        assert!(open(llama().u32(&key, 0).bytes()).is_ok(), "{key}");
        unsupported(llama().u32(&key, value), &[&key, &value.to_string()]);
    }
    unsupported(llama().str("llama.rope.scaling.type", "dynamic"), &["llama.rope.scaling.type", "dynamic"]);
    bad(llama().str("llama.rope.scaling.type", "longrope"), &["rope_factors_short.weight"]);
    unsupported(llama().u32("llama.attention.causal", 0), &["llama.attention.causal", "0"]);
    unsupported(llama().u32("llama.pooling_type", 4), &["llama.pooling_type", "4"]);
    unsupported(qwen2().u32("qwen2.attention.sliding_window", 16), &["qwen2.attention.sliding_window", "16"]);
}

/// Keys outside of the architecture's namespace: known arithmetic is refused by name, anything else is reported.
#[test]
fn namespaces_that_nobody_knows() {
    for (key, value) in [
        ("xielu.alpha_p", Value::F32(0.8)),
        ("diffusion.shift_logits", Value::Bool(true)),
        ("prism.rotation", Value::U32(128)),
        // These keys belong to other architectures.
        ("qwen3.attention.head_count", Value::U32(2)),
        ("nomic-bert.pooling_type", Value::U32(1)),
    ] {
        unsupported(llama().set(key, value), &[&format!("'{key}'"), "namespace"]);
    }
    // Models with heads for typed questions.
    let decides =
        [llama().str("llama.decision.type", "openjev"), llama().u32("llama.decision.block_count", 1)];
    for (file, key) in decides.into_iter().zip(["type", "block_count"]) {
        unsupported(file, &[&format!("'llama.decision.{key}'"), "typed questions"]);
    }
    unsupported(llama().u32("general.quantization_version", 3), &["general.quantization_version", "3"]);
    let stamped = llama()
        .str("mradermacher.quantized_at", "2025-01-25T03:07:17+01:00")
        .u32("quantize.imatrix.entries_count", 384)
        .u32("imatrix.chunk_count", 125)
        .u32("general.quantization_version", 2)
        .set("general.tags", Value::Strs(vec!["text-generation".into()]))
        .str("acme.quantized_by", "acme")
        .str("acme.url", "https://example.org")
        .u32("custom.revision", 3)
        .set("custom.layers", Value::Strs(vec!["blk.0.ffn_down.weight".into()]))
        .f32("training.loss", 1.25)
        .set("unsloth.fixed", Value::Bool(true))
        .str("note", "a key without a namespace");
    let gguf = Gguf::from_bytes(Bytes::new(stamped.bytes()), "stamped").expect("a file");
    let said = std::sync::Mutex::new(Vec::new());
    let log = |_: u32, message: &str| said.lock().unwrap().push(message.to_owned());
    load_checkpoint(&gguf, &Pool::new(1).unwrap(), &log, &mut |_, _| false).expect("load");
    let said = said.into_inner().unwrap();
    let of = |name: &str| said.iter().filter(|line| line.contains(name)).count();
    let unknown = ["'acme.*'", "'note.*'", "'custom.*'", "'training.*'", "'unsloth.*'"];
    assert_eq!(unknown.map(of), [1; 5], "{said:?}");
    assert_eq!(["mradermacher", "quantize."].map(of), [0; 2], "{said:?}");
}

/// Keys of families with windows by list, limits of gates, factors and LongRoPE.
#[test]
fn keys_of_maple_and_minicpm_out_of_range() {
    let pattern = |value| maple().set("maple.attention.sliding_window_pattern", value);
    bad(pattern(Value::Bools(vec![true])), &["sliding_window_pattern", "list of 1", "2 layers"]);
    bad(pattern(Value::U32(0)), &["sliding_window_pattern"]);
    bad(maple().f32("maple.swiglu_clamp_exp", -1.0), &["swiglu_clamp_exp"]);
    bad(maple().without_key("maple.attention.sliding_window"), &["attention.sliding_window"]);
    bad(llama().u32("llama.rope.dimension_count", 0), &["rope.dimension_count"]);
    unsupported(llama().f32("llama.swiglu_clamp_exp", 7.0), &["swiglu_clamp_exp"]);
    for key in ["embedding_scale", "residual_scale", "logit_scale"] {
        for value in [0.0, f32::NAN, f32::INFINITY] {
            bad(minicpm().f32(&format!("minicpm.{key}"), value), &[key]);
        }
        unsupported(llama().f32(&format!("llama.{key}"), 2.0), &[key]);
    }
    for name in ["rope_factors_short.weight", "rope_factors_long.weight"] {
        bad(minicpm().without(name), &[name]);
        bad(minicpm().change(name, |t| t.data.fill(0)), &["factor"]);
    }
    // As in files of Phi-3.
    assert!(open(minicpm().without_key("minicpm.rope.scaling.type").bytes()).is_ok());
    unsupported(minicpm().str("minicpm.rope.scaling.type", "none"), &["rope_factors"]);
}

/// Rotations of weights: keys that contradict each other or the tensors, and kinds that are not known.
#[test]
fn rotations_out_of_range() {
    let rotated = |key: &str, value: Value| {
        let names = |names: &[&str]| Value::Strs(names.iter().map(|name| name.to_string()).collect());
        let keys = [
            ("version", Value::U32(1)),
            ("block_size", Value::U32(16)),
            ("transform", Value::Str("normalized-sylvester-walsh-hadamard".into())),
            ("axis", Value::Str("input-last-dimension".into())),
            ("sign_mode", Value::Str("explicit".into())),
            ("sign_widths", Value::I32s(vec![HIDDEN as i32, FFN as i32])),
            ("sign_values", Value::I32s([1, -1].repeat((HIDDEN + FFN) as usize / 2))),
            ("weight_names", names(&["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"])),
            ("inverse_weight_names", names(&["token_embd.weight"])),
            ("gdn_v_grouped", Value::Bool(true)),
        ];
        let file = keys
            .into_iter()
            .fold(llama(), |file, (key, value)| file.set(&format!("prism.hadamard.{key}"), value));
        if key.is_empty() { file } else { file.set(&format!("prism.hadamard.{key}"), value) }
    };
    let one = |name: &str| Value::Strs(vec![name.into()]);
    let model = open(rotated("", Value::U32(0)).bytes()).expect("a rotated model");
    assert!(forward(&model).expect("a pass").iter().all(|logit| logit.is_finite()));
    for (key, value, words) in [
        ("version", Value::U32(3), &["3"][..]),
        ("version", Value::U32(2), &["2"]),
        ("transform", Value::Str("dct".into()), &["dct"]),
        ("axis", Value::Str("output".into()), &["output"]),
        ("sign_mode", Value::Str("seeded".into()), &["seeded"]),
        ("inverse_weight_names", one("output.weight"), &["output.weight"]),
        ("weight_names", one("token_embd.weight"), &["token_embd.weight"]),
        ("seed", Value::U32(7), &["not known"]),
    ] {
        let named = format!("'prism.hadamard.{key}'");
        unsupported(rotated(key, value), &[&["test file", &named], words].concat());
    }
    unsupported(rotated("weight_names", one("blk.0.ffn_up.weight")), &["blk.0.ffn_up.weight", "rotation"]);
    for (key, value, words) in [
        ("block_size", Value::U32(48), &["48", "power of two"][..]),
        ("block_size", Value::U32(0), &["power of two"]),
        ("block_size", Value::U32(1 << 15), &["no whole blocks of 32768"]),
        ("sign_widths", Value::I32s(vec![HIDDEN as i32]), &["sign_widths", "sign_values"]),
        ("sign_values", Value::I32s([1, 2].repeat((HIDDEN + FFN) as usize / 2)), &["2", "signs"]),
        ("weight_names", one("blk.9.ffn_down.weight"), &["blk.9.ffn_down.weight", "no such matrix"]),
        ("weight_names", one("output_norm.weight"), &["no such matrix"]),
        ("weight_names", Value::U32(1), &["prism.hadamard.weight_names"]),
    ] {
        bad(rotated(key, value), &[&["test file"], words].concat());
    }
}

/// Keys of the newer parts, each with an invalid value.
#[test]
fn keys_of_single_families_out_of_range() {
    let yarn = || llama().str("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4.0);
    assert!(open(yarn().bytes()).is_ok());
    for value in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let shown = value.to_string();
        for key in ["factor", "attn_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"] {
            let key = format!("llama.rope.scaling.{key}");
            let named = key.replace("yarn_attn_factor", "attn_factor");
            bad(yarn().f32(&key, value), &[&named, &shown]);
        }
        bad(llama().f32("llama.rope.scaling.factor", value), &["llama.rope.scaling.factor", &shown]);
        bad(llama().f32("llama.rope.scale_linear", value), &["llama.rope.scaling.factor", &shown]);
        bad(llama().f32("llama.attention.scale", value), &["llama.attention.scale", &shown]);
        bad(gemma3().f32("gemma3.rope.freq_base_swa", value), &["gemma3.rope.freq_base", &shown]);
    }
    bad(yarn().f32("llama.rope.scaling.yarn_beta_slow", 33.0), &["yarn_beta_slow", "33", "32"]);
    bad(yarn().u32("llama.rope.scaling.original_context_length", 0), &["original_context_length", "0"]);
    bad(yarn().u32("llama.rope.scaling.factor", 4), &["llama.rope.scaling.factor"]);
    bad(llama().u32("llama.attention.sliding_window", u32::MAX), &["sliding_window", "4294967295"]);
    bad(llama().str("llama.attention.sliding_window", "wide"), &["llama.attention.sliding_window"]);
    bad(gemma3().u32("gemma3.attention.sliding_window_pattern", 0), &["sliding_window_pattern", "0"]);
    bad(llama().str("llama.pooling_type", "mean"), &["llama.pooling_type"]);
}

/// A part must be complete or absent.
#[test]
fn parts_by_halves() {
    let bias = |file: File, layer: u32, part: &str, width: u64| {
        file.random(&format!("blk.{layer}.{part}.bias"), &[width], 1)
    };
    let qkv = |file, layer| {
        let file = bias(bias(file, layer, "attn_q", HIDDEN), layer, "attn_k", HIDDEN / 2);
        bias(file, layer, "attn_v", HIDDEN / 2)
    };
    assert!(open(qkv(qkv(llama(), 0), 1).bytes()).is_ok());
    bad(qkv(llama(), 0), &["'blk.1.attn_q.bias'", "missing"]);
    unsupported(qkv(llama(), 1), &["'blk.1.attn_q.bias'"]);
    bad(bias(llama(), 0, "attn_q", HIDDEN), &["'blk.0.attn_k.bias'", "missing"]);
    unsupported(bias(llama(), 0, "attn_v", HIDDEN / 2), &["'blk.0.attn_v.bias'"]);
    bad(bias(llama(), 0, "attn_output", HIDDEN / 2), &["'blk.0.attn_output.bias'", "dimensions"]);
    bad(bias(llama(), 0, "ffn_down", HIDDEN), &["'blk.0.ffn_gate.bias'", "missing"]);
    unsupported(bias(llama(), 0, "ffn_up", FFN), &["'blk.0.ffn_up.bias'"]);
    let own = |file: File, part: &str, width: u64| {
        file.random(&format!("blk.0.{part}_norm_in.weight"), &[width], 1)
    };
    bad(own(llama(), "attn_q", HIDDEN), &["'blk.0.attn_k_norm_in.weight'", "missing"]);
    bad(gemma3().without("blk.1.post_ffw_norm.weight"), &["'blk.1.post_ffw_norm.weight'", "missing"]);
    let wide = gemma3().without("blk.0.attn_k_norm.weight").random("blk.0.attn_k_norm.weight", &[HIDDEN], 1);
    bad(wide, &["'blk.0.attn_k_norm.weight'", "dimensions"]);
}

/// A window, the other rope base and a scale of scores are applied to the right layers.
#[test]
fn keys_of_single_families_are_used() {
    let run = |file: File| {
        let loaded = open(file.bytes()).expect("load");
        let tokens: Vec<u32> = (0..40).map(|i| i * 7 % VOCAB as u32).collect();
        common::bits(&common::alone(&loaded, &[tokens], 16)).remove(0)
    };
    let vocab = VOCAB as usize;
    let plain = run(llama());
    let window = run(llama().u32("llama.attention.sliding_window", 16));
    assert_eq!(plain[..16 * vocab], window[..16 * vocab], "the first rows see all that there is");
    assert_ne!(plain[16 * vocab..17 * vocab], window[16 * vocab..17 * vocab]);
    assert_eq!(plain, run(llama().u32("llama.attention.sliding_window", 0)));
    assert_eq!(plain, run(llama().u32("llama.attention.sliding_window", 40)));
    assert_ne!(plain, run(llama().f32("llama.attention.scale", 0.1)));
    // Neither of these two layers is the sixth, so both are local.
    let gemma = run(gemma3());
    assert_eq!(gemma, run(gemma3().f32("gemma3.rope.freq_base", 1e6)));
    assert_ne!(gemma, run(gemma3().f32("gemma3.rope.freq_base_swa", 1e6)));
    let second_sees_all = gemma3().u32("gemma3.attention.sliding_window_pattern", 2);
    assert_ne!(gemma, run(second_sees_all.clone()));
    assert_ne!(run(second_sees_all.clone()), run(second_sees_all.f32("gemma3.rope.freq_base", 1e6)));
}

#[test]
fn keys_missing_and_out_of_range() {
    for key in
        ["context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"]
    {
        let key = format!("llama.{key}");
        bad(llama().without_key(&key), &[&key, "missing"]);
        bad(llama().u32(&key, 0), &[&key, "0"]);
        bad(llama().u32(&key, u32::MAX), &[&key, "4294967295"]);
        bad(llama().str(&key, "many"), &[&key]);
    }
    bad(
        llama().without_key("llama.attention.layer_norm_rms_epsilon"),
        &["layer_norm_rms_epsilon", "missing"],
    );
    for value in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
        bad(llama().f32("llama.attention.layer_norm_rms_epsilon", value), &["layer_norm_rms_epsilon"]);
        bad(llama().f32("llama.rope.freq_base", value), &["llama.rope.freq_base"]);
    }
    bad(llama().u32("llama.attention.head_count", 3), &["llama.attention.head_count", "3"]);
    bad(
        llama().u32("llama.attention.head_count", 4).u32("llama.attention.head_count_kv", 3),
        &["head_count_kv", "3"],
    );
    bad(llama().u32("llama.attention.head_count_kv", 4), &["head_count_kv", "4"]);
    bad(llama().u32("llama.attention.key_length", 63), &["key_length", "63"]);
    bad(llama().u32("llama.rope.dimension_count", 65), &["rope.dimension_count", "65"]);
    bad(llama().u32("llama.rope.dimension_count", 7), &["rope.dimension_count", "7"]);
    bad(llama().u32("llama.vocab_size", 0), &["llama.vocab_size"]);
}

#[test]
fn tensors_missing_and_of_wrong_shape_or_type() {
    let names: Vec<String> = bitnet().tensors.iter().map(|t| t.name.clone()).collect();
    for name in &names {
        bad(bitnet().without(name), &[name]);
        let turned = bitnet().change(name, |t| match t.dims.len() {
            1 => t.dims = vec![t.dims[0] / 2, 2],
            _ => t.dims = vec![t.dims[0] / 2, t.dims[1] * 2],
        });
        bad(turned, &[name, "dimensions"]);
        unsupported(bitnet().change(name, |t| t.type_id = 19), &[name, "IQ1_S", "Q4_K", "I2_S"]);
        unsupported(bitnet().change(name, |t| t.type_id = 99), &[name, "99", "unknown"]);
        unsupported(bitnet().change(name, |t| t.type_id = 40), &[name, "NVFP4"]);
    }
    bad(llama().u32("llama.vocab_size", 41), &["token_embd.weight", "41"]);
    let no_vector = llama().change("output_norm.weight", |t| t.type_id = 8);
    unsupported(no_vector, &["output_norm.weight", "Q8_0"]);
    unsupported(bitnet().ternary("output.weight", &[HIDDEN, VOCAB], 1), &["output.weight", "I2S"]);
    let mixed =
        llama().without("blk.1.attn_k.weight").ternary("blk.1.attn_k.weight", &[HIDDEN, HIDDEN / 2], 1);
    unsupported(mixed, &["blk.1.attn_q.weight", "blk.1.attn_k.weight"]);
    let narrow = llama().change("blk.0.ffn_up.weight", |t| t.type_id = F16);
    assert!(open(narrow.bytes()).is_ok(), "F16 beside F32, and padding behind the data, are fine");
    // 128 columns are half a TQ2_0 block.
    bad(llama().change("blk.0.attn_q.weight", |t| t.type_id = TQ2_0), &["blk.0.attn_q.weight", "256"]);
}

#[test]
fn weights_that_are_no_weights() {
    bad(
        bitnet().change("blk.1.ffn_down.weight", |t| t.data[77] |= 0b11 << 4),
        &["blk.1.ffn_down.weight", "code 3"],
    );
    let scale = |t: &mut common::gguf::Tensor| {
        let at = t.data.len() - 32;
        t.data[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    };
    bad(bitnet().change("blk.0.attn_v.weight", scale), &["blk.0.attn_v.weight", "NaN"]);
    let infinite = |t: &mut common::gguf::Tensor| t.data[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    bad(llama().change("output_norm.weight", infinite), &["output_norm.weight", "inf"]);
    let zero = llama().random("rope_freqs.weight", &[32], 1).change("rope_freqs.weight", |t| t.data.fill(0));
    bad(zero, &["rope_freqs.weight"]);
}

#[test]
fn rope_factors_are_used() {
    let plain = open(llama().bytes()).expect("load");
    let factors = |value: f32| {
        let set = |t: &mut common::gguf::Tensor| t.data = value.to_le_bytes().repeat(32);
        open(llama().random("rope_freqs.weight", &[32], 1).change("rope_freqs.weight", set).bytes())
            .expect("load")
    };
    let run = |loaded: &Running| common::alone(loaded, &[vec![1, 2, 3, 4]], 16);
    let expected = run(&plain);
    assert_eq!(common::bits(&run(&factors(1.0))), common::bits(&expected));
    assert_ne!(common::bits(&run(&factors(8.0))), common::bits(&expected));
}

#[test]
fn a_load_can_be_given_up() {
    let path = common::root().join("tests/golden/llama-tiny-f32.gguf").to_string_lossy().into_owned();
    let source = Source::parse(Some(&path)).expect("a path");
    let mut seen = Vec::new();
    let result = load(
        &source,
        &LoadOptions::default(),
        &Pool::new(1).expect("pool"),
        &|_, _| (),
        &mut |fraction, what| {
            seen.push((fraction, what.to_owned()));
            seen.len() == 3
        },
    );
    refused(result, Status::Cancelled, &["progress"]);
    assert_eq!(seen.len(), 3, "nothing is read after it was given up");
    assert!(seen.windows(2).all(|w| w[0].0 < w[1].0), "{seen:?}");
}

#[test]
fn what_is_odd_but_usable_is_logged() {
    let log = std::sync::Mutex::new(Vec::new());
    let file = llama()
        .f32("llama.attention.odd", 30.0)
        .str("tokenizer.ggml.model", "rwkv")
        .f32("general.sampling.temp", f32::INFINITY)
        .str("general.sampling.top_p", "0.9")
        .u32("general.sampling.top_k", 40);
    for file in [file.clone(), file.without_key("tokenizer.ggml.model")] {
        let gguf = Gguf::from_bytes(Bytes::new(file.bytes()), "odd file").expect("a file");
        let pool = Pool::new(1).expect("pool");
        let keep = |level: u32, message: &str| log.lock().unwrap().push((level, message.to_owned()));
        let loaded = load_checkpoint(&gguf, &pool, &keep, &mut |_, _| false).expect("load");
        assert!(loaded.tokenizer.is_none());
        let warnings: Vec<String> = log
            .lock()
            .unwrap()
            .drain(..)
            .filter(|(level, _)| *level == 2)
            .map(|(_, message)| message)
            .collect();
        assert!(warnings.iter().any(|w| w.contains("llama.attention.odd")), "{warnings:?}");
        assert!(warnings.iter().any(|w| w.contains("token ids")), "{warnings:?}");
        let bad = ["general.sampling.temp", "general.sampling.top_p"];
        assert!(bad.iter().all(|key| warnings.iter().any(|w| w.contains(key))), "{warnings:?}");
        let want = SamplingDefaults { top_k: Some(40), ..SamplingDefaults::default() };
        assert_eq!(loaded.model.facts().sampling, want);
    }
}

/// Random damage: a file loads or is refused, and a loaded model runs or fails; none panics or allocates
/// without bound.
#[test]
fn mutated_files_never_panic() {
    let mut rng = Rng(20);
    let (mut ran, mut turned_away) = (0, 0);
    let others = [gemma2(), mistral3(), phi3(), starcoder2(), granitehybrid(), falcon_h1(), deepseek2()];
    let files = [llama(), bitnet(), gemma3(), qwen35moe(), qwen3next(), minicpm(), maple()];
    for (original, last) in
        files.into_iter().chain(others).map(|file| (file.bytes(), file.tensors.last().unwrap().name.clone()))
    {
        let at = original.windows(last.len()).position(|w| w == last.as_bytes());
        let header = at.expect("the last tensor") + last.len() + 32;
        for _ in 0..1000 {
            let mut bytes = original.clone();
            for _ in 0..1 + rng.below(3) {
                // Mostly the header: the rest is weights, and any number is a valid weight.
                let end = if rng.below(8) == 0 { bytes.len() } else { header };
                let at = rng.below(end);
                bytes[at] = match rng.below(3) {
                    0 => bytes[at] ^ (1 << rng.below(8)),
                    1 => [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
                    _ => rng.next() as u8,
                };
            }
            match open(bytes).and_then(|loaded| forward(&loaded)) {
                Ok(_) => ran += 1,
                Err(error) => {
                    assert_ne!(error.status, Status::Internal, "{error}");
                    turned_away += 1;
                }
            }
        }
    }
    assert!(ran > 100 && turned_away > 100, "{ran} ran, {turned_away} were refused");
}
