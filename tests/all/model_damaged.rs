//! Every golden model with one key or one tensor changed: it is refused in a sentence that names the place, or it runs.
//! A family is covered as soon as it has a golden model.

use crate::common::gguf::{File, Tensor, Value};
use crate::common::{Running, SPARE_STATES, gguf_read, load_source, root};
use crate::folder_support::{Copy, file, parts};
use crate::model_bad_files::open;
use bn_engine::base::{Bytes, Error, Status};
use bn_engine::kernels::Pool;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Outputs, Source, load_tower};
use bn_engine::ops::{CpuOps, RaggedBatch, SeqRows, StateRows};
use bn_engine::picture::Pixels;
use serde_json::{Value as Json, json};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The golden models in files or in folders; those that differ only in their tensor types add nothing. Rerankers are
/// not in the index.
fn models(are_folders: bool) -> Vec<String> {
    let entries =
        std::fs::read_dir(root().join("tests/golden/models")).expect("models").map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries
        .filter(|entry| entry.path().is_dir() == are_folders)
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .filter(|name| are_folders || name.ends_with(".gguf") && !name.starts_with("type-"))
        .collect();
    names.sort();
    names
}

/// Two tokens in one step, and what a text's result needs after that. Returns whether the results are numbers.
fn run(model: &Running) -> Result<bool, Error> {
    let mut memory = model.memory(KvType::F32, 1, 16, 1);
    let facts = model.model.facts();
    let mut batch = RaggedBatch {
        tokens: vec![0, 1 % facts.vocab_size as u32],
        positions: vec![0, 1],
        seqs: vec![SeqRows { row: 0, rows: 2, table: 0, table_len: 1 }],
        block_tables: vec![0],
        hidden_rows: vec![0, 1],
        ..RaggedBatch::default()
    };
    if facts.encodes {
        (batch.block_tables, batch.seqs[0].table_len) = (Vec::new(), 0);
    } else {
        batch.logits_rows = vec![1];
    }
    if model.has_states() {
        batch.states.push(StateRows { slot: SPARE_STATES as u32, ..StateRows::default() });
    }
    let mut out = Outputs::default();
    model.forward(&batch, &mut *memory, &mut out)?;
    let mut results = [&out.hidden[..], &out.logits].concat();
    for score in [false, true] {
        if !score || facts.scores.is_some() {
            let pooled = &out.hidden[..facts.hidden_size];
            results.extend(model.model.after_pooling(&*model.ops, score, pooled)?.unwrap_or_default());
        }
    }
    Ok(results.iter().all(|x| x.is_finite()))
}

/// Suffix of changes of weight bytes, not all of which are checked.
const WEIGHTS: &str = "of other bytes";

/// Collects what went wrong, so that one run shows all of it.
#[derive(Default)]
struct Findings {
    bad: Vec<String>,
    ran: usize,
    refused: usize,
}

impl Findings {
    /// `load` must refuse its files in a sentence that names one of `places`, or give what runs and whether its
    /// results are numbers.
    fn check(&mut self, what: &str, places: &[&str], load: impl FnOnce() -> Attempt) {
        let result = catch_unwind(AssertUnwindSafe(load));
        let error = match result {
            Err(_) => return self.bad.push(format!("{what}: panicked")),
            Ok(Ok(Ok(false))) if !what.ends_with(WEIGHTS) => {
                return self.bad.push(format!("{what}: has results that are no numbers"));
            }
            Ok(Ok(Ok(_))) => return self.ran += 1,
            // A model that is too long or large for this step counts as one that runs.
            Ok(Ok(Err(error))) if error.status == Status::InvalidArgument => return self.ran += 1,
            Ok(Ok(Err(error))) => return self.bad.push(format!("{what}: was taken, and then: {error}")),
            Ok(Err(error)) => error,
        };
        self.refused += 1;
        let named = places.iter().any(|place| error.message.contains(place));
        let kind = matches!(error.status, Status::BadModel | Status::Unsupported | Status::OutOfMemory);
        if !named || !kind || error.message.len() > 2000 {
            self.bad.push(format!("{what}: {:?}: {error}", error.status));
        }
    }

    fn end(self) {
        assert!(self.bad.is_empty(), "{} findings:\n{}", self.bad.len(), self.bad.join("\n"));
        assert!(self.ran > 20 && self.refused > 20, "{} ran, {} were refused", self.ran, self.refused);
    }
}

/// Values to put in place of a key's own.
fn others(value: &Value) -> Vec<Value> {
    let mut others = vec![
        Value::U32(0),
        Value::U32(3),
        Value::U32(u32::MAX),
        Value::F32(0.0),
        Value::F32(f32::NAN),
        Value::F32(-1.0),
        Value::F32(f32::MAX),
        Value::Bool(true),
        Value::Bool(false),
        Value::Str("odd".into()),
        Value::Raw(5, (-1i32).to_le_bytes().to_vec()),
        Value::Raw(10, u64::MAX.to_le_bytes().to_vec()),
        Value::I32s(vec![]),
        Value::I32s(vec![-1]),
        Value::I32s(vec![i32::MAX; 5]),
        Value::Bools(vec![true]),
        Value::Strs(vec!["odd".into()]),
    ];
    // An array without its last element.
    if let Value::Raw(9, raw) = value
        && let Ok(kind @ 4..=6) = raw[..4].try_into().map(u32::from_le_bytes)
        && raw.len() > 12
    {
        let n = (raw.len() as u64 - 12) / 4 - 1;
        let short = [&kind.to_le_bytes()[..], &n.to_le_bytes(), &raw[12..raw.len() - 4]].concat();
        others.push(Value::Raw(9, short));
    }
    others
}

type Change = (&'static str, fn(&mut Tensor));

/// Changes of a tensor, with their names. All but the last keep the number of elements.
const CHANGES: [Change; 8] = [
    ("with another name", |t| t.name.push_str("_odd")),
    ("in one row", |t| t.dims = vec![t.dims.iter().product()]),
    ("in rows of one", |t| t.dims = vec![1, t.dims.iter().product()]),
    ("turned", |t| t.dims.reverse()),
    ("in three dimensions", |t| t.dims = vec![t.dims[0], 1, t.dims[1..].iter().product()]),
    ("in half as wide rows", |t| {
        let rest: u64 = t.dims[1..].iter().product();
        if t.dims[0].is_multiple_of(2) {
            t.dims = vec![t.dims[0] / 2, rest * 2];
        }
    }),
    ("of IQ1_S", |t| t.type_id = 19),
    ("with one row less", |t| *t.dims.last_mut().unwrap() -= 1),
];

type Attempt = Result<Result<bool, Error>, Error>;

fn damage_file(path: &str, findings: &mut Findings, load: &dyn Fn(Vec<u8>) -> Attempt) {
    let file = gguf_read::read(&std::fs::read(root().join(path)).expect(path));
    let mut check = |what: String, places: &[&str], file: File| {
        findings.check(&format!("{path}: {what}"), places, || load(file.bytes()));
    };
    check("as it is".into(), &["never"], file.clone());
    for (key, value) in &file.keys {
        // A tensor may show that the key is wrong.
        let bare = key.split_once('.').map_or(&**key, |(_, bare)| bare);
        let places = [bare, "test file"];
        check(format!("without {key}"), &places, file.clone().without_key(key));
        for (at, other) in others(value).into_iter().enumerate() {
            check(format!("{key} as other {at}"), &places, file.clone().set(key, other));
        }
    }
    for tensor in &file.tensors {
        let name = &*tensor.name;
        let places = [name, "test file"];
        check(format!("without {name}"), &places, file.clone().without(name));
        for (how, change) in CHANGES {
            check(format!("{name} {how}"), &places, file.clone().change(name, change));
        }
        let floats = |t: &mut Tensor| t.data.iter_mut().for_each(|byte| *byte = 0xff);
        check(format!("{name} {WEIGHTS}"), &places, file.clone().change(name, floats));
    }
}

#[test]
fn gguf_files_with_one_change_are_refused_or_run() {
    let mut findings = Findings::default();
    let load = |bytes: Vec<u8>| open(bytes).map(|model| run(&model));
    models(false)
        .iter()
        .for_each(|name| damage_file(&format!("tests/golden/models/{name}"), &mut findings, &load));
    findings.end();
}

/// The vectors of a small picture. Returns whether they are numbers.
fn look(source: &Source) -> Attempt {
    let pool = Pool::new(1)?;
    let Some(tower) = load_tower(source, 0, &pool, &|_, _| (), &mut |_, _| false)? else {
        return Ok(Ok(true));
    };
    let seen = || {
        let (processor, mut rows, mut vectors) = (tower.processor(), Vec::new(), Vec::new());
        let plan = processor.plan(12, 10)?;
        if plan.patches() > 256 {
            return Err(Error::invalid("a picture of that size takes long"));
        }
        processor.prepare(&Pixels::new(12, 10, vec![99; 360])?, &plan, &mut rows)?;
        let given = [(&rows[..], &plan.grids[..])];
        tower.forward(&CpuOps::new(pool), &given, &mut || false, &mut vectors)?;
        assert_eq!(vectors.len(), plan.vectors() * tower.width());
        Ok(vectors.iter().all(|x| x.is_finite()))
    };
    Ok(seen())
}

/// The golden towers in files or in folders.
fn towers(are_folders: bool) -> Vec<String> {
    let entries = std::fs::read_dir(root().join("tests/golden/towers")).expect("towers");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let of_kind = paths
        .filter(|path| if are_folders { path.is_dir() } else { path.extension() == Some("gguf".as_ref()) });
    let mut names: Vec<_> =
        of_kind.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn mmproj_files_with_one_change_are_refused_or_see() {
    let mut findings = Findings::default();
    let load = |bytes| look(&Source::Memory { bytes: Bytes::new(bytes), what: "test file".into() });
    for name in towers(false) {
        damage_file(&format!("tests/golden/towers/{name}"), &mut findings, &load);
    }
    findings.end();
}

/// Values to put in place of a configuration's own.
fn odd_values() -> Vec<Json> {
    let long: Vec<u32> = (0..40).collect();
    vec![
        json!(null),
        json!(0),
        json!(3),
        json!(-1),
        json!(0.5),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e300),
        json!(true),
        json!("odd"),
        json!([]),
        json!(["odd"]),
        json!(long),
        json!({"odd": 1}),
    ]
}

/// The JSON pointers of all values, but of lists only the first elements.
fn pointers(json: &Json, at: String, found: &mut Vec<String>) {
    match json {
        Json::Object(map) => map.iter().for_each(|(key, value)| {
            pointers(value, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
        }),
        Json::Array(list) => {
            (0..list.len().min(2)).for_each(|n| pointers(&list[n], format!("{at}/{n}"), found));
        }
        _ => {}
    }
    if !at.is_empty() {
        found.push(at);
    }
}

/// On one thread, because its pool is made faster.
fn load(copy: &Copy) -> Attempt {
    load_source(&Source::File(copy.path()), &LoadOptions::default(), 1).map(|model| run(&model))
}

/// Changes each value of a JSON file of the folder, or those within the value `within`.
fn damage_json(
    copy: &Copy,
    file: &str,
    within: &str,
    findings: &mut Findings,
    load: &dyn Fn(&Copy) -> Attempt,
) {
    let original = copy.read(file);
    let json: Json = serde_json::from_slice(&original).unwrap();
    let (mut all, path) = (Vec::new(), copy.path());
    pointers(&json, String::new(), &mut all);
    all.retain(|pointer| pointer.starts_with(within));
    for pointer in &all {
        let (holder, key) = pointer.rsplit_once('/').unwrap();
        let mut check = |how: String, changed: Json| {
            copy.put(file, changed.to_string());
            findings.check(&format!("{path}: {file}: {pointer} {how}"), &[&path], || load(copy));
        };
        let mut without = json.clone();
        if let Some(Json::Object(map)) = without.pointer_mut(holder) {
            map.remove(&key.replace("~1", "/").replace("~0", "~"));
            check("is missing".into(), without);
        }
        for odd in odd_values() {
            let mut changed = json.clone();
            *changed.pointer_mut(pointer).unwrap() = odd.clone();
            check(format!("is {odd}"), changed);
        }
    }
    copy.put(file, &original);
}

type Entry = (&'static str, fn(&mut Json));

/// Changes of a tensor's entry in the header of its file.
const ENTRIES: [Entry; 7] = [
    ("in one row", |t| t["shape"] = json!([shape(t).iter().product::<u64>()])),
    ("turned", |t| t["shape"] = json!(shape(t).into_iter().rev().collect::<Vec<_>>())),
    ("in more dimensions", |t| t["shape"] = json!([&[1], &shape(t)[..]].concat())),
    ("without dimensions", |t| t["shape"] = json!([])),
    ("of bytes", |t| (t["dtype"], t["shape"]) = (json!("U8"), json!([bytes(t)]))),
    ("of integers", |t| (t["dtype"], t["shape"]) = (json!("I32"), json!([bytes(t) / 4]))),
    ("of another type", |t| t["dtype"] = json!("F64")),
];

fn shape(entry: &Json) -> Vec<u64> {
    entry["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

fn bytes(entry: &Json) -> u64 {
    entry["data_offsets"][1].as_u64().unwrap() - entry["data_offsets"][0].as_u64().unwrap()
}

/// Changes each tensor of the folder that is one of those.
fn damage_tensors(
    copy: &Copy,
    of: impl Fn(&str) -> bool,
    findings: &mut Findings,
    load: &dyn Fn(&Copy) -> Attempt,
) {
    const FILE: &str = "model.safetensors";
    let (original, path) = (copy.read(FILE), copy.path());
    let (header, data) = parts(&original);
    for tensor in header.as_object().unwrap().keys().filter(|key| *key != "__metadata__" && of(key)) {
        let mut check = |how: &str, header: &Json, data: &[u8]| {
            copy.put(FILE, file(header, data));
            findings.check(&format!("{path}: {tensor} {how}"), &[&path], || load(copy));
        };
        for (how, change) in ENTRIES {
            let mut changed = header.clone();
            change(&mut changed[tensor]);
            check(how, &changed, &data);
        }
        let mut renamed = header.clone();
        let entry = renamed.as_object_mut().unwrap().remove(tensor).unwrap();
        renamed[format!("{tensor}_odd")] = entry;
        check("with another name", &renamed, &data);
        let place = |n: usize| header[tensor]["data_offsets"][n].as_u64().unwrap() as usize;
        for byte in [0, 0xff] {
            let mut data = data.clone();
            data[place(0)..place(1)].fill(byte);
            check(&format!("of {byte}s, {WEIGHTS}"), &header, &data);
        }
    }
    copy.put(FILE, &original);
}

/// The first folder of each kind of model, and all with quantized weights: the others differ in values alone.
fn folders() -> Vec<String> {
    let mut kinds = std::collections::HashSet::new();
    let is_new = |name: &String| {
        let config: Json = serde_json::from_slice(&Copy::of(name).read("config.json")).unwrap();
        let kind = format!("{} {}", config["model_type"], config["architectures"]);
        kinds.insert(kind) || config["quantization_config"].is_object()
    };
    models(true).into_iter().filter(is_new).collect()
}

/// Each second folder, from `first` on, so that two threads share them.
fn damage_folders(first: usize) {
    let mut findings = Findings::default();
    for name in folders().iter().skip(first).step_by(2) {
        let copy = Copy::whole(name);
        for file in ["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json"] {
            if copy.0.join(file).is_file() {
                damage_json(&copy, file, "", &mut findings, &load);
            }
        }
        if copy.0.join("model.safetensors").is_file() {
            damage_tensors(&copy, |_| true, &mut findings, &load);
        }
    }
    findings.end();
}

#[test]
fn folders_with_one_change_are_refused_or_run() {
    damage_folders(0);
}

#[test]
fn further_folders_with_one_change_are_refused_or_run() {
    damage_folders(1);
}

#[test]
fn folders_of_towers_with_one_change_are_refused_or_see() {
    let (mut findings, load) = (Findings::default(), |copy: &Copy| look(&Source::File(copy.path())));
    for name in towers(true) {
        let copy = Copy::of_folder("towers", &name);
        damage_json(&copy, "config.json", "/vision_config", &mut findings, &load);
        for file in ["preprocessor_config.json", "processor_config.json"] {
            if copy.0.join(file).is_file() {
                damage_json(&copy, file, "", &mut findings, &load);
            }
        }
        let text = ["lm_head.", "model.language_model.", "language_model.", "model.text_model."];
        damage_tensors(&copy, |tensor| !text.iter().any(|of| tensor.starts_with(of)), &mut findings, &load);
    }
    findings.end();
}
