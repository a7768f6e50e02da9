//! Feeds the requests of a whole answer to a model's queue as it has room, and takes their answers in their order.
use crate::failure::Result;
use crate::models::Held;
use crate::work::{Cost, Work};
use axum::http::StatusCode;
use std::collections::VecDeque;
use std::time::Duration;

/// How long to wait before a queue that others fill is tried again: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

pub struct Feed {
    /// Requests that are not submitted, in their order.
    waiting: VecDeque<bn::Request>,
    /// Those before them, whose answers are not taken.
    streams: VecDeque<bn::Stream>,
    /// Number of submitted requests.
    submitted: usize,
    all: usize,
    /// Number of requests that are in the queue at a time.
    most: usize,
    /// The requests may be submitted in parts.
    parts: bool,
    /// Bytes of all requests.
    bytes: usize,
}

impl Feed {
    /// Requests made of a body of `bytes` bytes, for a queue of `queue` places. `parts`: they may be submitted in
    /// parts.
    pub fn new(requests: Vec<bn::Request>, parts: bool, queue: usize, bytes: usize) -> Self {
        let all = requests.len();
        // More than the queue holds leave room in it for other requests.
        let most = if all > queue { queue.div_ceil(2) } else { all };
        let waiting = requests.into();
        Self { waiting, streams: VecDeque::new(), submitted: 0, all, most, parts, bytes }
    }

    /// Whether everything is submitted.
    pub fn is_fed(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Submits the next requests, if the queue has room for some. At least one is submitted whose answer is not taken,
    /// unless none is left.
    pub async fn fill(&mut self, work: &Work, cost: impl Fn(usize) -> Cost, mut held: Held) -> Result<Held> {
        let (mut pause, longest) = PAUSES;
        // Submitting many at a time costs less than one after the other.
        let room = self.most - self.streams.len();
        let mut count = if room * 2 >= self.most { room.min(self.waiting.len()) } else { 0 };
        while count > 0 {
            let next: Vec<_> = self.waiting.drain(..count).collect();
            let (bytes, kind) = (self.bytes / self.all * count, kind_of(&next[0]));
            let (back, next, streams) = submit(work, cost(bytes), held, next).await;
            held = back;
            match streams {
                Ok(streams) => {
                    self.submitted += count;
                    self.streams.extend(streams);
                    return Ok(held);
                }
                Err(error) if self.parts && error.kind() == bn::ErrorKind::QueueFull => {
                    next.into_iter().rev().for_each(|request| self.waiting.push_front(request));
                    match count {
                        // The end of one makes room.
                        _ if !self.streams.is_empty() => return Ok(held),
                        1 if self.submitted == 0 => return Err(held.failure(&error)),
                        1 => {
                            tokio::time::sleep(pause).await;
                            pause = (pause * 2).min(longest);
                        }
                        _ => count /= 2,
                    }
                }
                Err(error) => {
                    let mut failure = held.failure(&error).of_prompt(kind).behind(self.submitted);
                    if count == 1 && self.all > 1 && failure.status == StatusCode::BAD_REQUEST {
                        failure.message = format!("request {}: {}", self.submitted, failure.message);
                    }
                    return Err(failure);
                }
            }
        }
        Ok(held)
    }

    /// The next answer. None: there is none left of what is submitted.
    pub async fn next(&mut self) -> Option<bn::Answer> {
        match self.streams.pop_front() {
            Some(stream) => Some(stream.finish().await),
            None => None,
        }
    }
}

/// The client's name for a request's prompt.
pub fn kind_of(request: &bn::Request) -> &'static str {
    match (&request.task, &request.prompt) {
        (bn::Task::Embed(_), _) => "input",
        (bn::Task::Decide, _) => "state and questions",
        (bn::Task::Rerank, _) | (_, bn::Prompt::Pair { .. }) => "query and document",
        (_, bn::Prompt::Chat(_)) => "messages",
        _ => "prompt",
    }
}

/// Submits requests together, or none of them. The requests are returned.
pub async fn submit(
    work: &Work,
    cost: Cost,
    held: Held,
    requests: Vec<bn::Request>,
) -> (Held, Vec<bn::Request>, bn::Result<Vec<bn::Stream>>) {
    let queue = work.queue_of(&requests, cost.bytes);
    let submit = move || {
        let begun = std::time::Instant::now();
        let streams = held.engine.submit_batch(&requests);
        (held, requests, streams, begun.elapsed())
    };
    let (held, requests, streams, took) = work.run(queue, cost, submit).await;
    work.submitted(queue, streams.is_ok(), took);
    (held, requests, streams)
}
