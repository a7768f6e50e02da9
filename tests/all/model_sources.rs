//! Models from a descriptor that the host has open, and from its memory.

use crate::common::{Running, alone, bits, load_file, load_source, root};
use bn_engine::base::{Bytes, Result, Status};
use bn_engine::model::{LoadOptions, Source};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;

/// Mapped weights; F32, F16 and K-quants; packed ones.
const MODELS: [&str; 4] = [
    "models/bn-demo.gguf",
    "tests/golden/llama-tiny-f32.gguf",
    "tests/golden/models/qwen2.gguf",
    "tests/golden/models/gemma3.gguf",
];

fn of(source: &Source) -> Result<Running> {
    load_source(source, &LoadOptions::default(), 1)
}

fn logits(model: &Running) -> Vec<Vec<u32>> {
    bits(&alone(model, &[vec![1, 2, 3, 4, 5, 6, 7]], 16))
}

fn memory(bytes: Bytes) -> Source {
    Source::Memory { bytes, what: "the host's memory".into() }
}

#[test]
fn a_descriptor_may_be_closed_and_stand_anywhere() {
    for path in MODELS {
        let mut file = File::open(root().join(path)).expect(path);
        file.seek(SeekFrom::Start(99)).expect("seek");
        let source = Source::descriptor(file.as_fd()).expect(path);
        assert_eq!(file.stream_position().expect("position"), 99);
        drop(file);
        assert_eq!(logits(&of(&source).expect(path)), logits(&load_file(path, 1).expect(path)), "{path}");
    }
}

#[test]
fn memory_may_begin_anywhere() {
    for path in MODELS {
        let file = std::fs::read(root().join(path)).expect(path);
        let expected = load_file(path, 1).expect(path);
        for offset in [0, 1, 4] {
            let moved = Bytes::new([vec![0xff; offset], file.clone()].concat());
            let bytes = moved.slice(offset..moved.len()).expect("a part");
            let model = of(&memory(bytes)).expect(path);
            assert_eq!(logits(&model), logits(&expected), "{path}: {offset} bytes on");
            assert_eq!(model.model.facts().weight_bytes, expected.model.facts().weight_bytes);
        }
    }
}

#[test]
fn what_is_no_file_of_ours_is_refused() {
    let (ends, _keep) = std::io::pipe().expect("a pipe");
    let refused = Source::descriptor(ends.as_fd()).expect_err("a pipe");
    assert!(refused.status == Status::Io && refused.message.contains("not a regular file"), "{refused}");
    let folder = File::open(root()).expect("a folder");
    assert_eq!(Source::descriptor(folder.as_fd()).expect_err("a folder").status, Status::Io);
    let write_only = std::env::temp_dir().join(format!("bn-sources-{}", std::process::id()));
    let file = File::create(&write_only).expect("a file");
    assert_eq!(Source::descriptor(file.as_fd()).expect_err("empty").status, Status::BadModel);
    file.set_len(4096).expect("longer");
    assert_eq!(Source::descriptor(file.as_fd()).expect_err("write only").status, Status::Io);
    std::fs::remove_file(write_only).expect("remove");
    let refused = of(&memory(Bytes::new(b"hello, world".to_vec()))).err().expect("no GGUF");
    assert!(refused.status == Status::BadModel && refused.message.contains("the host's memory"), "{refused}");
    let options = LoadOptions { kernel_config: Some("x.ini".into()), ..LoadOptions::default() };
    let demo = std::fs::read(root().join(MODELS[0])).expect("the demo");
    let refused = load_source(&memory(Bytes::new(demo)), &options, 1).err().expect("no use for it");
    assert!(
        refused.status == Status::InvalidArgument && refused.message.contains("kernel_config"),
        "{refused}"
    );
}
