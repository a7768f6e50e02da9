use super::*;
use proptest::prelude::*;

fn params(set: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams { temperature: 1.0, seed: 3, ..Default::default() };
    set(&mut params);
    params
}

fn sample(params: &SamplingParams, logits: &[f32], position: u64) -> u32 {
    let mut row = logits.to_vec();
    let mut sampler = Sampler::new(logits.len()).unwrap();
    let token = sampler.sample(params, &mut row, &[], &[], position, &mut Vec::new()).unwrap();
    assert_eq!(row, logits);
    token
}

/// How often each token comes in `n` draws.
fn histogram(params: &SamplingParams, logits: &[f32], n: u64) -> Vec<f64> {
    let mut sampler = Sampler::new(logits.len()).unwrap();
    let (mut counts, mut row) = (vec![0.0; logits.len()], logits.to_vec());
    for position in 0..n {
        let token = sampler.sample(params, &mut row, &[], &[], position, &mut Vec::new()).unwrap();
        counts[token as usize] += 1.0 / n as f64;
    }
    counts
}

/// The chain written down plainly in f64: the probability of each token.
fn reference(p: &SamplingParams, logits: &[f32]) -> Vec<f64> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    let max = f64::from(logits[ids[0]]);
    let weight = |id: usize| ((f64::from(logits[id]) - max) / f64::from(p.temperature)).exp();
    if p.top_k > 0 {
        ids.truncate(p.top_k as usize);
    }
    let mass: f64 = ids.iter().map(|&id| weight(id)).sum();
    let mut sum = 0.0;
    let keep = ids.iter().position(|&id| {
        sum += weight(id);
        sum >= f64::from(p.top_p) * mass
    });
    ids.truncate(keep.map_or(ids.len(), |i| i + 1));
    ids.retain(|&id| weight(id) >= f64::from(p.min_p));
    let mass: f64 = ids.iter().map(|&id| weight(id)).sum();
    let mut out = vec![0.0; logits.len()];
    ids.iter().for_each(|&id| out[id] = weight(id) / mass);
    out
}

/// Distinct pseudo-random logits of a softmax with a long tail.
fn some_logits(n: u32) -> Vec<f32> {
    (0..n).map(|i| uniform(99, u64::from(i)) as f32 * 6.0 - 3.0).collect()
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let greedy = params(|p| p.temperature = 0.0);
    assert_eq!(sample(&greedy, &[1.0, 5.0, 2.0, 5.0], 0), 1);
    assert_eq!(sample(&greedy, &[-0.0, 0.0], 0), 0);
    assert_eq!(sample(&greedy, &[f32::NEG_INFINITY, -8.0], 0), 1);
}

#[test]
fn a_row_that_is_no_distribution_fails_and_leaves_the_sampler_usable() {
    let mut sampler = Sampler::new(3).unwrap();
    let mut out = Vec::new();
    for temperature in [0.0, 1.0] {
        let p = params(|p| (p.temperature, p.logprobs, p.presence_penalty) = (temperature, true, 1.0));
        for (mut row, word) in [
            ([0.0, f32::NAN, 1.0], "NaN"),
            ([f32::NEG_INFINITY; 3], "-infinity"),
            ([0.0, f32::INFINITY, 1.0], "+infinity"),
        ] {
            let error = sampler.sample(&p, &mut row, &[], &[1], 0, &mut out).unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
        assert!(sampler.sample(&p, &mut [0.0; 2], &[], &[], 0, &mut out).is_err());
        assert!(out.is_empty());
    }
    let p = params(|p| p.temperature = 0.0);
    assert_eq!(sampler.sample(&p, &mut [0.0, 1.0, 0.5], &[], &[], 0, &mut out).unwrap(), 1);
}

#[test]
fn every_chain_draws_from_the_reference_distribution() {
    let logits = some_logits(40);
    for (temperature, top_k, top_p, min_p) in [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (2.0, 0, 1.0, 0.2),
        (1.0, 5, 1.0, 0.0),
        (1.0, 0, 0.7, 0.0),
        (0.8, 12, 0.8, 0.0),
        (1.5, 12, 0.9, 0.3),
        (1.5, 0, 0.9, 0.3),
        (1.0, 40, 1.0, 0.0),
        (1.0, 1000, 1.0, 0.0),
    ] {
        let p = params(|p| (p.temperature, p.top_k, p.top_p, p.min_p) = (temperature, top_k, top_p, min_p));
        let (want, got) = (reference(&p, &logits), histogram(&p, &logits, 40_000));
        for (id, (&want, &got)) in want.iter().zip(&got).enumerate() {
            // Five standard deviations; nothing at all where the chain allows nothing.
            let bound = 5.0 * (want * (1.0 - want) / 40_000.0).sqrt();
            assert!((want - got).abs() <= bound, "{p:?}: token {id} came {got}, expected {want}");
        }
    }
}

#[test]
fn top_p_grows_past_its_first_guess() {
    // 3000 tokens all but equal: 0.5 needs some 1500, more than TOP_P_START.
    let logits: Vec<f32> = (0..3000).map(|i| i as f32 * 1e-6).collect();
    let p = params(|p| p.top_p = 0.5);
    let mut sampler = Sampler::new(logits.len()).unwrap();
    let (mut low, mut row) = (u32::MAX, logits.clone());
    for position in 0..3000 {
        low = low.min(sampler.sample(&p, &mut row, &[], &[], position, &mut Vec::new()).unwrap());
    }
    assert!((1490..1520).contains(&low), "{low}");
}

#[test]
fn draws_depend_on_seed_and_position_only() {
    let logits = some_logits(500);
    let p = params(|p| (p.top_k, p.top_p) = (100, 0.95));
    let alone: Vec<u32> = (0..200).map(|position| sample(&p, &logits, position)).collect();
    // The same sampler, other requests in between, positions backwards.
    let mut sampler = Sampler::new(500).unwrap();
    let (mut row, mut out) = (logits.clone(), Vec::new());
    let noisy = params(|p| (p.frequency_penalty, p.seed, p.top_logprobs) = (2.0, 9, 4));
    for position in (0..200).rev() {
        sampler.sample(&noisy, &mut row, &[1, 2], &[3, 3], position, &mut out).unwrap();
        let token = sampler.sample(&p, &mut row, &[], &[], position, &mut out).unwrap();
        assert_eq!(token, alone[position as usize]);
    }
    assert_eq!(row, logits);
    let other = params(|p| (p.top_k, p.top_p, p.seed) = (100, 0.95, 4));
    assert!((0..200).any(|position| sample(&other, &logits, position) != alone[position as usize]));
}

#[test]
#[allow(clippy::type_complexity)]
fn penalties_by_hand() {
    // (prompt, output, repetition, frequency, presence) and the greedy winner among 2.0, 1.9, -1.0, 1.0.
    let cases: [(&[u32], &[u32], f32, f32, f32, u32); 9] = [
        (&[], &[], 2.0, 1.0, 1.0, 0),
        (&[0], &[], 2.0, 0.0, 0.0, 1),
        // Once, however often: 2.0 / 1.05 > 1.9 but 2.0 / 1.05 / 1.05 < 1.9.
        (&[0, 0], &[0], 1.05, 0.0, 0.0, 0),
        // Frequency and presence don't look at the prompt.
        (&[0, 0], &[], 1.0, 1.0, 1.0, 0),
        (&[], &[0], 1.0, 0.0, 0.5, 1),
        (&[], &[0, 1, 1], 1.0, 0.5, 0.0, 0),
        (&[], &[0, 0, 0, 1], 1.0, 0.5, 0.0, 1),
        // Below 1 favors what was there; negative logits move the other way.
        (&[3], &[], 0.1, 0.0, 0.0, 3),
        (&[], &[2], 1.0, 0.0, -4.0, 2),
    ];
    let mut sampler = Sampler::new(4).unwrap();
    for (prompt, output, repetition, frequency, presence, winner) in cases {
        let p = SamplingParams {
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            ..Default::default()
        };
        let mut row = [2.0, 1.9, -1.0, 1.0];
        let token = sampler.sample(&p, &mut row, prompt, output, 0, &mut Vec::new()).unwrap();
        assert_eq!(token, winner, "{prompt:?} {output:?} {p:?}");
        assert_eq!(row, [2.0, 1.9, -1.0, 1.0]);
    }
    // A negative logit is multiplied, not divided.
    let p = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    let token = sampler.sample(&p, &mut [-3.0, -2.0, -3.5, -9.0], &[1], &[], 0, &mut Vec::new()).unwrap();
    assert_eq!(token, 0);
    // Tokens outside of the vocabulary and penalties that overflow do no harm.
    let p = params(|p| p.repetition_penalty = f32::from_bits(1));
    sampler
        .sample(&p, &mut [1e30, 1e30, 0.0, -1e30], &[0, 1, 7], &[u32::MAX, 3], 0, &mut Vec::new())
        .unwrap();
}

#[test]
fn logprobs_are_of_the_raw_logits() {
    let mut row = [1.0, 3.0, 3.0, f32::NEG_INFINITY, 0.5];
    let p =
        SamplingParams { temperature: 0.0, presence_penalty: 50.0, top_logprobs: 7, ..Default::default() };
    let mut out = Vec::new();
    let token = Sampler::new(5).unwrap().sample(&p, &mut row, &[], &[1, 2], 0, &mut out).unwrap();
    assert_eq!((token, out.len()), (0, p.logprobs_per_token() as usize));
    let mass = 1f64.exp() + 2.0 * 3f64.exp() + 0.5f64.exp();
    let want = |logit: f64| (logit - mass.ln()) as f32;
    assert!((out[0].logprob - want(1.0)).abs() < 1e-6);
    let ids: Vec<u32> = out.iter().map(|l| l.token).collect();
    assert_eq!(ids, [0, 1, 2, 0, 4, 3, u32::MAX, u32::MAX]);
    for (entry, logit) in out[1..6].iter().zip([3.0, 3.0, 1.0, 0.5, f64::NEG_INFINITY]) {
        assert!(entry.logprob == want(logit) || (entry.logprob - want(logit)).abs() < 1e-6, "{entry:?}");
    }
    assert!(!out.iter().any(|l| l.logprob.is_nan() || l.logprob > 0.0));
}

#[test]
fn extreme_temperatures() {
    let logits = [1.0, 1.0 + 1e-6, -3.0];
    for position in 0..50 {
        assert_eq!(sample(&params(|p| p.temperature = f32::from_bits(1)), &logits, position), 1);
    }
    let flat = histogram(&params(|p| p.temperature = 100.0), &[50.0, 0.0], 20_000);
    assert!((flat[0] - 1.0 / (1.0 + (-0.5f64).exp())).abs() < 0.02);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]
    /// Few distinct values: ties everywhere.
    #[test]
    fn select_is_a_sort(values in prop::collection::vec(0u8..6, 1..60), k in 0usize..70) {
        let logits: Vec<f32> = values.iter().map(|&v| f32::from(v)).collect();
        let mut sampler = Sampler::new(logits.len()).unwrap();
        sampler.select(&logits, k, 5.0, 1.0);
        let mut want: Vec<u32> = (0..logits.len() as u32).collect();
        want.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap().then(a.cmp(&b)));
        want.truncate(k);
        let got: Vec<u32> = sampler.candidates.iter().map(|c| c.token).collect();
        prop_assert_eq!(got, want);
    }
}
