//! Encoders in engines: their tokenizers, embeddings and scores, their refusals, and the same bits in any batch.

use crate::common;
use crate::engine_support::*;
use crate::folder_support::Copy;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Source, load};
use serde_json::{Value, json};
use std::borrow::Cow;

const MODELS: &str = "tests/golden/models";
/// Folders and their counterparts in GGUF, with the file of their texts.
const ALL: [(&str, &str); 8] = [
    ("bert-embedding", "bert-embedding"),
    ("bert-embedding.gguf", "bert-embedding"),
    ("bert-reranker", "bert-reranker"),
    ("bert-reranker.gguf", "bert-reranker"),
    ("xlm-roberta-embedding", "xlm-roberta-embedding"),
    ("xlm-roberta-embedding.gguf", "xlm-roberta-embedding"),
    ("xlm-roberta-reranker", "xlm-roberta-reranker"),
    ("xlm-roberta-reranker.gguf", "xlm-roberta-reranker"),
];

fn engine(model: &str, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let path = common::root().join(MODELS).join(model).to_string_lossy().into_owned();
    let mut config = EngineConfig { model_path: Some(path), ..EngineConfig::default() };
    change(&mut config);
    Engine::create(config).unwrap_or_else(|e| panic!("{model}: {e}"))
}

fn texts(folder: &str) -> Value {
    common::json(&common::root().join(MODELS).join(folder).join("texts.json"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().expect(key)
}

fn of_pair(case: &Value) -> RequestParams<'static> {
    if case["texts"].is_null() {
        return score(Prompt::Tokens(common::numbers(&case["ids"]).into()));
    }
    let text = |i: usize| Cow::Owned(case["texts"][i].as_str().expect("a text").to_owned());
    score(Prompt::Pair(text(0), text(1)))
}

#[test]
fn texts_and_pairs_have_the_ids_of_transformers() {
    for (model, folder) in ALL {
        let path = common::root().join(MODELS).join(model).to_string_lossy().into_owned();
        let pool = Pool::new(1).unwrap();
        let log = |_: u32, text: &str| eprintln!("{text}");
        let loaded =
            load(&Source::File(path), &LoadOptions::default(), &pool, &log, &mut |_, _| false).unwrap();
        let tokenizer = loaded.tokenizer.as_ref().unwrap_or_else(|| panic!("{model}: no tokenizer"));
        let golden = texts(folder);
        for case in list(&golden, "texts") {
            let text = case["text"].as_str().expect("a text");
            // Control tokens in a text count only if the caller says so, in transformers always.
            let ids = tokenizer.encode_whole(text, true).unwrap();
            assert_eq!(ids, common::numbers(&case["ids"]), "{model}: {text}");
        }
        for case in list(&golden, "pairs") {
            let [a, b] = [0, 1].map(|i| case["texts"][i].as_str().expect("a text"));
            let (ids, second) = tokenizer.encode_pair(a, b).unwrap();
            assert_eq!(ids, common::numbers(&case["ids"]), "{model}: {a} | {b}");
            let types = common::numbers(&case["types"]);
            let typed = types.iter().position(|kind| *kind != 0).map(|at| at as u32);
            assert_eq!(second, typed, "{model}: {a} | {b}");
        }
    }
}

#[test]
fn scores_are_those_of_transformers() {
    let more =
        ["modern-bert-reranker", "modern-bert-reranker.gguf"].map(|model| (model, "modern-bert-reranker"));
    let rerankers = ALL.into_iter().filter(|(model, _)| model.contains("reranker"));
    for (model, folder) in rerankers.chain(more) {
        let engine = engine(model, |config| config.threads = 2);
        for case in list(&texts(folder), "pairs") {
            let answer = ask(&engine, of_pair(case));
            let want = case["score"].as_f64().expect("a score");
            let [got] = answer.vector[..] else { panic!("{model}: {:?}", answer.vector) };
            assert!((f64::from(got) - want).abs() < 2e-5, "{model}: {got} for {want}, {case}");
        }
    }
}

/// The tokenizer gives types to the second text's tokens, and the model has no table for them.
#[test]
fn types_that_the_model_has_not_are_left_out() {
    let copy = Copy::of("modern-bert-reranker");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        copy.put(file, std::fs::read(common::root().join(MODELS).join("bert-reranker").join(file)).unwrap());
    }
    let engine = engine(&copy.path(), |_| ());
    for case in list(&texts("bert-reranker"), "pairs") {
        let pair = ask(&engine, of_pair(case)).vector;
        let ids = score(Prompt::Tokens(common::numbers(&case["ids"]).into()));
        assert_eq!(pair, ask(&engine, ids).vector, "{case}");
    }
}

#[test]
fn a_classifier_of_several_labels_is_refused_by_their_number() {
    let three = json!({"0": "a", "1": "b", "2": "c"});
    for (labels, count, key) in [(three, Value::Null, "id2label"), (Value::Null, json!(2), "num_labels")] {
        let copy = Copy::of("bert-reranker");
        copy.config(|config| (config["id2label"], config["num_labels"]) = (labels, count));
        copy.refused(Status::Unsupported, &[key, "one label"]);
    }
}

#[test]
fn products_behind_pooling_make_the_vectors_of_the_reference() {
    for model in ["gemma-embedding", "gemma-embedding.gguf"] {
        let engine = engine(model, |config| config.threads = 2);
        for case in list(&texts("gemma-embedding"), "vectors") {
            let prompt = Prompt::Tokens(common::numbers(&case["ids"]).into());
            let embedding = Some(EmbeddingParams::default());
            let answer = ask(&engine, RequestParams { prompt, embedding, ..RequestParams::default() });
            let want: Vec<f32> =
                list(case, "vector").iter().map(|x| x.as_f64().expect("a number") as f32).collect();
            let error = common::relative_error(&answer.vector, &want);
            assert!(error < 1e-4, "{model}: relative error {error:.2e}");
        }
    }
}

#[test]
fn modules_say_whether_vectors_have_length_one_unless_the_request_does() {
    let length = |x: &[f32]| x.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    // The folder has no module Normalize, as Nomic's on the hub; GGUF says nothing about it.
    for (model, raw) in [("nomic-bert", true), ("nomic-bert.gguf", false)] {
        let engine = engine(model, |config| config.threads = 2);
        for case in list(&texts("nomic-bert"), "vectors") {
            let want: Vec<f32> =
                list(case, "vector").iter().map(|x| x.as_f64().expect("a number") as f32).collect();
            let unit: Vec<f32> = want.iter().map(|x| (f64::from(*x) / length(&want)) as f32).collect();
            assert!((length(&want) - 1.0).abs() > 0.1, "the reference is not one of length 1");
            for normalize in [None, Some(true), Some(false)] {
                let prompt = Prompt::Tokens(common::numbers(&case["ids"]).into());
                let embedding = Some(EmbeddingParams { normalize, ..EmbeddingParams::default() });
                let answer = ask(&engine, RequestParams { prompt, embedding, ..RequestParams::default() });
                let want = if normalize.unwrap_or(!raw) { &unit } else { &want };
                let error = common::relative_error(&answer.vector, want);
                assert!(error < 1e-4, "{model}, {normalize:?}: relative error {error:.2e}");
            }
        }
    }
}

/// Embeddings of every text, and scores of every pair if the model makes them.
fn mixed(model: &str, folder: &str) -> Vec<RequestParams<'static>> {
    let golden = texts(folder);
    let pooling = [None, Some(Pooling::Mean), Some(Pooling::First), Some(Pooling::Last)];
    let long = "the dog runs, ".repeat(3);
    let texts = list(&golden, "texts").iter().map(|case| case["text"].as_str().expect("a text").to_owned());
    let mut all: Vec<_> = texts
        .chain([long])
        .zip(pooling.into_iter().cycle())
        .map(|(text, pooling)| RequestParams {
            prompt: Prompt::Text(Cow::Owned(text)),
            embedding: Some(EmbeddingParams { pooling, ..EmbeddingParams::default() }),
            ..RequestParams::default()
        })
        .collect();
    if model.contains("reranker") {
        all.extend(list(&golden, "pairs").iter().map(of_pair));
    }
    all
}

fn bits(answer: &Answer) -> Vec<u32> {
    answer.vector.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn company_and_threads_change_no_bit() {
    for (model, folder) in [ALL[1], ALL[2], ALL[5]] {
        let alone = engine(model, |config| (config.max_batch_size, config.threads) = (1, 1));
        let expected: Vec<_> =
            mixed(model, folder).into_iter().map(|request| bits(&ask(&alone, request))).collect();
        for (threads, batch, tokens) in [(1, 3, 64), (2, 8, 128), (2, 32, 512)] {
            let engine = engine(model, |config| {
                config.threads = threads;
                (config.max_batch_size, config.max_batch_tokens) = (batch, tokens);
            });
            let ids = engine.submit(mixed(model, folder)).unwrap();
            let answers = collect(&engine, ids.len());
            for (i, (id, expected)) in ids.iter().zip(&expected).enumerate() {
                assert_eq!(
                    &bits(&answers[id]),
                    expected,
                    "{model}, request {i}, {threads} threads, batch {batch}"
                );
            }
            let stats = engine.stats();
            assert_eq!((stats.kv_bytes, stats.kv_blocks_used), (0, 0), "nothing is kept");
        }
    }
}

/// The families with rotary positions, by token ids.
#[test]
fn company_changes_no_bit_where_positions_turn() {
    for model in ["modern-bert", "nomic-bert.gguf", "gemma-embedding", "modern-bert-reranker"] {
        let ids = |n: u32| {
            (0..3 + 5 * n).map(|at| 4 + (at * at * 7 + at * 31 + n * (at + 13)) % 60).collect::<Vec<_>>()
        };
        let all = || -> Vec<RequestParams<'static>> {
            let request = |n| match model.contains("reranker") {
                true => score(Prompt::Tokens(ids(n).into())),
                false => RequestParams {
                    prompt: Prompt::Tokens(ids(n).into()),
                    embedding: Some(EmbeddingParams::default()),
                    ..RequestParams::default()
                },
            };
            (0..8).map(request).collect()
        };
        let alone = engine(model, |config| (config.max_batch_size, config.threads) = (1, 1));
        let expected: Vec<_> = all().into_iter().map(|request| bits(&ask(&alone, request))).collect();
        assert!(expected.iter().all(|bits| !bits.is_empty()) && expected[0] != expected[1], "{model}");
        for (threads, batch, tokens) in [(1, 3, 64), (2, 32, 512)] {
            let engine = engine(model, |config| {
                (config.threads, config.max_batch_size, config.max_batch_tokens) = (threads, batch, tokens);
            });
            let ids = engine.submit(all()).unwrap();
            let answers = collect(&engine, ids.len());
            let got: Vec<_> = ids.iter().map(|id| bits(&answers[id])).collect();
            assert!(got == expected, "{model}, {threads} threads, batch {batch}");
        }
    }
}

fn refused(engine: &Engine, request: RequestParams, status: Status, says: &[&str]) {
    let error = engine.submit(vec![request]).unwrap_err();
    assert_eq!(error.status, status, "{error}");
    says.iter().for_each(|says| assert!(error.message.contains(says), "{error} should say {says}"));
}

#[test]
fn what_an_encoder_does_not_do_is_refused_in_words() {
    let plain = engine("bert-embedding", |config| (config.max_batch_size, config.max_batch_tokens) = (4, 16));
    refused(&plain, text("a dog", 4), Status::Unsupported, &["encoder", "embeddings", "generates nothing"]);
    let pair = || Prompt::Pair("a".into(), "b".into());
    refused(&plain, score(pair()), Status::Unsupported, &["no head", "pairs"]);
    let long = embedding("the dog runs, the dog runs, the dog runs, the dog runs", None, true);
    refused(&plain, long, Status::TooLong, &["one step", "max_batch_tokens = 16"]);
    let named = RequestParams { session: Some("s".into()), ..embedding("a dog", None, true) };
    refused(&plain, named, Status::Unsupported, &["session", "keeps nothing"]);
    let ranks = engine("bert-reranker", |_| ());
    refused(&ranks, score(Prompt::Text("a".into())), Status::InvalidArgument, &["pair", "query"]);
    let no_score = RequestParams { prompt: pair(), ..embedding("", None, true) };
    refused(&ranks, no_score, Status::InvalidArgument, &["pair", "score"]);
}

/// A folder with a longer context. Positions are rotary, so no table limits them.
fn longer(positions: usize) -> std::path::PathBuf {
    let from = common::root().join(MODELS).join("modern-bert");
    let to = std::env::temp_dir().join(format!("bn-encoder-{}-{positions}", std::process::id()));
    std::fs::create_dir_all(to.join("1_Pooling")).unwrap();
    for file in ["model.safetensors", "modules.json", "1_Pooling/config.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let mut config = common::json(&from.join("config.json"));
    config["max_position_embeddings"] = positions.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

#[test]
fn a_step_holds_an_encoders_longest_text_unless_the_host_or_its_memory_says_less() {
    let folder = longer(4096);
    let engine = |change: &dyn Fn(&mut EngineConfig)| engine(folder.to_str().unwrap(), change);
    let ids = |n: u32| Prompt::Tokens((0..n).map(|at| 4 + (at * 7 + 3) % 60).collect());
    let of = |n: u32| RequestParams { prompt: ids(n), ..embedding("", None, true) };
    let free = engine(&|_| ());
    assert!(!ask(&free, of(4096)).vector.is_empty());
    let few = engine(&|config| config.max_batch_tokens = 512);
    assert_eq!(bits(&ask(&few, of(500))), bits(&ask(&free, of(500))));
    refused(&few, of(513), Status::TooLong, &["513 tokens", "one step", "max_batch_tokens = 512"]);
    assert_eq!((free.stats().context_length, few.stats().context_length), (4096, 512));
    // Room for the step of 4096 tokens, and for half of it and something else.
    let used = |tokens: u32| {
        let sizes =
            |config: &mut EngineConfig| (config.max_batch_size, config.max_batch_tokens) = (1, tokens);
        engine(&sizes).stats().memory_used_bytes
    };
    let all = used(4096);
    for (limit, most) in [(2 * all, 4096), ((all + used(2048)) / 2, 2048)] {
        let small = engine(&|config| (config.max_batch_size, config.memory_limit_bytes) = (1, limit));
        assert!(!ask(&small, of(most)).vector.is_empty());
        assert!(small.stats().memory_used_bytes <= limit);
        if most < 4096 {
            refused(&small, of(most + 1), Status::TooLong, &["one step", "max_batch_tokens = 2048"]);
        }
    }
    // Windows keeps a file that is still mapped.
    drop((free, few));
    std::fs::remove_dir_all(folder).unwrap();
}
