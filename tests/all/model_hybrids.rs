//! Hybrids of Gated DeltaNet and attention, and shared experts: other spellings of their files, and bad ones.

use crate::common::gguf::{CHANNELS, File, HIDDEN, VALUES, llama, qwen3next, qwen35, qwen35moe};
use crate::common::{Running, alone, bits, load_source};
use crate::folder_support::Copy;
use crate::model_bad_files::{bad, forward, open, unsupported};
use bn_engine::base::{Bytes, Status};
use bn_engine::formats::gguf::Gguf;
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Source, WeightType, load_checkpoint};
use serde_json::{Value, json};

fn logits(model: &Running) -> Vec<Vec<u32>> {
    bits(&alone(model, &[(0..30).map(|i| i * 7 % 40).collect()], 16))
}

fn run(file: &File) -> Vec<Vec<u32>> {
    logits(&open(file.bytes()).expect("load"))
}

fn rows(file: &File, name: &str, from: usize, count: usize) -> Vec<u8> {
    let tensor = file.tensors.iter().find(|tensor| tensor.name == name).expect(name);
    let stride = 4 * HIDDEN as usize;
    tensor.data[from * stride..(from + count) * stride].to_vec()
}

/// Replaces two tensors by one that has their `pieces`: (tensor, first row, number of rows).
fn joined(file: File, name: &str, from: [&str; 2], pieces: &[(&str, usize, usize)]) -> File {
    let data: Vec<u8> = pieces.iter().flat_map(|(part, at, count)| rows(&file, part, *at, *count)).collect();
    let rows = data.len() as u64 / 4 / HIDDEN;
    let file = file.without(from[0]).without(from[1]).random(name, &[HIDDEN, rows], 1);
    file.change(name, |tensor| tensor.data = data)
}

const QKV: &str = "blk.0.attn_qkv.weight";
const GATE: &str = "blk.0.attn_gate.weight";
const BETA: &str = "blk.0.ssm_beta.weight";
const ALPHA: &str = "blk.0.ssm_alpha.weight";

fn gates_in_one(file: File) -> File {
    let pieces = [(BETA, 0, 2), (ALPHA, 0, 2), (BETA, 2, 2), (ALPHA, 2, 2)];
    joined(file, "blk.0.ssm_ba.weight", [BETA, ALPHA], &pieces)
}

/// Joins inputs: for each key head q, k, then v and the gate of its two value heads.
fn inputs_in_one(file: File) -> File {
    let of = |head: usize| {
        [(QKV, 16 * head, 16), (QKV, 32 + 16 * head, 16), (QKV, 64 + 32 * head, 32), (GATE, 32 * head, 32)]
    };
    joined(file, "blk.0.ssm_in.weight", [QKV, GATE], &[of(0), of(1)].concat())
}

#[test]
fn products_in_one_matrix_are_the_same_products() {
    let whole = run(&qwen3next());
    assert!(run(&gates_in_one(qwen3next())) == whole, "gates");
    assert!(run(&gates_in_one(inputs_in_one(qwen3next()))) == whole, "as old converters wrote it");
    let both = gates_in_one(qwen3next()).random(ALPHA, &[HIDDEN, 4], 1);
    unsupported(both, &["'blk.0.ssm_ba.weight'"]);
    bad(qwen3next().without(BETA), &["'blk.0.ssm_beta.weight'", "missing"]);
    let short = gates_in_one(qwen3next());
    let short = short.without("blk.0.ssm_ba.weight").random("blk.0.ssm_ba.weight", &[HIDDEN, 7], 1);
    bad(short, &["'blk.0.ssm_ba.weight'", "dimensions"]);
    // Only Qwen3-Next's files are like this.
    bad(gates_in_one(qwen35()), &["'blk.0.ssm_beta.weight'", "missing"]);
}

/// The same tensors in the order of one architecture or the other give different answers.
#[test]
fn heads_have_the_order_of_their_architecture() {
    let renamed = |mut file: File| {
        file.keys.iter_mut().for_each(|(key, _)| *key = key.replace("qwen35moe.", "qwen3next."));
        file.str("general.architecture", "qwen3next")
    };
    assert!(run(&renamed(qwen35moe())) == run(&qwen3next()), "the files are alike");
    assert!(run(&qwen35moe()) != run(&qwen3next()));
}

/// Blocks that predict further tokens stand at the end, and change nothing.
#[test]
fn blocks_for_further_tokens_are_left_alone() {
    for (file, name) in [(qwen35(), "qwen35"), (qwen35moe(), "qwen35moe")] {
        let (all, further) = (format!("{name}.block_count"), format!("{name}.nextn_predict_layers"));
        let without = run(&file);
        let more = file.u32(&all, 3).u32(&further, 1);
        let more = more.random("blk.2.nextn.eh_proj.weight", &[2 * HIDDEN, HIDDEN], 1).random(
            "blk.2.attn_q.weight",
            &[HIDDEN, 5],
            2,
        );
        assert!(run(&more) == without, "{name}");
        let gguf = Gguf::from_bytes(Bytes::new(more.bytes()), "further").unwrap();
        let said = std::sync::Mutex::new(Vec::new());
        let log = |_: u32, line: &str| said.lock().unwrap().push(line.to_owned());
        let loaded = load_checkpoint(&gguf, &Pool::new(1).unwrap(), &log, &mut |_, _| false).unwrap();
        assert_eq!(loaded.model.facts().layers, 2);
        let said = said.into_inner().unwrap();
        assert_eq!(
            said.iter().filter(|line| line.contains("block of multi-token prediction is not read")).count(),
            1,
            "{said:?}"
        );
        for n in [3, 4, u32::MAX] {
            bad(more.clone().u32(&further, n), &[&further, &n.to_string()]);
        }
        // Without the key, these tensors belong to no part of the model.
        let extra = more.clone().u32(&all, 2).u32(&further, 0);
        unsupported(extra, &["'blk.2."]);
        assert!(open(more.u32(&further, 0).bytes()).is_err());
    }
    unsupported(llama().u32("llama.nextn_predict_layers", 1), &["llama.nextn_predict_layers", "1"]);
}

#[test]
fn sizes_of_recurrent_layers() {
    for (file, name) in
        [(qwen35 as fn() -> File, "qwen35"), (qwen35moe, "qwen35moe"), (qwen3next, "qwen3next")]
    {
        let with = |key: &str, value| file().u32(&format!("{name}.{key}"), value);
        let keys = ["conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size"];
        for key in keys.map(|key| format!("ssm.{key}")) {
            bad(file().without_key(&format!("{name}.{key}")), &[&key, "missing"]);
            bad(with(&key, 0), &["ssm."]);
            bad(with(&key, u32::MAX), &["ssm."]);
        }
        for kernel in [0, 1, 17] {
            bad(with("ssm.conv_kernel", kernel), &["ssm.conv_kernel", &kernel.to_string()]);
        }
        bad(with("ssm.conv_kernel", 3), &["'blk.0.ssm_conv1d.weight'", "dimensions"]);
        bad(with("ssm.inner_size", 66), &["ssm.inner_size", "66", "time_step_rank"]);
        bad(with("ssm.group_count", 3), &["ssm.time_step_rank", "4", "key heads, 3"]);
        bad(with("full_attention_interval", 0), &["full_attention_interval", "0"]);
        bad(with("full_attention_interval", 1), &["'blk.0.attn_q_norm.weight'"]);
        bad(with("rope.dimension_count", 17), &["rope.dimension_count", "17"]);
        let grows = |t: &mut crate::common::gguf::Tensor| t.data[..4].copy_from_slice(&1f32.to_le_bytes());
        bad(file().change("blk.0.ssm_a", grows), &["'blk.0.ssm_a'", "grow"]);
    }
}

#[test]
fn tensors_of_recurrent_layers_and_shared_experts() {
    let names: Vec<String> = qwen35moe().tensors.iter().map(|tensor| tensor.name.clone()).collect();
    for name in names.iter().filter(|name| *name != "output.weight") {
        bad(qwen35moe().without(name), &[name]);
        let turned = qwen35moe().change(name, |t| {
            t.dims = match t.dims[..] {
                [n] => vec![n / 2, 2],
                _ => [&[t.dims[0] / 2, t.dims[1] * 2], &t.dims[2..]].concat(),
            }
        });
        bad(turned, &[name.trim_end_matches(".weight"), "dimensions"]);
    }
    let width = |n| qwen35moe().u32("qwen35moe.expert_shared_feed_forward_length", n);
    bad(width(0), &["expert_shared_feed_forward_length", "0"]);
    bad(width(31), &["_shexp.weight'", "dimensions"]);
    bad(width(u32::MAX), &["expert_shared_feed_forward_length"]);
    // Without the key, the tensors determine it.
    let said = qwen35moe().without_key("qwen35moe.expert_shared_feed_forward_length");
    assert!(run(&said) == run(&qwen35moe()));
    // No layer is dense, so that width is unused.
    assert!(run(&qwen35moe().without_key("qwen35moe.feed_forward_length")) == run(&qwen35moe()));
    assert_eq!(forward(&open(qwen35moe().bytes()).unwrap()).unwrap().len(), 40);
    let quantized =
        qwen35().without("blk.0.ssm_conv1d.weight").ternary("blk.0.ssm_conv1d.weight", &[4, CHANNELS], 1);
    assert!(open(quantized.bytes()).is_err());
}

/// Convolutions, the gates of heads and of the shared expert, and the router keep their type.
#[test]
fn small_matrices_are_not_requantized() {
    let file = qwen35moe();
    let bytes = |weights| {
        let source = Source::Memory { bytes: Bytes::new(file.bytes()), what: "a file".into() };
        let options = LoadOptions { weights, ..LoadOptions::default() };
        load_source(&source, &options, 1).expect("load").model.facts().weight_bytes
    };
    let kept = ["token_embd", "ffn_gate_inp", "ssm_beta", "ssm_alpha", "ssm_conv1d"];
    let made =
        file.tensors.iter().filter(|t| t.dims.len() > 1 && !kept.iter().any(|part| t.name.contains(part)));
    let elements: u64 = made.map(|t| t.dims.iter().product::<u64>()).sum();
    // 32 elements take 128 bytes in f32, and 34 as Q8_0.
    assert_eq!(bytes(WeightType::Keep) - bytes(WeightType::Q8_0), elements / 32 * (128 - 34));
    assert!(elements > HIDDEN * (CHANNELS + 2 * VALUES));
}

const EXPERTS: &str = "model.language_model.layers.0.mlp.experts.gate_up_proj";
const PAIR: &str = "model.layers.0.linear_attn.in_proj_qkvz.weight";

#[test]
fn folders_with_tensors_of_several_parts() {
    let reshaped = |name: &str, tensor: &'static str, change: &dyn Fn(&mut Vec<Value>)| {
        let copy = Copy::of(name);
        copy.header(|header| change(header[tensor]["shape"].as_array_mut().unwrap()));
        copy.refused(Status::BadModel, &[tensor, "shape"]);
    };
    let fold = |shape: &mut Vec<Value>| {
        let first = shape.remove(0).as_u64().unwrap();
        shape[0] = json!(shape[0].as_u64().unwrap() * first);
    };
    reshaped("qwen35moe-fused", EXPERTS, &fold);
    reshaped("qwen35moe-fused", EXPERTS, &|shape| shape.swap(0, 1));
    reshaped("qwen3next", PAIR, &|shape| shape.swap(0, 1));
    for (name, tensor) in [("qwen35moe-fused", EXPERTS), ("qwen3next", PAIR)] {
        let copy = Copy::of(name);
        copy.header(|header| {
            let removed = header.as_object_mut().unwrap().remove(tensor).unwrap();
            header["mtp.x"] = removed;
        });
        copy.refused(Status::BadModel, &["there is no tensor 'model.layers.0."]);
        let copy = Copy::of(name);
        copy.header(|header| header[tensor]["dtype"] = json!("I16"));
        copy.refused(Status::Unsupported, &[tensor, "I16"]);
    }
    for (key, value) in [
        ("linear_num_value_heads", json!(3)),
        ("linear_num_key_heads", json!(0)),
        ("linear_conv_kernel_dim", json!(1)),
        ("linear_value_head_dim", json!(1u64 << 40)),
        ("shared_expert_intermediate_size", Value::Null),
        ("shared_expert_intermediate_size", json!(0)),
        ("num_experts", json!(5)),
        ("full_attention_interval", json!(0)),
    ] {
        let copy = Copy::of("qwen3next");
        copy.config(|config| config[key] = value.clone());
        let words = if key == "num_experts" { "router" } else { key };
        let words = if words == "router" { "mlp.gate.weight" } else { words };
        copy.refused(Status::BadModel, &[words]);
    }
}
