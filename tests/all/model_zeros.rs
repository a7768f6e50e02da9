//! Weights that are multiplied by zeros of ReLU² are not read, and nothing else changes.

use crate::common::{load_source, root};
use crate::engine_goldens::*;
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::model::{LoadOptions, Source};

fn loaded(
    skip_zeros: bool,
    max_weight_bytes: u64,
) -> Result<bn_engine::model::Loaded, bn_engine::base::Error> {
    let options = LoadOptions { skip_zeros, max_weight_bytes, ..LoadOptions::default() };
    load_source(&Source::Embedded, &options, 1).map(|model| model.loaded)
}

fn engine(skip_zeros: bool) -> Engine {
    let model = loaded(skip_zeros, 0).unwrap();
    let config = EngineConfig { model: Some(model), threads: 2, max_batch_size: 8, ..Default::default() };
    Engine::create(config).unwrap()
}

#[test]
fn a_copy_by_columns_changes_no_bits() {
    let engines = [false, true].map(engine);
    let prompts: Vec<_> = (0..5).map(|n| prompt(0, 5 + n, n)).collect();
    for count in 1..=prompts.len() {
        let [plain, copied] = engines.each_ref().map(|engine| {
            let ids = engine.submit(prompts[..count].iter().map(|ids| request(ids, 24)).collect()).unwrap();
            let answers = collect(engine, count);
            ids.iter().map(|id| outcome(&answers[id])).collect::<Vec<_>>()
        });
        assert_eq!(copied, plain, "{count} at once");
    }
    let [plain, copied] = engines.each_ref().map(|engine| engine.stats());
    assert!(plain.ffn_gates > plain.ffn_gates_shut && copied.ffn_gates > copied.ffn_gates_shut);
    assert!(plain.ffn_gates_shut > 0 && copied.ffn_gates_shut > 0);
}

#[test]
fn the_copy_counts_as_weights() {
    let bytes = |skip_zeros| loaded(skip_zeros, 0).unwrap().model.facts().weight_bytes;
    let [plain, copied] = [false, true].map(bytes);
    assert!(copied > plain);
    assert!(loaded(false, plain).is_ok());
    assert_eq!(loaded(true, plain).err().unwrap().status, Status::MemoryLimit);
}

#[test]
fn models_without_zeros_refuse_the_option() {
    let options = LoadOptions { skip_zeros: true, ..LoadOptions::default() };
    let golden = |name: &str| root().join("tests/golden/models").join(name).to_string_lossy().into_owned();
    for (source, why) in [
        (Source::File(golden("bitnet-silu-i2_s.gguf")), "ReLU²"),
        (Source::File(golden("qwen35")), "ReLU²"),
        (Source::parse(Some("builtin:echo")).unwrap(), "no weights"),
    ] {
        let refused = load_source(&source, &options, 1).err().unwrap();
        assert!(refused.status == Status::Unsupported && refused.message.contains(why), "{refused}");
    }
}
