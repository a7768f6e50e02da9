//! The tokens after which a request's masks are wanted, and the masks that are made and not taken yet.

use super::guide::Mask;
use crate::base::{Result, reserve};
use std::collections::VecDeque;

/// Shared by a guide, which adds tokens, and the worker that computes their masks.
pub(super) struct Script {
    /// The output, then drafts: tokens that may come next.
    tokens: Vec<u32>,
    /// Length of the output.
    sure: usize,
    /// The masks after the first `from` tokens, after one token more, and so on. `from` is `sure`, or one more once the
    /// guide has taken the mask after the output.
    made: VecDeque<Result<Mask>>,
    from: usize,
    /// Number of leading tokens that are the same as when the worker last looked.
    same: usize,
    /// A worker has the slot, or it is queued for one.
    pub busy: bool,
    /// False once a mask after a draft has failed; then masks are computed only for the output itself.
    ahead: bool,
}

/// The next mask that a worker computes.
#[derive(Clone, Copy)]
pub(super) struct Task {
    /// Number of tokens before it.
    pub at: usize,
    /// Number of these that have not changed since the last task.
    pub same: usize,
    /// The mask is after a draft.
    pub ahead: bool,
}

impl Script {
    pub(super) fn new() -> Self {
        let (tokens, made) = (Vec::new(), VecDeque::new());
        Self { tokens, sure: 0, made, from: 0, same: 0, busy: false, ahead: true }
    }

    /// The next mask to compute, if one is wanted. No mask follows an error or a complete output.
    pub(super) fn next(&self) -> Option<Task> {
        let at = self.from + self.made.len();
        let to = if self.ahead { self.tokens.len() } else { self.sure };
        let goes_on = |last: &Result<Mask>| last.as_ref().is_ok_and(|mask| !mask.complete());
        let wanted = at <= to && self.made.back().is_none_or(goes_on);
        wanted.then_some(Task { at, same: self.same, ahead: at > self.sure })
    }

    /// Copies the tokens before a task to `output`, which already has those of the task before.
    pub(super) fn copy(&mut self, task: Task, output: &mut Vec<u32>) -> Result<()> {
        output.truncate(task.same);
        let missing = &self.tokens[output.len().min(task.at)..task.at];
        reserve(output, missing.len(), "output tokens")?;
        output.extend_from_slice(missing);
        self.same = usize::MAX;
        Ok(())
    }

    /// Adds the mask of a task, unless tokens before it have changed since.
    pub(super) fn add(&mut self, task: Task, mask: Result<Mask>) -> bool {
        let fits = self.same >= task.at && self.from + self.made.len() == task.at;
        if fits {
            self.made.push_back(mask);
        }
        fits
    }

    /// Drops the drafts from that of `task` on. `ahead`: whether other drafts may be tried later.
    pub(super) fn refuse(&mut self, task: Task, ahead: bool) {
        self.ahead &= ahead;
        // The output may have reached this position meanwhile.
        if self.same >= task.at && self.sure < task.at {
            self.replace(task.at - 1);
        }
    }

    /// Takes the mask after the output, if it is made.
    pub(super) fn take(&mut self) -> Option<Result<Mask>> {
        let taken = if self.from == self.sure { self.made.pop_front() } else { None };
        self.from += usize::from(taken.is_some());
        taken
    }

    /// Appends `token` to the output. The mask before it has been taken.
    pub(super) fn push(&mut self, token: u32) -> Result<()> {
        if self.tokens.get(self.sure) != Some(&token) {
            reserve(&mut self.tokens, 1, "output tokens")?;
            self.replace(self.sure);
            self.tokens.push(token);
        }
        self.sure += 1;
        Ok(())
    }

    /// Sets the drafts that may follow the output.
    pub(super) fn expect(&mut self, drafts: &[u32]) -> Result<()> {
        let known = &self.tokens[self.sure..];
        let same = known.iter().zip(drafts).take_while(|(known, draft)| known == draft).count();
        if same < known.len() {
            self.replace(self.sure + same);
        }
        reserve(&mut self.tokens, drafts.len() - same, "drafted tokens")?;
        self.tokens.extend_from_slice(&drafts[same..]);
        Ok(())
    }

    /// Drops the tokens from `at` on, and the masks after them.
    fn replace(&mut self, at: usize) {
        self.tokens.truncate(at);
        self.made.truncate((at + 1).saturating_sub(self.from));
        self.same = self.same.min(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_draft_is_not_taken_for_the_next_one() {
        let (mut script, mut output) = (Script::new(), Vec::new());
        script.expect(&[7]).unwrap();
        let task = |script: &Script, ahead| Task { at: 1, same: script.same, ahead };
        let first = task(&script, true);
        script.copy(first, &mut output).unwrap();
        assert_eq!(output, [7]);
        script.refuse(first, true);
        script.expect(&[8]).unwrap();
        script.push(8).unwrap();
        let next = task(&script, false);
        script.copy(next, &mut output).unwrap();
        assert_eq!(output, [8]);
    }
}
