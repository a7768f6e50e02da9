//! Keys that only some dense families have.

use super::names::{self, Name};
use super::tests::{llama, merged, read, refused, taken};
use crate::base::Status;
use crate::model::config::{Parts, RopeScaling};
use crate::model::family::Family;
use crate::ops::{Activation, ConvShape, RopeStyle, Temperature};
use serde_json::{Value, json};

fn of(class: &str, changes: Value) -> Value {
    merged(json!({ "model_type": class }), changes)
}

#[test]
fn what_a_file_leaves_out_is_its_class_own() {
    let bare =
        json!({"rms_norm_eps": null, "rope_theta": null, "hidden_act": null, "tie_word_embeddings": null});
    for (class, eps, theta, tied, head_dim) in [
        ("seed_oss", 1e-6, 1e4, false, 128),
        ("ernie4_5", 1e-5, 5e5, true, 128),
        ("smollm3", 1e-6, 2e6, true, 16),
        ("olmo3", 1e-5, 5e5, false, 16),
        ("exaone4", 1e-5, 1e4, false, 16),
        ("glm4", 1.5625e-7, 1e4, false, 128),
        ("phi3", 1e-5, 1e4, false, 16),
        ("hunyuan_v1_dense", 1e-5, 1e4, false, 16),
        ("gemma2", 1e-6, 1e4, true, 256),
        ("starcoder2", 1e-5, 1e4, true, 16),
    ] {
        let config = taken(of(class, bare.clone()));
        let d = &config.decoder;
        assert_eq!((d.rms_eps, d.described().base), (eps, theta), "{class}");
        assert_eq!((config.tied, d.attention.head_dim), (tied, head_dim), "{class}");
    }
}

#[test]
fn biases_by_key() {
    let parts = |class: &str, changes: Value| {
        let Parts { qkv_bias, output_bias, ffn_bias, .. } = taken(of(class, changes)).decoder.parts;
        (qkv_bias, output_bias, ffn_bias)
    };
    assert_eq!(parts("seed_oss", json!({})), (true, false, false));
    let all = json!({"attention_bias": false, "attention_out_bias": true, "mlp_bias": true});
    assert_eq!(parts("seed_oss", all), (false, true, true));
    assert_eq!(parts("ernie4_5", json!({})), (false, false, false));
    assert_eq!(parts("ernie4_5", json!({"use_bias": true})), (true, true, true));
    assert_eq!(parts("starcoder2", json!({ "hidden_act": null })), (true, true, true));
    assert_eq!(parts("glm4", json!({})), (true, false, false));
    assert_eq!(parts("glm4", json!({"attention_bias": false})), (false, false, false));
}

#[test]
fn layers_that_do_not_rotate() {
    let rotates = |changes: Value| -> Vec<bool> {
        let d = taken(of("smollm3", changes)).decoder;
        d.blocks.iter().map(|block| d.ropes[block.rope].dims > 0).collect()
    };
    assert_eq!(rotates(json!({})), [true, true, true, false]);
    assert_eq!(rotates(json!({"no_rope_layer_interval": 2})), [true, false, true, false]);
    assert_eq!(rotates(json!({"no_rope_layers": [0, 1, 1, 0, 0]})), [false, true, true, false]);
    assert_eq!(rotates(json!({"no_rope_layers": [1, 1, 1, 1]})), [true; 4]);
    let refused = |changes, words: &[&str]| refused(of("smollm3", changes), Status::BadModel, words);
    refused(json!({"no_rope_layers": [1, 0]}), &["no_rope_layers", "4 layers"]);
    refused(json!({"no_rope_layer_interval": 0}), &["no_rope_layer_interval"]);
    let window = json!({"use_sliding_window": true, "sliding_window": 32, "max_window_layers": 2});
    refused(window, &["layer_types"]);
}

/// EXAONE 4 with windows rotates in them only, and without them everywhere.
#[test]
fn rotations_in_windows_if_there_are_any() {
    let layers = |changes: Value| -> Vec<(bool, bool)> {
        let mut config = llama(json!({"model_type": "exaone4"}));
        changes.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        let d = read(&config).unwrap().decoder;
        d.blocks.iter().map(|block| (block.window.is_some(), d.ropes[block.rope].dims > 0)).collect()
    };
    let hybrid = [(true, true), (true, true), (true, true), (false, false)];
    assert_eq!(layers(json!({"sliding_window": 32})), hybrid);
    let types = json!(["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]);
    let published = json!({"sliding_window": 32, "sliding_window_pattern": "LLLG", "layer_types": types});
    assert_eq!(layers(published), hybrid);
    assert_eq!(layers(json!({"sliding_window": null})), [(false, true); 4]);
    let full = json!(["full_attention", "full_attention", "full_attention", "full_attention"]);
    assert_eq!(layers(json!({"sliding_window": 32, "layer_types": full})), [(false, false); 4]);
}

/// OLMo 3 scales the rotation of layers without windows alone; Gemma 2 rotates all layers alike.
#[test]
fn rotations_of_windowed_layers() {
    let scaling = json!({"rope_type": "linear", "factor": 4.0});
    let d = taken(of("olmo3", json!({"rope_scaling": scaling}))).decoder;
    let of_layer = |layer: usize| d.ropes[d.blocks[layer].rope].clone();
    assert_eq!((of_layer(0).scaling, of_layer(0).base), (RopeScaling::None, 5e5));
    assert_eq!((of_layer(3).scaling, of_layer(3).base), (RopeScaling::Linear { factor: 4.0 }, 5e5));
    let d = taken(of("gemma2", json!({"rope_scaling": scaling}))).decoder;
    assert_eq!(d.ropes.len(), 1);
    let windows: Vec<_> = d.blocks.iter().map(|block| block.window).collect();
    assert_eq!(windows, [Some(4096), None, Some(4096), None]);
}

#[test]
fn rotations_of_kind_dynamic() {
    let rope = |class, more| {
        let scaling = merged(json!({"type": "dynamic", "factor": 2.0}), more);
        taken(of(class, json!({ "rope_scaling": scaling }))).decoder.ropes.remove(0)
    };
    // Up to the model's context the base stays as it is.
    assert_eq!(rope("llama", json!({})).base, 5e5);
    let stretched = rope("hunyuan_v1_dense", json!({"alpha": 1000.0}));
    assert_eq!(
        (stretched.base, stretched.scaling),
        ((5e5 * 1000f64.powf(16.0 / 14.0)) as f32, RopeScaling::None)
    );
    let alpha = json!({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}});
    refused(alpha, Status::Unsupported, &["rope_scaling.alpha"]);
}

#[test]
fn older_names_of_longrope() {
    let factors = |kind| json!({"type": kind, "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]});
    for kind in ["su", "yarn"] {
        let config = json!({"rope_scaling": factors(kind), "original_max_position_embeddings": 128});
        let d = taken(of("phi3", config)).decoder;
        assert!(matches!(d.ropes[0].scaling, RopeScaling::Long { original_context: 128, .. }), "{kind}");
    }
    refused(of("phi3", json!({"rope_scaling": {"type": "su"}})), Status::BadModel, &["short_factor"]);
    let part = taken(of("phi3", json!({"partial_rotary_factor": 0.75}))).decoder.ropes.remove(0);
    assert_eq!(part.dims, 12);
}

#[test]
fn growing_queries() {
    let yarn = json!({"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32, "rope_theta": 1e6,
                      "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    let with =
        |class, more| of(class, json!({"rope_parameters": merged(yarn.clone(), more), "rope_theta": null}));
    let temperature = |more| taken(with("ministral3", more)).decoder.attention.temperature;
    assert_eq!(temperature(json!({})), Some(Temperature { scale: 0.1, length: 32 }));
    assert_eq!(temperature(json!({"llama_4_scaling_beta": 0.0})), None);
    let none = json!({"original_max_position_embeddings": null});
    refused(with("ministral3", none), Status::BadModel, &["original_max_position_embeddings"]);
    let zero = json!({"original_max_position_embeddings": 0});
    refused(with("ministral3", zero), Status::BadModel, &["original_max_position_embeddings"]);
    refused(
        with("ministral3", json!({"llama_4_scaling_beta": -1.0})),
        Status::BadModel,
        &["llama_4_scaling_beta"],
    );
    refused(with("mistral", json!({})), Status::Unsupported, &["llama_4_scaling_beta"]);
    refused(json!({"model_type": "ministral3"}), Status::BadModel, &["rope_parameters"]);
}

/// As Ministral 3 is published; Mistral Small 3 has the same kind of folder.
#[test]
fn text_beside_images() {
    let whole = |class: &str| {
        let text = llama(json!({"model_type": class, "rope_scaling": {"type": "linear", "factor": 2.0}}));
        json!({"model_type": "mistral3", "text_config": text, "vision_config": {}, "tie_word_embeddings": true})
    };
    let config = read(&whole("ministral3")).unwrap();
    assert!(config.tied && config.decoder.family.hf == Some("ministral3"));
    let error = read(&whole("mistral")).err().expect("another class");
    assert!(error.message.contains("'text_config.model_type' is 'mistral'"), "{error}");
}

#[test]
fn soft_caps() {
    let caps = |changes: Value| {
        let mut config = llama(json!({"model_type": "gemma2"}));
        changes.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        let d = read(&config).unwrap().decoder;
        (d.attention.cap, d.logit_cap)
    };
    assert_eq!(caps(json!({})), (Some(50.0), Some(30.0)));
    let own = json!({"attn_logit_softcapping": 7.0, "final_logit_softcapping": null});
    assert_eq!(caps(own), (Some(7.0), None));
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        refused(of("gemma2", json!({ key: -1.0 })), Status::BadModel, &[key]);
        refused(json!({ key: 30.0 }), Status::Unsupported, &[key]);
    }
}

#[test]
fn norms_of_heads_that_a_key_names() {
    assert!(taken(of("hunyuan_v1_dense", json!({"use_qk_norm": true}))).unknown.is_empty());
    refused(of("hunyuan_v1_dense", json!({"use_qk_norm": false})), Status::Unsupported, &["use_qk_norm"]);
    refused(of("hunyuan_v1_dense", json!({"use_cla": true})), Status::Unsupported, &["use_cla"]);
}

#[test]
fn feed_forwards_without_gate() {
    let d = taken(of("starcoder2", json!({"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-3}))).decoder;
    assert_eq!((d.activation, d.rms_eps), (Activation::Gelu, 1e-3));
    refused(of("starcoder2", json!({"hidden_act": "silu"})), Status::Unsupported, &["hidden_act"]);
    refused(
        of("starcoder2", json!({"hidden_act": null, "norm_epsilon": 7.0})),
        Status::BadModel,
        &["norm_epsilon"],
    );
    assert_eq!(taken(of("glm4", json!({}))).decoder.rope_style, RopeStyle::Interleaved);
}

/// Values that transformers gives a meaning which is not computed here.
#[test]
fn activations_and_rotations_of_hybrids() {
    for name in ["gelu_pytorch_tanh", "relu2"] {
        refused(
            of("qwen3_5_text", json!({ "hidden_act": name })),
            Status::Unsupported,
            &["hidden_act", "silu alone"],
        );
        let gpt_oss = json!({"num_local_experts": 8, "num_experts_per_tok": 2, "hidden_act": name});
        refused(of("gpt_oss", gpt_oss), Status::Unsupported, &["hidden_act", "silu alone"]);
    }
    let rope = json!({"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e4});
    let rotated = json!({"rope_parameters": rope, "rope_theta": null});
    refused(of("qwen3_5_text", rotated), Status::Unsupported, &["rope_type", "proportional"]);
}

#[test]
fn names_of_fused_products_and_of_layer_norms() {
    let both = |class: &str, hf: &str, gguf: &str| {
        let family = Family::of_hf(class).unwrap();
        let name = format!("model.layers.3.{hf}");
        assert_eq!(names::canonical(family, &name), Name::Tensor(format!("blk.3.{gguf}")), "{class}");
        assert_eq!(names::own(family, 9, &format!("blk.3.{gguf}")), Some(name), "{class}");
    };
    both("phi3", "self_attn.qkv_proj.weight", "attn_qkv.weight");
    both("phi3", "mlp.gate_up_proj.weight", "ffn_up.weight");
    both("glm4", "mlp.gate_up_proj.weight", "ffn_up.weight");
    both("glm4", "post_self_attn_layernorm.weight", "post_attention_norm.weight");
    both("starcoder2", "mlp.c_fc.bias", "ffn_up.bias");
    both("starcoder2", "mlp.c_proj.weight", "ffn_down.weight");
    both("starcoder2", "input_layernorm.bias", "attn_norm.bias");
    for (class, module, gguf) in [
        ("phi3", "layers.1.self_attn.qkv_proj", &["blk.1.attn_qkv"][..]),
        ("glm4", "model.layers.1.mlp.gate_up_proj", &["blk.1.ffn_up"]),
        ("starcoder2", "layers.1.mlp.c_proj", &["blk.1.ffn_down"]),
        ("qwen3_next", "layers.1.linear_attn.in_proj_ba", &["blk.1.ssm_beta", "blk.1.ssm_alpha"]),
        ("llama", "layers.1.mlp.c_proj", &[]),
        ("llama", "lm_head", &["output"]),
    ] {
        assert_eq!(names::products(Family::of_hf(class).unwrap(), module), gguf);
    }
    let ministral = Family::of_hf("ministral3").unwrap();
    let canonical = |name| names::canonical(ministral, name);
    let tensor = |name: &str| Name::Tensor(name.into());
    assert_eq!(canonical("language_model.lm_head.weight"), tensor("output.weight"));
    assert_eq!(canonical("language_model.model.norm.weight"), tensor("output_norm.weight"));
    assert_eq!(canonical("vision_tower.ln_pre.weight"), Name::Buffer);
    assert_eq!(canonical("multi_modal_projector.norm.weight"), Name::Buffer);
    let (llama, qwen) = (Family::of_hf("llama").unwrap(), Family::of_hf("qwen3").unwrap());
    assert_eq!(names::canonical(qwen, "language_model.lm_head.weight"), Name::Unknown);
    assert_eq!(names::canonical(llama, "model.text_model.norm.weight"), tensor("output_norm.weight"));
    assert_eq!(names::canonical(llama, "model.connector.proj.weight"), Name::Buffer);
    assert_eq!(names::canonical(llama, "model.layers.0.mlp.gate_up_proj.weight"), Name::Unknown);
    assert_eq!(names::canonical(llama, "model.layers.0.input_layernorm.bias"), Name::Unknown);
}

/// Gemma 4's layers by kind, in both spellings of their heads.
#[test]
fn heads_by_layer() {
    const SLIDING: &str = "sliding_attention";
    const FULL: &str = "full_attention";
    let base = json!({
        "model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 128,
        "intermediate_size": 96, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL, FULL],
        "sliding_window": 16, "num_kv_shared_layers": 3, "use_double_wide_mlp": true,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
        "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 64,
        "use_bidirectional_attention": "vision",
        "rope_parameters": {
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    });
    let read = |change: Value| read(&merged(base.clone(), change));
    let d = read(json!({})).unwrap().decoder;
    let global = d.global.clone().unwrap();
    assert_eq!((global.kv_heads, global.head_dim, global.keys_are_values), (1, 32, true));
    let windowed = &d.attention;
    assert_eq!((windowed.kv_heads, windowed.head_dim, windowed.keys_are_values), (2, 8, false));
    assert_eq!((d.attention.scale, d.attention.value_eps, d.layer_inputs), (1.0, Some(1e-6), Some(12)));
    let shares: Vec<_> = d.blocks.iter().map(|block| block.shares).collect();
    assert_eq!(shares, [None, None, None, Some(2), Some(1), Some(1)]);
    let places: Vec<_> = (0..6).map(|layer| d.place(layer)).collect();
    assert_eq!((d.kv_layers(), places, d.last_written()), ([2, 1], vec![0, 2, 1, 1, 2, 2], 2));
    assert_eq!([0, 5].map(|layer| d.ffn_of(layer)), [96, 192]);
    assert_eq!((d.ropes[0].dims, d.ropes[1].dims), (32, 8));
    assert_eq!(d.ropes[0].scaling, RopeScaling::Proportional { pairs: 4, factor: 1.0 });
    let turning = d.ropes[0].inv_freq().iter().filter(|f| **f > 0.0).count();
    assert_eq!(turning, 4);
    let own = json!({"head_dim": 24, "num_key_value_heads": 4});
    let list = json!({"per_layer_config": {"1": own, "4": own, "5": own}});
    let global = read(list).unwrap().decoder.global.unwrap();
    assert_eq!((global.kv_heads, global.head_dim), (4, 24));
    // Heads of one size: no layer differs.
    let global = read(json!({"per_layer_config": {}})).unwrap().decoder.global.unwrap();
    assert_eq!((global.kv_heads, global.head_dim), (2, 8));
    for (change, word) in [
        (json!({"per_layer_config": {"1": own, "4": own}}), "per_layer_config.5"),
        (json!({"per_layer_config": {"0": own, "1": own, "4": own, "5": own}}), "per_layer_config.0"),
        (json!({"per_layer_config": {"1": own, "4": own, "5": {"head_dim": 8}}}), "alike"),
        (json!({"num_kv_shared_layers": 6}), "num_kv_shared_layers"),
        (json!({"num_kv_shared_layers": 5}), "num_kv_shared_layers"),
        (json!({"global_head_dim": 31}), "even"),
        (json!({"num_global_key_value_heads": 3}), "divide"),
        (json!({"hidden_size_per_layer_input": 1u64 << 40}), "hidden_size_per_layer_input"),
        (json!({"vocab_size_per_layer_input": 63}), "vocab_size_per_layer_input"),
        (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention"),
        (json!({"rope_parameters": null}), "rope_parameters"),
        (json!({"intermediate_size": 1u64 << 62}), "intermediate_size"),
        (json!({"enable_moe_block": true}), "num_experts"),
    ] {
        let error = read(change.clone()).err().unwrap_or_else(|| panic!("{change}"));
        assert!(error.message.contains(word), "{change}: {error}");
    }
}

/// LFM2's files as published: the layers of attention by number, and a width to round. Its class alone reads
/// `tie_embedding`.
#[test]
fn short_convolutions() {
    let other = json!({
        "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "intermediate_size": 96,
        "tie_embedding": true,
    });
    assert!(!read(&other).unwrap().tied);
    let base = json!({
        "model_type": "lfm2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "block_ff_dim": 100,
        "full_attn_idxs": [2], "norm_eps": 1e-5, "rope_theta": 1e6, "conv_L_cache": 3, "conv_bias": false,
    });
    let read = |change: Value| read(&merged(base.clone(), change));
    let decoder = read(json!({})).unwrap().decoder;
    assert_eq!(decoder.recurrent_as(), Some(&ConvShape { channels: 64, kernel: 3 }));
    assert_eq!(decoder.blocks.iter().map(|b| b.recurrent).collect::<Vec<_>>(), [true, true, false, true]);
    let width = |change| read(change).unwrap().decoder.ffn;
    assert_eq!(width(json!({})), 256);
    assert_eq!(width(json!({"block_multiple_of": 16})), 80);
    assert_eq!(width(json!({"block_multiple_of": 16, "block_ffn_dim_multiplier": 1.5})), 112);
    assert_eq!(width(json!({"block_ffn_dim_multiplier": null})), 66);
    assert_eq!(width(json!({"block_auto_adjust_ff_dim": false})), 100);
    assert!(read(json!({})).unwrap().tied && !read(json!({"tie_embedding": false})).unwrap().tied);
    for (change, word) in [
        (json!({"conv_bias": true}), "conv_bias"),
        (json!({"conv_L_cache": 1}), "conv_L_cache"),
        (json!({"layer_types": ["conv", "full_attention"]}), "layer_types"),
        (json!({"layer_types": ["conv", "conv", "odd", "conv"]}), "odd"),
        (json!({"full_attn_idxs": []}), "recurrent"),
        (json!({"block_use_swiglu": false}), "block_use_swiglu"),
        (json!({"norm_eps": 7.0}), "norm_eps"),
        (json!({"architectures": ["Lfm2BidirectionalModel"]}), "Lfm2BidirectionalModel"),
    ] {
        let error = read(change.clone()).err().unwrap();
        assert!(error.message.contains(word), "{change}: {error}");
    }
}

/// LFM3's layers of three types, with two rotations.
#[test]
fn windows_between_convolutions() {
    let ropes = json!({
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    });
    let base = json!({
        "model_type": "lfm3", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 64, "max_position_embeddings": 128,
        "intermediate_size": 96, "layer_types": ["conv", "full_attention", "sliding_attention"],
        "rope_parameters": ropes,
    });
    let read = |change: Value| read(&merged(base.clone(), change));
    let decoder = read(json!({})).unwrap().decoder;
    assert_eq!(decoder.recurrent_as(), Some(&ConvShape { channels: 64, kernel: 7 }));
    let blocks: Vec<_> = decoder.blocks.iter().map(|b| (b.recurrent, b.window, b.rope)).collect();
    assert_eq!(blocks, [(true, None, 0), (false, None, 0), (false, Some(256), 1)]);
    assert_eq!(decoder.ropes[0].scaling, RopeScaling::Proportional { pairs: 8, factor: 1.0 });
    let freqs = decoder.ropes[0].inv_freq();
    assert!(freqs.len() == 16 && freqs[7] > 0.0 && freqs[8..].iter().all(|freq| *freq == 0.0));
    assert_eq!((decoder.ropes[1].base, decoder.ffn), (1e4, 96));
    for (change, word) in [
        (json!({"layer_types": null}), "layer_types"),
        (json!({"layer_types": ["conv", "full_attention", "odd"]}), "odd"),
        (json!({"rope_parameters": null}), "rope_parameters"),
        (json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}), "sliding_attention"),
        (json!({"use_attention_gate": false}), "use_attention_gate"),
        (json!({"use_sandwich_norm": false}), "use_sandwich_norm"),
        (json!({"conv_bias": true}), "conv_bias"),
    ] {
        let error = read(change.clone()).err().unwrap();
        assert!(error.message.contains(word), "{change}: {error}");
    }
}

#[test]
fn gpt_oss() {
    let experts = json!({"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2});
    let d = |changes: Value| taken(merged(experts.clone(), changes)).decoder;
    let bare = d(json!({"head_dim": null, "rope_theta": null, "rms_norm_eps": null, "sliding_window": 128}));
    assert_eq!((bare.attention.head_dim, bare.described().base, bare.rms_eps), (64, 150_000.0, 1e-5));
    let windows: Vec<_> = bare.blocks.iter().map(|block| block.window).collect();
    assert_eq!(windows, [Some(128), None, Some(128), None]);
    assert_eq!(bare.activation, Activation::SteepSwiGlu { alpha: 1.702, limit: 7.0 });
    assert_eq!(bare.experts.map(|e| (e.count, e.width, e.choice.used)), Some((8, 96, 2)));
    let Parts { qkv_bias, output_bias, ffn_bias, .. } = bare.parts;
    assert_eq!((qkv_bias, output_bias, ffn_bias), (true, true, false));
    let other = d(json!({"swiglu_alpha": 1.5, "swiglu_limit": 3.0}));
    assert_eq!(other.activation, Activation::SteepSwiGlu { alpha: 1.5, limit: 3.0 });
    d(json!({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}));
    let bad = |changes, words: &[&str]| refused(changes, Status::Unsupported, words);
    bad(
        merged(experts.clone(), json!({"quantization_config": {"quant_method": "mxfp4", "x": 1}})),
        &["quantization_config.x"],
    );
    bad(json!({"quantization_config": {"quant_method": "mxfp4"}}), &["mxfp4"]);
    refused(merged(experts, json!({"swiglu_limit": 0.0})), Status::BadModel, &["swiglu_limit"]);
}

#[test]
fn tensors_of_gpt_oss() {
    let family = Family::of_hf("gpt_oss").unwrap();
    let of = |part: &str| names::canonical(family, &format!("model.layers.3.{part}"));
    let parts = |parts: &[&str]| Name::Parts(parts.iter().map(|part| format!("blk.3.{part}")).collect());
    let both = ["ffn_gate_exps.weight", "ffn_up_exps.weight"];
    for (hf, gguf) in [
        ("mlp.experts.gate_up_proj", parts(&both)),
        ("mlp.experts.gate_up_proj_blocks", parts(&both)),
        ("mlp.experts.gate_up_proj_scales", Name::Scale("blk.3.ffn_gate_exps.weight".into())),
        ("mlp.experts.gate_up_proj_bias", parts(&["ffn_gate_exps.bias", "ffn_up_exps.bias"])),
        ("mlp.experts.down_proj_bias", parts(&["ffn_down_exps.bias"])),
        ("mlp.router.weight", Name::Tensor("blk.3.ffn_gate_inp.weight".into())),
        ("mlp.router.bias", Name::Tensor("blk.3.ffn_gate_inp.bias".into())),
        ("self_attn.sinks", Name::Tensor("blk.3.attn_sinks.weight".into())),
        ("mlp.gate.weight", Name::Unknown),
    ] {
        assert_eq!(of(hf), gguf, "{hf}");
    }
    let own = |gguf: &str| names::own(family, 4, &format!("blk.3.{gguf}")).unwrap();
    assert_eq!(own("attn_sinks.weight"), "model.layers.3.self_attn.sinks");
    assert_eq!(own("ffn_up_exps.2.weight"), "model.layers.3.mlp.experts.gate_up_proj");
    assert_eq!(own("ffn_down_exps.bias"), "model.layers.3.mlp.experts.down_proj_bias");
    assert_eq!(own("ffn_gate_inp.bias"), "model.layers.3.mlp.router.bias");
}

#[test]
fn only_keys_that_may_mean_something_are_reported() {
    let ordinary: serde_json::Map<_, _> = super::ordinary::ORDINARY
        .iter()
        .filter(|key| !["architectures", "id2label", "bos_token_id", "eos_token_id"].contains(key))
        .map(|key| ((*key).to_owned(), json!(1)))
        .collect();
    for class in ["llama", "qwen3"] {
        assert_eq!(taken(of(class, ordinary.clone().into())).unknown, [""; 0]);
        assert_eq!(taken(of(class, json!({"acme_factor": 2}))).unknown, ["acme_factor"]);
    }
}
