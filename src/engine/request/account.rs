//! The memory of a request: the bytes that it holds, its grants, and why it is paused.

use super::decision::Decider;
use super::embedding::Pooler;
use super::event::Event;
use crate::engine::api::RequestParams;

/// Number of tokens that one grant covers.
pub(crate) const GRANT: u32 = 16;

/// Memory of a request, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestBytes {
    /// Held from submit to release: two events, one pending and one polled with its lease.
    pub kept: u64,
    /// Held from submit to the end of the request: the prompt's ids and the request's parameters.
    pub prompt: u64,
    /// Held until the last event is freed: an echoed prompt, an embedding.
    pub delivered: u64,
    /// Held for a generated token until its event is freed; [`KEPT_BYTES`] of these until the request ends.
    pub token: u64,
}

impl RequestBytes {
    /// `hidden_size` is the width of an embedding.
    pub(crate) fn new(
        params: &RequestParams,
        prompt_tokens: usize,
        longest_token: usize,
        hidden_size: usize,
    ) -> Self {
        let tokens = prompt_tokens as u64;
        let kept = 2 * size_of::<Event>() as u64 + 512;
        // Each stop string takes its text, a copy of its pattern, four bytes of fallback table per byte, and
        // held-back text.
        let stops: usize = params.stop_strings.iter().map(|s| 8 * s.len() + 160).sum();
        // Token ids, and the keys of their blocks.
        let words: usize = params.bad_words.iter().map(|word| 16 * word.len() + 128).sum();
        let lists = (stops + words + params.sampling.bytes()) as u64;
        let guide = if params.constraint.is_some() { GUIDE_BYTES } else { 0 };
        let prompt = 512 + 5 * tokens + lists + 8 * params.stop_tokens.len() as u64 + guide;
        let token = KEPT_BYTES + delivered_bytes(params, longest_token);
        let delivered = match params.embedding {
            Some(_) => Pooler::bytes(hidden_size),
            None if params.echo_prompt || params.scores.is_some() => {
                tokens * delivered_bytes(params, longest_token)
            }
            None => 0,
        };
        Self { kept, prompt, delivered, token }
    }

    /// Adds those of questions and their answers.
    pub(crate) fn decide(&mut self, decider: &Decider) {
        self.prompt += decider.bytes();
        self.delivered += decider.answer_bytes();
    }

    /// Bytes reserved at submit.
    pub(crate) fn reserved(&self) -> u64 {
        self.kept + self.prompt + self.delivered
    }
}

/// Bytes of a grammar's parser and mask; 42 KiB were measured after 200 tokens, with a vocabulary of 128,256.
const GUIDE_BYTES: u64 = 64 << 10;

/// Bytes of a generated token until the request ends: its id, in a vector that may be twice as long as needed.
pub(crate) const KEPT_BYTES: u64 = 12;

/// Bytes of a token in an event. The factor 3 covers a vector that grows: it is copied to one twice as long while
/// the old one is still there.
fn delivered_bytes(params: &RequestParams, longest_token: usize) -> u64 {
    let logprobs = params.sampling.logprobs_per_token() as u64;
    // An invalid UTF-8 byte becomes three bytes. If the output is parsed, it may exist as text and as characters
    // at the same time, arguments grow by escapes, and a call has a frame.
    let (copies, frame) = if params.parse_output { (12, 64) } else { (3, 0) };
    3 * (4 + 8 * logprobs + frame + copies * longest_token as u64)
}

/// The grants of a request, and its reasons for a pause.
pub(crate) struct Account {
    pub bytes: RequestBytes,
    /// Number of tokens that it may output before it needs another grant.
    credit: u32,
    /// The request has had a grant.
    pub began: bool,
    /// The request was refused a grant and waits for it.
    pub awaits_grant: bool,
    /// Too much of the request's output is not polled.
    pub unread: bool,
    /// The request ends instead of being paused for unpolled output.
    pub end_unread: bool,
}

impl Account {
    pub(crate) fn new(bytes: RequestBytes, end_unread: bool) -> Self {
        Self { bytes, credit: 0, began: false, awaits_grant: false, unread: false, end_unread }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.awaits_grant || self.unread
    }

    /// Maximum number of bytes that a request of `tokens` new tokens holds at a time, if it gets `grants` before the
    /// first of its events is returned. Bytes of streamed events are returned as they are polled.
    pub(crate) fn most(&self, tokens: u32, grants: Option<u32>) -> u64 {
        let in_events = grants.map_or(tokens, |grants| tokens.min(grants * GRANT));
        let RequestBytes { token, .. } = self.bytes;
        self.bytes.reserved()
            + u64::from(tokens) * KEPT_BYTES
            + u64::from(in_events) * token.saturating_sub(KEPT_BYTES)
    }

    /// The grant that the request needs before its next token and up to `drafts` more, if its output has room for
    /// `left` tokens: the number of tokens and their bytes. None if it needs none.
    pub(crate) fn wants(&self, drafts: u32, left: u32) -> Option<(u32, u64)> {
        let tokens = GRANT.min(left.saturating_sub(self.credit));
        let needs = self.credit <= drafts && tokens > 0;
        needs.then_some((tokens, u64::from(tokens) * self.bytes.token))
    }

    pub(crate) fn grant(&mut self, tokens: u32) {
        self.credit += tokens;
        self.began = true;
    }

    /// Number of drafts that may be accepted with the next token.
    pub(crate) fn drafts(&self) -> u32 {
        self.credit.saturating_sub(1)
    }

    /// Counts a token that is put into `event`, which will return a part of its bytes.
    pub(crate) fn spend(&mut self, event: &mut Event) {
        self.credit = self.credit.saturating_sub(1);
        event.granted += self.bytes.token.saturating_sub(KEPT_BYTES);
    }

    /// Granted bytes that are in no event, after `tokens` tokens of output.
    #[cfg(test)]
    pub fn granted(&self, tokens: usize) -> u64 {
        u64::from(self.credit) * self.bytes.token + tokens as u64 * KEPT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account::new(RequestBytes { kept: 1, prompt: 2, delivered: 4, token: 100 }, false)
    }

    #[test]
    fn a_grant_is_asked_for_when_the_last_is_used_up() {
        let mut account = account();
        assert_eq!(account.wants(0, 20), Some((16, 1600)));
        account.grant(16);
        assert_eq!((account.wants(0, 20), account.drafts()), (None, 15));
        assert_eq!(account.wants(16, 20), Some((4, 400)), "drafts need room before");
        assert_eq!(account.wants(16, 16), None, "the output has no room");
        let mut event = Event::default();
        (0..16).for_each(|_| account.spend(&mut event));
        assert_eq!((event.granted, account.granted(16)), (16 * 88, 16 * KEPT_BYTES));
        assert_eq!(account.wants(0, 4), Some((4, 400)));
        assert_eq!(account.wants(0, 0), None, "it outputs nothing");
    }

    #[test]
    fn streamed_bytes_come_back() {
        let account = account();
        assert_eq!(account.most(1000, None), 7 + 1000 * 100);
        assert_eq!(account.most(1000, Some(2)), 7 + 1000 * KEPT_BYTES + 32 * 88);
        assert_eq!(account.most(10, Some(2)), 7 + 10 * 100);
        assert_eq!(account.most(0, Some(2)), 7);
    }
}
