//! Typed questions about one prompt, answered by how likely their options are. The branches that score the options
//! are ordinary requests for scores, of which this holds the plan and the results.

use super::event::Logprob;
use crate::base::{Error, Result, reserve};
use std::borrow::Cow;

/// Maximum number of branches of a request that are in line at a time.
pub(crate) const AT_ONCE: usize = 64;

/// Bytes of a branch's sequence and event, besides what grows with its tokens.
pub(crate) const BRANCH_BYTES: usize = 8 << 10;

/// Numbered as in the C API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuestionKind {
    /// One of the options.
    #[default]
    Choice = 0,
    /// A level: the options are its levels, from the lowest on.
    Score = 1,
    /// Yes, the first option, or no, the second.
    YesNo = 2,
}

/// A question about the prompt of a request.
#[derive(Clone, Debug, Default)]
pub struct Question<'a> {
    pub kind: QuestionKind,
    /// Its name in messages of errors; may be empty.
    pub name: Cow<'a, str>,
    /// Follows the prompt; may be empty.
    pub text: Cow<'a, str>,
    /// Texts that may follow.
    pub options: Vec<Cow<'a, str>>,
}

/// The answer to a question, laid out like `bn_decision`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// A `QuestionKind`.
    pub kind: u32,
    /// The most likely option, the first one of several.
    pub best: u32,
    /// Index of its first option in `Decisions::options`, and the number of its options.
    pub first_option: u32,
    pub options_count: u32,
    /// Score: the expected level, the first being 0. YesNo: the probability of yes. Choice: the probability of `best`.
    pub value: f64,
    /// Within 0, for options that are equally likely, and 1.
    pub confidence: f64,
}

/// How likely an option is, laid out like `bn_decision_option`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptionScore {
    /// Sum of the log probabilities of its tokens.
    pub logprob: f64,
    /// Its share among the options: the softmax of their `logprob`s.
    pub probability: f64,
}

/// The answers of a request, in the order of its questions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    pub answers: Vec<Decision>,
    pub options: Vec<OptionScore>,
}

/// A question as tokens.
pub(crate) struct Asked {
    pub kind: QuestionKind,
    /// Names it in messages.
    pub label: Box<str>,
    /// Its tokens after those that all questions of the request begin with.
    pub rest: Vec<u32>,
    /// The tokens of each option.
    pub options: Vec<Vec<u32>>,
}

/// What one sequence computes: a question with one of its options.
struct Branch {
    question: u32,
    option: u32,
    /// The options whose log probabilities its rows have: their tokens but the last are also the first of `option`.
    scores: Vec<u32>,
}

/// A branch of a request that is in line, or runs.
#[derive(Clone, Copy)]
pub(crate) struct LiveBranch {
    /// Its number on the engine thread.
    pub number: u32,
    branch: u32,
}

/// A branch to start.
pub(crate) struct NextBranch<'a> {
    /// Its tokens after those that all questions begin with.
    pub rest: &'a [u32],
    pub option: &'a [u32],
    /// The tokens of which every scored row has the log probability.
    pub listed: Vec<u32>,
    pub is_first: bool,
}

/// The questions of a request, and the log probabilities of their options so far.
pub(crate) struct Decider {
    questions: Vec<Asked>,
    /// One of each question, then the others, which find the tokens of their questions in the cache.
    branches: Vec<Branch>,
    /// Number of branches that were started.
    next: usize,
    live: Vec<LiveBranch>,
    done: usize,
    /// The sum for each option, of all questions.
    sums: Vec<f64>,
    /// Number of tokens that all questions begin with.
    shared: usize,
}

impl Decider {
    /// `shared`: number of tokens that all questions begin with. Each question has 1 to 255 options, none of them empty
    /// and no two the same.
    pub(crate) fn new(questions: Vec<Asked>, shared: usize) -> Result<Self> {
        let (mut branches, mut others) = (Vec::new(), Vec::new());
        reserve(&mut branches, questions.len(), "the branches of questions")?;
        for (at, asked) in questions.iter().enumerate() {
            let mut own = Vec::new();
            plan(at as u32, &asked.options, &mut own)?;
            reserve(&mut others, own.len(), "the branches of questions")?;
            let mut own = own.into_iter();
            branches.extend(own.next());
            others.extend(own);
        }
        reserve(&mut branches, others.len(), "the branches of questions")?;
        branches.append(&mut others);
        let options = questions.iter().map(|asked| asked.options.len()).sum();
        let (mut sums, mut live) = (Vec::new(), Vec::new());
        reserve(&mut sums, options, "the options of questions")?;
        reserve(&mut live, AT_ONCE.min(branches.len()), "the branches of questions")?;
        sums.resize(options, 0.0);
        Ok(Self { questions, branches, next: 0, live, done: 0, sums, shared })
    }

    /// Number of tokens of the prompt, the questions and the options, each shared beginning counted once.
    pub(crate) fn tokens(&self) -> usize {
        let of = |asked: &Asked| asked.rest.len() + distinct(&asked.options);
        self.shared + self.questions.iter().map(of).sum::<usize>()
    }

    /// Bytes that it takes while it runs.
    pub(crate) fn bytes(&self) -> u64 {
        let longest = |asked: &Asked| asked.options.iter().map(Vec::len).max().unwrap_or(0);
        let own = |asked: &Asked| {
            let options: usize = asked.options.iter().map(|ids| 48 + 4 * ids.len()).sum();
            (128 + asked.label.len() + 4 * asked.rest.len() + options) as u64
        };
        // A branch has its tokens with the keys of their blocks, and the log probabilities of an option's tokens.
        let branch = |asked: &Asked| {
            let scores = 24 * longest(asked) * (1 + asked.options.len());
            (BRANCH_BYTES + 5 * (self.shared + asked.rest.len() + longest(asked)) + scores) as u64
        };
        let most = self.questions.iter().map(branch).max().unwrap_or(0);
        let branches = 64 * self.branches.len() as u64 + 8 * self.sums.len() as u64;
        self.questions.iter().map(own).sum::<u64>() + branches + most * self.live.capacity() as u64
    }

    /// Bytes of the answers.
    pub(crate) fn answer_bytes(&self) -> u64 {
        (self.questions.len() * size_of::<Decision>() + self.sums.len() * size_of::<OptionScore>()) as u64
    }

    /// The next branch to start, if the line has room for one more.
    pub(crate) fn next(&self) -> Result<Option<NextBranch<'_>>> {
        let others = self.next >= self.questions.len();
        let waits = self.live.len() == AT_ONCE || others && self.done < self.questions.len();
        let Some(branch) = self.branches.get(self.next).filter(|_| !waits) else { return Ok(None) };
        let asked = &self.questions[branch.question as usize];
        let (option, mut listed) = (&asked.options[branch.option as usize][..], Vec::new());
        reserve(&mut listed, branch.scores.len(), "the tokens of options")?;
        for &other in &branch.scores {
            let ids = &asked.options[other as usize];
            listed.extend(ids.last().filter(|&last| option.get(ids.len() - 1) != Some(last)));
        }
        listed.sort_unstable();
        listed.dedup();
        Ok(Some(NextBranch { rest: &asked.rest, option, listed, is_first: self.next == 0 }))
    }

    /// Records that the next branch runs as `number`.
    pub(crate) fn began(&mut self, number: u32) {
        self.live.push(LiveBranch { number, branch: self.next as u32 });
        self.next += 1;
    }

    /// Adds the results of the branch that ran as `number`: for each token of its option the entries of `each` tokens,
    /// its own first. Returns whether it was the last one.
    pub(crate) fn add(&mut self, number: u32, logprobs: &[Logprob], each: usize) -> Result<bool> {
        let Some(at) = self.live.iter().position(|live| live.number == number) else {
            return Err(Error::internal("a branch of no question"));
        };
        let branch = &self.branches[self.live.swap_remove(at).branch as usize];
        let first: usize =
            self.questions[..branch.question as usize].iter().map(|asked| asked.options.len()).sum();
        let asked = &self.questions[branch.question as usize];
        for &option in &branch.scores {
            let mut sum = 0.0;
            for (token, entries) in asked.options[option as usize].iter().zip(logprobs.chunks_exact(each)) {
                let Some(entry) = entries.iter().find(|entry| entry.token == *token) else {
                    return Err(Error::internal("a branch without the tokens of its options"));
                };
                sum += f64::from(entry.logprob);
            }
            self.sums[first + option as usize] = sum;
        }
        self.done += 1;
        Ok(self.done == self.branches.len())
    }

    /// The question of the branch that runs as `number`.
    pub(crate) fn label(&self, number: u32) -> &str {
        let live = self.live.iter().find(|live| live.number == number);
        live.map_or("", |live| &self.questions[self.branches[live.branch as usize].question as usize].label)
    }

    /// Takes the branches that are in line, which end with the request.
    pub(crate) fn take_live(&mut self) -> Option<LiveBranch> {
        self.live.pop()
    }

    /// Starts over, once no branch is left, for another engine thread.
    pub(crate) fn rewind(&mut self) {
        self.live.clear();
        (self.next, self.done) = (0, 0);
    }

    /// The answers, once the last branch has ended.
    pub(crate) fn answers(&self) -> Result<Decisions> {
        let mut made = Decisions::default();
        reserve(&mut made.answers, self.questions.len(), "answers")?;
        reserve(&mut made.options, self.sums.len(), "answers")?;
        for asked in &self.questions {
            let (first, count) = (made.options.len(), asked.options.len());
            let sums = &self.sums[first..first + count];
            let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if !most.is_finite() {
                let why = "the model gives none of its options a probability";
                return Err(Error::invalid(format!("{}: {why}", asked.label)));
            }
            let total: f64 = sums.iter().map(|sum| (sum - most).exp()).sum();
            let scored =
                |&logprob: &f64| OptionScore { logprob, probability: (logprob - most).exp() / total };
            made.options.extend(sums.iter().map(scored));
            let answer = answer(asked.kind, &made.options[first..]);
            made.answers.push(Decision { first_option: first as u32, ..answer });
        }
        Ok(made)
    }
}

/// Plans the branches that score `options`: one for each beginning that is not also the beginning of another's.
fn plan(question: u32, options: &[Vec<u32>], branches: &mut Vec<Branch>) -> Result<()> {
    let first = branches.len();
    let before = |option: usize| &options[option][..options[option].len() - 1];
    let mut order = Vec::new();
    reserve(&mut order, options.len(), "the options of a question")?;
    order.extend(0..options.len());
    // The longest come first, so a beginning finds the branch that has it.
    order.sort_by_key(|&option| std::cmp::Reverse(options[option].len()));
    for option in order {
        let has = |branch: &&mut Branch| before(branch.option as usize).starts_with(before(option));
        if let Some(branch) = branches[first..].iter_mut().find(has) {
            reserve(&mut branch.scores, 1, "the options of a question")?;
            branch.scores.push(option as u32);
            continue;
        }
        reserve(branches, 1, "the branches of questions")?;
        let mut scores = Vec::new();
        reserve(&mut scores, 1, "the options of a question")?;
        scores.push(option as u32);
        branches.push(Branch { question, option: option as u32, scores });
    }
    Ok(())
}

/// Number of tokens of texts, each shared beginning counted once.
fn distinct(options: &[Vec<u32>]) -> usize {
    let common = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let new = |(at, ids): (usize, &Vec<u32>)| {
        ids.len() - options[..at].iter().map(|other| common(other, ids)).max().unwrap_or(0)
    };
    options.iter().enumerate().map(new).sum()
}

/// An answer without the place of its options.
fn answer(kind: QuestionKind, options: &[OptionScore]) -> Decision {
    let (mut best, count) = (0, options.len());
    for (at, option) in options.iter().enumerate() {
        if option.probability > options[best].probability {
            best = at;
        }
    }
    let probabilities = || options.iter().map(|option| option.probability);
    let levels = |from: f64| (0..count).map(move |level| (level as f64 - from).abs());
    let value = match kind {
        QuestionKind::Choice => options[best].probability,
        QuestionKind::Score => probabilities().enumerate().map(|(level, p)| level as f64 * p).sum(),
        QuestionKind::YesNo => options[0].probability,
    };
    let n = count as f64;
    let confidence = match kind {
        _ if count < 2 => 1.0,
        // How far the best option is above an even share.
        QuestionKind::Choice | QuestionKind::YesNo => (n * options[best].probability - 1.0) / (n - 1.0),
        // How much nearer the levels are to the best one than even shares are to the middle.
        QuestionKind::Score => {
            let spread: f64 = probabilities().zip(levels(best as f64)).map(|(p, far)| p * far).sum();
            1.0 - spread / (levels((n - 1.0) / 2.0).sum::<f64>() / n)
        }
    };
    let (kind, best, options_count) = (kind as u32, best as u32, count as u32);
    Decision { kind, best, first_option: 0, options_count, value, confidence: confidence.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests;
