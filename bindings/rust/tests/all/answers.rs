//! Tests that outputs are the model's.
use crate::support::{STORY, demo, generate, json, open_with, read};
use bn::{FinishReason, Request, Sampling, Score};
use serde_json::Value;
use std::collections::HashSet;
use std::thread;

fn prompts(kind: &str) -> Vec<Value> {
    let all = json("demo_prompts.json");
    let list: Vec<_> =
        all.as_array().unwrap().iter().filter(|prompt| prompt["kind"] == kind).cloned().collect();
    assert!(!list.is_empty());
    list
}

#[test]
fn the_embedded_model_answers_as_its_reference() {
    // 2
    let engine = demo();
    for prompt in prompts("sum").iter().take(8).chain(prompts("recall").iter().take(8)) {
        let request = Request { max_new_tokens: 8, ..Request::prompt(prompt["prompt"].as_str().unwrap()) };
        let answer = generate(&engine, &request);
        assert_eq!(answer.text, prompt["answer"].as_str().unwrap());
        assert_eq!((answer.finish.reason, answer.finish.stop_index), (FinishReason::Stop, None));
    }
    for prompt in prompts("story").iter().take(2) {
        let tokens: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        let most = tokens.len() as u32;
        let request = Request { max_new_tokens: most, ..Request::prompt(prompt["prompt"].as_str().unwrap()) };
        let mut stream = engine.submit(&request).unwrap();
        let (mut text, mut read, mut finish) = (String::new(), Vec::new(), None);
        while let Some(event) = stream.recv() {
            text += &event.text;
            read.extend(event.tokens);
            finish = event.finish;
        }
        assert_eq!((text.as_str(), read), (prompt["text"].as_str().unwrap(), tokens));
        assert_eq!(finish.unwrap().usage.generated_tokens, most);
    }
}

#[test]
fn sampled_streams_are_what_their_seeds_give_alone() {
    // 3
    let engine = open_with("", |options| (options.model_path, options.max_batch_size) = (None, 8));
    let sampled = |seed| Request {
        max_new_tokens: 24,
        sampling: Sampling { temperature: 0.9, top_k: 40, seed, ..Sampling::default() },
        ..Request::prompt("One day")
    };
    let texts: Vec<String> = thread::scope(|scope| {
        let one = |seed| {
            let engine = &engine;
            scope.spawn(move || read(engine.submit(&sampled(seed)).unwrap()).0)
        };
        let threads: Vec<_> = (0..32).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (seed, text) in texts.iter().enumerate() {
        assert_eq!(*text, generate(&engine, &sampled(seed as u64)).text, "seed {seed}");
    }
    assert!(texts.iter().collect::<HashSet<_>>().len() >= 16);
}

#[test]
fn a_right_answer_is_likelier_than_a_wrong_one() {
    // 14
    let engine = demo();
    let any = Request::default();
    for prompt in prompts("sum").iter().take(4) {
        let answer = prompt["answer"].as_str().unwrap();
        let texts = [answer, &format!("1{answer}"), "the ball"];
        let scores = engine.score(&any, prompt["prompt"].as_str().unwrap(), &texts).unwrap();
        let [right, longer, other]: [Score; 3] = scores.try_into().unwrap();
        assert!(right.greedy && !longer.greedy && right.logprob > -0.5, "{right:?}");
        assert!(right.logprob > longer.logprob && right.logprob > other.logprob);
    }
    let answer = generate(&engine, &Request { max_new_tokens: 8, logprobs: true, ..Request::prompt(STORY) });
    let score = engine.score(&any, STORY, &[&answer.text]).unwrap()[0];
    let sum: f64 = answer.logprobs.iter().map(|entry| f64::from(entry.logprob)).sum();
    assert!(score.tokens == 8 && score.greedy && (score.logprob - sum).abs() < 1e-4, "{score:?}, {sum}");
    assert!(engine.score(&any, STORY, &[]).unwrap().is_empty());
    let [there, nothing]: [Score; 2] =
        engine.score(&any, STORY, &[" there", ""]).unwrap().try_into().unwrap();
    assert!(
        there.tokens > 0 && nothing == Score { logprob: 0.0, tokens: 0, greedy: true },
        "{there:?}, {nothing:?}"
    );
    // The tokens are the bytes and an end. The very first one has no log probability.
    let echo = crate::support::open(crate::support::ECHO);
    let more = Request { logprob_tokens: vec![5], ..Request::default() };
    let score = echo.score(&more, "", &["abc"]).unwrap()[0];
    assert!(score.tokens == 3 && score.logprob < 0.0, "{score:?}");
}
