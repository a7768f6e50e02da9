//! The output of a request as it arrives.
use crate::callback;
use crate::engine::{Engine, forked};
use crate::error::{ErrorKind, Result, check};
use crate::event::{Answer, Event};
use crate::handle::Handle;
use crate::shared::Shared;
use crate::sys;
use std::fmt;
use std::future::poll_fn;
use std::mem::{MaybeUninit, size_of};
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The output of a request as it arrives, for threads ([`Stream::recv`]) and tasks ([`Stream::next`]). It ends after
/// the event that has a [`finish`](Event::finish). Events that are not taken become one.
///
/// Dropping it cancels a request that has not ended. It keeps its engine.
pub struct Stream {
    shared: Arc<Shared>,
    /// Dropped after `shared`, because it may be the engine's last reference.
    engine: Engine,
    id: u64,
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// The request waits for admission.
    Queued,
    /// The request takes part in forward passes, unless it is paused or interrupted.
    Running,
    /// The request has finished. Its last event may still wait.
    Finished,
    /// A stage that this package does not know.
    Unknown(u32),
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The stage.
    pub stage: Stage,
    /// How many queued requests were submitted before one that is queued, whatever their priorities.
    pub queue_position: u64,
}

/// Cancels a request from any thread at any time. It keeps nothing alive.
#[derive(Clone, Copy)]
pub struct Canceller {
    engine: Handle<sys::bn_engine>,
    id: u64,
}

impl Canceller {
    /// Asks the engine to end the request, and returns at once. Its last event says what happened.
    pub fn cancel(&self) {
        // SAFETY: any handle and id may be passed; none is ever used again.
        unsafe { sys::bn_cancel(self.engine.raw(), self.id, ptr::null_mut()) };
    }
}

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, engine: Engine, id: u64) -> Self {
        Self { shared, engine, id }
    }

    /// The request's id, which is unique in its engine.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the next event. None: the last one was taken before. In a closure that the library calls, where waiting
    /// would never end, the request ends with [`ErrorKind::Reentrant`].
    pub fn recv(&mut self) -> Option<Event> {
        self.hopeless().or_else(|| self.shared.inbox.take())
    }

    /// Like [`Stream::recv`], but also None once the time has passed; [`Stream::is_over`] distinguishes the
    /// two.
    pub fn recv_timeout(&mut self, time: Duration) -> Option<Event> {
        self.hopeless().or_else(|| self.shared.inbox.take_within(time))
    }

    /// The waiting event. None: there is none yet, or the last event was taken before.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.shared.inbox.try_take()
    }

    /// The next event, for tasks. None: the last one was taken before. Nothing is lost if it is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Whether the last event was taken.
    pub fn is_over(&self) -> bool {
        self.shared.inbox.over()
    }

    /// Waits for the end, and returns everything that was not taken before.
    pub fn answer(mut self) -> Answer {
        let mut all = Event::default();
        while let Some(event) = self.recv() {
            all.append(event);
        }
        all.into()
    }

    /// Like [`Stream::answer`], for tasks.
    pub async fn finish(mut self) -> Answer {
        let mut all = Event::default();
        while let Some(event) = self.next().await {
            all.append(event);
        }
        all.into()
    }

    /// Asks the engine to end the request, and returns at once. The last event says what happened.
    pub fn cancel(&self) {
        self.canceller().cancel();
    }

    /// A canceller for the request, to be used while the stream is read.
    pub fn canceller(&self) -> Canceller {
        Canceller { engine: self.engine.0.handle(), id: self.id }
    }

    /// The stage of the request. Slow for a queued request, because it looks at all others.
    pub fn info(&self) -> Result<RequestInfo> {
        let finished = RequestInfo { stage: Stage::Finished, queue_position: 0 };
        if self.shared.inbox.ended() {
            return Ok(finished);
        }
        let mut info = MaybeUninit::<sys::bn_request_info>::zeroed();
        // SAFETY: the library fills a struct of this size, and one of zeros is a valid one.
        let (result, raw) = unsafe {
            sys::bn_request_info_init(info.as_mut_ptr(), size_of::<sys::bn_request_info>() as u32);
            let engine = self.engine.0.raw();
            (
                check(|error| sys::bn_request_get_info(engine, self.id, info.as_mut_ptr(), error)),
                info.assume_init(),
            )
        };
        match result {
            Err(_) if self.shared.inbox.ended() => Ok(finished),
            Err(error) => Err(error),
            Ok(()) => Ok(RequestInfo { stage: stage_of(raw.stage), queue_position: raw.queue_position }),
        }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<Option<Event>> {
        match self.shared.inbox.poll(context) {
            Poll::Pending if forked(&self.engine.0) => Poll::Ready(Some(self.fail(ErrorKind::Forked))),
            event => event,
        }
    }

    /// The last event for a request whose real last event would never come.
    fn hopeless(&self) -> Option<Event> {
        if self.is_over() {
            return None;
        }
        if forked(&self.engine.0) {
            return Some(self.fail(ErrorKind::Forked));
        }
        callback::inside().then(|| self.fail(ErrorKind::Reentrant))
    }

    fn fail(&self, kind: ErrorKind) -> Event {
        self.shared.inbox.abandon();
        self.cancel();
        Event::failure(self.shared.user_data, kind)
    }
}

impl futures_core::Stream for Stream {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll(context)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.inbox.abandon();
        if !self.shared.inbox.ended() {
            self.cancel();
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

fn stage_of(stage: u32) -> Stage {
    match stage {
        sys::BN_STAGE_QUEUED => Stage::Queued,
        sys::BN_STAGE_RUNNING => Stage::Running,
        sys::BN_STAGE_FINISHED => Stage::Finished,
        other => Stage::Unknown(other),
    }
}
