//! Vision towers against transformers, against themselves in every batch, and with damaged files.

use crate::common::{json, relative_error, root};
use crate::folder_support::Copy;
use crate::plain_ops::PlainOps;
use bn_engine::base::{Bytes, Result, Status};
use bn_engine::kernels::{Pool, available};
use bn_engine::model::{Source, Tower, load_tower};
use bn_engine::ops::{CpuOps, OpSet};
use bn_engine::picture::{Grid, Normalize, Pixels};
use serde_json::{Value, json as object};

const TOWERS: &str = "tests/golden/towers";

/// A reference by transformers.
struct Case {
    name: String,
    path: String,
    pictures: Vec<Vec<Grid>>,
    tolerance: f64,
    values: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let index = json(&root().join(TOWERS).join("index.json"));
    let text = |case: &Value, key: &str| case[key].as_str().expect(key).to_owned();
    let grid = |grid: &Value| {
        let side = |at: usize| grid[at].as_u64().expect("a side") as u32;
        Grid { rows: side(0), cols: side(1) }
    };
    let all = index.as_array().expect("a list").iter().map(|case| {
        let values = std::fs::read(root().join(text(case, "values"))).expect("values");
        let pictures = case["pictures"].as_array().expect("pictures").iter();
        Case {
            name: text(case, "name"),
            path: text(case, "path"),
            pictures: pictures.map(|all| all.as_array().expect("grids").iter().map(grid).collect()).collect(),
            tolerance: case["tolerance"].as_f64().expect("a tolerance"),
            values: values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        }
    });
    all.collect()
}

/// Element `i` of all patches (tools/golden/towers.py).
fn element(i: u64) -> f32 {
    let mut x = (i * 2_654_435_761 + 12_345) & 0xffff_ffff;
    x ^= x >> 15;
    x = (x * 2_246_822_519) & 0xffff_ffff;
    x ^= x >> 13;
    (x as f64 / f64::from(1u32 << 31) - 1.0) as f32
}

/// The patches of pictures with these grids.
fn patches(tower: &Tower, pictures: &[Vec<Grid>]) -> Vec<Vec<f32>> {
    let mut next = 0;
    let count = |grids: &[Grid]| grids.iter().map(|grid| u64::from(grid.rows * grid.cols)).sum::<u64>();
    let picture = |grids: &Vec<Grid>| {
        let from = next;
        next += count(grids) * tower.patch_len() as u64;
        (from..next).map(element).collect()
    };
    pictures.iter().map(picture).collect()
}

fn open_source(source: &Source) -> Result<Tower> {
    let pool = Pool::new(1).expect("a pool");
    Ok(load_tower(source, 0, &pool, &|_, _| (), &mut |_, _| false)?.expect("a tower"))
}

fn open(path: &str) -> Tower {
    let source = Source::File(root().join(path).to_string_lossy().into_owned());
    open_source(&source).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn ops(threads: usize) -> CpuOps {
    CpuOps::new(Pool::new(threads).expect("a pool"))
}

fn forward(tower: &Tower, ops: &dyn OpSet, pictures: &[(&Vec<f32>, &Vec<Grid>)]) -> Result<Vec<f32>> {
    let pictures: Vec<_> = pictures.iter().map(|(patches, grids)| (&patches[..], &grids[..])).collect();
    let mut out = vec![7.0];
    tower.forward(ops, &pictures, &mut || false, &mut out)?;
    assert_eq!(out.remove(0), 7.0, "it appends");
    Ok(out)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn soft_tokens_are_those_of_transformers_in_any_batch() {
    for case in cases() {
        let tower = open(&case.path);
        let given = patches(&tower, &case.pictures);
        let all: Vec<_> = given.iter().zip(&case.pictures).collect();
        let together = forward(&tower, &ops(1), &all).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(together.len(), case.values.len(), "{}", case.name);
        let error = relative_error(&together, &case.values);
        println!("{}: {error:.1e}", case.name);
        assert!(error <= case.tolerance, "{}: relative error {error:.2e}", case.name);
        for threads in [1, 2] {
            let ops = ops(threads);
            let alone = all.iter().flat_map(|picture| forward(&tower, &ops, &[*picture]).expect("one"));
            assert!(bits(&alone.collect::<Vec<_>>()) == bits(&together), "{}, {threads} threads", case.name);
        }
    }
}

#[test]
fn plain_operations_agree() {
    for case in cases().into_iter().filter(|case| case.tolerance <= 1e-4) {
        let tower = open(&case.path);
        let given = patches(&tower, &case.pictures);
        let all: Vec<_> = given.iter().zip(&case.pictures).collect();
        let [ours, plain] =
            [&ops(2) as &dyn OpSet, &PlainOps].map(|ops| forward(&tower, ops, &all).expect("all"));
        let error = relative_error(&ours, &plain);
        assert!(error <= 1e-5, "{}: relative error {error:.2e}", case.name);
    }
}

/// A reference that no test reads would prove nothing.
#[test]
fn every_file_of_values_has_a_case() {
    let cases = cases();
    for entry in std::fs::read_dir(root().join(TOWERS)).expect("towers") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let stem = name.strip_suffix(".f32").or(name.strip_suffix(".gguf")).unwrap_or(&name);
        assert!(name == "index.json" || cases.iter().any(|case| case.name == stem), "{name} has no case");
    }
}

/// On each instruction set, and in steps between which another tower runs.
#[test]
fn a_picture_has_the_same_vectors_among_sixteen_others() {
    for (path, isas) in [("qwen35", available()), ("qwen35-wide-q8_0.gguf", &available()[..1])] {
        let tower = open(&format!("{TOWERS}/{path}"));
        let grid = |n: u32| Grid { rows: 2 + 2 * (n % 4), cols: 2 + 2 * (n / 4) };
        let pictures: Vec<_> = (0..17).map(|n| vec![grid(n)]).collect();
        let given = patches(&tower, &pictures);
        let all: Vec<_> = given.iter().zip(&pictures).collect();
        let parts: Vec<_> = all.iter().map(|(patches, grids)| (&patches[..], &grids[..])).collect();
        for isa in isas {
            let ops = CpuOps::with_isa(Pool::new(2).expect("a pool"), *isa).expect("instructions");
            let together = forward(&tower, &ops, &all).expect("all");
            let alone = all.iter().flat_map(|picture| forward(&tower, &ops, &[*picture]).expect("one"));
            assert!(bits(&alone.collect::<Vec<_>>()) == bits(&together), "{path}, {isa:?}");
            // Whole programs, and as few rows of each as can be.
            let programs = 3 * tower.facts().layers + 2;
            for (most, fewest) in [(u64::MAX, programs), (0, 3 * programs)] {
                let mut run = tower.begin(&parts).expect("a run");
                let mut steps = 0;
                while tower.advance(&mut run, &ops, most, &mut || false).expect("a step") > 0 {
                    forward(&tower, &ops, &all[3..4]).expect("another");
                    steps += 1;
                }
                assert!(steps >= fewest, "{steps} steps, and at least {fewest}");
                let mut out = Vec::new();
                tower.append(run, &mut out).expect("soft tokens");
                assert!(bits(&out) == bits(&together), "{path}, {isa:?}: in {steps} steps");
            }
        }
    }
}

#[test]
fn a_run_that_was_stopped_goes_on() {
    let tower = open(&format!("{TOWERS}/qwen35"));
    let (pictures, ops) = (vec![vec![Grid { rows: 4, cols: 6 }]], ops(1));
    let given = patches(&tower, &pictures);
    let all: Vec<_> = given.iter().zip(&pictures).collect();
    let whole = forward(&tower, &ops, &all).expect("all");
    let mut run = tower.begin(&[(&given[0], &pictures[0])]).expect("a run");
    let mut calls = 0;
    // Each step is stopped once.
    loop {
        let ended = tower.advance(&mut run, &ops, 0, &mut || true);
        let work = tower.advance(&mut run, &ops, 0, &mut || {
            calls += 1;
            false
        });
        if work.expect("a step") == 0 {
            assert_eq!(ended.expect("nothing to stop"), 0);
            break;
        }
        assert_eq!(ended.expect_err("it was stopped").status, Status::Cancelled);
    }
    assert!(calls > tower.facts().layers, "{calls}");
    let mut out = Vec::new();
    tower.append(run, &mut out).expect("soft tokens");
    assert_eq!(bits(&out), bits(&whole));
    let mut out = Vec::new();
    let error =
        tower.forward(&ops, &[(&given[0], &pictures[0])], &mut || true, &mut out).expect_err("stopped");
    assert_eq!((error.status, out.len()), (Status::Cancelled, 0));
}

#[test]
fn patches_that_do_not_fit_are_refused() {
    let tower = open(&format!("{TOWERS}/qwen35"));
    let ops = ops(1);
    let len = tower.patch_len();
    let refused = |patches: &[f32], grids: &[Grid], wanted: &str| {
        let error =
            tower.forward(&ops, &[(patches, grids)], &mut || false, &mut Vec::new()).expect_err(wanted);
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
        assert!(error.message.contains(wanted) && error.message.contains("picture 0"), "{error}");
    };
    let grid = |rows, cols| Grid { rows, cols };
    refused(&vec![0.0; 4 * len - 1], &[grid(2, 2)], "elements");
    refused(&vec![0.0; 6 * len], &[grid(2, 3)], "2 by 3 patches");
    refused(&[], &[], "elements");
    refused(&[], &[grid(0, 2)], "0 by 2 patches");
    refused(&[], &[grid(u32::MAX, u32::MAX)], "elements");
    let mut odd = vec![0.0; 4 * len];
    odd[5] = f32::NAN;
    refused(&odd, &[grid(2, 2)], "NaN");
    let mut out = Vec::new();
    tower.forward(&ops, &[], &mut || false, &mut out).expect("nothing");
    assert!(out.is_empty());
    let run = tower.begin(&[(&vec![0.0; 4 * len], &[grid(2, 2)])]).expect("a run");
    let error = tower.append(run, &mut out).expect_err("too early");
    assert_eq!(error.status, Status::Internal);
}

/// From pixels to soft tokens: what a tower's own processor makes fits the tower, and the plan says how many there are.
#[test]
fn pictures_become_as_many_soft_tokens_as_their_plans_say() {
    for case in cases() {
        let tower = open(&case.path);
        assert_eq!(tower.processor().patch_len(), tower.patch_len(), "{}", case.name);
        for (width, height) in [(31, 47), (90, 20)] {
            let rgb = (0..width * height * 3).map(|i| (i * 37 % 251) as u8).collect();
            let pixels = Pixels::new(width, height, rgb).expect("pixels");
            let plan = tower.processor().plan(width, height).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let tokens: usize = plan.grids.iter().map(|grid| tower.soft_tokens(*grid)).sum();
            assert_eq!(tokens, plan.vectors(), "{}", case.name);
            // Files of tiny towers have the sizes of real ones where the format has no key.
            if plan.patches() > 1000 {
                continue;
            }
            let mut rows = Vec::new();
            tower.processor().prepare(&pixels, &plan, &mut rows).expect("rows");
            let (given, mut out) = ([(&rows[..], &plan.grids[..])], Vec::new());
            let run = tower.forward(&ops(2), &given, &mut || false, &mut out);
            match run {
                Err(e) if e.message.contains("positions") => assert!(case.name.starts_with("gemma4"), "{e}"),
                other => other.unwrap_or_else(|e| panic!("{}: {e}", case.name)),
            }
            assert!(out.is_empty() || out.len() == tokens * tower.width(), "{}", case.name);
            assert!(out.iter().all(|x| x.is_finite()), "{}", case.name);
        }
    }
}

#[test]
fn facts_and_keys() {
    let tower = open(&format!("{TOWERS}/qwen35"));
    assert_eq!((tower.width(), tower.patch_len(), tower.soft_tokens(Grid { rows: 4, cols: 6 })), (40, 96, 6));
    let facts = tower.facts();
    assert_eq!(tower.token(), Some(60));
    assert_eq!((facts.layers, facts.hidden_size, facts.heads, facts.ffn_size), (3, 36, 3, 52));
    assert_eq!((tower.processor().patch_len(), tower.processor().merge), (96, 2));
    let small = tower.workspace_bytes(&ops(1), 4);
    assert!(small < tower.workspace_bytes(&ops(1), 400));
    let file = open(&format!("{TOWERS}/qwen35-f32.gguf"));
    assert_eq!(file.token(), None);
    let processor = file.processor();
    let normalize = Normalize { mean: [0.5, 0.4, 0.3], std: [0.2, 0.25, 0.5] };
    assert_eq!((processor.patch, processor.merge, processor.normalize), (4, 2, Some(normalize)));
    // Folders of models without a tower have none.
    let path = root().join("tests/golden/models/qwen3").to_string_lossy().into_owned();
    let pool = Pool::new(1).expect("a pool");
    let none = load_tower(&Source::File(path), 0, &pool, &|_, _| (), &mut |_, _| false).expect("a folder");
    assert!(none.is_none());
}

#[test]
fn no_key_of_a_tower_is_unknown() {
    let pool = Pool::new(1).expect("a pool");
    for case in cases() {
        let source = Source::File(root().join(&case.path).to_string_lossy().into_owned());
        let log = |_, line: &str| assert!(!line.contains("not known"), "{line}");
        load_tower(&source, 0, &pool, &log, &mut |_, _| false).expect("a tower");
    }
}

/// The names of a golden folder's tensors that belong to its tower, of layers those of the first.
fn own_tensors(copy: &Copy) -> Vec<String> {
    let bytes = copy.read("model.safetensors");
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).expect("a header");
    let names = header.as_object().expect("an object").keys();
    let text = ["__metadata__", "lm_head.", "model.language_model.", "language_model.", "model.text_model."];
    let later = |name: &str| name.contains(".1.") || name.contains(".2.");
    names.filter(|name| !text.iter().any(|start| name.starts_with(start)) && !later(name)).cloned().collect()
}

fn error_of(copy: &Copy) -> bn_engine::base::Error {
    open_source(&Source::File(copy.path())).err().expect("a damaged folder")
}

#[test]
fn damaged_folders_are_refused_by_the_tensors_name() {
    let folders = cases().into_iter().filter(|case| !case.path.ends_with(".gguf"));
    for name in folders.map(|case| case.name) {
        let whole = Copy::of_folder("towers", &name);
        for tensor in own_tensors(&whole) {
            let copy = Copy::of_folder("towers", &name);
            copy.header(|header| {
                let shape = header[&tensor]["shape"].as_array_mut().expect("a shape");
                match shape.len() {
                    0 | 1 => shape.insert(0, object!(1)),
                    _ => shape.reverse(),
                }
                if shape.first() == shape.last() {
                    shape.push(object!(1));
                }
            });
            let error = error_of(&copy);
            assert!(error.message.contains(&tensor), "{name}: {tensor}: {error}");
            let copy = Copy::of_folder("towers", &name);
            copy.header(|header| {
                let own = header.as_object_mut().expect("an object").remove(&tensor).expect("a tensor");
                header[format!("{tensor}.odd")] = own;
            });
            let error = error_of(&copy);
            assert!(error.message.contains("tensor"), "{name}: {tensor} is missing: {error}");
        }
        let copy = Copy::of_folder("towers", &name);
        let bytes = copy.read("model.safetensors");
        copy.put("model.safetensors", &bytes[..bytes.len() - 1]);
        assert_eq!(error_of(&copy).status, Status::BadModel);
    }
}

#[test]
fn folders_with_other_arithmetic_are_refused_by_key() {
    let refused = |name: &str, change: &dyn Fn(&mut Value), key: &str| {
        let copy = Copy::of_folder("towers", name);
        copy.config(|config| change(config));
        let error = error_of(&copy);
        assert!(error.message.contains(key) && error.message.contains("config.json"), "{key}: {error}");
        assert!(matches!(error.status, Status::Unsupported | Status::BadModel), "{error}");
    };
    let vision = |key: &'static str, value: Value| {
        refused("qwen35", &|config| config["vision_config"][key] = value.clone(), key);
    };
    vision("deepstack_visual_indexes", object!([1]));
    vision("in_channels", object!(4));
    vision("hidden_act", object!("quick_gelu"));
    vision("num_position_embeddings", object!(50));
    vision("out_hidden_size", object!(44));
    vision("depth", object!(0));
    vision("num_heads", object!(5));
    // Heads of two elements.
    refused("qwen35", &|config| config["vision_config"]["num_heads"] = object!(18), "head_dim");
    vision("spatial_merge_size", object!(0));
    vision("patch_size", object!("four"));
    vision("rope_parameters", object!({"rope_type": "yarn"}));
    refused("qwen35", &|config| config["model_type"] = object!("qwen9"), "model_type");
}

#[test]
fn damaged_mmproj_files_are_refused() {
    let bytes = std::fs::read(root().join(TOWERS).join("qwen35-f32.gguf")).expect("a file");
    let load =
        |bytes: Vec<u8>| open_source(&Source::Memory { bytes: Bytes::new(bytes), what: "mmproj".into() });
    load(bytes.clone()).expect("the whole file");
    for len in (0..bytes.len()).step_by(997) {
        let error = load(bytes[..len].to_vec()).err().unwrap_or_else(|| panic!("{len} bytes were taken"));
        assert!(error.message.starts_with("mmproj"), "{error}");
    }
    let replaced = |from: &str, to: &str, wanted: &str| {
        assert_eq!(from.len(), to.len());
        let mut bytes = bytes.clone();
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).expect(from);
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let error = load(bytes).err().unwrap_or_else(|| panic!("{to} was taken"));
        assert!(error.message.contains(wanted), "{to}: {error}");
    };
    replaced("qwen3vl_merger", "qwen9vl_merger", "'qwen9vl_merger'");
    replaced("clip.vision.patch_size", "clip.vision.patch_sizf", "clip.vision.patch_size");
    replaced("clip.use_gelu", "clip.use_gelv", "clip.use_gelu");
    replaced("v.blk.1.attn_qkv.weight", "v.blk.1.attn_qkw.weight", "v.blk.1.attn_");
    replaced("v.blk.2.ln1.bias", "v.blk.2.ln1.bjas", "v.blk.2.ln1.bias");
    replaced("v.patch_embd.weight.1", "v.patch_embd.weight.2", "v.patch_embd.weight.1");
    let text = std::fs::read(root().join("models/bn-demo.gguf")).expect("a file");
    assert!(load(text).err().expect("no mmproj").message.contains("no vision tower"));
}
