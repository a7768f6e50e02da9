use super::super::filters::Filter;
use super::super::reference::reference;
use super::*;
use crate::kernels::isa;
use crate::kernels::rows::logits::{Scale, weigh};
use crate::ops::{Draws, Report};
use proptest::prelude::*;

fn params(set: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams { temperature: 1.0, seed: 3, ..Default::default() };
    set(&mut params);
    params
}

/// Maximum number of positions in these tests.
const LONGEST: usize = 50_000;

fn sampler(vocab_size: usize) -> Sampler {
    Sampler::new(vocab_size, LONGEST, isa()).unwrap()
}

/// Samples a token after `known`, with the state of a new request.
fn behind(
    sampler: &mut Sampler,
    params: &SamplingParams,
    row: &mut [f32],
    known: [&[u32]; 2],
    out: &mut Vec<Logprob>,
) -> Result<u32> {
    let [prompt, output] = known;
    let mut state = SamplerState::new(params)?;
    state.read(prompt, output, &|_| b"x");
    sampler.sample(params, &mut state, row, &Known { prompt, output, ends: &[], ..Default::default() }, out)
}

/// Samples a token at `position`, after arbitrary tokens.
fn at(sampler: &mut Sampler, params: &SamplingParams, row: &mut [f32], position: u64) -> u32 {
    let before = &[u32::MAX; LONGEST][..position as usize];
    behind(sampler, params, row, [before, &[]], &mut Vec::new()).unwrap()
}

fn sample(params: &SamplingParams, logits: &[f32], position: u64) -> u32 {
    let mut row = logits.to_vec();
    let token = at(&mut sampler(logits.len()), params, &mut row, position);
    assert_eq!(row, logits);
    token
}

/// Relative frequency of each token in `n` draws.
fn histogram(params: &SamplingParams, logits: &[f32], n: u64) -> Vec<f64> {
    let mut sampler = sampler(logits.len());
    let (mut counts, mut row) = (vec![0.0; logits.len()], logits.to_vec());
    for position in 0..n {
        let token = at(&mut sampler, params, &mut row, position);
        counts[token as usize] += 1.0 / n as f64;
    }
    counts
}

/// Distinct pseudo-random logits whose softmax has a long tail.
fn some_logits(n: u32) -> Vec<f32> {
    (0..n).map(|i| uniform(99, u64::from(i), 0) as f32 * 6.0 - 3.0).collect()
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
    let mut sampler = sampler(3);
    let mut out = Vec::new();
    for temperature in [0.0, 1.0] {
        let p = params(|p| (p.temperature, p.logprobs, p.presence_penalty) = (temperature, true, 1.0));
        for (mut row, word) in [
            ([0.0, f32::NAN, 1.0], "NaN"),
            ([f32::NEG_INFINITY; 3], "-infinity"),
            ([0.0, f32::INFINITY, 1.0], "+infinity"),
        ] {
            let error = behind(&mut sampler, &p, &mut row, [&[], &[1]], &mut out).unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
        assert!(behind(&mut sampler, &p, &mut [0.0; 2], [&[]; 2], &mut out).is_err());
        assert!(out.is_empty());
    }
    let p = params(|p| p.temperature = 0.0);
    assert_eq!(at(&mut sampler, &p, &mut [0.0, 1.0, 0.5], 0), 1);
}

#[test]
fn every_chain_draws_from_the_reference_distribution() {
    let logits = some_logits(40);
    let sets: [fn(&mut SamplingParams); 9] = [
        |_| {},
        |p| p.temperature = 0.5,
        |p| (p.temperature, p.min_p) = (2.0, 0.2),
        |p| p.top_k = 5,
        |p| p.top_p = 0.7,
        |p| (p.temperature, p.top_k, p.top_p, p.min_p) = (1.5, 12, 0.9, 0.3),
        |p| p.typical_p = 0.6,
        |p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.04),
        |p| (p.temperature, p.temperature_range, p.top_n_sigma) = (1.0, 0.8, 1.0),
    ];
    for set in sets {
        let p = params(set);
        let (want, got) = (reference(&p, &logits, 0.0), histogram(&p, &logits, 40_000));
        for (id, (&want, &got)) in want.iter().zip(&got).enumerate() {
            // Five standard deviations; exactly zero for tokens that the chain excludes.
            let bound = 5.0 * (want * (1.0 - want) / 40_000.0).sqrt();
            assert!((want - got).abs() <= bound, "{p:?}: token {id} came {got}, expected {want}");
        }
    }
}

#[test]
fn top_p_grows_past_its_first_guess() {
    // 3000 tokens with almost equal logits: 0.5 needs about 1500.
    let logits: Vec<f32> = (0..3000).map(|i| i as f32 * 1e-6).collect();
    let p = params(|p| p.top_p = 0.5);
    let mut sampler = sampler(logits.len());
    let (mut low, mut row) = (u32::MAX, logits.clone());
    for position in 0..3000 {
        low = low.min(at(&mut sampler, &p, &mut row, position));
    }
    assert!((1490..1520).contains(&low), "{low}");
}

#[test]
fn draws_depend_on_seed_and_position_only() {
    let logits = some_logits(500);
    let p = params(|p| (p.top_k, p.top_p) = (100, 0.95));
    let alone: Vec<u32> = (0..200).map(|position| sample(&p, &logits, position)).collect();
    // The same sampler, with other requests in between and positions backwards.
    let mut sampler = sampler(500);
    let (mut row, mut out) = (logits.clone(), Vec::new());
    let noisy = params(|p| (p.frequency_penalty, p.seed, p.top_logprobs) = (2.0, 9, 4));
    for position in (0..200).rev() {
        behind(&mut sampler, &noisy, &mut row, [&[1, 2], &[3, 3]], &mut out).unwrap();
        let token = at(&mut sampler, &p, &mut row, position);
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
        // Applies once, however often the token occurs: 2.0 / 1.05 > 1.9 but 2.0 / 1.05 / 1.05 < 1.9.
        (&[0, 0], &[0], 1.05, 0.0, 0.0, 0),
        // Frequency and presence ignore the prompt.
        (&[0, 0], &[], 1.0, 1.0, 1.0, 0),
        (&[], &[0], 1.0, 0.0, 0.5, 1),
        (&[], &[0, 1, 1], 1.0, 0.5, 0.0, 0),
        (&[], &[0, 0, 0, 1], 1.0, 0.5, 0.0, 1),
        // Below 1, it favors tokens that occurred; negative logits move the other way.
        (&[3], &[], 0.1, 0.0, 0.0, 3),
        (&[], &[2], 1.0, 0.0, -4.0, 2),
    ];
    let mut sampler = sampler(4);
    for (prompt, output, repetition, frequency, presence, winner) in cases {
        let p = SamplingParams {
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            ..Default::default()
        };
        let mut row = [2.0, 1.9, -1.0, 1.0];
        let token = behind(&mut sampler, &p, &mut row, [prompt, output], &mut Vec::new()).unwrap();
        assert_eq!(token, winner, "{prompt:?} {output:?} {p:?}");
        assert_eq!(row, [2.0, 1.9, -1.0, 1.0]);
    }
    // A negative logit is multiplied, not divided.
    let p = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    let token =
        behind(&mut sampler, &p, &mut [-3.0, -2.0, -3.5, -9.0], [&[1], &[]], &mut Vec::new()).unwrap();
    assert_eq!(token, 0);
    // Tokens outside of the vocabulary, and penalties that overflow, do no harm.
    let p = params(|p| p.repetition_penalty = f32::from_bits(1));
    let known = [&[0, 1, 7][..], &[u32::MAX, 3]];
    behind(&mut sampler, &p, &mut [1e30, 1e30, 0.0, -1e30], known, &mut Vec::new()).unwrap();
}

#[test]
fn logprobs_are_of_the_raw_logits() {
    let mut row = [1.0, 3.0, 3.0, f32::NEG_INFINITY, 0.5];
    let p =
        SamplingParams { temperature: 0.0, presence_penalty: 50.0, top_logprobs: 7, ..Default::default() };
    let mut out = Vec::new();
    let token = behind(&mut sampler(5), &p, &mut row, [&[], &[1, 2]], &mut out).unwrap();
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
    /// Few distinct values, so that there are ties everywhere.
    #[test]
    fn select_is_a_sort(values in prop::collection::vec(0u8..6, 1..60), k in 0usize..70) {
        let logits: Vec<f32> = values.iter().map(|&v| f32::from(v)).collect();
        let (mut row_tops, mut room) = (vec![0.0; 1], Room::new(logits.len()).unwrap());
        tops(isa(), &logits, &mut row_tops);
        let mut kept = Kept::all(isa(), &logits, &row_tops, &mut room);
        let mut want: Vec<u32> = (0..logits.len() as u32).collect();
        want.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap().then(a.cmp(&b)));
        want.truncate(k);
        let got: Vec<u32> = kept.most_likely(k).map(|c| c.token).collect();
        prop_assert_eq!(got, want);
    }
}

/// Mirostat 2 in plain code; its draws are taken from the sampler under test.
#[test]
fn mirostat_keeps_the_surprise() {
    let logits: Vec<f32> = some_logits(2000).iter().map(|x| 25.0 * x).collect();
    let p = params(|p| (p.mirostat_tau, p.mirostat_eta, p.temperature) = (3.0, 0.2, 1.3));
    let (mut sampler, mut state) = (sampler(2000), SamplerState::new(&p).unwrap());
    let (mut row, mut output, mut bound, mut sum) = (logits.clone(), Vec::new(), 6.0, 0.0);
    for n in 0..400 {
        let known = Known { prompt: &[], output: &output, ends: &[], ..Default::default() };
        let token = sampler.sample(&p, &mut state, &mut row, &known, &mut Vec::new()).unwrap();
        let weights: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / 1.3).exp()).collect();
        let mass: f64 = weights.iter().sum();
        let kept: f64 = weights.iter().filter(|w| -(*w / mass).log2() <= bound).sum();
        assert!(-(weights[token as usize] / mass).log2() <= bound + 1e-3, "token {n}");
        let surprise = -(weights[token as usize] / kept).log2();
        bound -= 0.2 * (surprise - 3.0);
        sum += surprise;
        // Rounding errors add up.
        assert!((f64::from(state.mirostat) - bound).abs() < 1e-2, "token {n}");
        bound = f64::from(state.mirostat);
        output.push(token);
    }
    assert!((sum / 400.0 - 3.0).abs() < 0.3, "{}", sum / 400.0);
}

#[test]
fn logprobs_of_the_chain_and_of_chosen_tokens() {
    let mut p = params(|p| (p.top_k, p.temperature, p.top_logprobs) = (2, 0.5, 3));
    (p.logprob_tokens, p.chain_logprobs, p.logit_bias) = (vec![1, 0], true, vec![(3, 1.0)]);
    let (mut out, mut row) = (Vec::new(), [0.0, 1.0, 2.0, 1.5]);
    let token = behind(&mut sampler(4), &p, &mut row, [&[]; 2], &mut out).unwrap();
    let entries: Vec<(u32, f32)> = out.iter().map(|l| (l.token, (l.logprob * 1e4).round() / 1e4)).collect();
    // e^(2.5 / 0.5) and e^(2 / 0.5) remain.
    let (first, second) = (-(1.0 + (-1f32).exp()).ln(), -(1.0 + 1f32.exp()).ln());
    let of = |token| if token == 3 { first } else { second };
    let round = |x: f32| (x * 1e4).round() / 1e4;
    let none = f32::NEG_INFINITY;
    let want = [
        (token, round(of(token))),
        (3, round(first)),
        (2, round(second)),
        (u32::MAX, none),
        (1, none),
        (0, none),
    ];
    assert_eq!(entries, want);
    assert_eq!(out.len(), p.logprobs_per_token() as usize);
}

#[test]
fn a_request_that_forbids_everything_is_told_so() {
    let p = params(|p| p.logit_bias = (0..3).map(|token| (token, f32::NEG_INFINITY)).collect());
    let error = behind(&mut sampler(3), &p, &mut [0.0; 3], [&[]; 2], &mut Vec::new()).unwrap_err();
    assert_eq!(error.message, "logit_bias leaves no token that could be sampled");
}

#[test]
fn orders_and_lists_are_checked() {
    type Set = fn(&mut SamplingParams);
    let bad: [(Set, &str); 7] = [
        (|p| p.order = vec![Filter::TopK, Filter::TopK], "top_k twice"),
        (|p| (p.order, p.top_p) = (vec![Filter::TopK], 0.5), "top_p is set, and samplers leaves it out"),
        (|p| (p.order, p.temperature) = (vec![], 0.5), "temperature is set"),
        (|p| (p.mirostat_tau, p.min_p) = (2.0, 0.1), "mirostat is alone"),
        (|p| p.logit_bias = vec![(7, 100.5)], "token 7"),
        (|p| p.logprob_tokens = vec![0; MAX_LISTED + 1], "0 to 256"),
        (|p| p.dry.base = f32::NAN, "dry_base"),
    ];
    for (set, words) in bad {
        let message = params(set).validate().unwrap_err().message;
        assert!(message.contains(words), "{message}");
    }
    params(|p| p.order = Vec::new()).validate().unwrap();
}

#[test]
fn draws_elsewhere_are_for_requests_that_ask_for_no_more() {
    let plain = || SamplingParams {
        temperature: 0.7,
        top_k: 5,
        top_p: 0.9,
        min_p: 0.1,
        seed: 3,
        ..Default::default()
    };
    let draw = plain().draw(12).unwrap();
    assert_eq!((draw.temperature, draw.top_k, draw.top_p, draw.min_p), (0.7, 5, 0.9, 0.1));
    assert_eq!((draw.seed, draw.position), (3, 12));
    let mut listed = plain();
    (listed.repetition_penalty, listed.frequency_penalty, listed.presence_penalty) = (1.1, -0.1, 0.1);
    assert!(listed.edits() && !plain().edits());
    let draw = listed.draw(12).unwrap();
    assert_eq!((draw.repetition, draw.frequency, draw.presence), (1.1, -0.1, 0.1));
    let mut told = plain();
    (told.logprobs, told.top_logprobs, told.logprob_tokens) = (true, 3, vec![1]);
    assert_eq!(told.draw(12), plain().draw(12));
    let more: [fn(&mut SamplingParams); 12] = [
        |p| p.temperature_range = 0.1,
        |p| p.typical_p = 0.9,
        |p| p.top_n_sigma = 1.0,
        |p| p.xtc_probability = 0.1,
        |p| p.mirostat_tau = 1.0,
        |p| p.order.swap(0, 2),
        |p| p.order.truncate(6),
        |p| (p.presence_penalty, p.penalty_window) = (0.1, 64),
        |p| p.dry.multiplier = 0.5,
        |p| p.bad_words = vec![vec![1]],
        |p| (p.logprobs, p.chain_logprobs) = (true, true),
        |p| p.order.clear(),
    ];
    for (n, change) in more.into_iter().enumerate() {
        let mut params = plain();
        change(&mut params);
        assert_eq!(params.draw(12), None, "change {n}");
    }
}

#[test]
fn what_was_drawn_elsewhere_is_a_token_or_says_what_is_wrong() {
    let drawn = |token| drawn(token, None, &mut Vec::new());
    assert_eq!(drawn(7).unwrap(), 7);
    let rows = [(-1, [f32::NAN, 0.0]), (-2, [f32::INFINITY, 0.0]), (-3, [f32::NEG_INFINITY; 2])];
    for (token, mut logits) in rows {
        let own = behind(&mut sampler(2), &params(|_| ()), &mut logits, [&[]; 2], &mut Vec::new());
        assert_eq!(drawn(token).unwrap_err().message, own.unwrap_err().message);
    }
    assert_eq!(drawn(-4).unwrap_err().status, crate::base::Status::InvalidArgument);
    assert_eq!(drawn(-5).unwrap_err().status, crate::base::Status::Internal);
}

/// The report of operations on a row, in words as on a device.
fn words_of(row: &[f32], chosen: u32, report: &Report, listed: &[u32]) -> Vec<u64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mass = weigh(isa(), row, Scale::new(max, 1.0), &mut vec![0.0; row.len()]).mass;
    let word = |low: u32, high: f32| u64::from(high.to_bits()) << 32 | u64::from(low);
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
    let tops = order.iter().map(|token| word(*token, row[*token as usize]));
    let tops = tops.chain(std::iter::repeat(word(u32::MAX, f32::NEG_INFINITY))).take(report.tops as usize);
    let listed = listed
        .iter()
        .map(|&token| word(token, row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY)));
    [mass.to_bits(), word(max.to_bits(), row[chosen as usize])]
        .into_iter()
        .chain(tops)
        .chain(listed)
        .collect()
}

#[test]
fn log_probabilities_of_what_was_drawn_elsewhere_have_the_same_bits() {
    let mut row = some_logits(30);
    (row[3], row[9], row[20]) = (row[8], f32::NEG_INFINITY, row[8]);
    let (mut draws, mut words, mut wanted) = (Draws::default(), Vec::new(), Vec::new());
    for (tops, listed) in [(0, vec![]), (5, vec![9, 3]), (32, vec![]), (2, vec![30, 0, 29])] {
        let own = params(|p| {
            (p.logprobs, p.top_logprobs, p.logprob_tokens) = (true, tops, listed.clone());
            (p.repetition_penalty, p.logit_bias) = (1.5, vec![(7, 2.0)]);
        });
        let mut want = Vec::new();
        let token = behind(&mut sampler(30), &own, &mut row, [&[4, 5], &[]], &mut want).unwrap();
        let report = draws.report(tops, &listed).unwrap();
        words.extend(words_of(&row, token, &report, &listed));
        assert_eq!((words.len(), want.len()), (draws.report_words, own.logprobs_per_token() as usize));
        wanted.push((report, token, want));
    }
    let bits = |all: &[Logprob]| all.iter().map(|x| (x.token, x.logprob.to_bits())).collect::<Vec<_>>();
    for (report, token, want) in &wanted {
        let mut got = Vec::new();
        let told = report.read(&words).unwrap();
        assert_eq!(drawn(*token as i32, Some(told), &mut got).unwrap(), *token);
        assert_eq!(bits(&got), bits(want));
        assert!(drawn(-1, Some(told), &mut got).is_err() && got.len() == want.len());
    }
    let (last, ..) = wanted.last().unwrap();
    assert!(last.read(&words[..words.len() - 1]).is_err(), "words that are not there");
    let tokens = |n: usize| wanted[n].2.iter().map(|x| x.token).collect::<Vec<_>>();
    assert_eq!(tokens(3)[3..], [30, 0, 29]);
    assert_eq!(tokens(2)[30..], [9, u32::MAX, u32::MAX], "the impossible one, and none");
    assert_eq!(draws.listed, [9, 3, 30, 0, 29]);
    draws.clear();
    assert_eq!((draws.listed.len(), draws.report_words), (0, 0));
}
