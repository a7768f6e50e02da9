//! Limits of all unreleased requests together.

use super::*;

/// Limits of all unreleased requests together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub requests: usize,
    /// Prompt tokens of requests that wait for admission. A request may exceed it if no other waits.
    pub queued_tokens: u64,
    /// Bytes of requests, polled events included; MAX: no bound.
    pub bytes: u64,
    /// Limit of set-aside bytes, as if each device had only the room of the smallest one. MAX: only `bytes`
    /// bounds them.
    pub aside: u64,
    /// Unpolled bytes of one request; see `RequestSlots`.
    pub unread_bytes: u64,
}

impl Bounds {
    /// Fails with `QueueFull` if the unreleased requests and `infos` are too many, or their prompts too
    /// long.
    pub(super) fn queue<'a>(
        &self,
        infos: impl ExactSizeIterator<Item = &'a RequestInfo>,
        used: &Usage,
    ) -> Result<()> {
        let (n, unreleased, most) = (infos.len(), used.unreleased, self.requests);
        let message = if n > most - unreleased {
            format!(
                "{unreleased} of {most} requests (queue_capacity) are not freed yet, so {n} more cannot be taken; free \
                 finished ones, or raise it"
            )
        } else {
            let (tokens, most) = (infos.map(|info| info.prompt_tokens).sum::<u64>(), self.queued_tokens);
            let queued = used.queued_tokens;
            if queued == 0 || tokens <= most.saturating_sub(queued) {
                return Ok(());
            }
            format!(
                "{queued} of {most} prompt tokens (queue_token_capacity) wait for admission, and {tokens} more do not \
                 fit; try again later, or raise it"
            )
        };
        Err(Error::new(Status::QueueFull, message))
    }
}

/// Fails with `MemoryLimit` if requests do not fit together with the others while queued, or not even alone
/// while running. Keeps room for the largest need of any live request, so that all can finish. `spare`:
/// reserved bytes that do not count.
pub(super) fn fits<'a, E: Merge>(
    infos: impl Iterator<Item = &'a RequestInfo>,
    slots: &mut RequestSlots<E>,
    budget: u64,
    spare: u64,
) -> Result<()> {
    let (mut bytes, mut alone, mut need) = (0u64, 0, slots.largest_need());
    for info in infos {
        bytes = bytes.saturating_add(info.reserved);
        (alone, need) = (alone.max(info.alone), need.max(info.need()));
    }
    let reserved = slots.usage().reserved.saturating_sub(spare);
    let left = budget.saturating_sub(reserved).saturating_sub(need);
    let message = if alone > budget {
        format!(
            "the request may need {alone} bytes, and memory_limit_bytes leaves {budget} for all requests: it does not \
             fit even alone; lower max_new_tokens, or let it stream"
        )
    } else if bytes > left {
        format!(
            "the request takes {bytes} bytes while it is queued, and memory_limit_bytes leaves {left} of {budget}: it \
             does not fit now"
        )
    } else {
        return Ok(());
    };
    Err(Error::new(Status::MemoryLimit, message))
}
