//! Questions about a prompt, and their answers.
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Prompt, Request, Task};
use crate::{sys, text};

/// The most questions of a request.
pub const MAX_QUESTIONS: usize = sys::BN_MAX_QUESTIONS as usize;
/// The most options of a question.
pub const MAX_OPTIONS: usize = sys::BN_MAX_OPTIONS as usize;

/// The kind of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum QuestionKind {
    /// One of the options.
    #[default]
    Choice = sys::BN_QUESTION_CHOICE,
    /// A level: the options are its levels in order, and the first is level 0.
    Score = sys::BN_QUESTION_SCORE,
    /// Yes or no: two options, the first for yes. Without options: "Yes" and "No".
    YesNo = sys::BN_QUESTION_YES_NO,
}

/// A question about the prompt of [`Task::Decide`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Question {
    /// How it is answered.
    pub kind: QuestionKind,
    /// Its name in messages of errors; may be empty.
    pub name: String,
    /// Follows the prompt. After a conversation it is the end of the last message, or a user's own; may be empty.
    pub text: String,
    /// Texts that may come next.
    pub options: Vec<String>,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Index of the most likely option.
    pub best: usize,
    /// The probability of the best option; of a [`QuestionKind::Score`] the expected level; of a
    /// [`QuestionKind::YesNo`] the probability of yes.
    pub value: f64,
    /// 0, if all options are equally likely, to 1. The C header says how it is computed.
    pub confidence: f64,
    /// The options, in the question's order.
    pub options: Vec<DecisionOption>,
}

/// How likely an option is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecisionOption {
    /// The sum of the log probabilities of its tokens.
    pub logprob: f64,
    /// Its share among the question's options.
    pub probability: f64,
}

impl Engine {
    /// Waits for the answers to questions about a prompt, which is computed once. Nothing is generated.
    pub fn decide(&self, prompt: impl Into<Prompt>, questions: Vec<Question>) -> Result<Vec<Decision>> {
        let request = Request { task: Task::Decide, questions, ..Request::prompt(prompt) };
        let finish = self.submit(&request)?.answer().finish;
        match finish.decisions {
            Some(decisions) => Ok(decisions),
            None => Err(finish.error.unwrap_or_else(|| Error::of(ErrorKind::Internal))),
        }
    }
}

/// A request's questions, with the arrays that they point to.
pub(crate) struct Questions {
    options: Vec<Vec<sys::bn_string>>,
}

impl Questions {
    pub fn new(questions: &[Question]) -> Self {
        Self { options: questions.iter().map(|question| text::views(&question.options)).collect() }
    }

    /// Valid while this and `questions` are.
    pub fn raw(&self, questions: &[Question]) -> Vec<sys::bn_question> {
        let raw = |(question, options): (&Question, &Vec<sys::bn_string>)| sys::bn_question {
            kind: question.kind as u32,
            flags: 0,
            name: text::view(&question.name),
            text: text::view(&question.text),
            options: text::array(options),
            options_count: options.len(),
        };
        questions.iter().zip(&self.options).map(raw).collect()
    }
}

/// The answers of an event; None if it has none.
///
/// # Safety
/// The event is one of the library's.
pub(crate) unsafe fn decisions(raw: &sys::bn_event) -> Option<Vec<Decision>> {
    // SAFETY: the caller's promise.
    let (answers, options) = unsafe {
        (
            text::slice(raw.decisions, raw.decisions_count),
            text::slice(raw.decision_options, raw.decision_options_count),
        )
    };
    let option = |option: &sys::bn_decision_option| DecisionOption {
        logprob: option.logprob,
        probability: option.probability,
    };
    let decision = |answer: &sys::bn_decision| Decision {
        best: answer.best as usize,
        value: answer.value,
        confidence: answer.confidence,
        options: options[answer.first_option as usize..][..answer.options_count as usize]
            .iter()
            .map(option)
            .collect(),
    };
    (!answers.is_empty()).then(|| answers.iter().map(decision).collect())
}
