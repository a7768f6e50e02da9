use super::names::Name;
use super::quantization::Weights;
use super::*;
use crate::base::Status;
use crate::model::config::{Block, ExpertsConfig, Parts, RopeConfig, RopeScaling};
use crate::model::family::{BITNET_1BITLLM, FAMILIES, Family};
use crate::ops::{Activation, Choice};
use serde_json::{Value, json};

/// A Llama configuration as `save_pretrained` writes it, with `changes`; null removes a key.
pub(super) fn llama(changes: Value) -> Value {
    let mut config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": false,
        "hidden_act": "silu", "torch_dtype": "bfloat16",
    });
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => config.as_object_mut().unwrap().remove(key),
            value => config.as_object_mut().unwrap().insert(key.clone(), value.clone()),
        };
    }
    config
}

pub(super) fn merged(mut value: Value, changes: Value) -> Value {
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    value
}

pub(super) fn read(config: &Value) -> Result<Config> {
    Config::read(&Fields::new(config, "m/config.json")?, "m")
}

pub(super) fn taken(changes: Value) -> Config {
    read(&llama(changes.clone())).unwrap_or_else(|e| panic!("{changes}: {e}"))
}

/// Checks that the configuration is refused, in a sentence that names the file and has all `parts`.
pub(super) fn refused(changes: Value, status: Status, parts: &[&str]) {
    let error = read(&llama(changes.clone())).err().unwrap_or_else(|| panic!("{changes} was taken"));
    assert_eq!(error.status, status, "{error}");
    for part in ["m/config.json: "].iter().chain(parts) {
        assert!(error.message.contains(part), "{changes}: no {part} in {error}");
    }
}

#[test]
fn a_llama() {
    let Config { decoder, tied, unknown, quantization, .. } = taken(json!({}));
    assert_eq!((decoder.vocab_size, decoder.hidden, decoder.ffn, decoder.layers), (100, 64, 96, 4));
    let a = &decoder.attention;
    assert_eq!((a.heads, a.kv_heads, a.head_dim, a.scale), (4, 2, 16, 0.25));
    assert_eq!((decoder.context_length, decoder.rms_eps), (512, 1e-5));
    assert_eq!(decoder.ropes, [RopeConfig { base: 5e5, dims: 16, scaling: RopeScaling::None }]);
    assert_eq!(decoder.blocks, [Block::default(); 4]);
    assert_eq!((decoder.activation, decoder.parts), (Activation::SwiGlu, Parts::default()));
    assert_eq!((tied, unknown, quantization.weights), (false, vec![], Weights::Plain));
}

#[test]
fn what_a_file_leaves_out_is_its_class_own() {
    let bare = |class: &str| {
        let gone = json!({"model_type": class, "rms_norm_eps": null, "rope_theta": null, "hidden_act": null,
            "tie_word_embeddings": null});
        taken(gone)
    };
    for (class, eps, theta, act, tied, head_dim) in [
        ("llama", 1e-6, 1e4, Activation::SwiGlu, false, 16),
        ("mistral", 1e-6, 1e4, Activation::SwiGlu, false, 16),
        ("qwen2", 1e-6, 1e4, Activation::SwiGlu, false, 16),
        ("qwen3", 1e-6, 1e4, Activation::SwiGlu, false, 128),
        ("bitnet", 1e-5, 5e5, Activation::Relu2, false, 16),
        ("gemma3_text", 1e-6, 1e6, Activation::GeGlu, true, 256),
    ] {
        let config = bare(class);
        let d = &config.decoder;
        assert_eq!((d.rms_eps, d.ropes[0].base, d.activation), (eps, theta, act), "{class}");
        assert_eq!((config.tied, d.attention.head_dim), (tied, head_dim), "{class}");
    }
    assert_eq!(taken(json!({"num_key_value_heads": null})).decoder.attention.kv_heads, 4);
    let mut null = llama(json!({"model_type": "mistral"}));
    null["num_key_value_heads"] = Value::Null;
    assert_eq!(read(&null).unwrap().decoder.attention.kv_heads, 4);
    let gone = json!({"model_type": "mistral", "num_key_value_heads": null});
    refused(gone, Status::BadModel, &["'num_key_value_heads' is missing"]);
}

#[test]
fn sizes_are_said_and_possible() {
    for key in ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
    {
        let name = format!("'{key}' is ");
        for value in [json!(0), json!(-1), json!("4"), json!(1.5), json!(1u64 << 60), json!([]), json!(1e300)]
        {
            refused(json!({ key: value }), Status::BadModel, &[&name]);
        }
        refused(json!({ key: null }), Status::BadModel, &[&name, "missing"]);
    }
    refused(json!({"max_position_embeddings": null}), Status::BadModel, &["max_position_embeddings"]);
    refused(json!({"num_attention_heads": 3}), Status::BadModel, &["'num_attention_heads' is 3"]);
    refused(json!({"num_key_value_heads": 3}), Status::BadModel, &["'num_key_value_heads' is 3"]);
    refused(json!({"head_dim": 15}), Status::BadModel, &["'head_dim' is 15"]);
    refused(json!({"rms_norm_eps": 0.5}), Status::BadModel, &["'rms_norm_eps' is 0.5"]);
    refused(json!({"rope_theta": 0.1}), Status::BadModel, &["'rope_theta' is 0.1"]);
    refused(json!({"tie_word_embeddings": 1}), Status::BadModel, &["'tie_word_embeddings' is 1"]);
}

#[test]
fn other_models_are_refused_by_name() {
    let of =
        |changes| refused(changes, Status::Unsupported, &["'model_type' is 'mixtral'", "llama, mistral"]);
    of(json!({"model_type": "mixtral"}));
    refused(json!({"model_type": null, "architectures": null}), Status::BadModel, &["model_type"]);
    refused(
        json!({"model_type": null, "architectures": ["TForCausalLM"]}),
        Status::Unsupported,
        &["model_type"],
    );
    assert_eq!(taken(json!({"model_type": null})).decoder.family.name(), "llama");
    refused(json!({"text_config": {}}), Status::Unsupported, &["text_config", "multimodal"]);
    refused(json!({"hidden_act": "gelu"}), Status::Unsupported, &["'hidden_act' is 'gelu'", "silu"]);
    refused(json!({"final_logit_softcapping": 30.0}), Status::Unsupported, &["final_logit_softcapping"]);
    refused(json!({"use_bidirectional_attention": true}), Status::Unsupported, &["bidirectional"]);
    refused(json!({"partial_rotary_factor": 0.5}), Status::Unsupported, &["partial_rotary_factor"]);
    let inner = json!({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}});
    refused(inner, Status::Unsupported, &["rope_scaling.partial_rotary_factor"]);
    assert!(Fields::new(&json!([]), "x").is_err());
    let odd = taken(json!({"odd_scaling": 8.0, "use_cache": true, "attn_logit_softcapping": null}));
    assert_eq!(odd.unknown, ["odd_scaling"]);
}

#[test]
fn keys_that_change_the_arithmetic_have_one_value_that_is_fine() {
    for (key, fine, other) in [
        ("n_routed_experts", json!(0), json!(8)),
        ("num_nextn_predict_layers", json!(0), json!(1)),
        ("clip_qkv", json!(0.0), json!(8.0)),
        ("embedding_multiplier", json!(1.0), json!(12.0)),
        ("residual_multiplier", json!(1), json!(0.22)),
        ("logits_scaling", json!(1.0), json!(8.0)),
        ("scale_emb", json!(1), json!(12)),
        ("is_causal", json!(true), json!(false)),
        ("alibi", json!(false), json!(true)),
        ("use_qk_norm", json!(false), json!(true)),
        ("parallel_attn", json!(false), json!(true)),
    ] {
        assert!(taken(json!({ key: fine })).unknown.is_empty(), "{key}");
        refused(json!({ key: other }), Status::Unsupported, &[key]);
    }
    // MLX's folders, old compressed-tensors ones, and PrismML's.
    for (key, value) in [
        ("quantization", json!({"group_size": 64, "bits": 4})),
        ("compression_config", json!({"format": "marlin-24"})),
        ("hadamard_config", json!("hadamard.json")),
    ] {
        refused(json!({ key: value }), Status::Unsupported, &[key]);
    }
}

#[test]
fn rotations_in_both_spellings() {
    let rope = |changes| taken(changes).decoder.ropes.remove(0);
    let linear = RopeConfig { base: 5e5, dims: 16, scaling: RopeScaling::Linear { factor: 4.0 } };
    assert_eq!(rope(json!({"rope_scaling": {"type": "linear", "factor": 4.0}})), linear);
    let new = json!({"rope_theta": null,
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}});
    assert_eq!(rope(new), linear);
    assert_eq!(rope(json!({"rope_scaling": {"rope_type": "default"}})).scaling, RopeScaling::None);
    let three = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128});
    let scaling = rope(json!({ "rope_scaling": three })).scaling;
    let (factor, low_freq_factor, high_freq_factor, original_context) = (8.0, 1.0, 4.0, 128);
    assert_eq!(scaling, RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context });
    let yarn = |extra: Value| {
        let mut yarn = json!({"rope_type": "yarn", "factor": 4.0});
        yarn.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        match rope(json!({ "rope_scaling": yarn })).scaling {
            RopeScaling::Yarn { original_context, attention_factor, beta_fast, truncate, .. } => {
                (original_context, attention_factor, beta_fast, truncate)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(yarn(json!({})), (512, (0.1 * 4f64.ln() + 1.0) as f32, 32.0, true));
    let more = json!({"original_max_position_embeddings": 64, "attention_factor": 0.5, "truncate": false});
    assert_eq!(yarn(more), (64, 0.5, 32.0, false));
    let ratio = (0.1 * 0.7 * 4f64.ln() + 1.0) / (0.1 * 0.5 * 4f64.ln() + 1.0);
    assert!((yarn(json!({"mscale": 0.7, "mscale_all_dim": 0.5})).1 as f64 - ratio).abs() < 1e-6);
}

#[test]
fn rotations_that_are_not_known() {
    let scaling = |s: Value| json!({ "rope_scaling": s });
    for kind in ["xdrope", "ntk"] {
        let name = format!("is '{kind}'");
        refused(scaling(json!({"rope_type": kind, "factor": 2.0})), Status::Unsupported, &[&name]);
    }
    refused(scaling(json!({"type": "linear"})), Status::BadModel, &["'rope_scaling.factor' is missing"]);
    refused(scaling(json!({"type": "linear", "factor": 0.0})), Status::BadModel, &["rope_scaling.factor"]);
    refused(scaling(json!({"type": "llama3", "factor": 2.0})), Status::BadModel, &["low_freq_factor"]);
    let long = |more: Value| {
        let factors = json!({"rope_type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8],
                             "original_max_position_embeddings": 128});
        scaling(merged(factors, more))
    };
    let RopeScaling::Long { attention_factor, original_context, .. } =
        &taken(long(json!({}))).decoder.ropes[0].scaling
    else {
        panic!("another scaling")
    };
    // The context is 512.
    let factor = (1.0 + 4f64.ln() / 128f64.ln()).sqrt() as f32;
    assert_eq!((*attention_factor, *original_context), (factor, 128));
    let own = taken(long(json!({"factor": 2.0}))).decoder.ropes[0].attention_factor();
    assert_eq!(own, (1.0 + 2f64.ln() / 128f64.ln()).sqrt() as f32);
    refused(long(json!({"long_factor": null})), Status::BadModel, &["'rope_scaling.long_factor' is null"]);
    refused(long(json!({"short_factor": [1.0]})), Status::BadModel, &["short_factor", "8 belong to 16"]);
    refused(long(json!({"long_factor": vec![0.0; 8]})), Status::BadModel, &["long_factor"]);
    refused(scaling(json!({"mystery": 1})), Status::Unsupported, &["'rope_scaling.mystery' is 1"]);
    refused(scaling(json!("yarn")), Status::BadModel, &["'rope_scaling' is 'yarn'", "object"]);
    refused(
        json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
        Status::Unsupported,
        &["rope_parameters.full_attention"],
    );
}

#[test]
fn windows_by_class() {
    let windows = |changes| -> Vec<Option<usize>> {
        taken(changes).decoder.blocks.iter().map(|span| span.window).collect()
    };
    let (all, none) = (vec![Some(32); 4], vec![None; 4]);
    let mistral = |window: Value| {
        let mut config = llama(json!({"model_type": "mistral"}));
        config["sliding_window"] = window;
        read(&config).unwrap().decoder.blocks.iter().map(|span| span.window).collect::<Vec<_>>()
    };
    assert_eq!(mistral(json!(32)), all);
    assert_eq!(mistral(Value::Null), none);
    assert_eq!(windows(json!({"model_type": "mistral"})), vec![Some(4096); 4]);
    // Llama's class has no window, even if the file has one.
    assert_eq!(windows(json!({"sliding_window": 32})), none);
    let qwen = |changes: Value| {
        let mut all = json!({"model_type": "qwen2", "sliding_window": 32, "max_window_layers": 3});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    assert_eq!(windows(qwen(json!({}))), none);
    assert_eq!(windows(qwen(json!({"use_sliding_window": true}))), [None, None, None, Some(32)]);
    // Qwen 3's mixtures have windows in all layers or in none.
    let moe = |used: bool| {
        json!({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "sliding_window": 32, "use_sliding_window": used})
    };
    assert_eq!((windows(moe(false)), windows(moe(true))), (none.clone(), all.clone()));
    let (full, slides) = ("full_attention", "sliding_attention");
    let types = json!({"use_sliding_window": true, "layer_types": [slides, full, slides, full]});
    assert_eq!(windows(qwen(types)), [Some(32), None, Some(32), None]);
    refused(
        qwen(json!({"layer_types": [slides, full, full, full]})),
        Status::BadModel,
        &["'sliding_window' is 32"],
    );
    refused(qwen(json!({"layer_types": [full]})), Status::BadModel, &["layer_types", "num_hidden_layers"]);
    refused(qwen(json!({"layer_types": ["chunked", full, full, full]})), Status::Unsupported, &["'chunked'"]);
    refused(json!({"model_type": "mistral", "sliding_window": 0}), Status::BadModel, &["sliding_window"]);
}

#[test]
fn gemmas_ways() {
    let gemma = |changes: Value| {
        let mut all = json!({"model_type": "gemma3_text", "sliding_window": 32, "hidden_act": null,
            "query_pre_attn_scalar": 16, "head_dim": 32, "rope_theta": null});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    let d =
        taken(gemma(json!({"sliding_window_pattern": 2, "rope_scaling": {"type": "linear", "factor": 8.0}})));
    let d = d.decoder;
    assert_eq!((d.attention.scale, d.norm_offset, d.embedding_scale), (0.25, 1.0, 8.0));
    let span = |window, rope| Block { window, rope, mutual: true, ..Block::default() };
    assert_eq!(d.blocks, [span(Some(32), 1), span(None, 0), span(Some(32), 1), span(None, 0)]);
    let rope = |base, scaling| RopeConfig { base, dims: 32, scaling };
    assert_eq!(d.ropes, [rope(1e6, RopeScaling::Linear { factor: 8.0 }), rope(1e4, RopeScaling::None)]);
    let width = |norm| d.norm_width(norm);
    assert_eq!(
        [width("post_ffw_norm"), width("attn_k_norm"), width("ffn_sub_norm")],
        [Some(64), Some(32), None]
    );
    let new = json!({"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 200.0}}});
    let ropes = taken(gemma(new)).decoder.ropes;
    assert_eq!(ropes, [rope(200.0, RopeScaling::Linear { factor: 2.0 }), rope(100.0, RopeScaling::None)]);
    let flat = json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0}});
    refused(gemma(flat), Status::Unsupported, &["rope_parameters"]);
    refused(gemma(json!({"sliding_window_pattern": 0})), Status::BadModel, &["sliding_window_pattern"]);
    refused(gemma(json!({"query_pre_attn_scalar": 0})), Status::BadModel, &["query_pre_attn_scalar"]);
}

#[test]
fn mixtures_of_experts() {
    let moe = |changes: Value| {
        let mut all = json!({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 48});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    let d = taken(moe(json!({}))).decoder;
    let choice = Choice::softmax(2, false);
    assert_eq!(d.experts, Some(ExpertsConfig { count: 8, width: 48, shared: None, choice, bias: false }));
    assert!(d.blocks.iter().all(|block| block.sparse));
    let sparse = |changes: Value| {
        taken(moe(changes)).decoder.blocks.iter().map(|block| block.sparse).collect::<Vec<_>>()
    };
    assert_eq!(sparse(json!({"decoder_sparse_step": 2})), [false, true, false, true]);
    assert_eq!(sparse(json!({"mlp_only_layers": [0, 3]})), [false, true, true, false]);
    assert!(taken(moe(json!({"mlp_only_layers": [0, 1, 2, 3]}))).decoder.experts.is_none());
    assert!(
        taken(moe(json!({"norm_topk_prob": true}))).decoder.experts.unwrap().choice.renormalize.is_some()
    );
    refused(moe(json!({"num_experts_per_tok": 9})), Status::BadModel, &["'num_experts_per_tok' is 9"]);
    refused(moe(json!({"num_experts_per_tok": 0})), Status::BadModel, &["num_experts_per_tok"]);
    refused(moe(json!({"moe_intermediate_size": null})), Status::BadModel, &["moe_intermediate_size"]);
    let ternary = json!({"quantization_config": {"quant_method": "bitnet"}});
    refused(moe(ternary), Status::Unsupported, &["quantization_config", "experts"]);
    refused(moe(json!({"mlp_only_layers": ["a"]})), Status::BadModel, &["mlp_only_layers"]);
    refused(json!({"num_experts": 4}), Status::Unsupported, &["num_experts", "llama has no experts"]);
}

/// A Qwen3-Next configuration with `changes`.
fn hybrid(changes: Value) -> Value {
    let mut all = json!({"model_type": "qwen3_next", "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 40, "head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8});
    all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    all
}

#[test]
fn shared_experts() {
    let d = taken(hybrid(json!({"intermediate_size": null}))).decoder;
    let choice = Choice::softmax(2, true);
    assert_eq!(d.experts, Some(ExpertsConfig { count: 8, width: 48, shared: Some(40), choice, bias: false }));
    // No layer is dense, so that the file need not say how wide such layers are.
    assert_eq!((d.ffn, taken(hybrid(json!({}))).decoder.ffn), (48, 96));
    refused(
        hybrid(json!({"intermediate_size": null, "decoder_sparse_step": 2})),
        Status::BadModel,
        &["intermediate_size"],
    );
    for value in [json!(0), json!(-1), json!(1u64 << 50), Value::Null] {
        let key = "shared_expert_intermediate_size";
        refused(hybrid(json!({ key: value })), Status::BadModel, &[key]);
    }
}

#[test]
fn layers_of_gated_delta_nets() {
    let recurrent = |changes: Value| {
        taken(hybrid(changes)).decoder.blocks.iter().map(|block| block.recurrent).collect::<Vec<_>>()
    };
    assert_eq!(recurrent(json!({})), [true, true, true, false]);
    assert_eq!(recurrent(json!({"full_attention_interval": 2})), [true, false, true, false]);
    let (linear, full) = ("linear_attention", "full_attention");
    assert_eq!(recurrent(json!({"layer_types": [full, linear, linear, full]})), [false, true, true, false]);
    assert!(taken(hybrid(json!({"layer_types": [full, full, full, full]}))).decoder.recurrent.is_none());
    let bad = |key: &str, value: Value| refused(hybrid(json!({ key: value })), Status::BadModel, &[key]);
    for types in
        [json!([]), json!([full]), json!([linear, linear, linear, full, full]), json!("x"), json!([1])]
    {
        bad("layer_types", types);
    }
    let odd = json!({"layer_types": [linear, linear, linear, "sliding_attention"]});
    refused(hybrid(odd), Status::Unsupported, &["layer_types", "'sliding_attention'"]);
    bad("full_attention_interval", json!(0));
    for value in [0, 1, 17] {
        bad("linear_conv_kernel_dim", json!(value));
    }
    for key in ["num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim"] {
        for value in [json!(0), json!(1u64 << 40), json!(1e14), json!("4")] {
            bad(&format!("linear_{key}"), value);
        }
    }
    bad("linear_num_value_heads", json!(3));
    refused(hybrid(json!({"linear_num_key_heads": 3})), Status::BadModel, &["linear_num_value_heads", "3"]);
}

#[test]
fn tensors_of_several_parts() {
    let of = |class: &str, part: &str| {
        names::canonical(Family::of_hf(class).unwrap(), &format!("model.layers.3.{part}"))
    };
    let parts =
        |parts: &[&str]| Name::Parts(parts.iter().map(|part| format!("blk.3.{part}.weight")).collect());
    let pair = "linear_attn.in_proj_qkvz.weight";
    assert_eq!(of("qwen3_next", pair), parts(&["attn_qkv", "attn_gate"]));
    assert_eq!(of("qwen3_next", "linear_attn.in_proj_ba.weight"), parts(&["ssm_beta", "ssm_alpha"]));
    assert_eq!(of("qwen3_5_moe_text", pair), Name::Unknown);
    assert_eq!(of("qwen3_next", "linear_attn.in_proj_z.weight"), Name::Unknown);
    let stacked = of("qwen3_5_moe_text", "mlp.experts.gate_up_proj");
    assert_eq!(stacked, parts(&["ffn_gate_exps", "ffn_up_exps"]));
    assert_eq!(of("qwen3_5_moe_text", "mlp.experts.down_proj"), parts(&["ffn_down_exps"]));
    assert_eq!(of("qwen3_5_text", "mlp.experts.down_proj"), Name::Unknown);
    let gate = "mlp.shared_expert_gate.weight";
    assert_eq!(of("qwen3_next", gate), Name::Tensor("blk.3.ffn_gate_inp_shexp.weight".into()));
    assert_eq!(of("qwen3_moe", gate), Name::Unknown);
    let own = |class: &str, gguf: &str| names::own(Family::of_hf(class).unwrap(), 4, gguf).unwrap();
    assert_eq!(own("qwen3_next", "blk.3.attn_gate.weight"), format!("model.layers.3.{pair}"));
    assert_eq!(own("qwen3_5_text", "blk.3.attn_gate.weight"), "model.layers.3.linear_attn.in_proj_z.weight");
    assert_eq!(own("qwen3_next", "blk.3.ffn_gate_inp_shexp.weight"), format!("model.layers.3.{gate}"));
}

#[test]
fn tensors_of_multi_token_prediction() {
    let further = |class: &str, name: &str| names::further(Family::of_hf(class).unwrap(), 4, name);
    for (hf, gguf) in [
        ("mtp.fc.weight", "nextn.eh_proj.weight"),
        ("mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
        ("mtp.norm.weight", "nextn.shared_head_norm.weight"),
        ("mtp.layers.0.self_attn.q_proj.weight", "attn_q.weight"),
        ("mtp.layers.0.input_layernorm.weight", "attn_norm.weight"),
    ] {
        let gguf = format!("blk.4.{gguf}");
        assert_eq!(further("qwen3_next", hf), Some(Name::Tensor(gguf.clone())));
        assert_eq!(names::own(Family::of_hf("qwen3_next").unwrap(), 4, &gguf).unwrap(), hf);
        assert_eq!(further("qwen3", hf), None);
    }
    let second = Name::Tensor("blk.5.attn_k.weight".into());
    assert_eq!(further("qwen3_5_text", "mtp.layers.1.self_attn.k_proj.weight"), Some(second));
    let unknown = Name::Tensor("blk.4.nextn.layers.0.strange".into());
    assert_eq!(further("qwen3_next", "mtp.layers.0.strange"), Some(unknown));
}

#[test]
fn biases_by_class() {
    let read =
        |class: &str| taken(json!({"model_type": class, "attention_bias": true, "mlp_bias": true})).decoder;
    let parts = |class| read(class).parts;
    let of = |p: Parts| (p.qkv_bias, p.output_bias, p.ffn_bias);
    assert_eq!(of(parts("llama")), (true, true, true));
    assert_eq!(of(parts("mistral")), (false, false, false));
    assert_eq!(of(parts("qwen2")), (true, false, false));
    assert_eq!(of(parts("qwen3")), (true, true, false));
    let has = |class: &str, norm: &str| read(class).norm_width(norm).is_some();
    assert!(has("bitnet", "attn_sub_norm") && !has("llama", "attn_sub_norm") && has("qwen3", "attn_q_norm"));
}

#[test]
fn quantization_configs() {
    let q = |q: Value| taken(json!({ "quantization_config": q })).quantization;
    let bitnet = |more: Value| {
        let mut all = json!({"quant_method": "bitnet"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let divide = Weights::Packed { divide: true };
    assert_eq!(q(bitnet(json!({}))).weights, divide);
    assert_eq!(
        q(bitnet(json!({"linear_class": "bitlinear", "quantization_mode": "online"}))).weights,
        divide
    );
    let auto = |mode| q(bitnet(json!({"linear_class": "autobitlinear", "quantization_mode": mode}))).weights;
    assert_eq!((auto("offline"), auto("online")), (Weights::Packed { divide: false }, Weights::Online));
    assert_eq!(q(bitnet(json!({"use_rms_norm": true}))).projection_norms, Some(1e-6));
    assert_eq!(q(bitnet(json!({"modules_to_not_convert": ["lm_head"]}))).weights, divide);
    let no = |q: Value, part: &str| {
        refused(json!({ "quantization_config": q }), Status::Unsupported, &[part]);
    };
    for method in ["bitsandbytes", "modelopt", "fbgemm_fp8", "hqq", "quark", "torchao", "auto-round"] {
        no(json!({ "quant_method": method }), &format!("'quantization_config.quant_method' is '{method}'"));
    }
    refused(json!({"quantization_config": {}}), Status::BadModel, &["quant_method"]);
    no(bitnet(json!({"linear_class": "other"})), "linear_class");
    no(bitnet(json!({"quantization_mode": "later"})), "quantization_mode");
    no(bitnet(json!({"modules_to_not_convert": []})), "without 'lm_head'");
    no(bitnet(json!({"modules_to_not_convert": ["lm_head", "model.layers.0.mlp"]})), "model.layers.0.mlp");
    no(bitnet(json!({"group_size": 64})), "'quantization_config.group_size'");
    let eps = bitnet(json!({"use_rms_norm": true, "rms_norm_eps": 2}));
    refused(
        json!({ "quantization_config": eps }),
        Status::BadModel,
        &["'quantization_config.rms_norm_eps' is 2"],
    );
}

#[test]
fn one_bit_llms_own_class() {
    let one = |changes: Value| {
        let mut all = json!({"architectures": ["BitnetForCausalLM"], "weight_bits": 1, "input_bits": 8});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    let config = taken(one(json!({})));
    assert_eq!(config.quantization.weights, Weights::Online);
    let d = &config.decoder;
    assert_eq!(
        (d.activation, d.norm_width("ffn_sub_norm"), d.family.ternary),
        (Activation::SwiGlu, Some(96), true)
    );
    refused(one(json!({"weight_bits": 2})), Status::Unsupported, &["'weight_bits' is 2"]);
    refused(one(json!({"input_bits": null})), Status::Unsupported, &["'input_bits' is missing"]);
    refused(one(json!({"quantization_config": {}})), Status::Unsupported, &["quantization_config"]);
    refused(json!({"weight_bits": 1}), Status::Unsupported, &["weight_bits", "BitnetForCausalLM"]);
}

#[test]
fn names_in_both_styles() {
    let of = |class: &str, name: &str| names::canonical(Family::of_hf(class).unwrap(), name);
    let tensor = |name: &str| Name::Tensor(name.into());
    for (hf, gguf) in [
        ("embed_tokens.weight", "token_embd.weight"),
        ("norm.weight", "output_norm.weight"),
        ("layers.11.input_layernorm.weight", "blk.11.attn_norm.weight"),
        ("layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"),
        ("layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight"),
        ("layers.0.self_attn.o_proj.bias", "blk.0.attn_output.bias"),
        ("layers.0.mlp.down_proj.rms_norm.weight", "blk.0.ffn_down_norm_in.weight"),
        ("layers.0.mlp.down_proj.norm.weight", "blk.0.ffn_down_norm_in.weight"),
    ] {
        assert_eq!(of("llama", hf), tensor(gguf));
        assert_eq!(of("llama", &format!("model.{hf}")), tensor(gguf));
        if !hf.ends_with(".norm.weight") {
            assert_eq!(names::own(Family::of_hf("llama").unwrap(), 12, gguf).unwrap(), format!("model.{hf}"));
        }
    }
    assert_eq!(of("llama", "lm_head.weight"), tensor("output.weight"));
    assert_eq!(
        of("llama", "model.layers.3.mlp.up_proj.weight_scale"),
        Name::Scale("blk.3.ffn_up.weight".into())
    );
    assert_eq!(of("llama", "model.layers.3.self_attn.rotary_emb.inv_freq"), Name::Buffer);
    assert_eq!(of("bitnet", "layers.2.mlp.ffn_sub_norm.weight"), tensor("blk.2.ffn_sub_norm.weight"));
    assert_eq!(of("qwen3", "layers.2.self_attn.k_norm.weight"), tensor("blk.2.attn_k_norm.weight"));
    let gemma = of("gemma3_text", "layers.2.post_attention_layernorm.weight");
    assert_eq!(gemma, tensor("blk.2.post_attention_norm.weight"));
    let one_bit = names::canonical(&BITNET_1BITLLM, "model.layers.2.self_attn.inner_attn_ln.weight");
    assert_eq!(one_bit, tensor("blk.2.attn_sub_norm.weight"));
    for unknown in [
        "score.weight",
        "model.layers.x.mlp.up_proj.weight",
        "model.layers.01.mlp.up_proj.weight",
        "model.layers.+1.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj.lora_A.weight",
        "model.layers.1.mlp.ffn_sub_norm.weight",
        "model.layers.1.self_attn.q_norm.weight",
        "blk.0.attn_q.weight",
        "",
    ] {
        assert_eq!(of("llama", unknown), Name::Unknown, "{unknown}");
    }
    assert!(names::is_projection("blk.0.ffn_up.weight") && !names::is_projection("blk.0.ffn_up.bias"));
    assert!(!names::is_projection("blk.0.attn_norm.weight") && !names::is_projection("output.weight"));
}

#[test]
fn any_config_is_read_or_refused_quickly() {
    let whole = llama(
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "layer_types": ["full_attention"],
        "quantization_config": {"quant_method": "bitnet"}, "sliding_window": 3}),
    );
    let text = whole.to_string();
    let mixed = llama(hybrid(json!({"full_attention_interval": 2, "norm_topk_prob": true,
        "linear_conv_kernel_dim": 4, "decoder_sparse_step": 1, "mlp_only_layers": [1],
        "partial_rotary_factor": 0.5})));
    let odd = [
        json!(null),
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!("x"),
        json!([[]]),
        json!({"a": {}}),
        json!(true),
    ];
    for class in FAMILIES.iter().filter_map(|family| family.hf) {
        let keys = |file: &Value| file.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let all =
            [&whole, &mixed].into_iter().flat_map(|file| keys(file).into_iter().map(move |key| (file, key)));
        for (file, key) in all {
            for value in &odd {
                let mut config = file.clone();
                config["model_type"] = json!(class);
                config[&key] = value.clone();
                if let Err(error) = read(&config) {
                    assert!(error.message.starts_with("m/config.json: "), "{error}");
                }
            }
        }
    }
    for cut in 0..text.len() {
        assert!(config::parse(&text.as_bytes()[..cut], "m").is_err());
    }
}
