//! docs/parity.md: the distance of our numbers from each reference's, by architecture and format.

use super::parity::{agreement, embedding_error};
use super::{
    Embeddings, Golden, Session, alone, argmax, index_case, load_file, load_source, relative_error, root,
};
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Source, WeightType};
use std::fmt::Write;

const HEAD: &str = "# Parity

Written by `make parity` from the references in `tests/golden/models`, which `tools/golden` makes. `cargo test --test
all model_parity::` checks each limit, alone and in ragged batches, which give the same bits. Errors are ‖ours −
reference‖ / ‖reference‖ over the logits of all positions (for embeddings, over the vectors). Argmax counts the
positions with the same best token.
";

const EXACT: &str = "
## Against transformers, f32 on the CPU

Ternary models compute with int8 activations on both sides. GGUF types, and folders that other tools have quantized, are
compared with a model that has the dequantized weights of the file. Products with quantized weights (Q1_0 to Q8_0) round
activations to int8 in blocks of 32 or 256 columns. The reference does not, so their limit is llama.cpp's own distance
from that reference, times 1.05, and three times the limit of f32; for folders it is the distance of a model in torch
that rounds as we do. Small models with random weights show rounding more than real ones do.

| model | architecture | format | what it covers | error | limit | argmax |
|---|---|---|---|---|---|---|
";

const THEIRS: &str = "
## Against llama.cpp on the same file

llama.cpp rounds activations to 8 bits for its quantized products (to f16 for F16 and BF16). Its distance from the exact
result is its noise. Where our activations stay f32 (F16, BF16), the limit is slightly more than that noise. Where they
are int8 in the same blocks, but with scales in f32, it is 0.7 times that noise (0.85 in bonsai-*).

| model | format | error | llama.cpp's noise | limit | argmax |
|---|---|---|---|---|---|
";

const REQUANTIZED: &str = "
## Weights that become another type at load, against transformers

These are the errors of logits when projections and head become that type (`weight_type`, `head_type`), for models with
random weights. Q8_0 and Q4_0 round activations to int8 with one scale per 32 columns. Int8 has one scale per token,
whose columns are rotated first (`docs/quantization.md` has the cost in real models). The limit of int8 is 1.5 times the
error of Q8_0 (`weights_become_int8_and_stay_close`).

| model | Q8_0 | Q4_0 | int8 | argmax Q8_0 | Q4_0 | int8 |
|---|---|---|---|---|---|---|
";

/// Models of several architectures, in floats.
const FLOATS: [&str; 6] = ["gemma3", "llama-bf16", "llama-f32", "llama-mqa", "mistral-window", "qwen2"];

const KEPT: &str = "
## Keys and values that are kept in another type, against F32

These are the errors of logits with K and V in that type (`kv_type`), and the numbers of positions that keep the best
token. BitNet's activations are rounded to int8 after attention, so a change of one by a step is visible. Real models
have larger heads and outliers, which the rotation before int8 and int4 spreads.

| model | F16 | int8 | int4 | argmax F16 | int8 | int4 |
|---|---|---|---|---|---|---|
";

/// The logits of all sequences, with K and V in `kind`.
fn logits_with(golden: &Golden, kind: KvType) -> Vec<f32> {
    let loaded = load_file(&golden.model, 2).unwrap_or_else(|e| panic!("{}: {e}", golden.case));
    let run = |sequence: &Vec<u32>| {
        let one = [sequence.clone()];
        let mut session = Session::with_kv(&loaded, &one, kind, 16, 1);
        session.step(&[(0, sequence.len())]);
        session.logits.remove(0)
    };
    golden.sequences.iter().flat_map(run).collect()
}

fn kept(golden: &Golden) -> String {
    let exact = logits_with(golden, KvType::F32);
    let results = [KvType::F16, KvType::Int8, KvType::Int4].map(|kind| {
        let ours = logits_with(golden, kind);
        let rows = ours.chunks_exact(golden.vocab).zip(exact.chunks_exact(golden.vocab));
        let same = rows.clone().filter(|(a, b)| argmax(a) == argmax(b)).count();
        (number(relative_error(&ours, &exact)), format!("{same}/{}", rows.len()))
    });
    let [[f16, int8, int4], [of_f16, of_int8, of_int4]] =
        [results.clone().map(|(error, _)| error), results.map(|(_, same)| same)];
    format!("| {} | {f16} | {int8} | {int4} | {of_f16} | {of_int8} | {of_int4} |\n", golden.case)
}

const POOLED: &str = "
## Embeddings, against transformers

| model | architecture | format | what it covers | error | limit |
|---|---|---|---|---|---|
";

fn field(case: &serde_json::Value, name: &str) -> String {
    case[name].as_str().unwrap_or_default().replace('|', "\\|")
}

fn number(x: f64) -> String {
    format!("{x:.1e}")
}

/// The first references have no entry in the index.
fn by_name(golden: &Golden, architecture: &str) -> serde_json::Value {
    let format = match golden.case.rsplit_once('-') {
        Some((_, "tied" | "mha")) => "gguf-f16".into(),
        Some((_, kind)) => format!("gguf-{kind}"),
        None => "gguf-i2_s".into(),
    };
    serde_json::json!({ "arch": architecture, "format": format, "reference": "", "covers": golden.source })
}

fn requantized(golden: &Golden) -> String {
    let results = [WeightType::Q8_0, WeightType::Q4_0, WeightType::Int8].map(|ty| {
        let options = LoadOptions { weights: ty, head: ty, ..LoadOptions::default() };
        let path = root().join(&golden.model).to_string_lossy().into_owned();
        let loaded = load_source(&Source::File(path), &options, 2).unwrap_or_else(|e| panic!("{ty:?}: {e}"));
        agreement(golden, &alone(&loaded, &golden.sequences, 16))
    });
    let [q8, q4, int8] = results.map(|(error, ..)| number(error));
    let [of_q8, of_q4, of_int8] = results.map(|(_, same, rows)| format!("{same}/{rows}"));
    format!("| {} | {q8} | {q4} | {int8} | {of_q8} | {of_q4} | {of_int8} |\n", golden.case)
}

pub fn write(logits: &[Golden], embeddings: &[Embeddings]) -> String {
    let (mut exact, mut theirs, mut pooled) = (EXACT.to_owned(), THEIRS.to_owned(), POOLED.to_owned());
    for golden in logits {
        let loaded = load_file(&golden.model, 2).unwrap_or_else(|e| panic!("{}: {e}", golden.case));
        let case =
            index_case(&golden.case).unwrap_or_else(|| by_name(golden, &loaded.model.facts().architecture));
        let ours = alone(&loaded, &golden.sequences, 16);
        let (error, same, rows) = agreement(golden, &ours);
        let (name, format) = (&golden.case, field(&case, "format"));
        let (error, limit, argmax) = (number(error), number(golden.tolerance), format!("{same}/{rows}"));
        match field(&case, "reference").as_str() {
            "llama.cpp" => {
                let noise = case["noise"]["activations"].as_f64().map_or(String::new(), number);
                writeln!(theirs, "| {name} | {format} | {error} | {noise} | {limit} | {argmax} |")
            }
            _ => {
                let (arch, covers) = (field(&case, "arch"), field(&case, "covers"));
                writeln!(exact, "| {name} | {arch} | {format} | {covers} | {error} | {limit} | {argmax} |")
            }
        }
        .expect("text");
    }
    let floats = logits.iter().filter(|golden| FLOATS.contains(&golden.case.as_str()));
    let kept: String =
        logits.iter().filter(|golden| golden.case == "demo").chain(floats.clone()).map(kept).collect();
    let requantized: String = floats.map(requantized).collect();
    for golden in embeddings {
        let case = index_case(&golden.case).expect("a case");
        let (arch, format, covers) = (field(&case, "arch"), field(&case, "format"), field(&case, "covers"));
        let (error, limit) = (number(embedding_error(golden)), number(golden.tolerance));
        let name = &golden.case;
        writeln!(pooled, "| {name} | {arch} | {format} | {covers} | {error} | {limit} |").expect("text");
    }
    format!("{HEAD}{exact}{theirs}{REQUANTIZED}{requantized}{KEPT}{kept}{pooled}")
}
