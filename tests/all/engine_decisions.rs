//! Typed questions: their answers are the plain scores of the options, in any batch, with the prompt computed once.

use crate::common::load_source;
use crate::engine_goldens::{engine, prompt};
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::sample::SamplingParams;
use bn_engine::text::Tokenizer;
use std::sync::Arc;
use std::time::Duration;

const STORY: &str =
    "Once upon a time there was a small machine that could only count to three. It met a cat. ";

fn encode(text: &str, begins: bool) -> Vec<u32> {
    let model = load_source(&Source::Embedded, &LoadOptions::default(), 1).unwrap();
    model.tokenizer.as_ref().unwrap().encode(text, begins, false).unwrap()
}

fn question<'a>(kind: QuestionKind, text: &'a str, options: &[&'a str]) -> Question<'a> {
    let options = options.iter().map(|option| (*option).into()).collect();
    Question { kind, name: "".into(), text: text.into(), options }
}

fn decide<'a>(prompt: &'a str, questions: Vec<Question<'a>>) -> RequestParams<'a> {
    RequestParams { questions: Some(questions), ..text(prompt, 0) }
}

fn mixed<'a>() -> Vec<Question<'a>> {
    use QuestionKind::{Choice, Score, YesNo};
    vec![
        question(Choice, "It met", &[" a dog", " a dog and a cat", " a machine", " the moon", " a"]),
        question(YesNo, "Was it small?", &[" yes", " no"]),
        question(Score, "It counted to", &["0", "1", "2", "3", "10"]),
        question(Choice, "", &["It", "Once upon a time there was nothing"]),
        question(Choice, "It met", &[" only one"]),
    ]
}

/// The sum of the log probabilities of an option's tokens, by a request that scores a prompt.
fn plain(engine: &Engine, prompt: &str, text: &str, option: &str) -> f64 {
    let mut ids = encode(prompt, true);
    // An empty text has no tokens.
    ids.extend(if text.is_empty() { Vec::new() } else { encode(text, false) });
    let from = ids.len() as u32;
    ids.extend(encode(option, false));
    sum_of(engine, ids, from)
}

/// The sum of the log probabilities of the tokens from `from` on.
fn sum_of(engine: &Engine, ids: Vec<u32>, from: u32) -> f64 {
    let sampling = SamplingParams { logprobs: true, ..Default::default() };
    let scores = Some(ScoreParams { from, generates: false });
    let prompt = Prompt::Tokens(ids.into());
    let answer = ask(engine, RequestParams { prompt, scores, sampling, cache: false, ..Default::default() });
    answer.logprob_bits.iter().map(|(_, bits)| f64::from(f32::from_bits(*bits))).sum()
}

#[test]
fn they_are_the_plain_scores_of_the_options() {
    let engine = demo(|_| ());
    let questions = mixed();
    let answer = ask(&engine, decide(STORY, questions.clone()));
    assert_eq!((answer.finish, answer.events), (FinishReason::Length as i32, 1), "{}", answer.message);
    assert_eq!((answer.usage.generated_tokens, answer.tokens.len()), (0, 0));
    let Decisions { answers, options } = &answer.decisions;
    assert_eq!(answers.len(), questions.len());
    assert_eq!(options.len(), questions.iter().map(|question| question.options.len()).sum::<usize>());
    let mut first = 0;
    for (got, question) in answers.iter().zip(&questions) {
        assert_eq!((got.kind, got.first_option), (question.kind as u32, first));
        assert_eq!(got.options_count as usize, question.options.len());
        let own = &options[first as usize..][..question.options.len()];
        let sums: Vec<f64> =
            question.options.iter().map(|option| plain(&engine, STORY, &question.text, option)).collect();
        let total: f64 = sums.iter().map(|sum| sum.exp()).sum();
        for (option, sum) in own.iter().zip(&sums) {
            assert!((option.logprob - sum).abs() < 1e-6, "{question:?}: {option:?} for {sum}");
            assert!((option.probability - sum.exp() / total).abs() < 1e-9, "{option:?}");
        }
        let most = own.iter().map(|option| option.probability).fold(0.0, f64::max);
        assert_eq!(own[got.best as usize].probability, most);
        let expected: f64 =
            own.iter().zip(0..).map(|(option, level)| option.probability * f64::from(level)).sum();
        match question.kind {
            QuestionKind::Choice => assert_eq!(got.value, most),
            QuestionKind::YesNo => assert_eq!(got.value, own[0].probability),
            QuestionKind::Score => assert!((got.value - expected).abs() < 1e-12),
        }
        assert!((0.0..=1.0).contains(&got.confidence), "{got:?}");
        first += got.options_count;
    }
    // A begun option is at least as likely as a longer one; one option alone is certain.
    assert!(options[0].logprob >= options[1].logprob && options[4].logprob >= options[0].logprob);
    assert_eq!((answers[4].value, answers[4].confidence), (1.0, 1.0));
}

#[test]
fn sixty_four_questions_compute_the_prompt_once() {
    let engine = demo(|config| config.kv_block_size = 16);
    let texts: Vec<String> = (0..64).map(|n| format!("Question {n}: was it {}?", n * 7 % 11)).collect();
    let ask_all = || -> Vec<Question> {
        texts.iter().map(|text| question(QuestionKind::YesNo, text, &[" yes", " no"])).collect()
    };
    let prompt = STORY.repeat(2);
    let (shared, answer) = (encode(&prompt, true).len(), ask(&engine, decide(&prompt, ask_all())));
    let own: usize = texts.iter().map(|text| encode(text, false).len()).sum();
    let (usage, stats) = (answer.usage, engine.stats());
    // Questions begin alike, so fewer tokens are theirs alone.
    assert!(usage.prompt_tokens as usize <= shared + own + 2 * 64 && usage.cached_tokens == 0);
    let computed = stats.prompt_tokens as usize;
    let repeated = 64 * shared;
    assert!(computed < shared + own + 64 * 4, "{computed} rows; 64 times the prompt is {repeated}");
    assert_eq!((stats.accepted, stats.unreleased), (1, 0), "it is one request");
    assert!(stats.cached_tokens as usize >= 63 * shared, "{}", stats.cached_tokens);
    // Asked again, what the questions have in common is found.
    let again = ask(&engine, decide(&prompt, ask_all()));
    assert!(again.decisions == answer.decisions);
    assert!(again.usage.cached_tokens as usize >= shared - 1, "{:?}", again.usage);
    for (at, text) in texts.iter().enumerate().step_by(21) {
        let sum = plain(&engine, &prompt, text, " yes");
        assert!((answer.decisions.options[2 * at].logprob - sum).abs() < 1e-6);
    }
}

fn crowd() -> Vec<RequestParams<'static>> {
    let one = |n: usize| match n % 3 {
        0 => decide(&STORY[..40 + n], mixed()),
        1 => text(&STORY[..30 + n], 20 + n as u32),
        _ => decide(STORY, mixed().into_iter().take(1 + n % 5).collect()),
    };
    (0..18).map(one).collect()
}

#[test]
fn company_and_preemption_change_no_bit() {
    let bits = |engine: &Engine, requests: Vec<RequestParams<'static>>| -> Vec<Answer> {
        let n = requests.len();
        let ids = engine.submit(requests).unwrap();
        let mut answers = collect(engine, n);
        ids.iter().map(|id| answers.remove(id).unwrap()).collect()
    };
    let alone: Vec<Answer> = {
        let engine = demo(|config| (config.max_batch_size, config.threads) = (1, 1));
        crowd().into_iter().map(|r| ask(&engine, RequestParams { cache: false, ..r })).collect()
    };
    let one = demo(|config| config.kv_block_size = 16).stats();
    for (batch, tokens, blocks) in [(32, 512, 24), (3, 3, 20), (8, 64, 16)] {
        let engine = demo(|config| {
            (config.kv_block_size, config.max_batch_size, config.max_batch_tokens) = (16, batch, tokens);
            config.kv_cache_bytes = one.kv_bytes / one.kv_blocks_total * blocks;
        });
        for (n, (got, want)) in bits(&engine, crowd()).iter().zip(&alone).enumerate() {
            assert_eq!((got.finish, &got.tokens), (want.finish, &want.tokens), "{n}: {}", got.message);
            let all = |answer: &Answer| -> Vec<[u64; 2]> {
                let options = answer.decisions.options.iter();
                options.map(|option| [option.logprob, option.probability].map(f64::to_bits)).collect()
            };
            assert!(all(got) == all(want), "request {n} in a batch of {batch}");
            assert!(got.decisions.answers == want.decisions.answers, "request {n} in a batch of {batch}");
        }
        let stats = engine.stats();
        assert_eq!((stats.kv_blocks_used, stats.running, stats.queued), (0, 0, 0));
    }
}

/// Models with recurrent layers: gated DeltaNet, short convolutions, Mamba-2. They have the bytes as their tokens.
#[test]
fn models_with_states_score_alike() {
    let bytes = Some(Arc::new(Tokenizer::bytes().unwrap()));
    let texts: Vec<String> = (0..12).map(|n| format!("{} {n}:", n * 5 % 7)).collect();
    let options = ["7", "8 1", "8 2 3", "8"];
    for model in ["qwen35", "lfm3", "falcon-h1"] {
        let engine = engine(&format!("tests/golden/models/{model}"), |config| {
            config.model.as_mut().unwrap().tokenizer = bytes.clone();
            config.max_batch_size = 8;
        });
        let shared = prompt(0, 75, 3);
        let questions = texts.iter().map(|text| question(QuestionKind::Choice, text, &options)).collect();
        let tokens = Prompt::Tokens(shared.clone().into());
        let answer =
            ask(&engine, RequestParams { prompt: tokens, questions: Some(questions), ..Default::default() });
        assert_eq!(answer.finish, FinishReason::Length as i32, "{model}: {}", answer.message);
        let (stats, own) = (engine.stats(), texts.iter().map(String::len).sum::<usize>());
        let computed = stats.prompt_tokens as usize;
        // States are kept at ends of blocks, so each question computes some of the prompt's last tokens again.
        let alone = texts.len() * shared.len() + own;
        assert!(3 * computed < 2 * alone, "{model}: {computed} rows, {alone} for each question by itself");
        for (at, scored) in answer.decisions.options.iter().enumerate() {
            let mut ids = shared.clone();
            ids.extend(texts[at / 4].bytes().map(u32::from));
            let from = ids.len() as u32;
            ids.extend(options[at % 4].bytes().map(u32::from));
            let sum = sum_of(&engine, ids, from);
            assert!((scored.logprob - sum).abs() < 1e-6, "{model}, option {at}: {scored:?} for {sum}");
        }
    }
}

#[test]
fn a_conversation_is_asked_in_its_last_message() {
    let engine = demo(|_| ());
    let options = ["It", "There was"];
    let asked = |messages: &[(&'static str, &'static str)], text: &'static str| {
        let messages = messages.iter().map(|&(role, content)| Message { role, content }).collect();
        let questions = Some(vec![question(QuestionKind::Choice, text, &options)]);
        let prompt = Prompt::Chat(std::borrow::Cow::Owned(messages));
        ask(&engine, RequestParams { prompt, questions, ..Default::default() }).decisions
    };
    let joined = asked(&[("user", "Tell me a story.\n\nHow does it begin?")], "");
    assert!(joined.options[0].logprob.is_finite());
    assert!(asked(&[("user", "Tell me a story.")], "How does it begin?") == joined);
    let json = |messages: &str, text: &'static str| {
        let prompt = Prompt::ChatJson(format!("{{\"messages\": [{messages}]}}").into());
        let questions = Some(vec![question(QuestionKind::Choice, text, &options)]);
        ask(&engine, RequestParams { prompt, questions, ..Default::default() }).decisions
    };
    let one = r#"{"role": "user", "content": "Tell me a story."}"#;
    assert!(json(one, "How does it begin?") == joined);
    assert!(
        json(
            r#"{"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]}"#,
            "How does it begin?"
        ) == joined
    );
    let turns = [("user", "Hello."), ("assistant", "Hi.")];
    let third = [turns[0], turns[1], ("user", "How does it begin?")];
    assert!(asked(&turns, "How does it begin?") == asked(&third, ""));
    let spoken = r#"{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}"#;
    assert!(json(spoken, "How does it begin?") == asked(&third, ""));
}

#[test]
fn an_end_halfway_takes_all_of_it() {
    let engine = demo(|config| (config.max_batch_size, config.max_batch_tokens) = (1, 8));
    let texts: Vec<String> = (0..200).map(|n| format!("{n} is how many?")).collect();
    let questions = || -> Vec<Question> {
        texts
            .iter()
            .map(|text| question(QuestionKind::Choice, text, &[" a cat", " many", " the one"]))
            .collect()
    };
    let id = engine.submit(vec![decide(STORY, questions())]).unwrap()[0];
    while engine.stats().steps < 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.cancel(Which::One(id)).unwrap();
    let ended = collect(&engine, 1).remove(&id).unwrap();
    assert_eq!(ended.finish, FinishReason::Cancelled as i32);
    assert!(ended.decisions == Decisions::default());
    let late = ask(&engine, RequestParams { timeout_ms: 1, ..decide(STORY, questions()) });
    assert_eq!(late.finish, FinishReason::TimedOut as i32);
    let stats = engine.stats();
    assert_eq!((stats.kv_blocks_used, stats.running, stats.queued), (0, 0, 0));
    // What is left does not disturb the next.
    let next = ask(&engine, decide(STORY, mixed()));
    assert!(next.decisions == ask(&demo(|_| ()), decide(STORY, mixed())).decisions);
}

#[test]
fn mistakes_name_the_question() {
    let engine = demo(|_| ());
    let invalid = Status::InvalidArgument;
    let choice = |options: &[&'static str]| vec![question(QuestionKind::Choice, "a", options)];
    let second = |question: Question<'static>| {
        vec![mixed().swap_remove(0), Question { name: "mood".into(), ..question }]
    };
    for (questions, says) in [
        (vec![], "0 questions; a request has 1 to 4096"),
        (choice(&[]), "question 0: 0 options; a question has 1 to 255"),
        (choice(&["x", ""]), "question 0: option 1 is empty"),
        (second(choice(&["x", "y", "x"]).remove(0)), "question 1 (\"mood\"): options 0 and 2 are the same"),
        (vec![question(QuestionKind::YesNo, "a", &["x"])], "question 0: 1 options; yes or no has two"),
    ] {
        refused(&engine, decide(STORY, questions), invalid, says);
    }
    let nothing = Prompt::Tokens(vec![].into());
    let empty = vec![question(QuestionKind::Choice, "", &["x"])];
    let request = RequestParams { prompt: nothing, questions: Some(empty), ..Default::default() };
    refused(&engine, request, invalid, "question 0: neither the prompt nor the question has a token");
    let long = second(question(QuestionKind::Choice, "a", &["x"]));
    refused(&engine, decide(&STORY.repeat(20), long), Status::TooLong, "context");
    for (request, says) in [
        (RequestParams { stop_tokens: vec![1].into(), ..decide("a", mixed()) }, "stop_tokens is set"),
        (RequestParams { session: Some("s".into()), ..decide("a", mixed()) }, "session is set"),
    ] {
        refused(&engine, request, invalid, says);
    }
}
