use super::*;

fn planned(options: &[&[u32]]) -> Vec<(u32, Vec<u32>)> {
    let options: Vec<Vec<u32>> = options.iter().map(|ids| ids.to_vec()).collect();
    let mut branches = Vec::new();
    plan(0, &options, &mut branches).unwrap();
    branches.into_iter().map(|branch| (branch.option, branch.scores)).collect()
}

#[test]
fn options_share_the_branches_that_have_their_beginnings() {
    assert_eq!(
        planned(&[&[1], &[2], &[3]]),
        [(0, vec![0, 1, 2])],
        "the last row of the question has them all"
    );
    assert_eq!(planned(&[&[1, 2], &[3, 4]]), [(0, vec![0]), (1, vec![1])]);
    assert_eq!(planned(&[&[1, 2, 3], &[1, 2, 4], &[1, 5]]), [(0, vec![0, 1, 2])]);
    // An option that others begin with, and one of a single token.
    assert_eq!(planned(&[&[1], &[1, 2], &[1, 2, 3], &[9]]), [(2, vec![2, 1, 0, 3])]);
    assert_eq!(planned(&[&[7, 8, 9]]), [(0, vec![0])]);
}

fn decider(options: &[&[u32]]) -> Decider {
    let options = options.iter().map(|ids| ids.to_vec()).collect();
    let asked = Asked { kind: QuestionKind::Choice, label: "question 0".into(), rest: vec![50, 51], options };
    Decider::new(vec![asked], 10).unwrap()
}

#[test]
fn further_branches_wait_for_the_first_of_each_question() {
    let asked = |options: &[u32]| {
        let options = options.iter().map(|token| vec![*token, 1]).collect();
        Asked { kind: QuestionKind::Choice, label: "q".into(), rest: vec![50], options }
    };
    let mut decider = Decider::new(vec![asked(&[2, 3]), asked(&[4, 5])], 10).unwrap();
    let next = |decider: &Decider| decider.next().unwrap().map(|next| next.option[0]);
    let add = |decider: &mut Decider, number, tokens: [u32; 2]| {
        decider.add(number, &tokens.map(|token| Logprob { token, logprob: -1.0 }), 1).unwrap()
    };
    for (number, option) in [(0, 2), (1, 4)] {
        assert_eq!(next(&decider), Some(option));
        decider.began(number);
    }
    assert_eq!(next(&decider), None);
    assert!(!add(&mut decider, 1, [4, 1]));
    assert_eq!(next(&decider), None);
    assert!(!add(&mut decider, 0, [2, 1]));
    for (number, option) in [(0, 3), (1, 5)] {
        assert_eq!(next(&decider), Some(option));
        decider.began(number);
    }
    assert!(!add(&mut decider, 0, [3, 1]) && add(&mut decider, 1, [5, 1]));
}

/// Entries of the log probability -token - position / 8.
fn entries(option: &[u32], listed: &[u32]) -> Vec<Logprob> {
    let entry = |at: usize, token: u32| Logprob { token, logprob: -(token as f32) - at as f32 / 8.0 };
    let of = |(at, &own): (usize, &u32)| {
        let others: Vec<_> = listed.iter().map(|&token| entry(at, token)).collect();
        std::iter::once(entry(at, own)).chain(others).collect::<Vec<_>>()
    };
    option.iter().enumerate().flat_map(of).collect()
}

#[test]
fn sums_are_those_of_each_options_own_tokens() {
    let options: [&[u32]; 4] = [&[1, 2], &[1, 3], &[4, 2], &[1]];
    let mut decider = decider(&options);
    assert_eq!(decider.tokens(), 10 + 2 + 5);
    let mut last = false;
    for number in 0.. {
        let Some(next) = decider.next().unwrap() else { break };
        assert!(!last);
        let (entries, each) = (entries(next.option, &next.listed), 1 + next.listed.len());
        decider.began(number);
        last = decider.add(number, &entries, each).unwrap();
    }
    assert!(last);
    let sums: Vec<f64> = decider.answers().unwrap().options.iter().map(|option| option.logprob).collect();
    assert_eq!(sums, [-3.125, -4.125, -6.125, -1.0]);
}

fn of(kind: QuestionKind, probabilities: &[f64]) -> Decision {
    let scored = |&probability: &f64| OptionScore { logprob: probability.ln(), probability };
    answer(kind, &probabilities.iter().map(scored).collect::<Vec<_>>())
}

#[test]
fn confidence_is_0_for_even_shares_and_1_for_certainty() {
    use QuestionKind::{Choice, Score, YesNo};
    for kind in [Choice, Score, YesNo] {
        assert_eq!(of(kind, &[0.0, 1.0]).confidence, 1.0);
        assert_eq!(of(kind, &[0.5, 0.5]).confidence, 0.0);
        assert_eq!(of(kind, &[1.0]).confidence, 1.0);
    }
    // Even shares of three levels are 2/3 of a level from the middle one.
    let near = of(Score, &[0.0, 0.75, 0.25]);
    assert_eq!((near.best, near.value), (1, 1.25));
    assert!((near.confidence - (1.0 - 0.25 / (2.0 / 3.0))).abs() < 1e-12);
    assert_eq!(of(Score, &[0.5, 0.0, 0.5]).confidence, 0.0, "floored");
    let choice = of(Choice, &[0.2, 0.6, 0.2]);
    assert_eq!((choice.best, choice.value), (1, 0.6));
    assert!((choice.confidence - 0.4).abs() < 1e-12);
    let no = of(YesNo, &[0.25, 0.75]);
    assert_eq!((no.best, no.value, no.confidence), (1, 0.25, 0.5));
}

#[test]
fn impossible_options_are_an_error_that_names_the_question() {
    let mut decider = decider(&[&[1]]);
    decider.began(3);
    assert_eq!(decider.label(3), "question 0");
    let none = Logprob { token: 1, logprob: f32::NEG_INFINITY };
    assert!(decider.add(3, &[none], 1).unwrap());
    assert!(decider.answers().unwrap_err().message.starts_with("question 0: "));
}
