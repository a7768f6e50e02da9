//! Pictures in prompts: the model's answers are transformers', and those of a request alone in any company.

use crate::common::load_source;
use crate::engine_disk::{Outcome, Temporary};
use crate::engine_goldens::*;
use crate::engine_support::*;
use crate::folder_support::Copy;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::formats::gguf::writer::Meta;
use bn_engine::kernels::Pool;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{ExportTypes, HfFolder, LoadOptions, Source, export};
use bn_engine::sample::SamplingParams;
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

#[derive(Deserialize)]
pub struct Golden {
    pub cases: Vec<Case>,
    tolerance: f64,
}

#[derive(Deserialize)]
pub struct Case {
    pub model: String,
    /// Texts and ids of the tokenizer's control tokens.
    pub controls: Vec<(String, u32)>,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct Sequence {
    text: String,
    ids: Vec<u32>,
    /// Width and height.
    pictures: Vec<[u32; 2]>,
    positions: usize,
}

const VOCAB: usize = 64;

/// The case of a model.
pub fn case_of(model: &str) -> Case {
    let named = |case: &Case| case.model.rsplit('/').next() == Some(model);
    all().cases.into_iter().find(named).unwrap()
}

pub fn all() -> Golden {
    let bytes = std::fs::read("tests/golden/seeing/index.json").unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// The case of Qwen 3.5.
fn golden() -> Case {
    all().cases.swap_remove(0)
}

fn engine_of(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    engine(&golden().model, |config| {
        (config.kv_type, config.context_length) = (KvType::F32, 128);
        change(config);
    })
}

/// The `n`-th picture of the golden values.
pub fn picture([width, height]: [u32; 2], n: u32) -> Picture<'static> {
    let byte = |i: u32| {
        let value = i.wrapping_mul(2_654_435_761).wrapping_add(n * 40503);
        (value ^ (value >> 15)) as u8
    };
    Picture::Pixels { width, height, rgb: (0..width * height * 3).map(byte).collect::<Vec<u8>>().into() }
}

/// A request for each sequence.
pub fn requests(golden: &Case) -> Vec<RequestParams<'static>> {
    let mut n = 0;
    let mut made = Vec::new();
    for case in &golden.sequences {
        let pictures = case.pictures.iter().map(|size| {
            n += 1;
            picture(*size, n - 1)
        });
        made.push(RequestParams {
            prompt: Prompt::Tokens(case.ids.clone().into()),
            pictures: pictures.collect(),
            max_new_tokens: 12,
            ignore_eos: true,
            sampling: SamplingParams { temperature: 0.0, logprobs: true, ..Default::default() },
            ..Default::default()
        });
    }
    made
}

#[test]
fn log_probabilities_are_those_of_transformers() {
    let golden = all();
    let values: Vec<f32> = std::fs::read("tests/golden/seeing/logits.f32")
        .unwrap()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let mut rows = values.chunks_exact(VOCAB);
    for case in &golden.cases {
        let folder = talking(case);
        // Rows of logits for a whole picture.
        let engine =
            engine(&folder.path(), |config| (config.context_length, config.max_batch_size) = (128, 1));
        for (sequence, request) in case.sequences.iter().zip(requests(case)) {
            let scores = Some(ScoreParams { from: 0, generates: false });
            let prompt = Prompt::Text(sequence.text.clone().into());
            let request = RequestParams { prompt, parse_special: true, scores, ..request };
            let answer = ask(&engine, request);
            assert_eq!(answer.message, "");
            assert_eq!(answer.tokens.len(), sequence.positions, "{}: {}", case.model, sequence.text);
            let expected: Vec<&[f32]> = rows.by_ref().take(sequence.positions).collect();
            for (row, (token, bits)) in expected.iter().zip(&answer.logprob_bits[1..]) {
                let max = row.iter().copied().fold(f32::MIN, f32::max);
                let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
                let want = f64::from(row[*token as usize] - max) - sum.ln();
                let got = f64::from(f32::from_bits(*bits));
                let off = (got - want).abs() / want.abs().max(1.0);
                assert!(off <= golden.tolerance, "{}: {got} for {want}", case.model);
            }
        }
    }
}

#[test]
fn answers_are_the_same_in_any_company() {
    let golden = golden();
    let alone = |change: fn(&mut EngineConfig)| -> Vec<_> {
        let engine = engine_of(change);
        requests(&golden).into_iter().map(|request| outcome(&ask(&engine, request))).collect()
    };
    let want = alone(|_| ());
    assert_eq!(alone(|config| (config.max_batch_tokens, config.threads) = (5, 1)), want, "in chunks");
    let engine = engine_of(|config| config.max_batch_size = 17);
    let cached = |engine: &Engine| engine.stats().cached_tokens;
    for round in 0..2 {
        let all: Vec<_> = (0..17).flat_map(|_| requests(&golden)).take(17).collect();
        let ids = engine.submit(all).unwrap();
        let answers = collect(&engine, ids.len());
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(outcome(&answers[id]), want[at % want.len()], "request {at} of round {round}");
        }
    }
    assert!(cached(&engine) > 0, "{}", cached(&engine));
}

/// Answers, of so many tokens, of an engine without company.
fn wanted(new: u32) -> Vec<Outcome> {
    let engine = engine_of(|_| ());
    let asked = |request| outcome(&ask(&engine, RequestParams { max_new_tokens: new, ..request }));
    requests(&golden()).into_iter().map(asked).collect()
}

/// Submits `rounds` times all requests at once, and compares the answers.
fn compare(engine: &Engine, rounds: usize, change: impl Fn(&mut RequestParams)) {
    let mut first = requests(&golden()).swap_remove(0);
    change(&mut first);
    let want = wanted(first.max_new_tokens);
    let mut all: Vec<_> = (0..rounds).flat_map(|_| requests(&golden())).collect();
    all.iter_mut().for_each(change);
    let ids = engine.submit(all).unwrap();
    let answers = collect(engine, ids.len());
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(outcome(&answers[id]), want[at % want.len()], "request {at}");
    }
}

#[test]
fn preemption_changes_no_answer() {
    let block = engine_of(|_| ()).stats();
    let block = block.kv_bytes / block.kv_blocks_total;
    for cache in [false, true] {
        let engine = engine_of(|config| {
            (config.max_batch_size, config.context_length) = (4, 64);
            config.kv_cache_bytes = 5 * block;
        });
        compare(&engine, 6, |request| (request.cache, request.max_new_tokens) = (cache, 25));
        assert!(engine.stats().preemptions > 0, "{:?}", engine.stats());
    }
}

#[test]
fn drafts_change_no_answer() {
    let engine = engine_of(|config| config.draft_always = true);
    let change = |request: &mut RequestParams| {
        (request.speculation, request.max_new_tokens) = (Some(Speculation::Lookup), 70);
    };
    compare(&engine, 2, change);
    assert!(engine.stats().drafted_tokens > 0);
}

/// A copy of the golden model with a block of multi-token prediction, a copy of its last layer.
fn with_block() -> Copy {
    const LAYER: &str = "model.language_model.layers.1.";
    let folder = Copy::of_folder("towers", "qwen35");
    let model = folder.read("model.safetensors");
    let (header, data) = model[8..].split_at(u64::from_le_bytes(model[..8].try_into().unwrap()) as usize);
    let (mut header, mut data): (serde_json::Value, _) =
        (serde_json::from_slice(header).unwrap(), data.to_vec());
    let tensors = header.as_object_mut().unwrap();
    let own: Vec<_> = tensors
        .iter()
        .filter_map(|(name, of)| Some((format!("mtp.layers.0.{}", name.strip_prefix(LAYER)?), of.clone())))
        .collect();
    let norm = tensors[&format!("{LAYER}input_layernorm.weight")].clone();
    let norms = ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"];
    let norms = norms.map(|name| (format!("mtp.{name}.weight"), norm.clone()));
    // Two matrices one after the other, with as many elements.
    let join = json!({"dtype": "BF16", "shape": [40, 80], "data_offsets": [0, 6400]});
    for (name, mut tensor) in own.into_iter().chain(norms).chain([("mtp.fc.weight".to_owned(), join)]) {
        let [from, to] = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
        tensor["data_offsets"] = json!([data.len(), data.len() + to - from]);
        data.extend_from_within(from..to);
        tensors.insert(name, tensor);
    }
    let header = header.to_string();
    folder
        .put("model.safetensors", [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat());
    folder.config(|config| config["text_config"]["mtp_num_hidden_layers"] = 1.into());
    folder
}

/// Drafts of the model's own block, behind pictures too.
#[test]
fn drafts_of_a_block_change_no_answer() {
    let folder = with_block();
    let open = |mtp| {
        let options = LoadOptions { mtp, ..Default::default() };
        let loaded = load_source(&Source::File(folder.path()), &options, 1).unwrap().loaded;
        create(EngineConfig {
            model: Some(loaded),
            kv_type: KvType::F32,
            context_length: 128,
            max_batch_size: 8,
            draft_always: mtp,
            ..Default::default()
        })
        .unwrap()
    };
    // Answers of two tokens, so that drafts are often accepted.
    let requests = || {
        requests(&golden()).into_iter().map(|mut request| {
            request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0)];
            RequestParams { max_new_tokens: 40, ..request }
        })
    };
    let answers = |engine: &Engine| {
        let ids = engine.submit(requests().collect()).unwrap();
        let answers = collect(engine, ids.len());
        ids.iter().map(|id| outcome(&answers[id])).collect::<Vec<_>>()
    };
    let (plain, drafting) = (open(false), open(true));
    assert_eq!(answers(&drafting), answers(&plain));
    let stats = drafting.stats();
    assert!(stats.accepted_tokens > 0 && stats.accepted_tokens < stats.drafted_tokens, "{stats:?}");
}

#[test]
fn prefixes_with_pictures_outlive_the_engine() {
    let folder = Temporary::new();
    let open = || engine_of(|config| (config.cache_path, config.snapshot_interval) = (folder.text(), 16));
    let first = open();
    compare(&first, 1, |_| ());
    first.destroy().unwrap();
    let second = open();
    compare(&second, 1, |_| ());
    let from_disk = second.stats().disk_tokens;
    assert!(from_disk > 0, "{:?}", second.stats());
    second.destroy().unwrap();
    // Other sizes make other vectors of the same pictures.
    let other = engine_of(|config| {
        (config.cache_path, config.snapshot_interval, config.picture_tokens) = (folder.text(), 16, 4);
    });
    let request = || requests(&golden()).swap_remove(2);
    let answer = outcome(&ask(&other, RequestParams { cache: false, ..request() }));
    assert_eq!(outcome(&ask(&other, request())), answer);
    assert_ne!(answer, wanted(12)[2]);
}

/// A conversation goes on in another engine, where the hashes of pictures have another key.
#[test]
fn sessions_with_pictures_go_on_elsewhere() {
    // Rotations apart from positions and states; neither; pictures that run in one step.
    for model in ["qwen35", "mistral3", "gemma3"] {
        let case = case_of(model);
        let folder = talking(&case);
        let open = |tokens| {
            engine(&folder.path(), |config| {
                (config.kv_type, config.context_length, config.picture_tokens) = (KvType::F32, 128, tokens);
            })
        };
        let session = |request| RequestParams { session: Some("chat".into()), ..request };
        let [mut first, second] = [0, 1].map(|n| requests(&case).swap_remove(n));
        first.sampling.logit_bias = case.controls.iter().map(|(_, id)| (*id, -100.0)).collect();
        let here = open(4096);
        let answer = ask(&here, session(first.clone()));
        let saved = here.save_session("chat").unwrap();
        assert_eq!(here.session_size("chat").unwrap(), saved.len(), "{model}");
        let ids = |request: &RequestParams| match &request.prompt {
            Prompt::Tokens(ids) => ids.to_vec(),
            _ => unreachable!(),
        };
        let turn = [ids(&first), answer.tokens.clone(), ids(&second)].concat();
        let turn = |pictures: &[Picture<'static>]| RequestParams {
            prompt: Prompt::Tokens(turn.clone().into()),
            pictures: [pictures, &second.pictures].concat(),
            ..second.clone()
        };
        let there = open(4096);
        there.restore_session("chat", &saved).unwrap();
        assert!(there.save_session("chat").unwrap() == saved, "{model}");
        // The same sizes and other pixels.
        let others: Vec<_> = case.sequences[0].pictures.iter().map(|size| picture(*size, 99)).collect();
        for (pictures, same) in [(&others, false), (&first.pictures, true)] {
            let want = outcome(&ask(&open(4096), turn(pictures)));
            for engine in [&there, &here] {
                let got = ask(engine, turn(pictures));
                assert_eq!(outcome(&got), want, "{model}");
                // The last token was never run.
                let known = answer.usage.prompt_tokens + answer.tokens.len() as u32 - 1;
                assert_eq!(got.usage.cached_tokens == known, same, "{model}: {:?}", got.usage);
            }
        }
        // Fewer soft tokens change the sizes of Qwen's pictures alone.
        let others = if model == "qwen35" { &[16, 0][..] } else { &[0] };
        for tokens in others.iter().copied() {
            let error = open(tokens).restore_session("chat", &saved).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument);
            assert!(error.message.contains("the session has pictures that"), "{model}: {error}");
        }
    }
}

#[test]
fn what_cannot_be_seen_is_refused_in_words() {
    let engine = engine_of(|_| ());
    let own = || requests(&golden()).swap_remove(0);
    let encoded = |bytes: &'static [u8]| vec![Picture::Encoded(bytes.into())];
    let cases = [
        (RequestParams { pictures: Vec::new(), prompt: Prompt::Tokens(vec![1, 2].into()), ..own() }, None),
        (RequestParams { pictures: vec![picture([4, 4], 0); 2], ..own() }, Some("1 places for pictures")),
        (RequestParams { prompt: Prompt::Tokens(vec![1].into()), ..own() }, Some("0 places for pictures")),
        (RequestParams { pictures: encoded(b"no picture"), ..own() }, Some("picture 0: ")),
        (RequestParams { pictures: vec![picture([1, 300], 0)], ..own() }, Some("picture 0: ")),
    ];
    for (request, says) in cases {
        match says {
            None => assert_eq!(ask(&engine, request).message, ""),
            Some(says) => refused(&engine, request, Status::InvalidArgument, says),
        }
    }
    let blind = [demo(|_| ()), engine_of(|config| config.picture_tokens = 0)];
    blind.iter().for_each(|engine| refused(engine, own(), Status::Unsupported, "pictures are given"));
    assert_eq!(engine.picture_positions(&picture([37, 22], 0)).unwrap(), 22 - 7);
    let used = |engine: &Engine| engine.stats().memory_used_bytes;
    assert!(used(&blind[1]) < used(&engine), "a picture's memory is not set aside");
}

#[test]
fn cancelled_requests_leave_nothing() {
    let engine = engine_of(|config| (config.max_batch_size, config.queue_capacity) = (4, 512));
    let before = engine.stats().memory_used_bytes;
    for round in 0..20 {
        let ids = engine.submit((0..3).flat_map(|_| requests(&golden())).collect()).unwrap();
        std::thread::sleep(Duration::from_micros(round * 97));
        ids.iter().step_by(2).for_each(|id| engine.cancel(Which::One(*id)).unwrap());
        collect(&engine, ids.len());
    }
    assert_eq!(engine.stats().memory_used_bytes, before);
    compare(&engine, 1, |_| ());
}

/// A golden model with a tokenizer and a template.
pub fn talking(case: &Case) -> Copy {
    let folder = Copy::of_folder("towers", case.model.rsplit('/').next().unwrap());
    let letters = ('a'..='z').chain(['\u{120}', ':', '.', '\u{10a}']);
    let mut texts: Vec<String> = ["!", "<s>", "</s>"].map(str::to_owned).into();
    texts.extend(letters.map(String::from));
    texts.extend((texts.len()..VOCAB).map(|id| format!("<{id}>")));
    let mut added = Vec::new();
    for (text, id) in case.controls.iter().map(|(text, id)| (text, *id)) {
        texts[id as usize] = text.clone();
        added.push(json!({
            "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        }));
    }
    let vocab: serde_json::Map<_, _> = texts.iter().cloned().zip((0..).map(|id: u32| json!(id))).collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    let template = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
        {% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}\
        {% endif %}{% endfor %}{% endif %}.{% endfor %}";
    let config =
        json!({"chat_template": template, "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"});
    for (file, value) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)] {
        folder.put(file, value.to_string());
    }
    folder
}

pub fn png(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    file
}

#[test]
fn conversations_have_pictures_as_parts() {
    let folder = talking(&golden());
    let engine = engine(&folder.path(), |config| config.context_length = 128);
    let [width, height] = [21, 30];
    let Picture::Pixels { rgb, .. } = picture([width, height], 5) else { unreachable!() };
    let file = png(width, height, &rgb);
    let url = format!("data:image/png;base64,{}", base64::encode(&file));
    let chat = |part: serde_json::Value| {
        let content = json!([{"type": "text", "text": "a b"}, part, {"type": "text", "text": "c"}]);
        json!({"messages": [{"role": "user", "content": content}]}).to_string()
    };
    let request = |chat: String, pictures: Vec<Picture<'static>>| RequestParams {
        prompt: Prompt::ChatJson(chat.into()),
        pictures,
        max_new_tokens: 8,
        ignore_eos: true,
        sampling: SamplingParams { temperature: 0.0, logprobs: true, ..Default::default() },
        ..Default::default()
    };
    let own = vec![Picture::Pixels { width, height, rgb: rgb.clone() }];
    let given = ask(&engine, request(chat(json!({"type": "image"})), own));
    let positions = engine.picture_positions(&picture([width, height], 5)).unwrap() as u32;
    assert_eq!(given.usage.prompt_tokens, "user:a bc.".len() as u32 + 2 + positions);
    for part in [
        json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}}),
        json!({"type": "input_image", "image_url": url}),
    ] {
        let inline = ask(&engine, request(chat(part), Vec::new()));
        assert_eq!(outcome(&inline), outcome(&given));
        assert_eq!(inline.usage.prompt_tokens, given.usage.prompt_tokens);
    }
    // What a user writes is no place for a picture.
    let text = json!({"type": "text", "text": "<|image_pad|>"});
    let written = ask(&engine, request(chat(text), Vec::new()));
    assert!(written.usage.prompt_tokens < given.usage.prompt_tokens + 20);
    for (part, says) in [
        (json!({"type": "image"}), "1 parts of type image"),
        (
            json!({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}),
            "must be a data URL",
        ),
        (json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}}), "is no base64"),
        (json!({"type": "audio"}), "only parts of type text, image"),
    ] {
        refused(&engine, request(chat(part), Vec::new()), Status::InvalidArgument, says);
    }
}

/// The model and its tower in two GGUF files, as llama.cpp's converter and this library write them.
#[test]
fn a_tower_in_a_file_beside_the_model_sees_the_same() {
    let file = std::env::temp_dir().join(format!("bn-seeing-{}.gguf", std::process::id()));
    // The file of the tower says no bounds of pixels.
    let copy = Copy::of_folder("towers", "qwen35");
    for (name, from, to) in [
        ("config.json", "\"max_position_embeddings\": 128", "\"max_position_embeddings\": 2048"),
        ("preprocessor_config.json", "4096", "16777216"),
        ("preprocessor_config.json", "256", "65536"),
    ] {
        let text = String::from_utf8(copy.read(name)).unwrap();
        assert!(text.contains(from), "{text}");
        copy.put(name, text.replace(from, to));
    }
    let folder = HfFolder::open(&copy.path()).unwrap();
    let types = ExportTypes { ternary: None, weights: None, embedding: None };
    let mut texts: Vec<String> = (0..VOCAB).map(|id| format!("<{id}>")).collect();
    texts[60] = "<|image_pad|>".into();
    let control = (0..VOCAB).map(|id| if id == 60 { 3 } else { 1 }).collect();
    let extra = [
        ("model", Meta::from("gpt2")),
        ("pre", Meta::from("gpt-2")),
        ("tokens", Meta::Strs(texts)),
        ("token_type", Meta::I32s(control)),
        ("merges", Meta::Strs(Vec::new())),
    ];
    let extra = extra.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).into();
    export(&folder, types, extra, &Pool::new(1).unwrap(), &file, &mut |_, _| ()).unwrap();
    let source = || Source::File(file.to_str().unwrap().to_owned());
    let open = |tower: &str| {
        let pictures = Some(format!("tests/golden/towers/{tower}"));
        load_source(&source(), &LoadOptions { pictures, ..Default::default() }, 1)
    };
    let whole = engine(&copy.path(), |config| config.context_length = 1200);
    let requests = || requests(&golden()).into_iter().filter(|request| request.pictures.len() < 2);
    let from_folder: Vec<_> = requests().map(|request| outcome(&ask(&whole, request))).collect();
    let loaded = open("qwen35-f32.gguf").unwrap();
    let two = create(EngineConfig {
        model: Some(loaded.loaded),
        kv_type: KvType::F32,
        context_length: 1200,
        ..Default::default()
    })
    .unwrap();
    for (request, want) in requests().zip(&from_folder) {
        let got = outcome(&ask(&two, request));
        assert_eq!(got.0, want.0);
        for (got, want) in got.1.iter().zip(&want.1) {
            assert!((f32::from_bits(got.1) - f32::from_bits(want.1)).abs() < 1e-4);
        }
    }
    for (tower, says) in [
        ("smolvlm-f32.gguf", "no token <image>"),
        ("gemma3-f32.gguf", "no token <image_soft_token>"),
        ("no.gguf", "no.gguf"),
    ] {
        let error = open(tower).err().unwrap();
        assert!(error.message.contains(says) && error.message.contains("pictures_path"), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn questions_are_about_pictures() {
    let folder = talking(&golden());
    let engine = engine(&folder.path(), |config| config.context_length = 128);
    let chat = json!({"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "ab"}]}]});
    let options = |texts: [&'static str; 2]| texts.map(Into::into).to_vec();
    let question = |text: &'static str| Question {
        text: text.into(),
        options: options(["a", "b"]),
        ..Default::default()
    };
    let asked = |prompt: Prompt<'static>, n: u32| {
        let questions = Some(vec![question("cd"), question("efg"), question("")]);
        RequestParams { prompt, pictures: vec![picture([30, 22], n)], questions, ..Default::default() }
    };
    let decide = |n| {
        let answer = ask(&engine, asked(Prompt::ChatJson(chat.to_string().into()), n));
        assert_eq!((answer.message.as_str(), answer.decisions.answers.len()), ("", 3));
        answer.decisions
    };
    let first = decide(1);
    assert_eq!(decide(1), first);
    assert_ne!(decide(2), first, "it looks");
    // Plain scoring of the last question's first option.
    let ids = [58, 60, 59, 3, 4];
    let text = "user:<|vision_start|><|image_pad|><|vision_end|>ab.a";
    let request = RequestParams {
        prompt: Prompt::Text(text.into()),
        parse_special: true,
        pictures: vec![picture([30, 22], 1)],
        scores: Some(ScoreParams { from: 0, generates: false }),
        sampling: SamplingParams { logprobs: true, ..Default::default() },
        ..Default::default()
    };
    let scored = ask(&engine, request);
    let want = f32::from_bits(scored.logprob_bits.last().unwrap().1);
    let at = first.answers[2].first_option as usize;
    assert!((first.options[at].logprob - f64::from(want)).abs() < 1e-6, "{first:?}, {want}");
    let message = [Message { role: "user", content: "ab" }];
    refused(&engine, asked(Prompt::Chat(message.to_vec().into()), 1), Status::InvalidArgument, "0 places");
    refused(&engine, asked(Prompt::Tokens(ids[3..].to_vec().into()), 1), Status::InvalidArgument, "0 places");
    assert_eq!(ask(&engine, asked(Prompt::Tokens(ids.to_vec().into()), 1)).message, "");
}
