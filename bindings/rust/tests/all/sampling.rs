//! Each field of sampling changes outputs.
use crate::support::{STORY, demo, generate, wants};
use bn::{ErrorKind, Request, Sampler, Sampling};

/// A request whose answer depends on the sampling parameters.
fn sampled() -> Request {
    let sampling = Sampling { temperature: 1.5, ..Sampling::default() };
    Request { max_new_tokens: 16, sampling, ..Request::prompt(STORY) }
}

fn changed(change: impl FnOnce(&mut Sampling)) -> Request {
    let mut request = sampled();
    change(&mut request.sampling);
    request
}

#[test]
fn each_field_makes_a_difference() {
    // 10
    let engine = demo();
    let plain = generate(&engine, &sampled());
    let first = plain.tokens[0];
    let word = engine.model().detokenize(&[first]).unwrap();
    let changes: [Request; 9] = [
        changed(|s| s.typical_p = 0.3),
        changed(|s| s.top_n_sigma = 0.5),
        changed(|s| (s.xtc_probability, s.xtc_threshold) = (1.0, 0.05)),
        changed(|s| (s.dry_multiplier, s.dry_allowed_length, s.dry_breakers) = (5.0, 1, Some(vec![]))),
        changed(|s| (s.mirostat_tau, s.mirostat_eta) = (0.5, 1.0)),
        changed(|s| (s.temperature_range, s.temperature_exponent) = (1.0, 2.0)),
        changed(|s| s.logit_bias = vec![(first, f32::NEG_INFINITY)]),
        changed(|s| s.bad_words = vec![word]),
        changed(|s| s.seed = 1),
    ];
    for (at, request) in changes.iter().enumerate() {
        assert_ne!(generate(&engine, request).text, plain.text, "change {at}");
    }
    let order = |samplers| changed(|s| (s.temperature, s.top_p, s.samplers) = (3.0, 0.5, samplers));
    let hot = order(vec![Sampler::Temperature, Sampler::TopP]);
    let cold = order(vec![Sampler::TopP, Sampler::Temperature]);
    assert_ne!(generate(&engine, &hot).text, generate(&engine, &cold).text);
    let longer = Request { min_new_tokens: 10, ..Request::prompt("17+25=") };
    assert!(generate(&engine, &longer).finish.usage.generated_tokens >= 10);
}

#[test]
fn mistakes_are_named() {
    let engine = demo();
    let plain = Request::prompt(STORY);
    for (part, request) in [
        ("typical_p", changed(|s| s.typical_p = 2.0)),
        ("top_n_sigma", changed(|s| s.top_n_sigma = -1.0)),
        ("xtc_threshold", changed(|s| s.xtc_threshold = 2.0)),
        ("mirostat_eta", changed(|s| s.mirostat_eta = 2.0)),
        ("dry_base", changed(|s| s.dry_base = 0.5)),
        ("temperature_exponent", changed(|s| s.temperature_exponent = -1.0)),
        ("adapter", Request { adapter_scale: 2.0, ..plain.clone() }),
        ("draft_tokens", Request { draft_tokens: bn::MAX_DRAFT_TOKENS + 1, ..plain.clone() }),
        ("logprobs_from", Request { logprobs_from: 1, ..plain.clone() }),
        ("logprob_tokens", Request { logprob_tokens: vec![1], ..plain.clone() }),
        ("priority", Request { priority: bn::PRIORITY_MAX + 1, ..plain.clone() }),
    ] {
        wants(engine.generate(&request), ErrorKind::InvalidArgument, part);
    }
}

#[test]
fn log_probabilities_are_the_models_or_the_samplers() {
    let engine = demo();
    let mut request =
        Request { max_new_tokens: 1, logprobs: true, logprob_tokens: vec![5, 6], ..Request::prompt(STORY) };
    request.sampling.logit_bias = vec![(5, f32::NEG_INFINITY)];
    let own = generate(&engine, &request);
    let chain = generate(&engine, &Request { chain_logprobs: true, ..request });
    assert_eq!((own.logprobs_per_token, own.logprobs.len(), own.logprobs[1].token), (3, 3, 5));
    assert!(own.logprobs[1].logprob.is_finite());
    assert_eq!(chain.logprobs[1].logprob, f32::NEG_INFINITY);
    let answer = generate(
        &engine,
        &Request {
            max_new_tokens: 1,
            logprobs: true,
            echo_prompt: true,
            prompt_logprobs: true,
            logprobs_from: 2,
            ..Request::prompt(STORY)
        },
    );
    for (position, entry) in answer.logprobs.iter().enumerate() {
        assert_eq!(entry.logprob.is_nan(), position < 2, "position {position}");
    }
}

#[test]
fn stops_say_which_one() {
    let engine = demo();
    let whole = generate(&engine, &Request { max_new_tokens: 16, ..Request::prompt(STORY) });
    let stop = whole.text.split_whitespace().nth(2).unwrap().to_owned();
    let request =
        Request { stop_strings: vec!["\u{1}".into(), stop], max_new_tokens: 16, ..Request::prompt(STORY) };
    let finish = generate(&engine, &request).finish;
    assert_eq!((finish.reason, finish.stop_index), (bn::FinishReason::StopString, Some(1)));
    let request =
        Request { stop_tokens: vec![whole.tokens[0]], max_new_tokens: 16, ..Request::prompt(STORY) };
    let finish = generate(&engine, &request).finish;
    assert_eq!((finish.reason, finish.stop_index), (bn::FinishReason::Stop, Some(0)));
}
