//! Layers of Mamba-2 in a `config.json`.

use super::config::{Config, parse};
use super::fields::Fields;
use super::tests::{merged, read};
use crate::base::Status;
use crate::model::config::DecoderConfig;
use crate::model::layers::mamba::{GateNorm, MambaConfig};
use crate::ops::{Activation, MambaShape};
use serde_json::{Value, json};

fn granite(changes: Value) -> Value {
    let base = json!({
        "model_type": "granitemoehybrid", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "intermediate_size": 24,
        "shared_intermediate_size": 40, "num_local_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 12,
        "mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_expand": 2, "position_embedding_type": "nope",
    });
    merged(base, changes)
}

fn falcon(changes: Value) -> Value {
    let base = json!({
        "model_type": "falcon_h1", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "max_position_embeddings": 128,
        "intermediate_size": 96, "mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_d_head": "auto", "mamba_d_state": 12,
    });
    merged(base, changes)
}

fn of(decoder: &DecoderConfig) -> MambaConfig {
    *decoder.recurrent_as().unwrap()
}

fn mamba(config: &Value) -> MambaConfig {
    of(&read(config).unwrap().decoder)
}

#[test]
fn between_layers_of_attention() {
    let config = read(&granite(json!({}))).unwrap().decoder;
    let shape = MambaShape { heads: 8, head_dim: 16, groups: 2, state_dim: 12, kernel: 4 };
    let mamba = of(&config);
    assert_eq!((mamba.shape, mamba.norm, mamba.conv_bias), (shape, GateNorm::AfterGate, true));
    assert_eq!((mamba.inputs, mamba.output, mamba.steps), ([1.0; 5], 1.0, [0.0, f32::INFINITY]));
    assert_eq!(config.blocks.iter().map(|block| block.recurrent).collect::<Vec<_>>(), [true, false, true]);
    assert!(config.blocks.iter().all(|block| block.sparse && !block.beside));
    let experts = config.experts.unwrap();
    assert_eq!((experts.width, experts.shared), (24, Some(40)));
    let renamed = json!({"layer_types": ["full_attention", "linear_attention", "full_attention"]});
    assert!(read(&granite(renamed)).unwrap().decoder.blocks[1].recurrent);
    let dense = read(&granite(json!({"num_local_experts": 0}))).unwrap().decoder;
    assert_eq!((dense.ffn, dense.experts), (40, None));
    let attention = json!({"layer_types": ["attention", "attention", "attention"]});
    assert!(read(&granite(attention)).unwrap().decoder.recurrent.is_none());
}

#[test]
fn attention_rotates_if_the_file_says_so() {
    let rotates = |kind: Value| {
        let config = read(&granite(json!({ "position_embedding_type": kind }))).unwrap().decoder;
        config.ropes[config.blocks[1].rope].dims > 0
    };
    assert!(rotates(json!("rope")) && !rotates(json!("nope")) && !rotates(Value::Null));
}

#[test]
fn beside_attention() {
    let config = read(&falcon(json!({}))).unwrap().decoder;
    assert!(config.blocks.iter().all(|block| block.beside && !block.recurrent));
    assert_eq!((config.attention_layers(), of(&config).norm), (2, GateNorm::Never));
    let norm = |changes: Value| mamba(&falcon(merged(json!({"mamba_rms_norm": true}), changes))).norm;
    assert_eq!(norm(json!({})), GateNorm::BeforeGate);
    assert_eq!(norm(json!({"mamba_norm_before_gate": false})), GateNorm::AfterGate);
    assert_eq!(mamba(&falcon(json!({"mamba_d_ssm": null, "mamba_n_heads": 4}))).shape.head_dim, 32);
}

#[test]
fn factors() {
    let config = falcon(json!({
        "attention_in_multiplier": 0.5, "attention_out_multiplier": 4.0, "key_multiplier": 0.25,
        "ssm_in_multiplier": 2.0, "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0], "ssm_out_multiplier": 3.0,
        "mlp_multipliers": [0.5, 8.0], "embedding_multiplier": 6.0, "lm_head_multiplier": 0.125,
    }));
    let decoder = read(&config).unwrap().decoder;
    assert_eq!((decoder.embedding_scale, decoder.residual_scale, decoder.logit_scale), (6.0, 2.0, 8.0));
    assert_eq!(decoder.attention.scale, 0.25 * 0.5 * 0.5 * 0.25);
    assert_eq!(decoder.activation, Activation::ScaledSwiGlu { by: 0.5, output: 4.0 });
    let mamba = of(&decoder);
    assert_eq!((mamba.inputs, mamba.output), ([2.0, 4.0, 6.0, 8.0, 10.0], 1.5));
}

/// As Python writes it, and as transformers 5 does.
#[test]
fn infinite_steps() {
    let text = |limit: &str| {
        granite(json!({"time_step_limit": "@", "x": "\"Infinity"})).to_string().replace("\"@\"", limit)
    };
    let steps = |limit: &str| {
        let value = parse(text(limit).as_bytes(), "a file")?;
        Ok::<_, crate::base::Error>(of(&Config::read(&Fields::new(&value, "a file")?, "m")?.decoder).steps)
    };
    for infinite in ["[0.001, Infinity]", r#"[0.001, {"__float__": "Infinity"}]"#] {
        assert_eq!(steps(infinite).unwrap(), [0.001, f32::INFINITY]);
    }
    assert_eq!(steps("[0.0, 0.1]").unwrap(), [0.0, 0.1]);
    for wrong in
        ["[0.1, 0.01]", "[-Infinity, 1.0]", "[0.0]", "[0.0, NaN]", "[-1.0, 1.0]", "[Infinity, Infinity]"]
    {
        assert_eq!(steps(wrong).unwrap_err().status, Status::BadModel, "{wrong}");
    }
}

#[test]
fn what_is_not_read_is_named() {
    let all = ["mamba", "mamba", "mamba"];
    for (config, word) in [
        (granite(json!({"mamba_proj_bias": true})), "mamba_proj_bias"),
        (granite(json!({"mamba_n_heads": 7})), "mamba_n_heads"),
        (granite(json!({"mamba_n_heads": 0})), "mamba_n_heads"),
        (granite(json!({"mamba_n_groups": 3})), "mamba_n_groups"),
        (granite(json!({"mamba_d_state": 1000})), "mamba_d_state"),
        (granite(json!({"mamba_d_head": 17})), "mamba_d_head"),
        (granite(json!({"mamba_d_conv": 1})), "mamba_d_conv"),
        (granite(json!({"layer_types": all})), "recurrent"),
        (granite(json!({"layer_types": null})), "recurrent"),
        (granite(json!({"layer_types": ["mamba", "moe", "mamba"]})), "moe"),
        (granite(json!({"num_experts_per_tok": 5})), "num_experts_per_tok"),
        (falcon(json!({"projectors_bias": true})), "projectors_bias"),
        (falcon(json!({"attention_bias": true, "attention_in_multiplier": 0.5})), "attention_bias"),
        (falcon(json!({"mlp_bias": true, "mlp_multipliers": [1.0, 0.5]})), "mlp_bias"),
        (falcon(json!({"mlp_bias": true, "attention_out_multiplier": 0.5})), "mlp_bias"),
        (falcon(json!({"mamba_use_mlp": false})), "mamba_use_mlp"),
        (falcon(json!({"ssm_multipliers": [1.0, 2.0]})), "ssm_multipliers"),
        (falcon(json!({"attention_out_multiplier": 0.0})), "attention_out_multiplier"),
        (falcon(json!({"key_multiplier": -1.0})), "key_multiplier"),
        (falcon(json!({"hidden_act": "relu2"})), "hidden_act"),
    ] {
        let error = read(&config).err().expect(word);
        assert!(error.message.contains(word), "{word}: {error}");
    }
}
