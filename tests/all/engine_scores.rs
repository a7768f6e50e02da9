//! Log probabilities of a prompt's own tokens: the model's softmax, in any batch, with and without an output.

use crate::common::{Session, load_source};
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::attention::KvType;
use bn_engine::sample::SamplingParams;

const STORY: &str =
    "Once upon a time there was a small machine that could only count to three. It met a cat. ";

fn ids(n: usize) -> Vec<u32> {
    let model = load_source(&Source::Embedded, &LoadOptions::default(), 1).unwrap();
    let text = format!("{STORY}{n}: {}", STORY.repeat(1 + n % 3));
    model
        .tokenizer
        .as_ref()
        .unwrap()
        .encode(&text[..(60 + n * 23 % 160).min(text.len())], true, false)
        .unwrap()
}

fn request(ids: &[u32], from: u32, generates: bool) -> RequestParams<'static> {
    RequestParams {
        prompt: Prompt::Tokens(ids.to_vec().into()),
        scores: Some(ScoreParams { from, generates }),
        echo_prompt: generates,
        max_new_tokens: 12,
        ignore_eos: true,
        sampling: SamplingParams {
            logprobs: true,
            top_logprobs: 2,
            logprob_tokens: vec![5],
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Log probabilities of the vocabulary after each token, in f64.
fn reference(ids: &[u32]) -> Vec<Vec<f64>> {
    let model = load_source(&Source::Embedded, &LoadOptions::default(), 1).unwrap();
    let sequences = [ids.to_vec()];
    let mut session = Session::with_kv(&model, &sequences, KvType::F16, 32, 1);
    session.step(&[(0, ids.len())]);
    let rows = session.logits[0].chunks_exact(model.model.facts().vocab_size);
    let logprobs = |row: &[f32]| -> Vec<f64> {
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
        row.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
    };
    rows.map(logprobs).collect()
}

#[test]
fn they_are_the_models_own() {
    let engine = demo(|_| ());
    for n in [0, 3] {
        let ids = ids(n);
        let answer = ask(&engine, request(&ids, 0, false));
        assert_eq!((answer.finish, &answer.tokens), (FinishReason::Length as i32, &ids));
        assert_eq!((answer.usage.generated_tokens, answer.text.as_str()), (0, ""));
        let each = 1 + 2 + 1;
        assert_eq!(answer.logprob_bits.len(), ids.len() * each);
        assert!(f32::from_bits(answer.logprob_bits[0].1).is_nan(), "nothing is before the first");
        for (i, (want, next)) in reference(&ids).into_iter().zip(&ids[1..]).enumerate() {
            let of = &answer.logprob_bits[(i + 1) * each..][..each];
            assert_eq!((of[0].0, of[3].0), (*next, 5));
            for (token, bits) in of {
                let (got, want) = (f64::from(f32::from_bits(*bits)), want[*token as usize]);
                assert!((got - want).abs() < 1e-4, "position {i}, token {token}: {got} for {want}");
            }
            // The two most likely ones, compared by value, since two may have the same.
            let mut best = want;
            best.sort_unstable_by(|a, b| b.total_cmp(a));
            for (&(token, bits), want) in of[1..3].iter().zip(&best) {
                let got = f64::from(f32::from_bits(bits));
                assert!((got - want).abs() < 1e-4, "position {i}: {token} has {got}, the best {want}");
            }
            assert!(of[1].0 != of[2].0 && f32::from_bits(of[1].1) >= f32::from_bits(of[2].1));
        }
        // Scores in front of an output, which is unchanged.
        let both = ask(&engine, request(&ids, 0, true));
        assert!(both.logprob_bits[each..ids.len() * each] == answer.logprob_bits[each..]);
        let plain =
            ask(&engine, RequestParams { scores: None, echo_prompt: false, ..request(&ids, 0, true) });
        assert_eq!(both.tokens[ids.len()..], plain.tokens);
        assert!(both.logprob_bits[ids.len() * each..] == plain.logprob_bits);
    }
}

#[test]
fn continuations_of_one_prompt_compute_it_once() {
    let engine = demo(|config| config.kv_block_size = 16);
    let shared = ids(1);
    let from = shared.len() as u32;
    let all: Vec<Vec<u32>> =
        (0..8u32).map(|n| shared.iter().copied().chain([7 + n, 9, 30 + n]).collect()).collect();
    let scores = engine.submit(all.iter().map(|ids| request(ids, from, false)).collect()).unwrap();
    let answers = collect(&engine, all.len());
    let computed = engine.stats().prompt_tokens as usize;
    assert!(computed < shared.len() + 16 * all.len(), "{computed} rows for {} tokens", shared.len());
    for (id, ids) in scores.iter().zip(&all) {
        assert_eq!(answers[id].tokens, ids[shared.len()..]);
        let whole = ask(&engine, RequestParams { cache: false, ..request(ids, 0, false) });
        assert!(answers[id].logprob_bits[..] == whole.logprob_bits[shared.len() * 4..]);
    }
}

fn mixed() -> Vec<RequestParams<'static>> {
    let one = |n: usize| {
        let ids = ids(n);
        let mut request = request(&ids, n as u32 % 12, n.is_multiple_of(2));
        (request.max_new_tokens, request.stream) = (40 + n as u32 % 50, n.is_multiple_of(3));
        match n % 4 {
            3 => RequestParams { scores: None, echo_prompt: false, ..request },
            _ => request,
        }
    };
    (0..40).map(one).collect()
}

#[test]
fn company_and_preemption_change_no_bit() {
    let bits = |engine: &Engine, requests: Vec<RequestParams<'static>>| -> Vec<Answer> {
        let n = requests.len();
        let ids = engine.submit(requests).unwrap();
        let mut answers = collect(engine, n);
        ids.iter().map(|id| answers.remove(id).unwrap()).collect()
    };
    let alone = {
        let engine = demo(|config| (config.max_batch_size, config.threads) = (1, 1));
        bits(&engine, mixed().into_iter().map(|r| RequestParams { cache: false, ..r }).collect())
    };
    let one = demo(|config| config.kv_block_size = 16).stats();
    for (batch, tokens, blocks) in [(32, 512, 24), (3, 3, 20), (8, 64, 16)] {
        let engine = demo(|config| {
            (config.kv_block_size, config.max_batch_size, config.max_batch_tokens) = (16, batch, tokens);
            config.kv_cache_bytes = one.kv_bytes / one.kv_blocks_total * blocks;
        });
        for (n, (got, want)) in bits(&engine, mixed()).iter().zip(&alone).enumerate() {
            assert_eq!((got.finish, &got.tokens), (want.finish, &want.tokens), "{n}: {}", got.message);
            assert!(got.logprob_bits == want.logprob_bits, "request {n} in a batch of {batch}");
        }
        assert!(batch == 3 || engine.stats().preemptions > 0);
        assert_eq!(engine.stats().kv_blocks_used, 0);
    }
}

#[test]
fn mistakes_are_refused_by_name() {
    let (engine, ids) = (demo(|_| ()), ids(0));
    let refused = |request: RequestParams<'static>, word: &str| {
        let error = engine.submit(vec![request]).unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument);
        assert!(error.message.contains(word), "no '{word}' in: {error}");
    };
    refused(request(&ids, ids.len() as u32, false), "logprobs_from");
    refused(
        RequestParams { sampling: SamplingParams::default(), ..request(&ids, 0, false) },
        "BN_REQUEST_LOGPROBS",
    );
    refused(RequestParams { echo_prompt: false, ..request(&ids, 0, true) }, "BN_REQUEST_ECHO_PROMPT");
    refused(RequestParams { echo_prompt: true, ..request(&ids, 0, false) }, "BN_REQUEST_ECHO_PROMPT");
    refused(RequestParams { stop_strings: vec!["x".into()], ..request(&ids, 0, false) }, "stop_strings");
    let embedding = Some(EmbeddingParams { pooling: Some(Pooling::Mean), normalize: None, score: false });
    let sampling = SamplingParams::default();
    let both = RequestParams { embedding, sampling, ignore_eos: false, ..request(&ids, 0, false) };
    refused(both, "BN_TASK_SCORE");
    let whole = ask(&engine, request(&ids, 0, false));
    for from in [1, 2] {
        let some = ask(&engine, request(&ids, from, false));
        assert_eq!(some.tokens, ids[from as usize..]);
        assert!(some.logprob_bits.iter().all(|(_, bits)| !f32::from_bits(*bits).is_nan()));
        assert!(some.logprob_bits[..] == whole.logprob_bits[4 * from as usize..]);
    }
    let ones = ask(&engine, request(&[3], 0, false));
    assert_eq!((&ones.tokens[..], ones.logprob_bits.len()), (&[3][..], 4), "nothing to tell, and no hang");
    assert!(f32::from_bits(ones.logprob_bits[0].1).is_nan());
}
