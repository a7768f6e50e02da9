use super::super::tests::{refused, taken};
use super::*;
use crate::base::Status;
use crate::model::hf::quantization::Weights;
use serde_json::{Value, json};

fn with(method: &str, changes: Value) -> Value {
    let mut q = json!({ "quant_method": method });
    q.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    json!({ "quantization_config": q })
}

fn of(method: &str, changes: Value) -> Quantized {
    match taken(with(method, changes)).quantization.weights {
        Weights::Quantized(quantized) => quantized,
        other => panic!("{other:?}"),
    }
}

fn no(method: &str, changes: Value, parts: &[&str]) {
    refused(with(method, changes), Status::Unsupported, parts);
}

/// A file of compressed-tensors with these weights.
fn compressed(format: &str, weights: Value) -> Value {
    json!({"format": format, "ignore": ["lm_head"], "kv_cache_scheme": null, "sparsity_config": {},
        "transform_config": {}, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
        "input_activations": null, "output_activations": null}}})
}

#[test]
fn compressed_tensors() {
    let method = "compressed-tensors";
    let int = |bits: usize| {
        json!({"num_bits": bits, "type": "int", "symmetric": true, "strategy": "group",
        "group_size": 128, "actorder": "weight", "dynamic": false})
    };
    let plain = Quantized { method: Method::Scaled { block: None, zeros: false }, ranges: false };
    assert_eq!(of(method, compressed("pack-quantized", int(4))), plain);
    assert_eq!(of(method, compressed("int-quantized", int(8))), plain);
    let mut asymmetric = int(4);
    asymmetric["symmetric"] = json!(false);
    let zeros = Method::Scaled { block: None, zeros: true };
    assert_eq!(of(method, compressed("pack-quantized", asymmetric)).method, zeros);
    let block = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]});
    let blocks = Method::Scaled { block: Some([128, 64]), zeros: false };
    assert_eq!(of(method, compressed("float-quantized", block)).method, blocks);
    let mut activations = compressed("int-quantized", int(8));
    let group = &mut activations["config_groups"]["group_0"];
    group["input_activations"] = json!({"num_bits": 8, "dynamic": true});
    assert!(!of(method, activations.clone()).ranges);
    activations["config_groups"]["group_0"]["input_activations"]["dynamic"] = json!(false);
    assert!(of(method, activations).ranges);
    let mut cached =
        compressed("float-quantized", json!({"num_bits": 8, "type": "float", "strategy": "tensor"}));
    cached["kv_cache_scheme"] = json!({"num_bits": 8});
    assert!(of(method, cached).ranges);

    for bits in [2, 3, 5, 16] {
        no(method, compressed("pack-quantized", int(bits)), &["num_bits", &format!("is {bits}")]);
    }
    let four = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group"});
    no(method, compressed("nvfp4-pack-quantized", four.clone()), &["format", "'nvfp4-pack-quantized'"]);
    no(method, compressed("pack-quantized", four), &["config_groups.group_0.weights.num_bits"]);
    no(method, compressed("marlin-24", int(4)), &["format"]);
    no(method, compressed("pack-quantized", json!({"num_bits": 8, "strategy": "token"})), &["strategy"]);
    no(method, compressed("pack-quantized", json!({"num_bits": 8, "type": "odd"})), &["type"]);
    let changed = |key: &str, value: Value| {
        let mut all = compressed("pack-quantized", int(4));
        all[key] = value;
        all
    };
    no(method, changed("sparsity_config", json!({"format": "sparse-24-bitmask"})), &["sparse-24-bitmask"]);
    no(method, changed("transform_config", json!({"config_groups": {}})), &["transform_config"]);
    refused(with(method, changed("config_groups", Value::Null)), Status::BadModel, &["config_groups"]);
    let flat = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128]});
    refused(with(method, compressed("float-quantized", flat)), Status::BadModel, &["block_structure"]);
}

#[test]
fn fp8_gptq_and_awq() {
    let scaled = |block| Method::Scaled { block, zeros: false };
    let q =
        of("fp8", json!({"weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}));
    assert_eq!(q, Quantized { method: scaled(Some([128, 128])), ranges: false });
    let q = of("fp8", json!({"weight_block_size": null, "activation_scheme": "static"}));
    assert_eq!(q, Quantized { method: scaled(None), ranges: true });
    no("fp8", json!({"fmt": "e5m2"}), &["fmt"]);
    for block in [json!([128]), json!([0, 128]), json!("x"), json!([1, 2, 3])] {
        let changes = with("fp8", json!({"weight_block_size": block}));
        refused(changes, Status::BadModel, &["weight_block_size"]);
    }

    let gptq = |changes: Value| {
        let mut all = json!({"bits": 4, "group_size": 128, "desc_act": true, "sym": true, "lm_head": false});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    for (changes, more) in [
        (json!({}), 1),
        (json!({"checkpoint_format": "gptq", "bits": 8}), 1),
        (json!({"checkpoint_format": "gptq_v2"}), 0),
        (json!({"format": "gptq_v2", "is_marlin_format": false}), 0),
    ] {
        assert_eq!(of("gptq", gptq(changes)).method, Method::Gptq { more });
    }
    no("gptq", gptq(json!({"bits": 3})), &["'quantization_config.bits' is 3"]);
    no("gptq", gptq(json!({"checkpoint_format": "marlin"})), &["checkpoint_format"]);
    no("gptq", gptq(json!({"is_marlin_format": true})), &["is_marlin_format"]);
    no("gptq", gptq(json!({"rotation": "hadamard"})), &["rotation"]);
    refused(with("gptq", json!({})), Status::BadModel, &["bits"]);

    assert_eq!(of("awq", json!({"bits": 4, "version": "GEMM", "zero_point": true})).method, Method::Awq);
    assert_eq!(of("awq", json!({"bits": 4})).method, Method::Awq);
    no("awq", json!({"bits": 8}), &["bits"]);
    no("awq", json!({"bits": 4, "version": "gemv"}), &["version"]);
}

#[test]
fn names_of_a_products_tensors() {
    let scaled = Method::Scaled { block: None, zeros: false };
    let module = "model.layers.3.mlp.up_proj";
    for (method, part, weights) in [
        (scaled, "weight_packed", true),
        (scaled, "weight_scale", false),
        (scaled, "weight_scale_inv", false),
        (scaled, "input_scale", false),
        (Method::Awq, "qweight", true),
        (Method::Gptq { more: 1 }, "g_idx", false),
    ] {
        let name = format!("{module}.{part}");
        assert_eq!(product(method, &name), Some((format!("{module}.weight"), weights)), "{part}");
    }
    let cached = product(scaled, "model.layers.3.self_attn.v_scale");
    assert_eq!(cached, Some(("model.layers.3.self_attn.k_proj.weight".into(), false)));
    for (method, name) in
        [(scaled, "a.weight"), (scaled, "a.qweight"), (Method::Awq, "a.weight_scale"), (scaled, "x")]
    {
        assert_eq!(product(method, name), None, "{name}");
    }
}

#[test]
fn biases_of_zeros_that_no_layer_has() {
    let (awq, zeros) = (Method::Awq, [0u8; 8]);
    let parts = Parts { qkv_bias: true, ..Parts::default() };
    assert!(is_idle_bias(awq, "blk.0.attn_output.bias", &parts, &zeros));
    assert!(is_idle_bias(awq, "blk.0.ffn_up.bias", &parts, &zeros));
    assert!(!is_idle_bias(awq, "blk.0.attn_q.bias", &parts, &zeros));
    assert!(!is_idle_bias(awq, "blk.0.ffn_up.bias", &parts, &[0, 1]));
    assert!(!is_idle_bias(awq, "blk.0.exp_probs_b.bias", &parts, &zeros));
    assert!(!is_idle_bias(Method::Scaled { block: None, zeros: false }, "blk.0.ffn_up.bias", &parts, &zeros));
}
