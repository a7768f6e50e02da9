//! Malicious Hugging Face folders: all files mutated at once, links, pipes, devices.

use crate::common::{Rng, root};
use crate::engine_pictures::{all, talking};
use crate::folder_support::Copy;
use bn_engine::base::{Result, Status};
use bn_engine::kernels::Pool;
use bn_engine::model::{Source, load_tower};
use std::io::Write;
use std::sync::mpsc::RecvTimeoutError;

const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
    {"id": 3, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true}], "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel",
    "add_prefix_space": false, "trim_offsets": true, "use_regex": true}, "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}"#;

/// Every file of a folder, a few of them changed at once; a refusal names one of the files.
#[test]
fn folders_of_mutated_files_never_panic() {
    let template = root().join("tests/golden/chat/llama-3.1.jinja");
    let load = |copy: &Copy| copy.load().map(drop);
    let mut rng = Rng(11);
    let mut taken = 0;
    for name in [
        "llama-sharded",
        "gemma3-embedding",
        "qwen35moe-fused",
        "deepseek-v3",
        "fp8-block",
        "int4-zeros",
        "int8-channel",
        "gptq-order",
        "awq",
    ] {
        let copy = Copy::of(name);
        copy.put("tokenizer.json", TOKENIZER);
        std::fs::copy(&template, copy.0.join("chat_template.jinja")).unwrap();
        copy.put(
            "tokenizer_config.json",
            r#"{"bos_token": "a", "eos_token": {"content": "b"}, "add_bos_token": true}"#,
        );
        copy.put("generation_config.json", r#"{"bos_token_id": 0, "eos_token_id": [1, 2]}"#);
        if name == "gemma3-embedding" {
            std::fs::create_dir_all(copy.0.join("1_Pooling")).unwrap();
            let pooling = root().join("tests/golden/models/gemma3-embedding/1_Pooling/config.json");
            std::fs::copy(pooling, copy.0.join("1_Pooling/config.json")).unwrap();
        }
        taken += mutate(&copy, &mut rng, &load);
    }
    assert!(taken > 100, "only {taken} were taken");
}

/// The files of towers: the whole model is loaded with what sees, and then the tower by itself.
#[test]
fn folders_of_mutated_towers_never_panic() {
    let (mut rng, mut taken) = (Rng(12), 0);
    let load = |copy: &Copy| {
        copy.load()?;
        let (source, pool) = (Source::File(copy.path()), Pool::new(1)?);
        load_tower(&source, 0, &pool, &|_, _| (), &mut |_, _| false).map(drop)
    };
    for case in all().cases {
        taken += mutate(&talking(&case), &mut rng, &load);
    }
    assert!(taken > 100, "only {taken} were taken");
}

/// How often files of a folder are changed, unless BN_TEST_ROUNDS sets another number.
fn rounds() -> usize {
    std::env::var("BN_TEST_ROUNDS").map_or(1500, |rounds| rounds.parse().unwrap())
}

/// Changes files of a folder. Returns how often it was taken all the same.
fn mutate(copy: &Copy, rng: &mut Rng, load: &dyn Fn(&Copy) -> Result<()>) -> usize {
    load(copy).unwrap();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for folder in ["", "1_Pooling/"] {
        let Ok(list) = std::fs::read_dir(copy.0.join(folder)) else { continue };
        let list = list.map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file());
        let names = list.map(|entry| format!("{folder}{}", entry.file_name().to_str().unwrap()));
        files.extend(names.map(|name| (name.clone(), copy.read(&name))));
    }
    files.sort();
    let mut taken = 0;
    for _ in 0..rounds() {
        let changed: Vec<usize> = (0..1 + rng.below(3)).map(|_| rng.below(files.len())).collect();
        for &at in &changed {
            let (file, bytes) = &files[at];
            copy.put(file, mutant(rng, bytes));
        }
        match or_hangs(format!("{changed:?} of {}", copy.path()), || load(copy)) {
            Ok(_) => taken += 1,
            Err(error) => {
                assert!(error.message.contains(&copy.path()), "{error}");
                assert!(error.status != Status::Internal && error.message.len() < 2000, "{error}");
            }
        }
        for &at in &changed {
            copy.put(&files[at].0, &files[at].1);
        }
    }
    taken
}

/// Runs `f`. If that takes a minute, ends the process with a line that says what hangs.
fn or_hangs<T>(what: String, f: impl FnOnce() -> T) -> T {
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(std::time::Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            // Not with eprintln, whose line the test would capture and lose.
            let _ = writeln!(std::io::stderr(), "{what}: no end after a minute");
            std::process::abort();
        }
    });
    let result = f();
    drop(done);
    guard.join().expect("the guard");
    result
}

/// One to three changes, most of them near the start, where headers are.
fn mutant(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    const WORDS: [&[u8]; 10] =
        [b"null", b"-1", b"1e999", b"0", b"[", b"}", b",", b"\"\"", b"99999999999", b"\"..\""];
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + rng.below(3) {
        let within = if rng.below(2) == 0 { bytes.len() } else { bytes.len().min(1500) };
        if within == 0 {
            break;
        }
        let at = rng.below(within);
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = b"0123456789,:[]{}\"-e."[rng.below(20)],
            2 => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            4 => drop(bytes.splice(at..at, WORDS[rng.below(10)].iter().copied())),
            _ => {
                let end = (at + 1 + rng.below(40)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

/// Whatever is in a file's place, the error names it, and no call waits for a pipe or the end of a device.
#[cfg(unix)] // kinds of files that Windows does not have
#[test]
fn links_pipes_devices_and_folders_in_place_of_files() {
    use crate::folder_support::open;
    use bn_engine::model::LoadOptions;
    use std::os::unix::fs::symlink;
    let files = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
        "modules.json",
        "model.safetensors",
    ];
    let make_pipe = |path: &std::path::Path| {
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    };
    let outside = Copy::of("llama-f32");
    let odd = |kind: &str, path: &std::path::Path| match kind {
        "a pipe" => make_pipe(path),
        "a folder" => std::fs::create_dir(path).unwrap(),
        "a device" => symlink("/dev/zero", path).unwrap(),
        "a loop" => symlink(path, path).unwrap(),
        "nowhere" => symlink("no such file", path).unwrap(),
        "outside" => symlink(outside.0.join("config.json"), path).unwrap(),
        "upwards" => {
            symlink(format!("../{}/config.json", outside.0.file_name().unwrap().to_str().unwrap()), path)
                .unwrap()
        }
        _ => symlink("/proc/self/mem", path).unwrap(),
    };
    let kinds = ["a pipe", "a folder", "a device", "a loop", "nowhere", "outside", "upwards", "memory"];
    for kind in kinds {
        for file in files {
            let copy = Copy::of("llama-f32");
            copy.put("tokenizer.json", TOKENIZER);
            let path = copy.0.join(file);
            let _ = std::fs::remove_file(&path);
            odd(kind, &path);
            let loaded = or_hangs(format!("{kind} as {file}"), || copy.load());
            let error = loaded.err().unwrap_or_else(|| panic!("{kind} as {file} was taken"));
            assert!(matches!(error.status, Status::BadModel | Status::Io), "{kind} as {file}: {error}");
            assert!(error.message.contains(&format!("{}/{file}", copy.path())), "{kind} as {file}: {error}");
        }
        // A shard; and the path of the model itself.
        let copy = Copy::of("llama-sharded");
        let shard = copy.0.join("model-00002-of-00002.safetensors");
        std::fs::remove_file(&shard).unwrap();
        odd(kind, &shard);
        let error = copy.load().err().unwrap_or_else(|| panic!("{kind} as a shard was taken"));
        assert!(error.message.contains("model-00002-of-00002.safetensors"), "{kind}: {error}");
        let path = copy.0.join("model.gguf");
        odd(kind, &path);
        assert!(open(path.to_str().unwrap(), &LoadOptions::default()).is_err(), "{kind} as a model");
    }
}

/// Links within a folder, a link to it, and a path with `..` are allowed.
#[cfg(unix)] // links, and names and permissions of Unix
#[test]
fn paths_that_are_fine() {
    use crate::folder_support::open;
    use bn_engine::model::LoadOptions;
    use std::os::unix::fs::symlink;
    let copy = Copy::of("llama-f32");
    std::fs::rename(copy.0.join("model.safetensors"), copy.0.join("blob")).unwrap();
    symlink("blob", copy.0.join("model.safetensors")).unwrap();
    assert!(copy.load().is_ok());
    let name = copy.0.file_name().unwrap().to_str().unwrap();
    let dotted = format!("{}/../{name}/.//", copy.path());
    assert!(open(&dotted, &LoadOptions::default()).is_ok(), "{dotted}");
    let holder = Copy::of("llama-f32");
    symlink(&copy.0, holder.0.join("link")).unwrap();
    assert!(open(&format!("{}/link", holder.path()), &LoadOptions::default()).is_ok());
    // A module's path that leads out of the folder.
    let copy = Copy::of("gemma3-embedding");
    symlink(root().join("tests/golden/models/gemma3-embedding/1_Pooling"), copy.0.join("1_Pooling")).unwrap();
    copy.refused(Status::BadModel, &["1_Pooling/config.json", "outside of the folder"]);
    // Names that are not UTF-8 are ignored.
    use std::os::unix::ffi::OsStrExt;
    let copy = Copy::of("llama-f32");
    std::fs::write(copy.0.join(std::ffi::OsStr::from_bytes(b"\xff\xfe.gguf")), "x").unwrap();
    assert!(copy.load().is_ok());
    std::fs::remove_file(copy.0.join("model.safetensors")).unwrap();
    copy.refused(Status::Io, &["neither model.safetensors", "GGUF"]);
    // Root can read it anyway.
    let copy = Copy::of("llama-f32");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(copy.0.join("config.json"), permissions).unwrap();
    if std::fs::File::open(copy.0.join("config.json")).is_err() {
        copy.refused(Status::Io, &["config.json", "ermission denied"]);
    }
}
