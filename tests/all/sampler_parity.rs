//! The samplers against llama.cpp's: tests/golden/samplers.json, made by tools/golden/samplers.py.

use bn_engine::kernels::isa;
use bn_engine::sample::{Filter, Known, Logprob, Sampler, SamplerState, SamplingParams};
use serde_json::Value;

fn order(case: &Value) -> Vec<Filter> {
    let filter = |name: &Value| match name.as_str().unwrap() {
        "temperature" => Filter::Temperature,
        "top_n_sigma" => Filter::TopNSigma,
        "top_k" => Filter::TopK,
        "typical_p" => Filter::Typical,
        "top_p" => Filter::TopP,
        "min_p" => Filter::MinP,
        "xtc" => Filter::Xtc,
        other => panic!("{other}"),
    };
    case["order"].as_array().unwrap().iter().map(filter).collect()
}

fn params(case: &Value) -> SamplingParams {
    let get = |name: &str, default: f32| case["params"][name].as_f64().map_or(default, |x| x as f32);
    let mut p = SamplingParams {
        temperature: get("temperature", 1.0),
        temperature_range: get("temperature_range", 0.0),
        top_k: get("top_k", 0.0) as u32,
        top_p: get("top_p", 1.0),
        min_p: get("min_p", 0.0),
        typical_p: get("typical_p", 1.0),
        top_n_sigma: get("top_n_sigma", 0.0),
        xtc_probability: if case["params"]["xtc_threshold"].is_null() { 0.0 } else { 1.0 },
        xtc_threshold: get("xtc_threshold", 0.1),
        repetition_penalty: get("repetition_penalty", 1.0),
        frequency_penalty: get("frequency_penalty", 0.0),
        presence_penalty: get("presence_penalty", 0.0),
        order: order(case),
        logprobs: true,
        chain_logprobs: true,
        logprob_tokens: (0..case["logits"].as_array().unwrap().len() as u32).collect(),
        ..Default::default()
    };
    p.dry.multiplier = get("dry_multiplier", 0.0);
    p.dry.breakers.clear();
    p
}

/// Expected by hand, from the rule of `llama_sampler_dry_apply` (the generated cases have no breakers). After
/// `a b . a b`, where `.` has a breaker in its text, a repetition would continue with `.`, which is exempt.
/// After `a b c a b` it would continue with `c`, which loses multiplier * base^(2 - 2).
#[test]
fn dry_exempts_breakers_as_llama_cpp_does() {
    let texts: [&[u8]; 5] = [b"a", b"b", b"c", b".\n", b"d"];
    let mut p = SamplingParams { temperature: 1.0, ..Default::default() };
    (p.dry.multiplier, p.dry.base, p.dry.allowed) = (1.5, 1.75, 2);
    (p.logprobs, p.chain_logprobs, p.logprob_tokens) = (true, true, vec![2, 3]);
    let e = 1.5f64.exp();
    for (next, want) in [(3, [0.2, 0.2]), (2, [1.0 / (4.0 * e + 1.0), e / (4.0 * e + 1.0)])] {
        let (output, text) = ([0, 1, next, 0, 1], |token: u32| texts[token as usize]);
        let known = Known { output: &output, text: Some(&text), ..Default::default() };
        let (mut state, mut out) = (SamplerState::new(&p).unwrap(), Vec::<Logprob>::new());
        state.read(&[], &output, &text);
        let mut sampler = Sampler::new(5, 64, isa()).unwrap();
        sampler.sample(&p, &mut state, &mut [0.0; 5], &known, &mut out).unwrap();
        let got = out[1..].iter().map(|entry| f64::from(entry.logprob).exp());
        assert!(got.zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{out:?}, not {want:?}");
    }
}

#[test]
fn chains_leave_what_llama_cpps_leave() {
    let golden: Value = serde_json::from_str(include_str!("../golden/samplers.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 100);
    for (n, case) in cases.iter().enumerate() {
        let p = params(case);
        p.validate().unwrap();
        let numbers = |name: &str| case[name].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
        let mut logits: Vec<f32> = numbers("logits").map(|x| x as f32).collect();
        // llama.cpp's penalties count the prompt too; here all tokens are output.
        let output: Vec<u32> = numbers("before").map(|x| x as u32).collect();
        let known = Known { prompt: &[], output: &output, ends: &[], ..Default::default() };
        let mut state = SamplerState::new(&p).unwrap();
        state.read(&[], &output, &|_| b"x");
        let mut out: Vec<Logprob> = Vec::new();
        let mut sampler = Sampler::new(logits.len(), 64, isa()).unwrap();
        sampler.sample(&p, &mut state, &mut logits, &known, &mut out).unwrap();
        let mut want = vec![0.0; logits.len()];
        for entry in case["left"].as_array().unwrap() {
            want[entry[0].as_u64().unwrap() as usize] = entry[1].as_f64().unwrap();
        }
        for (entry, want) in out[1..].iter().zip(want) {
            let got = f64::from(entry.logprob).exp();
            assert!((got - want).abs() < 1e-5, "case {n}, token {}: {got}, not {want}: {p:?}", entry.token);
        }
    }
}
