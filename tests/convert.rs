//! bn-convert: a folder and the file made of it say the same.

mod common;

use bn_engine::base::Error;
use bn_engine::formats::gguf::Gguf;
use bn_engine::kernels::{DType, Pool};
use bn_engine::model::{Checkpoint, ExportTypes, HfFolder, export};
use common::{Golden, alone, argmax, bits, load_file, relative_error, root};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bn-convert-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left lies in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const KEEP: ExportTypes = ExportTypes { ternary: DType::I2S, weights: None, embedding: None };

fn converted(folder: &str, types: ExportTypes, out: &Path) -> Result<(), Error> {
    let files = HfFolder::open(&root().join(folder).to_string_lossy())?;
    let pool = Pool::new(2)?;
    export(&files, types, Vec::new(), &pool, out, &mut |_| ())
}

/// Logits of every token of all sequences.
fn logits(path: &str, golden: &Golden) -> Vec<Vec<f32>> {
    let mut loaded = load_file(path, 1).unwrap_or_else(|e| panic!("{path}: {e}"));
    alone(&mut *loaded.model, &golden.sequences, 16)
}

#[test]
fn every_folder_becomes_a_file_that_computes_the_same() {
    let scratch = Scratch::new("all");
    let (mut same, mut near) = (0, 0);
    for golden in Golden::models(|format| format.starts_with("hf-")) {
        let out = scratch.file("model.gguf");
        match converted(&golden.model, KEEP, &out) {
            // The narrowest models of the set, and one whose projections' norms have an eps of their own.
            Err(error) if error.message.contains("too few for I2_S") => continue,
            Err(error) if error.message.contains("no key in GGUF") => continue,
            result => result.unwrap_or_else(|e| panic!("{}: {e}", golden.case)),
        }
        let (folder, file) = (logits(&golden.model, &golden), logits(&out.to_string_lossy(), &golden));
        // Rows of q and k that change places give the same products, added up in another order.
        let turned = Gguf::open(&out.to_string_lossy()).unwrap().get::<&str>("general.architecture").unwrap()
            == "llama";
        if turned {
            let error = relative_error(&file.concat(), &folder.concat());
            assert!(error < 1e-5, "{}: {error:.1e}", golden.case);
            near += 1;
        } else {
            assert!(bits(&file) == bits(&folder), "{}: the file computes something else", golden.case);
            same += 1;
        }
    }
    assert!(same >= 5 && near >= 12, "{same} the same, {near} near");
}

#[test]
fn weights_take_the_types_asked_for() {
    let scratch = Scratch::new("types");
    let golden = Golden::models(|_| true).into_iter().find(|g| g.case == "llama-f32").expect("llama-f32");
    let out = scratch.file("q8_0.gguf");
    let types = ExportTypes { weights: Some(DType::Q8_0), embedding: Some(DType::Q8_0), ..KEEP };
    converted(&golden.model, types, &out).unwrap();
    let gguf = Gguf::open(&out.to_string_lossy()).unwrap();
    for name in ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"] {
        assert_eq!(gguf.tensor(name).unwrap().type_id, DType::Q8_0 as u32, "{name}");
    }
    let error = relative_error(&logits(&out.to_string_lossy(), &golden).concat(), &golden.logits);
    assert!((1e-4..0.1).contains(&error), "{error:.1e}");
}

#[test]
fn ternary_weights_in_tq2_0_keep_their_answers() {
    let scratch = Scratch::new("tq2_0");
    let golden = Golden::models(|_| true).into_iter().find(|g| g.case == "bitnet-offline").expect("a case");
    let out = scratch.file("tq2_0.gguf");
    let types = ExportTypes { ternary: DType::TQ2_0, ..KEEP };
    match converted(&golden.model, types, &out) {
        // TQ2_0 stores multiples of 256.
        Err(error) => assert!(error.message.contains("TQ2_0"), "{error}"),
        Ok(()) => {
            let ours = logits(&out.to_string_lossy(), &golden).concat();
            let theirs = golden.logits.chunks_exact(golden.vocab);
            let same = ours.chunks_exact(golden.vocab).zip(theirs).filter(|(a, b)| argmax(a) == argmax(b));
            assert!(same.count() * 100 >= 99 * golden.logits.len() / golden.vocab);
        }
    }
}

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bn-convert")).args(args).output().expect("bn-convert runs")
}

#[test]
fn the_program_converts_and_says_what_is_wrong() {
    let scratch = Scratch::new("program");
    let folder = root().join("tests/golden/models/qwen3").to_string_lossy().into_owned();
    let out = scratch.file("qwen3.gguf").to_string_lossy().into_owned();
    let done = program(&[&folder, &out]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(Gguf::open(&out).unwrap().config(&|_| ()).unwrap().architecture, "qwen3");
    for (args, words) in [
        (vec!["/nowhere", &out], "/nowhere"),
        (vec![folder.as_str()], "usage"),
        (vec![&folder, &out, "--ternary", "q9"], "q9"),
        (vec![&folder, &out, "--quick"], "--quick"),
        (vec![&folder, "/nowhere/out.gguf"], "/nowhere/out.gguf"),
    ] {
        let failed = program(&args);
        let stderr = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(failed.status.code() == Some(1) && stderr.contains(words), "{args:?}: {stderr}");
    }
}
