//! Mixtures of experts in an engine, whose decode steps are graphs although each row chooses experts of its own.

use super::*;
use crate::engine_goldens::{engine as golden, outcome, prompt, request};
use bn_engine::model::{ExportTypes, HfFolder, export};
use std::path::{Path, PathBuf};

const FOLDER: &str = "tests/golden/models/int4-moe";

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the rest stays in the system's folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes the folder with routers and the embedding in F32 instead of BF16, so that all results have the CPU's bits.
fn in_f32(to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(root().join(FOLDER)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    let path = to.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, from) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let (mut header, mut data): (serde_json::Value, _) =
        (serde_json::from_slice(header).unwrap(), Vec::new());
    for (name, tensor) in
        header.as_object_mut().unwrap().iter_mut().filter(|(name, _)| *name != "__metadata__")
    {
        let at = |n: usize| tensor["data_offsets"][n].as_u64().unwrap() as usize;
        let (own, start) = (&from[at(0)..at(1)], data.len());
        if name.ends_with("mlp.gate.weight") || name.contains("embed_tokens") {
            assert_eq!(tensor["dtype"], "BF16", "{name}");
            own.chunks_exact(2).for_each(|bits| data.extend([0, 0, bits[0], bits[1]]));
            tensor["dtype"] = "F32".into();
        } else {
            data.extend_from_slice(own);
        }
        tensor["data_offsets"] = vec![start, data.len()].into();
    }
    let header = serde_json::to_vec(&header).unwrap();
    let all = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(path, all).unwrap();
}

fn on(model: &str, device: &str, batch: u32) -> Engine {
    golden(model, |config| {
        (config.device, config.max_batch_size, config.max_batch_tokens) = (device.into(), batch, 24);
        config.threads = 1;
    })
}

/// With block types, a mixture has the CPU's bits; in BF16, a row has the bits that it has alone.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn rows_choose_their_experts_in_graphs() {
    let driver = Emulated::new();
    let graphs = || if driver.is_emulated() { driver.launches()[1] } else { 0 };
    let scratch = Scratch(std::env::temp_dir().join(format!("bn-experts-{}", std::process::id())));
    let (folder, file) = (scratch.0.join("folder"), scratch.0.join("q8_0.gguf"));
    in_f32(&folder);
    let types = ExportTypes { ternary: None, weights: Some(DType::Q8_0), embedding: None };
    let files = HfFolder::open(&folder.to_string_lossy()).unwrap();
    export(&files, types, Vec::new(), &Pool::new(2).unwrap(), &file, &mut |_, _| ()).unwrap();
    let [folder, file] = [folder, file].map(|path| path.to_string_lossy().into_owned());
    let halves = "tests/golden/models/granitemoeshared".to_owned();
    for (model, like) in [(folder, "cpu"), (file, "cpu"), (halves, "cuda:0")] {
        let prompts: Vec<_> = (0..5).map(|n| prompt(0, 5 + 9 * n, n)).collect();
        let alone = on(&model, like, 1);
        let want: Vec<_> = prompts.iter().map(|ids| outcome(&ask(&alone, request(ids, 12)))).collect();
        let (engine, before) = (on(&model, "cuda:0", 8), graphs());
        let ids = engine.submit(prompts.iter().map(|ids| request(ids, 12)).collect()).unwrap();
        let answers = collect(&engine, prompts.len());
        for (id, want) in ids.iter().zip(&want) {
            assert_eq!(outcome(&answers[id]), *want, "{model}");
        }
        assert!(!driver.is_emulated() || graphs() > before + 3, "{model}: {before}, {}", graphs());
    }
}
