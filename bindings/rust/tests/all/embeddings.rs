//! Embeddings, relevances and decisions.
use crate::support::{demo, golden, json, open, wants};
use bn::{
    EmbeddingParams, ErrorKind, FinishReason, Normalization, Pooling, Question, QuestionKind, Request,
    Sampling, Task, Tokenize,
};

#[test]
fn embeddings_are_unit_vectors_of_their_texts() {
    // 7
    let engine = demo();
    let embed = |text: &str| engine.embed(&Request::prompt(text)).unwrap();
    let (one, two, other) = (embed("a red ball"), embed("a red ball"), embed("12+30="));
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    assert_eq!(one.len() as u64, engine.model().info().embedding_size);
    assert_eq!(one, two);
    assert!((product(&one, &one) - 1.0).abs() < 1e-3 && product(&one, &other) < 0.999);
    for params in [
        EmbeddingParams { pooling: Pooling::First, ..EmbeddingParams::default() },
        EmbeddingParams { normalization: Normalization::None, ..EmbeddingParams::default() },
    ] {
        let request = Request { task: Task::Embed(params), ..Request::prompt("a red ball") };
        assert_ne!(engine.embed(&request).unwrap(), one);
    }
    let finish = engine.submit(&Request::embed("a red ball")).unwrap().answer().finish;
    assert_eq!((finish.reason, finish.embedding.unwrap()), (FinishReason::Embedding, one));
    assert_eq!(finish.pooling, Some(engine.model().info().pooling));
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    wants(
        engine.embed(&Request { sampling, ..Request::prompt("x") }),
        ErrorKind::InvalidArgument,
        "temperature",
    );
}

#[test]
fn texts_are_tokenized_as_they_are_embedded() {
    let engine = open(golden("models/bert-embedding.gguf"));
    let special = Tokenize { add_special: true, ..Tokenize::default() };
    let ids = engine.model().tokenize("a red ball", special).unwrap();
    let usage = engine.submit(&Request::embed("a red ball")).unwrap().answer().finish.usage;
    assert_eq!(ids.len(), usage.prompt_tokens as usize);
    let embed = |prompt: bn::Prompt| engine.embed(&Request { prompt, ..Request::embed("") }).unwrap();
    assert_eq!(embed(bn::Prompt::Tokens(ids)), embed("a red ball".into()));
}

#[test]
fn documents_are_as_relevant_as_to_the_reference() {
    // 16
    let engine = open(golden("models/bert-reranker"));
    assert!(engine.model().info().scores_pairs);
    for pair in json("models/bert-reranker/texts.json")["pairs"].as_array().unwrap() {
        let (query, document) = (pair["texts"][0].as_str().unwrap(), pair["texts"][1].as_str().unwrap());
        if query.is_empty() {
            continue;
        }
        let scores = engine.rerank(query, &[document, "", document]).unwrap();
        assert!(scores.len() == 3 && scores[0] == scores[2], "{scores:?}");
        assert!((f64::from(scores[0]) - pair["score"].as_f64().unwrap()).abs() < 1e-3, "{scores:?}");
    }
    assert!(engine.rerank("x", &[]).unwrap().is_empty());
    wants(demo().rerank("x", &["y"]), ErrorKind::Unsupported, "no head");
}

#[test]
fn decisions_are_shares_of_log_probabilities() {
    // 18
    let engine = demo();
    let question = |kind, text: &str, options: &[&str]| Question {
        kind,
        text: text.to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Question::default()
    };
    let questions = vec![
        question(QuestionKind::YesNo, "Was it small?", &[" yes", " no"]),
        question(QuestionKind::Score, "It counted to", &[" 1", " 2", " 3"]),
        question(QuestionKind::Choice, "It met", &[" a dog", " a cat"]),
    ];
    let story = "Once upon a time there was a small machine.";
    let answers = engine.decide(story, questions).unwrap();
    assert_eq!(answers.iter().map(|answer| answer.options.len()).collect::<Vec<_>>(), [2, 3, 2]);
    for answer in &answers {
        let total: f64 = answer.options.iter().map(|option| option.logprob.exp()).sum();
        for option in &answer.options {
            assert!((option.probability - option.logprob.exp() / total).abs() < 1e-9, "{option:?}");
            assert!(option.probability <= answer.options[answer.best].probability);
        }
    }
    assert_eq!(answers[0].value, answers[0].options[0].probability);
    let empty = Question { name: "empty".to_owned(), ..Question::default() };
    wants(engine.decide(story, vec![empty]), ErrorKind::InvalidArgument, "empty");
}
