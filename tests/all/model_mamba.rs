//! Files with Mamba-2: bad ones, and other spellings.

use crate::common::gguf::{File, INNER, MAMBA_CHANNELS, Tensor, Value, falcon_h1, granite, granitehybrid};
use crate::common::{Running, alone, bits};
use crate::model_bad_files::{bad, open, unsupported};

fn run(file: &File) -> Vec<Vec<u32>> {
    let model: Running = open(file.bytes()).expect("load");
    bits(&alone(&model, &[(0..30).map(|i| i * 7 % 40).collect()], 16))
}

type Make = fn() -> File;
const FILES: [(Make, &str); 2] = [(granitehybrid, "granitehybrid"), (falcon_h1, "falcon-h1")];

#[test]
fn sizes() {
    for (file, name) in FILES {
        let with = |key: &str, value| file().u32(&format!("{name}.{key}"), value);
        for key in ["conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size"] {
            let key = format!("ssm.{key}");
            bad(file().without_key(&format!("{name}.{key}")), &[&key, "missing"]);
            bad(with(&key, 0), &["ssm."]);
            bad(with(&key, u32::MAX), &["ssm."]);
        }
        bad(with("ssm.conv_kernel", 3), &["'blk.0.ssm_conv1d.weight'", "dimensions"]);
        bad(with("ssm.inner_size", 82), &["ssm.inner_size", "82", "time_step_rank"]);
        bad(with("ssm.group_count", 3), &["ssm.group_count", "3", "heads, 4"]);
        bad(with("ssm.state_size", 13), &["'blk.0.ssm_in.weight'", "dimensions"]);
    }
}

#[test]
fn tensors() {
    for (file, _) in FILES {
        let of_mamba = |name: &String| name.contains(".ssm_");
        let optional = ["ssm_norm", "ssm_conv1d.bias"];
        for name in file().tensors.iter().map(|tensor| tensor.name.clone()).filter(of_mamba) {
            if !optional.iter().any(|part| name.contains(part)) {
                bad(file().without(&name), &[&name]);
            }
            let turned = file().change(&name, |t| {
                t.dims = match t.dims[..] {
                    [n] => vec![n / 2, 2],
                    [1, n] => vec![n / 2, 2],
                    _ => vec![t.dims[0] / 2, t.dims[1] * 2],
                };
            });
            if !name.contains("ssm_norm") {
                bad(turned, &[&name, "dimensions"]);
            }
        }
        let grows = |t: &mut Tensor| t.data[..4].copy_from_slice(&1f32.to_le_bytes());
        bad(file().change("blk.0.ssm_a", grows), &["'blk.0.ssm_a'", "grow"]);
        bad(
            file().change("blk.0.ssm_norm.weight", |t| t.dims = vec![INNER / 4, 2]),
            &["'blk.0.ssm_norm.weight'"],
        );
    }
}

/// A layer without norm or bias computes something else, but is read.
#[test]
fn parts_that_some_files_lack() {
    for (file, _) in FILES {
        let without = |part: &str| {
            let layers: Vec<String> =
                file().tensors.iter().map(|t| t.name.clone()).filter(|name| name.ends_with(part)).collect();
            layers.iter().fold(file(), |file, name| file.without(name))
        };
        let (all, no_norm, no_bias) =
            (run(&file()), run(&without(".ssm_norm.weight")), run(&without(".ssm_conv1d.bias")));
        assert!(all != no_norm && all != no_bias);
        let zero = |t: &mut Tensor| t.data = vec![0; 4 * MAMBA_CHANNELS as usize];
        let zeros = file().change("blk.0.ssm_conv1d.bias", zero);
        let zeros = match file().tensors.iter().any(|t| t.name == "blk.1.ssm_conv1d.bias") {
            true => zeros.change("blk.1.ssm_conv1d.bias", zero),
            false => zeros,
        };
        assert!(run(&zeros) == no_bias);
    }
    unsupported(falcon_h1().without("blk.0.ssm_conv1d.bias"), &["'blk.1.ssm_conv1d.bias'"]);
}

/// llama.cpp's files of Falcon-H1 name the norms before feed-forwards without `.weight`.
#[test]
fn bare_names_of_norms() {
    let bare = |file: File| {
        (0..2).fold(file, |file, i| {
            file.change(&format!("blk.{i}.ffn_norm.weight"), |t| t.name = format!("blk.{i}.ffn_norm"))
        })
    };
    assert!(run(&bare(falcon_h1())) == run(&falcon_h1()));
}

#[test]
fn layers_of_attention() {
    let heads = |list: &[i32]| {
        granitehybrid().set("granitehybrid.attention.head_count_kv", Value::I32s(list.to_vec()))
    };
    for wrong in [&[0][..], &[0, 1, 1], &[0, -1]] {
        bad(heads(wrong), &["attention.head_count_kv"]);
    }
    assert!(open(heads(&[0, 0]).bytes()).is_err());
    bad(heads(&[1, 1]), &["'blk.0.attn_q.weight'", "missing"]);
    let rotates = granitehybrid().set("granitehybrid.rope.scaling.finetuned", Value::Bool(true));
    assert!(run(&rotates) != run(&granitehybrid()));
    assert!(run(&rotates) == run(&granitehybrid().without_key("granitehybrid.rope.scaling.finetuned")));
    // Without Mamba-2 it is Granite's architecture, which llama.cpp reads in the same way.
    let rotates = |rotates| granite().set("granite.rope.scaling.finetuned", Value::Bool(rotates));
    assert!(run(&rotates(false)) != run(&granite()) && run(&rotates(true)) == run(&granite()));
}
