//! The phases of an ended request, for the host's traces.

use crate::engine::hub::ids::RequestId;
use crate::engine::request::event::{Event, FinishReason};
use std::sync::Arc;

/// Position of a request in the host's traces. Ids are W3C's: bytes, most significant first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: [u8; 16],
    /// The span that caused the request; zeros: none.
    pub parent: [u8; 8],
}

/// Numbered as in the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Submit to admission.
    Queued = 1,
    /// Admission to the end of the prompt.
    Prefill = 2,
    /// First token to last.
    Decode = 3,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub kind: SpanKind,
    pub request: RequestId,
    pub user_data: u64,
    pub context: TraceContext,
    /// Start and end in nanoseconds since 1970.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Number of tokens, by kind: the prompt's, the prompt's without those from the prefix cache, or the generated
    /// ones.
    pub tokens: u32,
    pub cached_tokens: u32,
    pub finish: FinishReason,
}

/// Called on the engine thread with each span of a request that has ended.
pub type SpanSink = Arc<dyn Fn(&Span) + Send + Sync>;

/// The phases that a request went through. `event` is its terminal event, made at `now_unix_ns`. The last phase
/// may have been cut short.
pub(crate) fn spans(
    event: &Event,
    context: TraceContext,
    now_unix_ns: u64,
) -> impl Iterator<Item = Span> + use<> {
    let (request, user_data, finish, usage) = (event.request, event.user_data, event.finish, event.usage);
    let submitted = now_unix_ns.saturating_sub(usage.total_ns);
    let prefill_ns = match usage.prefill_ns {
        0 => usage.total_ns - usage.queued_ns,
        ns => ns,
    };
    let computed = usage.prompt_tokens - usage.cached_tokens;
    [
        (true, SpanKind::Queued, 0, usage.queued_ns, usage.prompt_tokens),
        (usage.queued_ns < usage.total_ns, SpanKind::Prefill, usage.queued_ns, prefill_ns, computed),
        (
            usage.generated_tokens > 0,
            SpanKind::Decode,
            usage.first_token_ns,
            usage.decode_ns,
            usage.generated_tokens,
        ),
    ]
    .into_iter()
    .filter(|(reached, ..)| *reached)
    .map(move |(_, kind, from, ns, tokens)| Span {
        kind,
        request,
        user_data,
        context,
        start_ns: submitted + from,
        end_ns: submitted + from + ns,
        tokens,
        cached_tokens: usage.cached_tokens,
        finish,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::event::Usage;

    fn phases(usage: Usage) -> Vec<(SpanKind, u64, u64, u32)> {
        let event = Event { usage, ..Event::default() };
        let context = TraceContext { trace: [7; 16], parent: [8; 8] };
        let all = spans(&event, context, 1_000);
        all.map(|span| (span.kind, span.start_ns, span.end_ns, span.tokens)).collect()
    }

    #[test]
    fn a_request_has_the_phases_that_it_reached() {
        let mut usage =
            Usage { prompt_tokens: 9, cached_tokens: 4, queued_ns: 600, total_ns: 600, ..Usage::default() };
        let queued = (SpanKind::Queued, 400, 1_000, 9);
        assert_eq!(phases(usage), [queued]);
        // Cancelled in the middle of its prompt.
        usage.queued_ns = 100;
        let queued = (SpanKind::Queued, 400, 500, 9);
        assert_eq!(phases(usage), [queued, (SpanKind::Prefill, 500, 1_000, 5)]);
        (usage.prefill_ns, usage.first_token_ns) = (50, 150);
        (usage.decode_ns, usage.generated_tokens) = (400, 3);
        let (prefill, decode) = ((SpanKind::Prefill, 500, 550, 5), (SpanKind::Decode, 550, 950, 3));
        assert_eq!(phases(usage), [queued, prefill, decode]);
    }
}
