//! Questions about a prompt, and their answers.

use super::config::choice;
use super::guard;
use super::string::bn_string;
use crate::base::{Result, reserve};
use crate::engine::api::{Decision, OptionScore, Question, QuestionKind};
use crate::engine::{MAX_OPTIONS, MAX_QUESTIONS};
use std::borrow::Cow;
use std::mem::offset_of;

/// One of the options.
pub const BN_QUESTION_CHOICE: u32 = 0;
/// A level: the options are its levels in order, and the first is level 0.
pub const BN_QUESTION_SCORE: u32 = 1;
/// Yes or no: two options, the first for yes. Without options: "Yes" and "No".
pub const BN_QUESTION_YES_NO: u32 = 2;

/// The largest `questions_count`.
pub const BN_MAX_QUESTIONS: u32 = 4096;
/// The largest `options_count`.
pub const BN_MAX_OPTIONS: u32 = 255;

/// A question about the prompt of `BN_TASK_DECIDE`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_question {
    /// `BN_QUESTION_*`.
    pub kind: u32,
    /// Room for later flags: 0.
    pub flags: u32,
    /// Names it in messages; may be NULL.
    pub name: bn_string,
    /// Follows the prompt; may be NULL. After `prompt` and `prompt_tokens` it is tokenized by
    /// itself. In `chat` it is the end of the last message, after an empty line, or a message of its
    /// own if the last one is not a user's text.
    pub text: bn_string,
    /// Texts that may come next, no two with the same tokens. Each is tokenized by itself, as
    /// text: begin it with a space where the model would.
    pub options: *const bn_string,
    pub options_count: usize,
}

/// The answer to a question.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_decision {
    /// `BN_QUESTION_*`.
    pub kind: u32,
    /// The most likely option; the first one of several.
    pub best: u32,
    /// Index of its first option in `decision_options`.
    pub first_option: u32,
    /// Number of its options.
    pub options_count: u32,
    /// `BN_QUESTION_CHOICE`: the probability of `best`. `BN_QUESTION_SCORE`: the expected level,
    /// the sum of levels times their probabilities. `BN_QUESTION_YES_NO`: the probability of yes.
    pub value: f64,
    /// 0 to 1. With n options and p the probability of `best` it is (n p - 1) / (n - 1). For
    /// `BN_QUESTION_SCORE`: 1 - a / b, but not below 0, where a is the expected distance from
    /// `best` in levels, and b the mean distance of all levels from their middle. 1 with one
    /// option.
    pub confidence: f64,
}

/// How likely an option of a question is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_decision_option {
    /// Sum of the natural logarithms of its tokens' probabilities, each after the prompt, the
    /// question and the tokens before it, as `BN_TASK_SCORE` returns them. So an option is at least
    /// as likely as one that begins with it.
    pub logprob: f64,
    /// The softmax of its question's `logprob`s.
    pub probability: f64,
}

// Answers are handed out without a copy, so the layouts must match.
const _: () = {
    assert!(size_of::<bn_decision>() == size_of::<Decision>());
    assert!(offset_of!(bn_decision, kind) == offset_of!(Decision, kind));
    assert!(offset_of!(bn_decision, best) == offset_of!(Decision, best));
    assert!(offset_of!(bn_decision, first_option) == offset_of!(Decision, first_option));
    assert!(offset_of!(bn_decision, options_count) == offset_of!(Decision, options_count));
    assert!(offset_of!(bn_decision, value) == offset_of!(Decision, value));
    assert!(offset_of!(bn_decision, confidence) == offset_of!(Decision, confidence));
    assert!(size_of::<bn_decision_option>() == size_of::<OptionScore>());
    assert!(offset_of!(bn_decision_option, logprob) == offset_of!(OptionScore, logprob));
    assert!(offset_of!(bn_decision_option, probability) == offset_of!(OptionScore, probability));
    assert!(BN_QUESTION_CHOICE == QuestionKind::Choice as u32);
    assert!(BN_QUESTION_SCORE == QuestionKind::Score as u32);
    assert!(BN_QUESTION_YES_NO == QuestionKind::YesNo as u32);
    assert!(BN_MAX_QUESTIONS as usize == MAX_QUESTIONS && BN_MAX_OPTIONS as usize == MAX_OPTIONS);
};

/// The questions of a request.
///
/// # Safety
/// Pointers are NULL or as the fields say, for `'a`.
pub(super) unsafe fn questions<'a>(from: *const bn_question, count: usize) -> Result<Vec<Question<'a>>> {
    guard::count("questions", count, MAX_QUESTIONS)?;
    // SAFETY: the caller's promise.
    let from = unsafe { guard::slice("questions", from, count) }?;
    let mut all = Vec::new();
    reserve(&mut all, count, "questions")?;
    for (at, question) in from.iter().enumerate() {
        let field = |name: &str| format!("questions[{at}].{name}");
        guard::flags(&field("flags"), question.flags, 0)?;
        let kinds = [
            (BN_QUESTION_CHOICE, QuestionKind::Choice),
            (BN_QUESTION_SCORE, QuestionKind::Score),
            (BN_QUESTION_YES_NO, QuestionKind::YesNo),
        ];
        let kind = choice(&field("kind"), question.kind, "BN_QUESTION", &kinds)?;
        guard::count(&field("options"), question.options_count, MAX_OPTIONS)?;
        // SAFETY: the caller's promise.
        let (name, text, mut options) = unsafe {
            (
                guard::optional_text(&field("name"), question.name)?,
                guard::optional_text(&field("text"), question.text)?,
                guard::texts(&field("options"), question.options, question.options_count)?,
            )
        };
        if kind == QuestionKind::YesNo && options.is_empty() {
            options = vec!["Yes".into(), "No".into()];
        }
        let [name, text] = [name, text].map(|text| Cow::Borrowed(text.unwrap_or("")));
        all.push(Question { kind, name, text, options });
    }
    Ok(all)
}
