//! Requests that wait for their masks delay no others, and their outputs are unchanged.

use super::*;
use std::collections::HashMap;

/// Longer than any step, and shorter than a test's time limit.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Answer {
    tokens: Vec<u32>,
    ended: bool,
}

struct Bench {
    engine: Engine,
    answers: HashMap<u64, Answer>,
}

fn constrained() -> RequestParams<'static> {
    let kind = ConstraintKind::Regex;
    RequestParams {
        constraint: Some(Constraint { kind, text: "[a-z]{40}".into(), json: JsonOptions::default() }),
        ..free("a constrained prompt", 100)
    }
}

fn free(prompt: &str, max_new_tokens: u32) -> RequestParams<'_> {
    RequestParams {
        prompt: Prompt::Text(prompt.into()),
        max_new_tokens,
        ignore_eos: true,
        stream: true,
        ..Default::default()
    }
}

impl Bench {
    fn new() -> Self {
        let engine = Engine::create(EngineConfig {
            model_path: Some("builtin:echo?us_per_token=1000".into()),
            threads: 1,
            context_length: 512,
            // Pauses each answer until it is polled, so that none ends while this thread is not scheduled.
            max_unread_bytes: 32,
            ..Default::default()
        });
        Self { engine: engine.unwrap(), answers: HashMap::new() }
    }

    fn submit(&mut self, request: RequestParams) -> u64 {
        self.engine.submit(vec![request]).unwrap()[0].0
    }

    fn hold(&self, held: bool) {
        self.engine.shared.grammars.hold_masks(held);
    }

    /// Polls until `done` accepts the answer to `id`.
    fn until(&mut self, id: u64, done: impl Fn(&Answer) -> bool) -> &Answer {
        while !self.answers.get(&id).is_some_and(&done) {
            let answers = &mut self.answers;
            let mut take = |_: u64, event: &Event| {
                let answer = answers.entry(event.request.0).or_default();
                answer.tokens.extend(&event.tokens);
                answer.ended |= event.finish != FinishReason::None;
            };
            let count = self.engine.poll(Which::Any, 8, Some(PATIENCE), &mut take).unwrap();
            assert!(count > 0, "a step waits for the mask");
        }
        &self.answers[&id]
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.hold(false);
    }
}

/// Suspends the masks once the constrained request has `tokens` tokens, and checks that other requests go on.
fn holds_up_nobody(tokens: usize) {
    let mut bench = Bench::new();
    let alone = bench.submit(constrained());
    let expected = bench.until(alone, |answer| answer.ended).tokens.clone();
    assert!(expected.len() >= 40, "{expected:?}");

    bench.hold(tokens == 0);
    let slow = bench.submit(constrained());
    if tokens > 0 {
        bench.until(slow, |answer| answer.tokens.len() >= tokens);
        bench.hold(true);
    }
    let others = ["one", "two", "three"].map(|prompt| bench.submit(free(prompt, 80)));
    for other in others {
        assert_eq!(bench.until(other, |answer| answer.ended).tokens.len(), 80);
    }
    assert!(!bench.answers.get(&slow).is_some_and(|answer| answer.ended));
    bench.hold(false);
    assert_eq!(bench.until(slow, |answer| answer.ended).tokens, expected);
}

#[test]
fn a_first_mask_holds_up_nobody() {
    holds_up_nobody(0);
}

#[test]
fn a_later_mask_holds_up_nobody() {
    holds_up_nobody(1);
}

#[test]
fn who_waits_for_a_mask_can_be_cancelled() {
    let mut bench = Bench::new();
    bench.hold(true);
    let slow = bench.submit(constrained());
    let other = bench.submit(free("another", 8));
    bench.until(other, |answer| answer.ended);
    bench.engine.cancel(Which::One(RequestId(slow))).unwrap();
    assert!(bench.until(slow, |answer| answer.ended).tokens.is_empty());
}
