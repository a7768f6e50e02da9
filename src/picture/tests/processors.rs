//! Rows, grids and texts of every family against transformers.

use super::super::{Family, HfFiles, Piece, Processor};
use super::{json, number, picture};
use serde_json::Value;

fn processor(files: &Value) -> Processor {
    let bytes = |key: &str| files.get(key).map(|file| file.to_string().into_bytes());
    let (preprocessor, processor) = (bytes("preprocessor"), bytes("processor"));
    let config = bytes("config").expect("a config");
    let files = HfFiles {
        folder: "golden",
        preprocessor: preprocessor.as_deref(),
        processor: processor.as_deref(),
        config: &config,
    };
    Processor::from_hf(&files).expect("a processor")
}

/// Of the bits: the sum of each times an odd number of its place.
fn digest(rows: &[f32]) -> String {
    let term = |(place, value): (usize, &f32)| {
        u64::from(value.to_bits()).wrapping_mul((place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    };
    let sum = rows.iter().enumerate().map(term).fold(0, u64::wrapping_add);
    format!("{sum:016x}")
}

/// Texts, and numbers of soft tokens, which are joined as transformers' text has them.
fn pieces(pieces: &[Piece]) -> Vec<Value> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => Value::from(text.as_str()),
        Piece::Vectors { rows, cols } => Value::from(rows * cols),
    };
    pieces.iter().map(piece).collect()
}

/// Bits of the rows, grids and pieces of one case; `None` if transformers refuses it, as it must be here.
fn check(case: &Value, processor: &Processor) -> Result<(), String> {
    let (width, height) = (number(&case["width"]), number(&case["height"]));
    let plan = match (processor.plan(width, height), case.get("error")) {
        (Ok(plan), None) => plan,
        (Err(_), Some(_)) => return Ok(()),
        (Err(error), None) => return Err(format!("it is refused: {error}")),
        (Ok(_), Some(error)) => return Err(format!("it is not refused: {error}")),
    };
    let grids: Vec<Value> = plan.grids.iter().map(|grid| Value::from(vec![grid.rows, grid.cols])).collect();
    if Value::from(grids.clone()) != case["grids"] {
        return Err(format!("grids are {grids:?}"));
    }
    if Value::from(pieces(&plan.pieces)) != case["pieces"] {
        return Err(format!("pieces are {:?}", plan.pieces));
    }
    // What is there stays.
    let mut rows = vec![7.0];
    processor.prepare(&picture(width, height), &plan, &mut rows).map_err(|error| error.to_string())?;
    assert_eq!(rows.remove(0), 7.0);
    let shape = [plan.patches(), processor.patch_len()].map(|n| n as u64);
    if Value::from(shape.to_vec()) != case["shape"] {
        return Err(format!("the shape is {shape:?}"));
    }
    if digest(&rows) != case["digest"] {
        let sum: f64 = rows.iter().map(|value| f64::from(*value)).sum();
        let at = case["at"].as_array().expect("places").iter().map(|at| rows[number(at) as usize]);
        return Err(format!("the sum is {sum}, values are {:?}", at.collect::<Vec<_>>()));
    }
    Ok(())
}

#[test]
fn rows_grids_and_texts_are_those_of_transformers() {
    let golden = json("processors.json");
    let mut wrong = Vec::new();
    let cases = golden["cases"].as_array().expect("cases");
    assert!(cases.len() > 100 && cases.iter().filter(|case| case.get("error").is_some()).count() > 5);
    for case in cases {
        let processor = processor(&golden["files"][case["processor"].as_str().expect("a name")]);
        if let Err(error) = check(case, &processor) {
            wrong.push(format!("{case}\n    {error}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn vectors_are_as_many_as_groups_of_patches() {
    let golden = json("processors.json");
    for files in golden["files"].as_object().expect("files").values() {
        let processor = processor(files);
        for (width, height) in [(1, 1), (90, 40), (333, 777), (2000, 1999)] {
            let plan = processor.plan(width, height).expect("a plan");
            let side = processor.merge as usize;
            assert_eq!(plan.vectors() * side * side, plan.patches(), "{width}x{height}: {processor:?}");
        }
    }
}

#[test]
fn a_picture_of_another_size_than_the_plans_is_refused() {
    let golden = json("processors.json");
    let processor = processor(&golden["files"]["qwen-14"]);
    let plan = processor.plan(30, 20).expect("a plan");
    let mut rows = Vec::new();
    let error = processor.prepare(&picture(20, 30), &plan, &mut rows).expect_err("another size");
    assert!(error.message.contains("30x20") && error.message.contains("20x30"), "{error}");
    let mut cut = picture(30, 20);
    cut.rgb.pop();
    let error = processor.prepare(&cut, &plan, &mut rows).expect_err("a byte less");
    assert!(error.message.contains("1799 bytes") && rows.is_empty(), "{error}");
    assert!(processor.plan(0, 3).is_err());
}

/// A model's files decide what a picture becomes, and not how much memory there is.
#[test]
fn sizes_beyond_all_models_are_refused() {
    let golden = json("processors.json");
    let processor = processor(&golden["files"]["qwen-14"]);
    let huge = [
        Family::Qwen { min_pixels: 1 << 30, max_pixels: 1 << 32, frames: 2 },
        Family::Gemma3 { width: 28_000, height: 28_000 },
        Family::Idefics3 { longest: 4096, tile: 28_000, split: true },
        Family::Idefics3 { longest: 4096, tile: 28_000, split: false },
        Family::Gemma4 { max_tokens: 65_536 * 2 },
    ];
    for family in huge {
        let error = Processor { family, ..processor.clone() }.plan(100, 100).expect_err("huge");
        assert!(
            error.message.contains("pixels are allowed") || error.message.contains("out of range"),
            "{error}"
        );
    }
}
