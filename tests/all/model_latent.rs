//! Files with latent attention: bad ones, other spellings, and blocks that are not read.

use crate::common::gguf::{FFN, File, HIDDEN, LATENT, Value, deepseek2};
use crate::common::{Running, alone, bits, load_source, root};
use crate::folder_support::Copy;
use crate::model_bad_files::{bad, open, unsupported};
use bn_engine::base::Status;
use bn_engine::model::{LoadOptions, Source, WeightType};
use serde_json::{Value as Json, json};

fn run(file: &File) -> Vec<Vec<u32>> {
    let model: Running = open(file.bytes()).expect("load");
    bits(&alone(&model, &[(0..30).map(|i| i * 7 % 40).collect()], 16))
}

fn key(name: &str) -> String {
    format!("deepseek2.{name}")
}

#[test]
fn keys_out_of_range() {
    let with = |name: &str, value| deepseek2().u32(&key(name), value);
    for name in ["attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla"] {
        bad(with(name, 0), &["deepseek2."]);
        bad(with(name, u32::MAX), &["deepseek2."]);
    }
    bad(deepseek2().without_key(&key("attention.kv_lora_rank")), &["kv_lora_rank", "missing"]);
    bad(deepseek2().without_key(&key("rope.dimension_count")), &["rope.dimension_count", "missing"]);
    bad(with("rope.dimension_count", 20), &["rope.dimension_count", "20"]);
    bad(with("rope.dimension_count", 7), &["even"]);
    bad(with("attention.kv_lora_rank", 26), &["'blk.0.attn_k_b.weight'", "dimensions"]);
    bad(with("attention.q_lora_rank", 22), &["'blk.0.attn_q_a.weight'", "dimensions"]);
    bad(with("attention.key_length_mla", 22), &["'blk.0.attn_"]);
    bad(with("attention.value_length_mla", 12), &["'blk.0.attn_v_b.weight'", "dimensions"]);
    bad(with("attention.head_count", 3), &["'blk.0.attn_"]);
    for (name, value) in
        [("expert_group_count", 3), ("expert_group_count", 4), ("expert_group_used_count", 0)]
    {
        bad(with(name, value), &["expert_group"]);
    }
    bad(with("expert_used_count", 3), &["expert_used_count", "3"]);
    unsupported(with("expert_gating_func", 4), &["expert_gating_func"]);
    // A latent of queries for which there are no tensors.
    bad(deepseek2().without_key(&key("attention.q_lora_rank")), &["'blk.0.attn_q.weight'"]);
}

#[test]
fn tensors() {
    for part in ["attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_v_b", "attn_q_a_norm", "attn_kv_a_norm"] {
        let name = format!("blk.1.{part}.weight");
        bad(deepseek2().without(&name), &[&name]);
        bad(deepseek2().change(&name, |t| t.dims[0] /= 2), &[&name]);
    }
    bad(deepseek2().without("blk.0.attn_k_b.weight"), &["'blk.0.attn_kv_b.weight'"]);
    // Without its bias the router chooses differently, and the file is read.
    assert!(run(&deepseek2()) != run(&deepseek2().without("blk.1.exp_probs_b.bias")));
    let extra = deepseek2().random("blk.0.attn_kv_b.weight", &[LATENT[3], 2 * (LATENT[0] + LATENT[2])], 3);
    unsupported(extra, &["attn_k_b"]);
}

/// The same weights in one tensor, as files had them at first, and its heads' sizes under other keys.
#[test]
fn k_and_v_in_one_tensor() {
    let [nope, rope, value, rank, _] = LATENT;
    let mut file = deepseek2();
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let data = |part: &str| file.tensors.iter().find(|t| t.name == name(part)).unwrap().data.clone();
        let (k, v) = (data("attn_k_b"), data("attn_v_b"));
        let mut whole = Vec::new();
        for head in 0..2 {
            for row in 0..nope {
                for column in 0..rank {
                    let at = 4 * ((head * rank + column) * nope + row) as usize;
                    whole.extend(&k[at..at + 4]);
                }
            }
            let size = (4 * value * rank) as usize;
            whole.extend(&v[head as usize * size..][..size]);
        }
        file = file.without(&name("attn_k_b")).without(&name("attn_v_b"));
        file = file.random(&name("attn_kv_b"), &[rank, 2 * (nope + value)], 1);
        file = file.change(&name("attn_kv_b"), |t| t.data = whole);
    }
    let old = file
        .without_key(&key("attention.key_length_mla"))
        .without_key(&key("attention.value_length_mla"))
        .u32(&key("attention.key_length"), (nope + rope) as u32)
        .u32(&key("attention.value_length"), value as u32)
        .u32(&key("attention.head_count_kv"), 2);
    assert!(run(&deepseek2()) == run(&old));
}

#[test]
fn keys_are_used() {
    let all = run(&deepseek2());
    for file in [
        deepseek2().f32(&key("rope.scaling.yarn_log_multiplier"), 0.0707),
        deepseek2().u32(&key("expert_group_used_count"), 2),
        deepseek2().f32(&key("expert_weights_scale"), 1.0),
        deepseek2().set(&key("expert_weights_norm"), Value::Bool(false)),
        deepseek2().u32(&key("expert_gating_func"), 1),
    ] {
        assert!(run(&file) != all);
    }
    // The choice that the biases determine.
    assert!(run(&deepseek2().without_key(&key("expert_gating_func"))) == all);
}

/// Files that converters write from a folder whose layers are all dense: the keys of experts stay, or there
/// are none.
#[test]
fn no_layer_may_have_experts() {
    let dense = |first: u32| {
        let sparse =
            ["gate_inp", "gate_exps", "up_exps", "down_exps", "gate_shexp", "up_shexp", "down_shexp"];
        let names = sparse.iter().map(|part| format!("blk.1.ffn_{part}.weight"));
        let file = names
            .chain(["blk.1.exp_probs_b.bias".into()])
            .fold(deepseek2(), |file, name| file.without(&name));
        let part = |file: File, (name, dims): (&str, [u64; 2])| {
            file.random(&format!("blk.1.{name}.weight"), &dims, 9)
        };
        let parts = [("ffn_gate", [HIDDEN, FFN]), ("ffn_up", [HIDDEN, FFN]), ("ffn_down", [FFN, HIDDEN])];
        parts.into_iter().fold(file, part).u32(&key("leading_dense_block_count"), first)
    };
    let logits = run(&dense(2));
    assert!(logits == run(&dense(7)) && logits != run(&deepseek2()));
    let keys = ["expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count"];
    assert!(logits == run(&keys.iter().fold(dense(2), |file, name| file.without_key(&key(name)))));
    bad(dense(1), &["blk.1.ffn_gate_inp"]);
}

/// Blocks of multi-token prediction are ignored.
#[test]
fn blocks_behind_the_layers() {
    let more = deepseek2()
        .u32(&key("block_count"), 3)
        .u32(&key("nextn_predict_layers"), 1)
        .random("blk.2.nextn.eh_proj.weight", &[2 * HIDDEN, HIDDEN], 4)
        .random("blk.2.attn_norm.weight", &[HIDDEN], 5);
    assert!(run(&deepseek2()) == run(&more));
    let bytes = bn_engine::base::Bytes::new(more.bytes());
    let options = LoadOptions { mtp: true, ..LoadOptions::default() };
    let error = load_source(&Source::Memory { bytes, what: "a file".into() }, &options, 1).err().unwrap();
    assert!(error.message.contains("mtp is set"), "{error}");
}

#[test]
fn folders() {
    let refused = |key: &str, value: Json, status, words: &[&str]| {
        let copy = Copy::of("deepseek-v3");
        copy.config(|config| config[key] = value);
        copy.refused(status, words);
    };
    use Status::{BadModel, Unsupported};
    for key in ["kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"] {
        refused(key, Json::Null, BadModel, &[key]);
        refused(key, json!(0), BadModel, &["'"]);
        refused(key, json!(1u64 << 40), BadModel, &["'"]);
    }
    refused("kv_lora_rank", json!(26), BadModel, &["kv_b_proj.weight", "shape"]);
    refused("q_lora_rank", Json::Null, BadModel, &["q_proj.weight"]);
    refused("qk_rope_head_dim", json!(7), BadModel, &["even"]);
    refused("v_head_dim", json!(13), BadModel, &["shape"]);
    refused("attention_bias", json!(true), Unsupported, &["attention_bias"]);
    refused("n_group", json!(5), BadModel, &["n_group", "5"]);
    refused("n_group", json!(12), BadModel, &["n_group", "12"]);
    refused("topk_group", json!(0), BadModel, &["topk_group"]);
    refused("num_experts_per_tok", json!(7), BadModel, &["num_experts_per_tok"]);
    refused("n_routed_experts", Json::Null, BadModel, &["n_routed_experts"]);
    refused("scoring_func", json!("softmax"), Unsupported, &["scoring_func", "sigmoid"]);
    refused("topk_method", json!("greedy"), Unsupported, &["topk_method", "noaux_tc"]);
    refused("moe_layer_freq", json!(2), Unsupported, &["moe_layer_freq"]);
    refused("mlp_layer_types", json!(["dense"]), BadModel, &["mlp_layer_types", "3 layers"]);
    refused("mlp_layer_types", json!(["dense", "sparse", "x"]), Unsupported, &["mlp_layer_types"]);
    let listed = Copy::of("deepseek-v3");
    listed.config(|config| config["mlp_layer_types"] = json!(["dense", "sparse", "sparse"]));
    assert!(listed.load().is_ok());
}

/// The weights of heads stay floats where others become blocks of another number of columns.
#[test]
fn requantized() {
    let of = |file: &str, weights| {
        let path = root().join("tests/golden/models").join(file).to_string_lossy().into_owned();
        let options = LoadOptions { weights, ..LoadOptions::default() };
        load_source(&Source::File(path), &options, 1)
    };
    assert!(of("deepseek-v3.gguf", WeightType::Keep).is_ok());
    // Rows of 24 and 20 columns are not whole blocks of 32.
    let error = of("deepseek-v3.gguf", WeightType::Q8_0).err().unwrap();
    assert!(error.message.contains("tensor '"), "{error}");
    // K and V weights of all heads in one matrix, whose rows are taken apart.
    for file in ["deepseek-v3", "deepseek-v2-lite-whole.gguf"] {
        assert!(of(file, WeightType::Int8).is_ok(), "{file}");
    }
}
