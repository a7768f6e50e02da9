//! Threads for long work, so that the few threads of the runtime serve other clients meanwhile. Each queue has its own
//! threads, so quick work never waits for slow work. Within a queue, clients that used its threads least, ask for least
//! or have waited longest come first.
mod grammar;

use grammar::Grammars;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Texts below this size are read and tokenized at once, in some 0.5 ms.
const SHORT: usize = 4 << 10;
/// Texts from this size on are slow work, of 30 ms.
const LONG: usize = 256 << 10;
/// Milliseconds that a client waits longer for each KiB that it sent.
const MS_OF_KIB: i64 = 64;
/// Number of buckets for clients' addresses.
const BUCKETS: usize = 256;
const THREADS: usize = 2;

/// The queues of work. Grammars may take seconds; those that were quick the last time have a queue of their
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkQueue {
    AtOnce,
    Quick,
    Slow,
    /// The hash of a grammar.
    Known(u64),
    /// None: it is too long to be remembered.
    Grammar(Option<u64>),
}

/// The nice values of the queues' threads; some run for seconds beside the engine's.
const QUEUES: [i32; 4] = [0, 10, 0, 10];

impl WorkQueue {
    /// The queue for a body of `bytes` bytes.
    pub fn of(bytes: usize) -> Self {
        match bytes {
            ..SHORT => Self::AtOnce,
            SHORT..LONG => Self::Quick,
            _ => Self::Slow,
        }
    }

    /// The queue for writing an answer of `bytes` bytes.
    pub fn of_answer(bytes: usize) -> Self {
        if bytes < LONG { Self::AtOnce } else { Self::Slow }
    }

    fn index(self) -> Option<usize> {
        match self {
            Self::AtOnce => None,
            Self::Quick => Some(0),
            Self::Slow => Some(1),
            Self::Known(_) => Some(2),
            Self::Grammar(_) => Some(3),
        }
    }
}

/// The client of a job, and the job's size.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub peer: Option<IpAddr>,
    pub bytes: usize,
}

pub struct Work {
    queues: Arc<Queues>,
    grammars: Grammars,
}

struct Queues {
    state: Mutex<State>,
    more: [Condvar; QUEUES.len()],
}

struct State {
    queues: [Vec<Job>; QUEUES.len()],
    /// Number of running jobs.
    running: usize,
    /// Number of jobs so far.
    count: u64,
    /// Recent thread time of each bucket in milliseconds, halved every second.
    used: [u64; BUCKETS],
    halved: Instant,
}

struct Job {
    id: u64,
    bucket: usize,
    bytes: usize,
    since: Instant,
    run: Run,
}

/// Does the work, and returns a function that reports it to the waiting task.
type Run = Box<dyn FnOnce() -> Report + Send>;
type Report = Box<dyn FnOnce() + Send>;

impl Job {
    /// The job with the least score is next.
    fn score(&self, used: &[u64; BUCKETS], now: Instant) -> i64 {
        let waited = now.saturating_duration_since(self.since).as_millis() as i64;
        used[self.bucket] as i64 + (self.bytes >> 10) as i64 * MS_OF_KIB - waited
    }
}

impl State {
    fn take(&mut self, index: usize) -> Option<Job> {
        let now = Instant::now();
        let seconds = now.saturating_duration_since(self.halved).as_secs();
        if seconds > 0 {
            self.halved = now;
            self.used.iter_mut().for_each(|used| *used = used.checked_shr(seconds as u32).unwrap_or(0));
        }
        let (queue, used) = (&mut self.queues[index], &self.used);
        let best = (0..queue.len()).min_by_key(|at| queue[*at].score(used, now))?;
        Some(queue.remove(best))
    }
}

impl Queues {
    /// A poisoned lock is ignored, because the state is consistent whenever the lock is free.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, index: usize, cost: Cost, run: Run) -> u64 {
        let mut state = self.lock();
        state.count += 1;
        let id = state.count;
        let bucket = bucket_of(cost.peer);
        state.queues[index].push(Job { id, bucket, bytes: cost.bytes, since: Instant::now(), run });
        drop(state);
        self.more[index].notify_one();
        id
    }

    /// The loop of a queue's thread.
    fn serve(&self, index: usize) {
        #[cfg(target_os = "linux")] // where the call sets the thread's priority
        let _ = rustix::process::setpriority_process(None, QUEUES[index]);
        let mut state = self.lock();
        loop {
            let Some(job) = state.take(index) else {
                state = self.more[index].wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.running += 1;
            drop(state);
            let began = Instant::now();
            let report = (job.run)();
            let mut counted = self.lock();
            counted.running -= 1;
            counted.used[job.bucket] += began.elapsed().as_millis() as u64;
            drop(counted);
            report();
            state = self.lock();
        }
    }
}

/// Clients of one address share a bucket; for IPv6, clients of one network.
fn bucket_of(peer: Option<IpAddr>) -> usize {
    let hash = |bytes: &[u8]| {
        bytes.iter().fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619))
    };
    let hash = match peer.map(|peer| peer.to_canonical()) {
        None => 0,
        Some(IpAddr::V4(address)) => hash(&address.octets()),
        Some(IpAddr::V6(address)) => hash(&address.octets()[..8]),
    };
    hash as usize % BUCKETS
}

/// A queued job and the task that waits for it. If this is dropped, the job does not begin.
struct Waiting<'a> {
    queues: &'a Queues,
    index: usize,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.queues.lock();
        let queue = &mut state.queues[self.index];
        let Some(at) = queue.iter().position(|job| job.id == self.id) else { return };
        let job = queue.remove(at);
        drop(state);
        // Free the job on a thread, since that may take long.
        let cost = Cost { peer: None, bytes: 0 };
        self.queues.put(
            0,
            cost,
            Box::new(move || {
                drop(job);
                Box::new(|| ())
            }),
        );
    }
}

impl Work {
    pub fn new() -> std::io::Result<Self> {
        let state = State {
            queues: Default::default(),
            running: 0,
            count: 0,
            used: [0; BUCKETS],
            halved: Instant::now(),
        };
        let queues = Arc::new(Queues { state: Mutex::new(state), more: Default::default() });
        for index in (0..QUEUES.len()).flat_map(|index| [index; THREADS]) {
            let queues = queues.clone();
            std::thread::Builder::new().name(format!("work-{index}")).spawn(move || queues.serve(index))?;
        }
        Ok(Self { queues, grammars: Grammars::default() })
    }

    /// Runs `f` on a thread of the queue. If the future is dropped before, `f` does not begin. A panic is
    /// passed on.
    pub async fn run<T: Send + 'static>(
        &self,
        queue: WorkQueue,
        cost: Cost,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let Some(index) = queue.index() else { return f() };
        let (sender, receiver) = oneshot::channel();
        let run = move || -> Report {
            let done = catch_unwind(AssertUnwindSafe(f));
            Box::new(move || drop(sender.send(done)))
        };
        let id = self.queues.put(index, cost, Box::new(run));
        let waiting = Waiting { queues: &self.queues, index, id };
        let done = receiver.await.expect("work that is waited for is run");
        std::mem::forget(waiting); // it has left the queue
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The queue for submitting these requests, which came in a body of `bytes` bytes.
    pub fn queue_of(&self, requests: &[bn::Request], bytes: usize) -> WorkQueue {
        // Few bytes may be a large picture.
        let sees = requests.iter().any(|request| !request.pictures.is_empty());
        let plain = if sees { WorkQueue::Slow } else { WorkQueue::of(bytes) };
        let queue = self.grammars.queue_of(requests, bytes).unwrap_or(plain);
        if sees && matches!(queue, WorkQueue::Known(_)) { WorkQueue::Grammar(None) } else { queue }
    }

    /// Remembers how long requests of a queue took to be submitted. A grammar that was refused may not have been
    /// compiled.
    pub fn submitted(&self, queue: WorkQueue, well: bool, took: Duration) {
        self.grammars.submitted(queue, well, took);
    }

    /// Number of waiting and running jobs.
    pub fn working(&self) -> usize {
        let state = self.queues.lock();
        state.running + state.queues.iter().map(Vec::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tokio::time::timeout;

    const COST: Cost = Cost { peer: None, bytes: 0 };

    async fn until(what: impl Fn() -> bool) {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_panic_goes_on_where_it_is_waited_for() {
        let work = Arc::new(Work::new().unwrap());
        for queue in [WorkQueue::AtOnce, WorkQueue::Quick] {
            let work = work.clone();
            let task = tokio::spawn(async move { work.run(queue, COST, || panic!("of work")).await });
            assert!(task.await.unwrap_err().is_panic());
        }
        assert_eq!(work.run(WorkQueue::Quick, COST, || 1).await, 1);
        until(|| work.working() == 0).await;
    }

    #[tokio::test]
    async fn what_nobody_waits_for_does_not_begin() {
        let work = Arc::new(Work::new().unwrap());
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let blocked = [(); THREADS].map(|()| {
            let (work, gate) = (work.clone(), gate.clone());
            tokio::spawn(async move {
                work.run(WorkQueue::Slow, COST, move || drop(gate.lock().map(|gate| gate.recv()))).await
            })
        });
        until(|| work.working() == THREADS).await;
        let late = work.run(WorkQueue::Slow, COST, || panic!("it began"));
        assert!(timeout(Duration::from_millis(20), late).await.is_err());
        until(|| work.working() == THREADS).await;
        drop(release);
        for task in blocked {
            task.await.unwrap();
        }
    }

    #[test]
    fn the_least_used_and_the_shortest_come_first() {
        let now = Instant::now();
        let mut used = [0; BUCKETS];
        used[1] = 500;
        let job = |bucket, bytes, waited| Job {
            id: 0,
            bucket,
            bytes,
            since: now.checked_sub(Duration::from_millis(waited)).unwrap(),
            run: Box::new(|| Box::new(|| ())),
        };
        let score = |bucket, bytes, waited| job(bucket, bytes, waited).score(&used, now);
        assert!(score(0, 0, 0) < score(1, 0, 0));
        assert!(score(1, 0, 600) < score(0, 0, 0));
        assert!(score(0, 1 << 10, 0) < score(0, 9 << 10, 0));
    }
}
