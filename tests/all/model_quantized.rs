//! Folders that other tools have quantized, wrong in one place.

use crate::folder_support::{Copy, parts};
use bn_engine::base::Status;
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Source, load};
use serde_json::{Value, json};

const Q_PROJ: &str = "model.layers.0.self_attn.q_proj";

fn of_q_proj(part: &str) -> String {
    format!("{Q_PROJ}.{part}")
}

fn bad(folder: &str, change: &dyn Fn(&mut Value), status: Status, parts: &[&str]) {
    Copy::of(folder).header(|header| change(header)).refused(status, parts);
}

/// The folder's copy with other bytes in a tensor.
fn changed(folder: &str, tensor: &str, change: impl FnOnce(&mut [u8])) -> Copy {
    let copy = Copy::of(folder);
    let (header, data) = parts(&copy.read("model.safetensors"));
    let offset = |i: usize| header[tensor]["data_offsets"][i].as_u64().unwrap() as usize;
    let mut bytes = data[offset(0)..offset(1)].to_vec();
    change(&mut bytes);
    copy.tensor(tensor, &bytes);
    copy
}

#[test]
fn a_product_has_all_its_tensors() {
    for (folder, part) in [
        ("fp8-tensor", "weight_scale"),
        ("fp8-block", "weight_scale_inv"),
        ("int8-channel", "weight_scale"),
        ("int4-zeros", "weight_scale"),
        ("int4-zeros", "weight_zero_point"),
        ("int4-moe", "weight_scale"),
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("awq", "qzeros"),
    ] {
        let name = of_q_proj(part);
        // It belongs to a layer that does not exist.
        let rename = |h: &mut Value| {
            let gone = h.as_object_mut().unwrap().remove(&name).unwrap();
            h[format!("model.layers.1.mlp.up_proj.{part}")] = gone;
        };
        let parts = ["q_proj.", if part == "weight_scale_inv" { "q_proj.weight_scale'" } else { part }];
        bad(folder, &rename, Status::BadModel, &parts);
    }
    let gone = |h: &mut Value| {
        let weights = h.as_object_mut().unwrap().remove(&of_q_proj("weight_packed")).unwrap();
        h[of_q_proj("output_scale")] = weights;
    };
    bad("int4-moe", &gone, Status::BadModel, &[&of_q_proj("weight")]);
    let empty = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
    for stray in
        ["model.layers.0.mlp.odd.weight_scale", "model.layers.0.self_attn.q_proj.odd", "odd.weight_scale"]
    {
        bad("fp8-tensor", &|h| h[stray] = empty.clone(), Status::Unsupported, &[stray]);
    }
    // Weights that are not quantized have no scale.
    let scale = "model.layers.0.mlp.down_proj.weight_scale";
    bad("fp8-channel", &|h| h[scale] = empty.clone(), Status::Unsupported, &[scale, "BF16"]);
}

#[test]
fn shapes_fit_the_weights() {
    let shape =
        |part: &'static str, shape: Value| move |h: &mut Value| h[of_q_proj(part)]["shape"] = shape.clone();
    for (folder, part, value) in [
        ("fp8-tensor", "weight", json!([32, 128])),
        ("fp8-block", "weight_scale_inv", json!([1, 1, 1])),
        ("int8-channel", "weight_scale", json!([2, 32])),
        ("int4-zeros", "weight_scale", json!([1, 128])),
        ("int4-zeros", "weight_scale", json!([128])),
        ("int4-zeros", "weight_zero_point", json!([2, 8])),
        ("gptq", "scales", json!([64, 2])),
        ("gptq", "qzeros", json!([16])),
        ("gptq-order", "g_idx", json!([32, 2])),
        ("awq", "qweight", json!([8, 64])),
        ("awq", "scales", json!([])),
    ] {
        let name = format!("{folder} {part} {value}");
        let error = Copy::of(folder).header(shape(part, value)).load().err();
        let error = error.unwrap_or_else(|| panic!("{name} was taken"));
        assert!(matches!(error.status, Status::BadModel | Status::Unsupported), "{name}: {error}");
        assert!(
            error.message.contains("q_proj") || error.message.contains("model.safetensors"),
            "{name}: {error}"
        );
    }
    // Three bits, or an invalid width.
    for (folder, part) in [("int4-moe", "weight_packed"), ("gptq", "qweight")] {
        bad(folder, &shape(part, json!([512])), Status::Unsupported, &[part, "integers of 4 or 8 bits"]);
    }
    let floats = |h: &mut Value| h[of_q_proj("qweight")]["dtype"] = json!("F32");
    bad("gptq", &floats, Status::Unsupported, &["qweight", "F32", "I32"]);
    let floats = |h: &mut Value| h[of_q_proj("weight")]["dtype"] = json!("F8_E5M2");
    bad("fp8-tensor", &floats, Status::Unsupported, &["F8_E5M2"]);
    changed("int4-moe", &of_q_proj("weight_shape"), |bytes| bytes[0] += 1)
        .refused(Status::BadModel, &["weight_shape", "[64, 64]"]);
}

#[test]
fn numbers_are_weights() {
    changed("fp8-block", &of_q_proj("weight"), |bytes| bytes[70] = 0x7f)
        .refused(Status::BadModel, &["row 1", "NaN"]);
    let infinite = |bytes: &mut [u8]| bytes[2..4].copy_from_slice(&0x7f80u16.to_le_bytes());
    for folder in ["int8-channel", "int4-zeros"] {
        changed(folder, &of_q_proj("weight_scale"), infinite).refused(Status::BadModel, &["q_proj", "inf"]);
    }
    let half = |bytes: &mut [u8]| bytes[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
    for folder in ["gptq", "awq"] {
        changed(folder, &of_q_proj("scales"), half).refused(Status::BadModel, &["q_proj", "row 0"]);
    }
    for (folder, part) in [("gptq-order", "g_idx"), ("int4-order", "weight_g_idx")] {
        changed(folder, &of_q_proj(part), |bytes| bytes[4] = 2)
            .refused(Status::BadModel, &[part, "group 2 of 2"]);
        changed(folder, &of_q_proj(part), |bytes| bytes[7] = 0x80)
            .refused(Status::BadModel, &[part, "group"]);
    }
    // A list of zeros means groups in order.
    let unfilled = changed("int4-order", &of_q_proj("weight_g_idx"), |bytes| bytes.fill(0xff));
    assert!(unfilled.load().is_ok());
    // Biases of zeros are ignored, others are not.
    changed("gptq", &of_q_proj("bias"), |bytes| bytes[9] = 1).refused(Status::Unsupported, &["attn_q.bias"]);
}

#[test]
fn methods_that_are_not_read_are_named() {
    let with = |folder: &str, q: Value| {
        let copy = Copy::of(folder);
        copy.config(|c| c["quantization_config"] = q);
        copy
    };
    for method in ["bitsandbytes", "modelopt", "torchao"] {
        with("gptq", json!({ "quant_method": method }))
            .refused(Status::Unsupported, &["quant_method", method]);
    }
    let two = json!({"quant_method": "gptq", "bits": 2});
    with("gptq", two).refused(Status::Unsupported, &["quantization_config.bits", "4 and 8"]);
    // The tensors are another tool's.
    let other = json!({"quant_method": "awq", "bits": 4});
    with("fp8-tensor", other).refused(Status::Unsupported, &["F8_E4M3"]);
    let copy = Copy::of("llama-bf16");
    copy.config(|c| c["quantization"] = json!({"group_size": 64, "bits": 4}));
    copy.refused(Status::Unsupported, &["'quantization'", "MLX"]);
}

/// Four bits stay four bits, if their groups are whole blocks.
#[test]
fn memory_is_that_of_the_type() {
    let bytes = |folder| {
        let copy = Copy::of(folder);
        // The header stays mapped.
        let header = *copy.read("model.safetensors").first_chunk().unwrap();
        copy.load().unwrap().model.facts().weight_bytes - u64::from_le_bytes(header)
    };
    let (least, blocks) = (bytes("gptq"), (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64) / 32);
    for (folder, block) in [("int4-order", 34), ("gptq-zeros", 20), ("awq", 20), ("int8-channel", 34)] {
        assert_eq!(bytes(folder) - least, blocks * (block - 18), "{folder}");
    }
}

#[test]
fn ranges_of_activations_are_reported_and_not_used() {
    let warnings = |folder: &str| {
        let copy = Copy::of(folder);
        let said = std::sync::Mutex::new(Vec::new());
        let source = Source::parse(Some(&copy.path())).unwrap();
        let log = |_: u32, message: &str| said.lock().unwrap().push(message.to_owned());
        load(&source, &LoadOptions::default(), &Pool::new(1).unwrap(), &log, &mut |_, _| false).unwrap();
        let said = said.into_inner().unwrap();
        said.iter().filter(|message| message.contains("ranges of activations")).count()
    };
    assert_eq!((warnings("fp8-tensor"), warnings("fp8-channel")), (1, 0));
}
