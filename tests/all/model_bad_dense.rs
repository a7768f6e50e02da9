//! Keys of GGUF files that only some dense families have, out of range or in other families.

use crate::common::gguf::{File, HIDDEN, Value, gemma2, gemma3, llama, mistral3, phi3, qwen2, starcoder2};
use crate::model_bad_files::{bad, open, unsupported};

#[test]
fn soft_caps_out_of_range() {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        for value in [-1.0, f32::NAN, f32::INFINITY] {
            bad(gemma2().f32(&format!("gemma2.{key}"), value), &[key]);
        }
        unsupported(llama().f32(&format!("llama.{key}"), 30.0), &[key]);
        unsupported(gemma3().f32(&format!("gemma3.{key}"), 30.0), &[key]);
        // Old files have no such keys, and mean the published caps; 0 means none.
        assert!(open(gemma2().without_key(&format!("gemma2.{key}")).bytes()).is_ok());
        assert!(open(gemma2().f32(&format!("gemma2.{key}"), 0.0).bytes()).is_ok());
    }
}

#[test]
fn growing_queries_out_of_range() {
    const KEY: &str = "attention.temperature_scale";
    for value in [-1.0, f32::NAN, f32::INFINITY] {
        bad(mistral3().f32(&format!("mistral3.{KEY}"), value), &[KEY]);
    }
    bad(mistral3().u32("mistral3.rope.scaling.original_context_length", 0), &["original_context_length"]);
    unsupported(llama().f32(&format!("llama.{KEY}"), 0.1), &[KEY]);
    let multiplier = "rope.scaling.yarn_log_multiplier";
    unsupported(llama().f32(&format!("llama.{multiplier}"), 1.0), &[multiplier, "not yarn"]);
    bad(mistral3().f32(&format!("mistral3.{multiplier}"), f32::NAN), &["attn_factor", "NaN"]);
    unsupported(llama().f32("llama.rope.scaling.yarn_attn_factor", 1.2), &["yarn_attn_factor", "not yarn"]);
}

#[test]
fn products_in_other_pieces_than_the_familys() {
    bad(phi3().without("blk.0.attn_qkv.weight"), &["blk.0.attn_qkv.weight"]);
    bad(phi3().without("blk.1.ffn_up.weight"), &["blk.1.ffn_up.weight"]);
    unsupported(phi3().random("blk.0.attn_q.weight", &[HIDDEN, HIDDEN], 1), &["blk.0.attn_q.weight"]);
    unsupported(
        llama().random("blk.0.attn_qkv.weight", &[HIDDEN, 2 * HIDDEN], 1),
        &["blk.0.attn_qkv.weight"],
    );
    unsupported(
        starcoder2().random("blk.0.ffn_gate.weight", &[HIDDEN, 2 * HIDDEN], 1),
        &["blk.0.ffn_gate.weight"],
    );
}

#[test]
fn layer_norms_need_their_biases() {
    bad(starcoder2().without("blk.0.attn_norm.bias"), &["blk.0.attn_norm.bias"]);
    bad(starcoder2().without("output_norm.bias"), &["output_norm.bias"]);
    bad(starcoder2().without_key("starcoder2.attention.layer_norm_epsilon"), &["layer_norm_epsilon"]);
    bad(starcoder2().f32("starcoder2.attention.layer_norm_epsilon", 1.0), &["layer_norm_epsilon"]);
    unsupported(llama().random("blk.0.attn_norm.bias", &[HIDDEN], 1), &["blk.0.attn_norm.bias"]);
}

/// Sections would mean another order of rows (GLM-OCR, PaddleOCR).
#[test]
fn sections_of_rotations_are_for_families_that_have_them() {
    let with = |file: File, architecture: &str, first: i32| {
        file.set(&format!("{architecture}.rope.dimension_sections"), Value::I32s(vec![first, 0, 0, 0]))
    };
    unsupported(with(qwen2(), "qwen2", 8), &["rope.dimension_sections"]);
    assert!(open(with(qwen2(), "qwen2", 0).bytes()).is_ok());
}
