//! Decoders that score pairs of texts: the scores of transformers, in any batch, from each form of their
//! files.

use crate::common;
use crate::engine_support::*;
use crate::folder_support::Copy;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Source, WeightType};
use serde_json::{Value, json};
use std::borrow::Cow;

const NAME: &str = "qwen3-reranker";
/// The prompt of Qwen3-Reranker, as in folders that sentence-transformers reads.
const TEMPLATE: &str = r#"{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Given a web search query, retrieve relevant passages that answer the query") -%}
{%- set query_text = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
{%- set document_text = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ instruction }}
<Query>: {{ query_text }}
<Document>: {{ document_text }}<|im_end|>
<|im_start|>assistant
<think>

</think>

{{ "" }}"#;

fn golden(name: &str) -> String {
    common::root().join("tests/golden/models").join(name).to_string_lossy().into_owned()
}

fn engine_of(path: String, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig {
        model_path: Some(path.clone()),
        threads: 2,
        kv_type: KvType::F32,
        ..EngineConfig::default()
    };
    change(&mut config);
    Engine::create(config).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn cases() -> Vec<Value> {
    let texts = common::json(&common::root().join("tests/golden/models").join(NAME).join("texts.json"));
    texts["pairs"].as_array().expect("pairs").clone()
}

fn request(case: &Value) -> RequestParams<'_> {
    let text = |i: usize| case["texts"][i].as_str().expect("a text");
    let message = |role, content| Message { role, content };
    score(match case["instruction"].as_str() {
        None => Prompt::Pair(Cow::Borrowed(text(0)), Cow::Borrowed(text(1))),
        Some(instruction) => {
            let [query, document] = [message("query", text(0)), message("document", text(1))];
            Prompt::Chat(Cow::Owned(vec![message("system", instruction), query, document]))
        }
    })
}

fn ids(case: &Value) -> RequestParams<'_> {
    score(Prompt::Tokens(common::numbers(&case["ids"]).into()))
}

fn check(what: &str, engine: &Engine, request: RequestParams, want: f64) {
    let answer = ask(engine, request);
    let [got] = answer.vector[..] else { panic!("{what}: {:?}", answer.vector) };
    // Relative errors, also of the distance to 1.
    let logit = |p: f64| (p / (1.0 - p)).ln();
    let near = (logit(f64::from(got)) - logit(want)).abs() < 5e-5 || (f64::from(got) - want).abs() < 1e-6;
    assert!(near, "{what}: {got} for {want}");
}

fn checks_all(what: &str, engine: &Engine) {
    for case in cases() {
        check(what, engine, request(&case), case["score"].as_f64().expect("a score"));
    }
}

#[test]
fn scores_and_prompts_are_those_of_the_models_card() {
    for name in ["qwen3-reranker", "qwen3-reranker.gguf"] {
        let engine = engine_of(golden(name), |_| ());
        checks_all(name, &engine);
        for case in cases() {
            let [text, tokens] = [request(&case), ids(&case)].map(|request| ask(&engine, request));
            assert_eq!(text.vector[0].to_bits(), tokens.vector[0].to_bits(), "{name}: {}", case["texts"]);
            assert_eq!(text.usage.prompt_tokens, common::numbers(&case["ids"]).len() as u32, "{name}");
        }
        assert!(!ask(&engine, text("a", 3)).tokens.is_empty(), "it also generates");
    }
}

#[test]
fn a_classifier_of_one_label_scores_ids() {
    let engine = engine_of(golden("qwen3-classifier"), |_| ());
    for case in cases() {
        check("classifier", &engine, ids(&case), case["score"].as_f64().expect("a score"));
    }
}

#[test]
fn folders_say_by_module_template_or_card_what_they_are() {
    let texts = common::json(&common::root().join("tests/golden/models").join(NAME).join("texts.json"));
    let [yes, no] = [0, 1].map(|i| texts["tokens"][i].clone());
    let modules = json!([
        {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}
    ]);
    // The same model under another name.
    let renamed = |copy: Copy| {
        let to = copy.0.with_file_name(copy.0.file_name().unwrap().to_string_lossy().replace("qwen3-r", "r"));
        std::fs::rename(&copy.0, &to).unwrap();
        Copy(to)
    };
    let with_module = |config: Value| {
        let copy = renamed(Copy::of(NAME));
        std::fs::create_dir_all(copy.0.join("1_LogitScore")).unwrap();
        copy.put("modules.json", modules.to_string()).put("1_LogitScore/config.json", config.to_string());
        copy.put("chat_template.jinja", TEMPLATE);
        copy
    };
    let copy = with_module(json!({"true_token_id": yes, "false_token_id": no}));
    checks_all("LogitScore", &engine_of(copy.path(), |_| ()));

    let copy = with_module(json!({"true_token_id": yes, "false_token_id": null}));
    let engine = engine_of(copy.path(), |_| ());
    for case in cases() {
        let logit = case["logits"][0].as_f64().expect("a logit");
        check("one token", &engine, request(&case), 1.0 / (1.0 + (-logit).exp()));
    }

    let copy = renamed(Copy::of(NAME));
    let plain = engine_of(copy.path(), |_| ());
    refused(&plain, request(&cases()[0]), Status::Unsupported, "no head");
    copy.put("README.md", "---\nx: y\n---\n# Qwen3-Reranker-0.6B\n");
    checks_all("README", &engine_of(copy.path(), |_| ()));

    let failed = |copy: &Copy, words: &str| {
        let error = Engine::create(EngineConfig { model_path: Some(copy.path()), ..Default::default() });
        let error = error.err().unwrap_or_else(|| panic!("taken, in place of {words}"));
        assert!(error.message.contains(words), "{error}");
    };
    let copy = with_module(json!({"true_token_id": 100_000, "false_token_id": no}));
    failed(&copy, "token 100000");
    copy.put("1_LogitScore/config.json", "{}");
    failed(&copy, "true_token_id");
    copy.put("1_LogitScore/config.json", json!({"true_token_id": yes}).to_string());
    copy.put("config_sentence_transformers.json", r#"{"activation_fn": "torch.nn.Tanh"}"#);
    failed(&copy, "activation_fn");
    let copy = Copy::of("qwen3-classifier");
    let config = copy.read("config.json");
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["id2label"] = json!({"0": "bad", "1": "good"});
    copy.put("config.json", config.to_string());
    failed(&copy, "id2label");
}

#[test]
fn other_messages_are_refused() {
    let engine = engine_of(golden(NAME), |_| ());
    let of = |roles: &[&'static str]| {
        let messages = roles.iter().map(|role| Message { role, content: "a" }).collect();
        score(Prompt::Chat(Cow::Owned(messages)))
    };
    for roles in [&["query"][..], &["user", "query", "document"], &["document", "query"], &[]] {
        refused(&engine, of(roles), Status::InvalidArgument, "query and document");
    }
    refused(&engine, score(Prompt::Text("a".into())), Status::InvalidArgument, "pair");
    let classifier = engine_of(golden("qwen3-classifier"), |_| ());
    refused(&classifier, of(&["query", "document"]), Status::Unsupported, "no prompt for pairs");
}

#[test]
fn company_chunks_and_the_prefix_cache_change_no_bit() {
    let cases = cases();
    let bits = |answer: &Answer| answer.vector[0].to_bits();
    let alone = engine_of(golden(NAME), |config| (config.max_batch_size, config.threads) = (1, 1));
    let expected: Vec<u32> = cases.iter().map(|case| bits(&ask(&alone, request(case)))).collect();
    for (batch, tokens) in [(2, 16), (8, 256)] {
        let engine = engine_of(golden("qwen3-reranker"), |config| {
            (config.max_batch_size, config.max_batch_tokens) = (batch, tokens);
        });
        for _ in 0..2 {
            let ids = engine.submit(cases.iter().map(request).collect()).unwrap();
            let answers = collect(&engine, ids.len());
            let got: Vec<u32> = ids.iter().map(|id| bits(&answers[id])).collect();
            assert_eq!(got, expected, "{batch}, {tokens}");
        }
    }
}

/// The rows for a score are taken from the head in its type at run time.
#[test]
fn other_types_of_weights_score_alike() {
    let options = LoadOptions { embedding: WeightType::Q8_0, ..Default::default() };
    let model = common::load_source(&Source::File(golden("qwen3-reranker.gguf")), &options, 2).unwrap();
    let engine =
        Engine::create(EngineConfig { model: Some((*model).clone()), ..Default::default() }).unwrap();
    for case in cases() {
        let [got] = ask(&engine, request(&case)).vector[..] else { panic!("one number") };
        let logits = [0, 1].map(|i| case["logits"][i].as_f64().expect("a logit"));
        let got = f64::from(got).clamp(1e-9, 1.0 - 1e-9);
        let (got, want) = ((got / (1.0 - got)).ln(), logits[0] - logits[1]);
        assert!((got - want).abs() < 0.05 * want.abs() + 0.5, "{got} for {want}");
    }
}
