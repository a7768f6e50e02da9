use super::super::philox::uniform;
use super::*;

/// The result of `adjust` on logits of 0.
fn adjusted(params: &SamplingParams, known: [&[u32]; 2], ends: &[u32], texts: &[&'static str]) -> Vec<f32> {
    let [prompt, output] = known;
    let mut logits = vec![0.0; texts.len()];
    let (mut counts, mut repeats, mut changes) = (vec![0; texts.len()], vec![7; 64], Vec::new());
    let mut state = SamplerState::new(params).unwrap();
    let text = |token: u32| texts.get(token as usize).map_or(&b""[..], |text| text.as_bytes());
    state.read(prompt, output, &text);
    let mut row =
        Row { logits: &mut logits, changes: &mut changes, counts: &mut counts, repeats: &mut repeats };
    row.adjust(params, &Known { prompt, output, ends, text: Some(&text), ..Default::default() }, &state);
    let result = row.logits.to_vec();
    row.undo();
    assert!(logits.iter().all(|x| *x == 0.0) && counts.iter().all(|n| *n == 0) && changes.is_empty());
    result
}

const TEXTS: [&str; 6] = ["a", "b", "c", ".\n", "\n", "d"];

/// For each token, the length of the longest repetition that it would continue: `tokens[..i]` and `tokens` have an
/// ending of this length in common, without a breaker, and token i follows the first one.
fn longest_repeats(tokens: &[u32], breaks: &dyn Fn(u32) -> bool) -> [usize; TEXTS.len()] {
    let mut longest = [0; TEXTS.len()];
    for (i, token) in tokens.iter().enumerate().skip(1) {
        let ends = tokens[..i].iter().rev().zip(tokens.iter().rev());
        let n = ends.take_while(|(a, b)| a == b && !breaks(**b)).count();
        longest[*token as usize] = longest[*token as usize].max(n);
    }
    longest
}

#[test]
fn dry_is_what_a_plain_search_finds() {
    for seed in 0..3_000 {
        let number = |n| uniform(seed, 0, n);
        let length = (40.0 * number(0)) as u64;
        let tokens: Vec<u32> =
            (0..length).map(|i| (uniform(seed, 1 + i, 0).powi(2) * TEXTS.len() as f64) as u32).collect();
        let at = (number(1) * (length + 1) as f64) as usize;
        let mut p = SamplingParams::default();
        p.dry.multiplier = 0.5 + number(2) as f32;
        p.dry.allowed = (4.0 * number(3)) as u32;
        p.dry.window = if number(4) < 0.5 { 0 } else { (30.0 * number(5)) as u32 };
        let broken = number(6) < 0.5;
        p.dry.breakers = if broken { vec!["\n".into()] } else { Vec::new() };
        let got = adjusted(&p, [&tokens[..at], &tokens[at..]], &[], &TEXTS);
        let window = if p.dry.window == 0 { 40 } else { p.dry.window as usize };
        let latest = &tokens[tokens.len().saturating_sub(window)..];
        let allowed = p.dry.allowed.max(1) as usize;
        let longest = longest_repeats(latest, &|token| broken && TEXTS[token as usize].contains('\n'));
        for (token, (n, got)) in longest.iter().zip(got).enumerate() {
            let breaks = broken && TEXTS[token].contains('\n');
            let exponent = n.checked_sub(allowed).map(|more| more as i32).filter(|_| !breaks);
            let want = exponent.map_or(0.0, |n| -p.dry.multiplier * p.dry.base.powi(n));
            assert!(
                (want - got).abs() <= 1e-5 * want.abs(),
                "seed {seed}: token {token} of {tokens:?}: {got}"
            );
        }
    }
}

#[test]
fn a_breaker_may_span_tokens() {
    let mut p = SamplingParams::default();
    p.dry.multiplier = 1.0;
    let known: [&[u32]; 2] = [&[0, 1, 2, 5], &[0, 1]];
    assert_eq!(adjusted(&p, known, &[], &TEXTS)[2], -1.0);
    p.dry.breakers = vec!["da".into()];
    // The token before the last completes the breaker. Only one token follows it, which is too few.
    assert_eq!(adjusted(&p, known, &[], &TEXTS)[2], 0.0);
    p.dry.allowed = 1;
    assert_eq!(adjusted(&p, known, &[], &TEXTS)[2], -1.0);
}

#[test]
fn a_token_that_has_a_breaker_may_repeat() {
    let mut p = SamplingParams::default();
    p.dry.multiplier = 1.0;
    p.dry.breakers = vec!["\n".into(), "cd".into()];
    // Both `.\n` and `\n` followed `ab`; `c` is a part of a breaker, not a breaker.
    for (known, followed) in [([0, 1, 3, 0, 1], 3), ([0, 1, 4, 0, 1], 4)] {
        assert_eq!(adjusted(&p, [&known, &[]], &[], &TEXTS)[followed], 0.0);
    }
    assert_eq!(adjusted(&p, [&[0, 1, 2, 0, 1], &[]], &[], &TEXTS)[2], -1.0);
}

#[test]
fn bias_bad_words_and_early_ends() {
    let none = f32::NEG_INFINITY;
    let p = SamplingParams {
        logit_bias: vec![(1, 2.5), (1, 0.5), (2, none), (99, 1.0)],
        bad_words: vec![vec![5], vec![0, 1, 0], vec![1, 1]],
        min_new_tokens: 2,
        ..Default::default()
    };
    // A bad word may begin in the prompt and continue in the output.
    assert_eq!(adjusted(&p, [&[0], &[1]], &[3, 77], &TEXTS), [none, none, none, none, 0.0, none]);
    assert_eq!(adjusted(&p, [&[0], &[1, 2]], &[3], &TEXTS), [0.0, 3.0, none, 0.0, 0.0, none]);
    assert_eq!(adjusted(&p, [&[], &[]], &[], &TEXTS), [0.0, 3.0, none, 0.0, 0.0, none]);
}

#[test]
fn penalties_look_no_further_than_their_window() {
    let p = SamplingParams { frequency_penalty: 1.0, presence_penalty: 0.5, ..Default::default() };
    let at = |window| {
        adjusted(&SamplingParams { penalty_window: window, ..p.clone() }, [&[5], &[0, 0, 1]], &[], &TEXTS)
    };
    assert_eq!(at(0), [-2.5, -1.5, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(at(2), [-1.5, -1.5, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(at(100), at(0));
}
