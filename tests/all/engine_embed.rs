//! Requests for embeddings: their vectors, which are bitwise the same in any batch, and their ends.

use crate::common;
use crate::engine_support;
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::api::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const POOLINGS: [Pooling; 3] = [Pooling::Last, Pooling::Mean, Pooling::First];

const TEXTS: [&str; 6] = [
    "Once upon a time there was a small dog",
    "Once upon a time there was a little dog",
    "17+25=",
    "x",
    "Ages: Ada 42, Tom 17, Mia 88. Tom?",
    "In a small village, there lived a boy. He liked to walk to the river and look at the fish. One day he saw a \
     fish that was as red as an apple, and he ran home to tell his mother. She laughed, and they went back together.",
];

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The expected result for hidden states `[_, width]`, computed independently from the definitions.
fn pooled(hidden: &[f32], width: usize, pooling: Pooling, normalize: bool) -> Vec<f32> {
    let rows: Vec<_> = hidden.chunks_exact(width).collect();
    let rows = match pooling {
        Pooling::Last => &rows[rows.len() - 1..],
        Pooling::Mean => &rows[..],
        Pooling::First => &rows[..1],
    };
    let mean = |i: usize| rows.iter().map(|row| row[i] as f64).sum::<f64>() / rows.len() as f64;
    let mean: Vec<f64> = (0..width).map(mean).collect();
    let length = if normalize { mean.iter().map(|x| x * x).sum::<f64>().sqrt() } else { 1.0 };
    mean.iter().map(|x| (x / length) as f32).collect()
}

#[test]
fn vectors_are_the_models_hidden_states_pooled() {
    let engine = demo(|config| (config.max_batch_size, config.max_batch_tokens) = (4, 24));
    let model = &common::load_file("models/bn-demo.gguf", 1).unwrap();
    let width = model.model.facts().hidden_size;
    let tokenizer = engine.loaded().tokenizer.clone().unwrap();
    let prompts: Vec<_> = TEXTS.iter().map(|text| tokenizer.encode(text, true, false).unwrap()).collect();
    assert!(prompts.iter().any(|ids| ids.len() > 2 * 24), "one goes through in chunks");
    for (text, ids) in TEXTS.iter().zip(&prompts) {
        let one = [ids.clone()];
        let mut session = common::Session::with_kv(model, &one, EngineConfig::default().kv_type, 16, 3);
        session.step(&[(0, ids.len())]);
        for pooling in POOLINGS {
            for normalize in [true, false] {
                let answer = ask(&engine, embedding(text, Some(pooling), normalize));
                let expected = pooled(&session.hidden[0], width, pooling, normalize);
                assert_eq!(bits(&answer.vector), bits(&expected), "{text}, {pooling:?}");
                assert_eq!(answer.pooling, Some(pooling));
                let length = answer.vector.iter().map(|x| x * x).sum::<f32>().sqrt();
                assert!(!normalize || (length - 1.0).abs() < 1e-5, "{text}: its length is {length}");
            }
        }
    }
}

#[test]
fn one_event_without_text_tokens_or_logits_is_all_there_is() {
    let engine = demo(|_| ());
    for stream in [true, false] {
        let answer = ask(&engine, RequestParams { stream, ..embedding(TEXTS[0], None, true) });
        assert_eq!((answer.events, answer.finish), (1, FinishReason::Embedding as i32));
        assert!(answer.text.is_empty() && answer.tokens.is_empty() && answer.message.is_empty());
        assert_eq!(answer.pooling, Some(Pooling::Last), "a text generator's");
        assert_eq!(answer.vector.len(), engine.loaded().model.facts().hidden_size);
        let usage = answer.usage;
        assert_eq!((usage.generated_tokens, usage.first_token_ns, usage.decode_ns), (0, 0, 0));
        assert!(usage.prompt_tokens > 5 && usage.prefill_ns > 0 && usage.total_ns >= usage.prefill_ns);
    }
    let event = engine.generate(embedding(TEXTS[0], Some(Pooling::Mean), true)).unwrap();
    let alone = ask(&engine, embedding(TEXTS[0], Some(Pooling::Mean), true));
    assert_eq!((event.usage.cached_tokens, alone.usage.cached_tokens), (0, 0), "the mean needs every row");
    assert_eq!(event.embedding.unwrap().values, alone.vector);
    let stats = engine.stats();
    assert_eq!((stats.accepted, stats.completed_embedding, stats.unreleased), (4, 4, 0));
    assert_eq!((stats.generated_tokens, stats.time_to_first_token.count, stats.kv_blocks_used), (0, 0, 0));
    // Only the last row of the second prompt was computed.
    assert_eq!(stats.prompt_tokens, 3 * alone.usage.prompt_tokens as u64 + 1);
    assert_eq!(stats.end_to_end.count, 4);
}

/// Embeddings of every text in every way, each followed by a generating request.
fn mixed() -> Vec<RequestParams<'static>> {
    let of = |text: &'static str| {
        POOLINGS
            .map(|pooling| embedding(text, Some(pooling), true))
            .into_iter()
            .chain([with_logprobs(RequestParams { ignore_eos: true, ..engine_support::text(text, 12) })])
    };
    TEXTS.into_iter().flat_map(of).collect()
}

/// Everything that must not change.
fn essence(answer: &Answer) -> (Vec<u32>, String, Vec<(u32, u32)>) {
    (bits(&answer.vector), answer.text.clone(), answer.logprob_bits.clone())
}

#[test]
fn company_chunks_and_threads_change_no_bit_of_vectors_or_of_generation() {
    let alone = demo(|config| (config.max_batch_size, config.max_batch_tokens) = (1, 512));
    let expected: Vec<_> = mixed().into_iter().map(|request| essence(&ask(&alone, request))).collect();
    for threads in [1, 2] {
        for (batch, tokens, block) in [(1, 1, 32), (3, 7, 16), (8, 16, 64), (32, 512, 32)] {
            let engine = demo(|config| {
                (config.threads, config.kv_block_size) = (threads, block);
                (config.max_batch_size, config.max_batch_tokens) = (batch, tokens);
            });
            let ids = engine.submit(mixed()).unwrap();
            let answers = collect(&engine, ids.len());
            for (i, (id, expected)) in ids.iter().zip(&expected).enumerate() {
                let what = format!("request {i}, {threads} threads, batch {batch}, {tokens} tokens a step");
                assert_eq!(&essence(&answers[id]), expected, "{what}");
            }
            if batch == 32 {
                assert!(engine.stats().mean_batch_size() > 4.0, "they ran together");
            }
        }
    }
}

#[test]
fn like_texts_are_closer_than_unlike_ones() {
    let engine = demo(|_| ());
    let vector = |text| ask(&engine, embedding(text, Some(Pooling::Mean), true)).vector;
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let (small, little, sum) = (vector(TEXTS[0]), vector(TEXTS[1]), vector(TEXTS[2]));
    assert!(cosine(&small, &little) > cosine(&small, &sum) + 0.1);
    assert!((cosine(&small, &small) - 1.0).abs() < 1e-5);
}

#[test]
fn echos_vectors_are_histograms_of_bytes() {
    let engine = echo(|config| (config.max_batch_size, config.max_batch_tokens) = (2, 2));
    // 'a' is 97, 1 modulo 16; the separator 257.
    let answer = ask(&engine, embedding("aab", None, false));
    let mut expected = [0.0; 16];
    (expected[1], expected[2]) = (0.75, 0.25);
    assert_eq!((answer.vector.as_slice(), answer.pooling), (expected.as_slice(), Some(Pooling::Mean)));
    let answer = ask(&engine, embedding("bba", Some(Pooling::First), true));
    assert_eq!((answer.vector[2], answer.vector.iter().sum::<f32>()), (1.0, 1.0));
}

#[test]
fn what_has_no_meaning_without_an_output_is_refused_by_name() {
    let engine = echo(|_| ());
    type Set = fn(&mut RequestParams);
    let cases: [(&str, Set); 15] = [
        ("messages", |r| r.prompt = Prompt::Chat(Default::default())),
        ("stop_tokens", |r| r.stop_tokens = vec![1].into()),
        ("stop_strings", |r| r.stop_strings = vec!["x".into()]),
        ("BN_REQUEST_IGNORE_EOS", |r| r.ignore_eos = true),
        ("BN_REQUEST_ECHO_PROMPT", |r| r.echo_prompt = true),
        ("BN_REQUEST_LOGPROBS", |r| r.sampling.logprobs = true),
        ("top_logprobs", |r| r.sampling.top_logprobs = 1),
        ("seed", |r| r.sampling.seed = 1),
        ("temperature", |r| r.sampling.temperature = f32::NAN),
        ("top_k", |r| r.sampling.top_k = 1),
        ("top_p", |r| r.sampling.top_p = 0.5),
        ("min_p", |r| r.sampling.min_p = 0.5),
        ("repetition_penalty", |r| r.sampling.repetition_penalty = 2.0),
        ("frequency_penalty", |r| r.sampling.frequency_penalty = 1.0),
        ("presence_penalty", |r| r.sampling.presence_penalty = 1.0),
    ];
    for (name, set) in cases {
        let mut request = embedding("x", None, true);
        set(&mut request);
        refused(&engine, request, Status::InvalidArgument, &format!("{name} is set"));
    }
    let none = RequestParams { prompt: Prompt::Tokens(Vec::new().into()), ..embedding("", None, true) };
    refused(&engine, none, Status::InvalidArgument, "the prompt is empty");
    assert_eq!((engine.stats().rejected_invalid, engine.stats().accepted), (16, 0));
}

#[test]
fn a_prompt_may_fill_the_sequence_and_no_more() {
    let engine = echo(|config| (config.context_length, config.max_batch_size) = (64, 1));
    let of = |n: usize| RequestParams {
        prompt: Prompt::Tokens(vec![b'a' as u32; n].into()),
        ..embedding("", None, true)
    };
    refused(&engine, of(65), Status::TooLong, "the context of 64 tokens has to hold it");
    assert_eq!(ask(&engine, of(64)).usage.prompt_tokens, 64);
    refused(
        &engine,
        RequestParams { embedding: None, max_new_tokens: 1, ..of(64) },
        Status::TooLong,
        "new token",
    );
}

#[test]
fn cancelled_and_timed_out_ones_have_no_vector() {
    // 400 rows of 20 ms: seconds, in which a machine may stall.
    let engine = echo(|config| {
        config.model_path = Some("builtin:echo?us_per_token=20000".into());
        (config.max_batch_size, config.max_batch_tokens) = (2, 8);
    });
    let long = "a".repeat(400);
    let ids = engine.submit(vec![embedding(&long, None, true), embedding("b", None, true)]).unwrap();
    while engine.stats().steps == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.cancel(Which::One(ids[0])).unwrap();
    let answers = collect(&engine, 2);
    assert_eq!(answers[&ids[0]].finish, FinishReason::Cancelled as i32);
    assert!(answers[&ids[0]].vector.is_empty());
    assert_eq!(answers[&ids[1]].finish, FinishReason::Embedding as i32);
    let late = ask(&engine, RequestParams { timeout_ms: 30, ..embedding(&long, None, true) });
    assert_eq!((late.finish, late.vector.len()), (FinishReason::TimedOut as i32, 0));
    let stats = engine.stats();
    assert_eq!((stats.completed_cancelled, stats.completed_timed_out, stats.completed_embedding), (1, 1, 1));
    assert_eq!((stats.kv_blocks_used, stats.unreleased), (0, 0));
}

#[test]
fn callbacks_bring_vectors() {
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let sink = seen.clone();
    let engine = echo(|config| {
        config.on_event = Some(Box::new(move |event: &Event| {
            let vector = event.embedding.as_ref().map(|e| e.values.clone());
            assert!(sink.lock().unwrap().insert(event.user_data, vector).is_none(), "one event each");
        }));
    });
    let request = |i| RequestParams { user_data: i, stream: i % 2 == 0, ..embedding("ab", None, true) };
    engine.submit((0..10).map(request).collect()).unwrap();
    let blocking = engine.generate(request(0)).unwrap().embedding.unwrap();
    engine.destroy().unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 10);
    assert!(seen.values().flatten().all(|vector| **vector == blocking.values));
}
