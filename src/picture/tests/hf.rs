//! Files of folders: defaults, and what is refused, by name.

use super::super::{Family, Filter, HfFiles, Processor};
use crate::base::{Result, Status};
use serde_json::{Value, json};

fn read(preprocessor: Option<Value>, processor: Option<Value>, config: Value) -> Result<Processor> {
    let bytes = |json: Value| json.to_string().into_bytes();
    let (preprocessor, processor) = (preprocessor.map(bytes), processor.map(bytes));
    Processor::from_hf(&HfFiles {
        folder: "m",
        preprocessor: preprocessor.as_deref(),
        processor: processor.as_deref(),
        config: &bytes(config),
    })
}

fn qwen(more: Value) -> Result<Processor> {
    let mut image = json!({"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16});
    image.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    read(Some(image), None, json!({"vision_config": {"patch_size": 16, "spatial_merge_size": 2}}))
}

#[test]
fn missing_keys_have_the_defaults_of_the_class() {
    let processor = qwen(json!({"size": null, "do_rescale": null})).expect("a processor");
    let Family::Qwen { min_pixels, max_pixels, frames } = processor.family else { panic!("{processor:?}") };
    assert_eq!((min_pixels, max_pixels, frames), (56 * 56, 28 * 28 * 1280, 2));
    assert_eq!((processor.patch, processor.merge, processor.filter), (16, 2, Filter::Bicubic));
    assert_eq!(processor.normalize.expect("normalized").mean[1], 0.4578275);
    assert_eq!(processor.patch_len(), 3 * 2 * 16 * 16);
    // Older files have bounds of their own, which win.
    let older = qwen(
        json!({"size": {"shortest_edge": 1, "longest_edge": 2}, "min_pixels": 4096, "max_pixels": 8192}),
    );
    let Family::Qwen { min_pixels, max_pixels, .. } = older.expect("a processor").family else { panic!() };
    assert_eq!((min_pixels, max_pixels), (4096, 8192));
}

#[test]
fn the_nested_image_processor_comes_first() {
    let nested =
        json!({"image_processor": {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70}});
    let other = json!({"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 140});
    for other in [None, Some(other)] {
        let processor = read(other, Some(nested.clone()), json!({})).expect("a processor");
        assert_eq!(processor.family, Family::Gemma4 { max_tokens: 70 });
        assert_eq!(processor.normalize, None);
    }
    // A file without a type is read by the model's.
    let by_model = read(Some(json!({})), None, json!({"model_type": "gemma4"})).expect("a processor");
    assert_eq!(by_model.family, Family::Gemma4 { max_tokens: 280 });
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let unsupported = [
        (json!({"image_processor_type": "FuyuImageProcessor"}), "FuyuImageProcessor"),
        (json!({"resample": 4}), "'resample' = 4"),
        (json!({"do_resize": false}), "'do_resize' = false"),
        (json!({"do_rescale": false}), "'do_rescale' = false"),
        (json!({"do_center_crop": true}), "'do_center_crop' = true"),
        (
            json!({"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": true}),
            "'do_pan_and_scan' = true",
        ),
    ];
    for (more, what) in unsupported {
        let error = qwen(more).expect_err(what);
        assert_eq!(error.status, Status::Unsupported, "{error}");
        assert!(
            error.message.starts_with("m/preprocessor_config.json: ") && error.message.contains(what),
            "{error}"
        );
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let bad = [
        (json!({"patch_size": 14}), "config.json: 'vision_config': 'patch_size' is 16"),
        (json!({"merge_size": "2"}), "'merge_size'"),
        (json!({"patch_size": 16, "merge_size": -2}), "'merge_size'"),
        (json!({"size": {"shortest_edge": 4}}), "'longest_edge' is missing"),
        (json!({"size": {"shortest_edge": 4096, "longest_edge": 9}}), "4096 to 9 pixels"),
        (json!({"image_std": [0.5, 0, 0.5]}), "'image_std'"),
        (json!({"image_mean": [0.5, 0.5]}), "'image_mean'"),
        (json!({"rescale_factor": 0}), "'rescale_factor'"),
        (json!({"do_normalize": 1}), "'do_normalize'"),
        (json!({"temporal_patch_size": 0}), "frames = 0"),
    ];
    for (more, what) in bad {
        let error = qwen(more).expect_err(what);
        assert_eq!(error.status, Status::BadModel, "{error}");
        assert!(error.message.starts_with("m/") && error.message.contains(what), "{error}");
    }
    let error = read(None, None, json!({})).expect_err("no file");
    assert!(error.message.contains("m/preprocessor_config.json is missing"), "{error}");
    let smolvlm =
        json!({"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"longest_edge": 512}});
    let config = json!({"scale_factor": 4, "vision_config": {"patch_size": 16}});
    let seq = |n: u32| read(Some(smolvlm.clone()), Some(json!({"image_seq_len": n})), config.clone());
    assert!(seq(64).is_ok());
    let error = seq(169).expect_err("other tokens");
    assert!(error.message.contains("'image_seq_len' is 169"), "{error}");
    let list = HfFiles { folder: "m", preprocessor: Some(b"[]"), processor: None, config: b"{}" };
    assert!(Processor::from_hf(&list).expect_err("a list").message.contains("no JSON object"));
}
