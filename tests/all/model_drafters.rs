//! Files of drafters alone are refused, and the error says what they are.

use crate::common::gguf::{File, HIDDEN, Tensor, VOCAB, Value, qwen35};
use crate::model_bad_files::{refused, unsupported};
use crate::model_mtp::{open, with_block};
use bn_engine::base::Status;

/// The block of a model of two layers, as block `index` of a file of its own.
fn block_alone(index: u32) -> File {
    let mut file = with_block(qwen35(), "qwen35").u32("qwen35.block_count", index + 1);
    file.tensors.retain(|tensor| !tensor.name.starts_with("blk.0.") && !tensor.name.starts_with("blk.1."));
    let rename = |tensor: &mut Tensor| {
        tensor.name = tensor.name.replacen("blk.2.", &format!("blk.{index}."), 1);
    };
    file.tensors.iter_mut().for_each(rename);
    file
}

#[test]
fn a_block_of_multi_token_prediction_without_its_model_is_refused_by_name() {
    let words = ["test file", "block of multi-token prediction", "without the model", "mtp"];
    for index in [0, 2] {
        unsupported(block_alone(index), &words);
        refused(open(block_alone(index)), Status::Unsupported, &words);
        // The converter may leave out what the model's file has.
        unsupported(block_alone(index).without("token_embd.weight"), &words);
        let folded = Value::Strs(vec!["blk.0.ffn_down.weight".into()]);
        unsupported(block_alone(index).set("prism.hadamard.weight_names", folded), &words);
    }
    let other = block_alone(0).str("general.architecture", "qwen35_mtp");
    unsupported(other, &["'qwen35_mtp'", "block of multi-token prediction"]);
}

#[test]
fn drafters_of_other_kinds_are_refused_by_name() {
    let file = |architecture: &str| {
        File::default()
            .str("general.architecture", architecture)
            .random("fc.weight", &[2 * HIDDEN, HIDDEN], 1)
            .random("output.weight", &[HIDDEN, VOCAB], 2)
    };
    for (architecture, kind) in [
        ("dflash", "a DFlash drafter"),
        ("qwen35-dflash", "a DFlash drafter"),
        ("eagle3", "an EAGLE drafter"),
    ] {
        let named = format!("'{architecture}'");
        unsupported(file(architecture), &["test file", &named, kind, "draft_model"]);
    }
    // A body of a known architecture, with keys of the drafter.
    unsupported(file("qwen3").u32("qwen3.dflash.block_size", 16), &["'qwen3'", "a DFlash drafter"]);
    // Other files do not look like drafters.
    unsupported(file("strange"), &["'strange' is not supported"]);
    assert!(crate::model_bad_files::open(with_block(qwen35(), "qwen35").bytes()).is_ok());
}
