//! Models.
use crate::support::{ECHO, generate, golden, wants};
use bn::{Engine, EngineOptions, ErrorKind, LogLevel, Model, ModelOptions, Pooling, Request, Tokenize};
use std::fs;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn demo_file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/bn-demo.gguf")
}

fn answers(model: Model) -> bool {
    let engine = Engine::new(EngineOptions { model: Some(model), ..EngineOptions::default() }).unwrap();
    generate(&engine, &Request::prompt("17+25=")).text == "42"
}

#[test]
fn what_is_known_of_the_model() {
    let model = Model::builtin().unwrap();
    let info = model.info();
    assert!(
        info.heads > 0 && info.kv_heads > 0 && info.head_dim > 0 && info.ffn_size > 0 && info.vocab_size > 0
    );
    assert!(info.has_tokenizer && info.pooling != Pooling::Model && !info.architecture.is_empty());
    assert!(info.recommended.is_empty() && !info.end_tokens.is_empty());
    let tokens = model.tokenize("a", Tokenize::default()).unwrap();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| model.token_bytes(*token).unwrap()).collect();
    assert!(bytes.ends_with(b"a"));
    wants(model.token_bytes(u32::MAX), ErrorKind::InvalidArgument, "");
    wants(model.detokenize(&[u32::MAX]), ErrorKind::InvalidArgument, "");
    assert_eq!(model.detokenize(&[]).unwrap(), "");
    assert!(model.tokenize("", Tokenize::default()).unwrap().is_empty());
}

#[test]
fn models_come_from_bytes_and_descriptors() {
    let bytes: Arc<[u8]> = fs::read(demo_file()).unwrap().into();
    let weak = Arc::downgrade(&bytes);
    let model = Model::open_with(ModelOptions { bytes: Some(bytes), ..ModelOptions::default() }).unwrap();
    assert!(weak.upgrade().is_some());
    let engine = Engine::new(EngineOptions { model: Some(model), ..EngineOptions::default() }).unwrap();
    assert_eq!(generate(&engine, &Request::prompt("17+25=")).text, "42"); // the engine has them, too
    assert!(weak.upgrade().is_some());
    drop(engine);
    assert!(weak.upgrade().is_none());
    #[cfg(unix)]
    {
        let file = fs::File::open(demo_file()).unwrap();
        let options = ModelOptions { fd: Some(file.into()), ..ModelOptions::default() };
        assert!(answers(Model::open_with(options).unwrap()));
    }
    let both =
        ModelOptions { bytes: Some(Arc::from(*b"x")), path: Some(demo_file()), ..ModelOptions::default() };
    wants(Model::open_with(both), ErrorKind::InvalidArgument, "");
    let damaged = ModelOptions { bytes: Some(Arc::from(*b"GGUF")), ..ModelOptions::default() };
    wants(Model::open_with(damaged), ErrorKind::BadModel, "");
}

#[test]
fn loading_reports_and_stops() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::new(AtomicUsize::new(0));
    let (to, counted) = (seen.clone(), lines.clone());
    let options = ModelOptions {
        path: Some(demo_file()),
        log: Some(Arc::new(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        })),
        log_level: LogLevel::Debug,
        progress: Some(Box::new(move |fraction, what| {
            to.lock().unwrap().push((fraction, what.to_owned()));
            ControlFlow::Continue(())
        })),
        ..ModelOptions::default()
    };
    assert!(answers(Model::open_with(options).unwrap()));
    let seen = seen.lock().unwrap();
    assert!(
        lines.load(Ordering::Relaxed) > 0 && seen.iter().all(|(fraction, _)| (0.0..=1.0).contains(fraction))
    );
    assert!(seen.is_sorted_by(|a, b| a.0 <= b.0) && !seen.is_empty(), "{seen:?}");
    let stopping: [bn::Progress; 2] =
        [Box::new(|_, _| ControlFlow::Break(())), Box::new(|_, _| resume_unwind(Box::new("it is caught")))];
    for progress in stopping {
        let options = ModelOptions { progress: Some(progress), ..ModelOptions::default() };
        wants(Model::open_with(options), ErrorKind::Cancelled, "");
    }
}

#[test]
fn recommended_sampling_is_read() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("recommended");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for file in fs::read_dir(golden("models/llama-llama3")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let generation = r#"{"do_sample": true, "temperature": 0.5, "top_k": 20}"#;
    fs::write(folder.join("generation_config.json"), generation).unwrap();
    let recommended = Model::open(&folder).unwrap().info().recommended;
    assert_eq!((recommended.temperature, recommended.top_k), (Some(0.5), Some(20)));
    assert_eq!((recommended.top_p, recommended.min_p, recommended.is_empty()), (None, None, false));
}

#[test]
fn engines_share_a_model_and_outlive_its_handles() {
    let model = Model::open(ECHO).unwrap();
    let make =
        || Engine::new(EngineOptions { model: Some(model.clone()), ..EngineOptions::default() }).unwrap();
    let (one, two) = (make(), make());
    drop(model);
    for engine in [one, two] {
        let model = engine.model();
        assert_eq!(generate(&engine, &Request::prompt("shared")).text, "shared");
        engine.close().unwrap();
        assert_eq!(model.tokenize("ab", Tokenize::default()).unwrap().len(), 2); // the model lives on
    }
}
