//! Models from a descriptor that the host has open, and from its memory.

use crate::common::{Running, alone, bits, load_file, load_source, root};
use bn_engine::base::{Bytes, Result, Status};
use bn_engine::model::{LoadOptions, Source};
use std::fs::File;
use std::io::{Seek, SeekFrom};

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
fn an_open_file_may_be_closed_and_stand_anywhere() {
    for path in MODELS {
        let mut file = File::open(root().join(path)).expect(path);
        file.seek(SeekFrom::Start(99)).expect("seek");
        let source = Source::open_file(&file, "a file".into()).expect(path);
        assert_eq!(file.stream_position().expect("position"), 99);
        drop(file);
        assert_eq!(logits(&of(&source).expect(path)), logits(&load_file(path, 1).expect(path)), "{path}");
    }
}

/// Paths of files and of folders beyond the 260 characters of old Windows programs.
#[test]
fn paths_may_be_long_and_in_any_script() {
    let top = std::env::temp_dir().join(format!("bn-sources-{}-深い 道", std::process::id()));
    let deep =
        (0..8).fold(top.clone(), |path, _| path.join("ünïcödé und ein langer Name, wie ihn Leute geben"));
    std::fs::create_dir_all(&deep).expect("folders");
    let path = deep.join("模型.gguf");
    std::fs::copy(root().join(MODELS[1]), &path).expect("copied");
    let path = path.to_str().expect("UTF-8");
    assert!(path.chars().count() > 300);
    let expected = logits(&load_file(MODELS[1], 1).expect(MODELS[1]));
    assert_eq!(logits(&of(&Source::File(path.into())).expect(path)), expected);
    let folder = deep.join("folder");
    std::fs::create_dir(&folder).expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(root().join("tests/golden/models/llama-f32").join(file), folder.join(file))
            .expect(file);
    }
    // ERROR_MORE_DATA of Wine 8, which cannot say the real path of such a file. Windows can.
    if cfg!(windows) && std::fs::canonicalize(&folder).is_err_and(|e| e.raw_os_error() == Some(234)) {
        println!("skipped: a folder so deep, of which Wine does not know the real path");
    } else {
        let folder = folder.to_str().expect("UTF-8");
        assert_eq!(of(&Source::File(folder.into())).expect(folder).model.facts().name, "folder");
    }
    std::fs::remove_dir_all(top).expect("remove");
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
    let source = |file: &File| Source::open_file(file, "a file".into());
    // On Windows, a pipe is refused with another message, and std cannot open folders.
    #[cfg(unix)]
    {
        let (ends, _keep) = std::io::pipe().expect("a pipe");
        let refused = source(&File::from(std::os::fd::OwnedFd::from(ends))).expect_err("a pipe");
        assert!(refused.status == Status::Io && refused.message.contains("not a regular file"), "{refused}");
        let folder = File::open(root()).expect("a folder");
        assert_eq!(source(&folder).expect_err("a folder").status, Status::Io);
    }
    let write_only = std::env::temp_dir().join(format!("bn-sources-{}", std::process::id()));
    let file = File::create(&write_only).expect("a file");
    assert_eq!(source(&file).expect_err("empty").status, Status::BadModel);
    file.set_len(4096).expect("longer");
    assert_eq!(source(&file).expect_err("write only").status, Status::Io);
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
