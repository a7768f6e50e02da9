//! What hybrid models have beside their recurrent layers: gates of attention, rotated weights. Their layers of attention
//! alone are a model too.

use super::*;
use crate::common::gguf::{F32, File, Tensor, Value};
use crate::common::gguf_read::read;
use crate::common::load_source;
use crate::model_rotations::{ALL, Shape, model};
use bn_engine::base::Bytes;
use bn_engine::model::{LoadOptions, Source, WeightType};

const BF16: u32 = 30;

/// A golden model with these layers alone, and its weights in F32 if `wide`.
fn layers(name: &str, kept: &[usize], wide: bool) -> File {
    let file = read(&std::fs::read(root().join(format!("tests/golden/models/{name}.gguf"))).unwrap());
    let architecture = file.keys.iter().find(|(key, _)| key == "general.architecture");
    let Some((_, Value::Str(architecture))) = architecture else { panic!("{name} without an architecture") };
    let key = |key: &str| format!("{architecture}.{key}");
    let (layer, interval) = (key("block_count"), key("full_attention_interval"));
    let mut all = File { tensors: Vec::new(), ..file.clone() }.u32(&layer, kept.len() as u32);
    if file.keys.iter().any(|(key, _)| *key == interval) {
        all = all.u32(&interval, 1).without_key(&key("attention.recurrent_layers"));
    }
    for tensor in &file.tensors {
        let Some((old, part)) = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            all.tensors.push(widened(tensor, wide));
            continue;
        };
        for new in (0..kept.len()).filter(|new| kept[*new].to_string() == old) {
            all.tensors.push(Tensor { name: format!("blk.{new}.{part}"), ..widened(tensor, wide) });
        }
    }
    all
}

fn widened(tensor: &Tensor, wide: bool) -> Tensor {
    let mut tensor = tensor.clone();
    let elements: u64 = tensor.dims.iter().product();
    tensor.data.truncate(elements as usize * if tensor.type_id == BF16 { 2 } else { 4 });
    if wide && tensor.type_id == BF16 {
        tensor.data = tensor.data.chunks_exact(2).flat_map(|bits| [0, 0, bits[0], bits[1]]).collect();
        tensor.type_id = F32;
    }
    tensor
}

/// Says that all products of layers are rotated, whatever their weights are, by blocks of 8 with signs.
fn rotated(file: File, widths: &[i32]) -> File {
    let product = |tensor: &&Tensor| {
        let part = tensor.name.trim_end_matches(".weight").rsplit('.').next().unwrap();
        tensor.dims.len() > 1 && part.starts_with(['a', 'f']) && !part.contains("_inp")
    };
    let names = file.tensors.iter().filter(product).map(|tensor| tensor.name.clone()).collect();
    let signs = (0..widths.iter().sum()).map(|n: i32| if n % 3 == 0 { -1 } else { 1 }).collect();
    let key = |k: &str| format!("prism.hadamard.{k}");
    file.u32(&key("version"), 1)
        .u32(&key("block_size"), 8)
        .str(&key("transform"), "normalized-sylvester-walsh-hadamard")
        .str(&key("axis"), "input-last-dimension")
        .str(&key("sign_mode"), "explicit")
        .set(&key("sign_widths"), Value::I32s(widths.to_vec()))
        .set(&key("sign_values"), Value::I32s(signs))
        .set(&key("weight_names"), Value::Strs(names))
}

fn opened(file: &File, weights: WeightType) -> [Running; 2] {
    let source = Source::Memory { bytes: Bytes::new(file.bytes()), what: "test file".into() };
    let cpu = load_source(&source, &LoadOptions { weights, ..LoadOptions::default() }, 2).unwrap();
    let device = on_device(&cpu);
    hold(&device).unwrap();
    [cpu, device]
}

fn sequences() -> Vec<Vec<u32>> {
    (0..3).map(|s| (0..14 + 9 * s).map(|i| (7 * i + 3 * s) % 48).collect()).collect()
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn gates_and_rotations_have_the_cpus_bits() {
    let _driver = Emulated::new();
    let bits = |what: &str, file: &File, weights| {
        let ([cpu, device], all) = (opened(file, weights), sequences());
        let wrong = difference(&run(&device, &all, KvType::F32, 11), &run(&cpu, &all, KvType::F32, 11));
        assert!(wrong.is_none(), "{what}: {wrong:?}");
    };
    // A gate of each element.
    let qwen35 = layers("qwen35", &[1, 3], true);
    bits("qwen35", &qwen35, WeightType::Keep);
    bits("qwen35, rotated", &rotated(qwen35, &[48, 96]), WeightType::Keep);
    // A gate of each head, and a window.
    let lfm3 = layers("lfm3", &[1, 3], true)
        .u32("lfm3.attention.head_count_kv", 2)
        .set("lfm3.attention.sliding_window_pattern", Value::Bools(vec![false, true]));
    bits("lfm3", &lfm3, WeightType::Keep);
    // The table is rotated too, and also the head. Int8 rows have a rotation of their own after it.
    for (hidden, ffn, block, weights) in [
        (512, 1024, 64, WeightType::Keep),
        (512, 1024, 512, WeightType::Q8_0),
        (512, 256, 256, WeightType::Int8),
    ] {
        let file = model(&Shape { hidden, ffn, folded: ALL }, Some(block));
        bits(&format!("blocks of {block}, {weights:?}"), &file, weights);
    }
}

/// Routers see rows as they are.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn experts_with_rotated_weights_have_the_same_answers() {
    let _driver = Emulated::new();
    let plain = layers("qwen35moe", &[3, 3], false);
    for file in [plain.clone(), rotated(plain, &[32, 40, 56, 64])] {
        let [cpu, device] = opened(&file, WeightType::Keep);
        let wrong = compare_nearly(&cpu, &device, &sequences(), KvType::F32);
        assert!(wrong.is_none(), "{wrong:?}");
    }
}
