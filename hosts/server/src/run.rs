//! Runs a request: reads its body, takes its model, submits the engine's requests, and writes the answer. APIs
//! differ only in `Api`.
use crate::api::Route;
use crate::app::App;
use crate::body;
use crate::failure::{Failure, Result, Shape};
use crate::feed::{self, Feed};
use crate::fetch;
use crate::fields::Fields;
use crate::memory::Lease;
use crate::models::Held;
use crate::serve::Answering;
use crate::stream;
use crate::watch::Trace;
use crate::work::{Cost, WorkQueue};
use axum::body::Body;
use axum::http::{HeaderMap, Response, header, request::Parts};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a stream that the server has not read from the engine, which nothing else counts.
const UNSEEN: usize = 1 << 20;

/// An API, which reads its requests and writes its answers.
pub trait Api: Sized + Send + 'static {
    /// Reads the body's fields. Fields that it leaves in `fields` are unknown. It runs on a worker thread.
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)>;

    /// The whole answer, in the order of the requests.
    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String>;

    /// The media type of its streams.
    fn stream_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// Writes the beginning of a stream.
    fn begin(&mut self, _out: &mut String) {}

    /// Writes an event of the request `at`, whose last event has `finish`.
    fn event(&mut self, _out: &mut String, _at: usize, _event: &bn::Event) {}

    /// Writes the failure of a request of a stream; others go on.
    fn failed(&mut self, _out: &mut String, _at: usize, _failure: &Failure) {}

    /// Writes the end of a stream. `failed`: one of its requests failed.
    fn end(&mut self, _out: &mut String, _totals: &Totals, _failed: bool) {}
}

/// The engine's requests for a client's request.
pub struct Generation {
    /// `samples` for each prompt, those of a prompt together; then those that do not count as output (`scores`).
    pub requests: Vec<bn::Request>,
    pub samples: usize,
    /// Number of requests, at the end of the list, that only score prompts.
    pub scores: usize,
    pub stream: bool,
    /// The number of bytes by which the work is estimated, if not the body's length.
    pub cost: Option<usize>,
    /// The requests may be submitted in portions, as the queue has room, and be more than it holds.
    pub portions: bool,
}

impl Generation {
    fn new(requests: Vec<bn::Request>, samples: usize, stream: bool) -> Self {
        Self { requests, samples, scores: 0, stream, cost: None, portions: false }
    }

    pub fn one(request: bn::Request, stream: bool) -> Self {
        Self::new(vec![request], 1, stream)
    }

    /// `samples` of each prompt. Sample i has the seed plus i, so that the same number of samples repeats.
    pub fn samples(template: &bn::Request, prompts: Vec<bn::Prompt>, samples: usize, stream: bool) -> Self {
        let mut requests = Vec::with_capacity(prompts.len() * samples);
        for prompt in prompts {
            for sample in 0..samples {
                let mut request = bn::Request { prompt: prompt.clone(), ..template.clone() };
                request.sampling.seed = template.sampling.seed.wrapping_add(sample as u64);
                requests.push(request);
            }
        }
        Self::new(requests, samples, stream)
    }
}

/// Tokens of all requests together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub prompt: u64,
    pub generated: u64,
    pub cached: u64,
    pub drafted: u64,
    pub accepted: u64,
    pub reasoning: u64,
}

impl Totals {
    /// Adds an ended request; `first`: it is its prompt's first.
    pub fn add(&mut self, usage: &bn::Usage, first: bool) {
        self.prompt += if first { u64::from(usage.prompt_tokens) } else { 0 };
        self.generated += u64::from(usage.generated_tokens);
        self.cached += u64::from(usage.cached_tokens);
        self.drafted += u64::from(usage.drafted_tokens);
        self.accepted += u64::from(usage.accepted_tokens);
        self.reasoning += u64::from(usage.reasoning_tokens);
    }
}

/// A request before its body is read.
pub struct Call {
    pub app: Arc<App>,
    /// Unique on this server.
    pub id: u64,
    /// Seconds since 1970.
    pub created: u64,
    pub shape: Shape,
    pub peer: Option<IpAddr>,
    pub trace: Option<Trace>,
    /// Receives the model's name, for the access log.
    pub model: Answering,
    /// How long the request waited for its model.
    pub loading: Duration,
    /// The part of `--max-memory` that the request's body and answer take.
    pub lease: Lease,
    /// Held until everything is submitted.
    pub submits: Option<Arc<()>>,
}

/// The address that a connection came from, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

impl Call {
    pub fn new(app: &Arc<App>, parts: &Parts) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self {
            app: app.clone(),
            id: app.next_id.fetch_add(1, Ordering::Relaxed),
            created,
            shape: shape_of(path_of(parts)),
            peer: parts.extensions.get::<Peer>().map(|peer| peer.0),
            trace: None,
            model: parts.extensions.get::<Answering>().cloned().unwrap_or_default(),
            loading: Duration::ZERO,
            lease: app.memory.lease(),
            submits: Some(app.life.submits()),
        }
    }

    /// A seed for a request without one. Seeds of neighbouring requests must not overlap, because samples use
    /// consecutive seeds.
    pub fn seed(&self) -> u64 {
        RandomState::new().hash_one(self.id)
    }

    /// Records the complete answer in the trace.
    pub fn traced(&self, totals: &Totals) {
        if let Some(trace) = &self.trace {
            trace.tokens(totals.prompt, totals.generated);
            trace.answered(200);
        }
    }

    pub fn cost(&self, bytes: usize) -> Cost {
        Cost { peer: self.peer, bytes }
    }
}

/// The path of the route, whatever the client wrote.
fn path_of(parts: &Parts) -> &str {
    parts.extensions.get::<&'static Route>().map_or_else(|| parts.uri.path(), |route| route.path)
}

/// The form of errors on a path.
pub fn shape_of(path: &str) -> Shape {
    if path.starts_with("/v1/messages") {
        Shape::Anthropic
    } else if path.starts_with("/api/") {
        Shape::Ollama
    } else {
        Shape::OpenAi
    }
}

/// Answers a request that the engine runs.
pub async fn answer<A: Api>(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    answer_with(app, parts, body, async |call, fields, length| run::<A>(call, fields, length).await).await
}

/// Answers a request whose body's fields decide what is run, if anything.
pub async fn answer_with(
    app: Arc<App>,
    parts: Parts,
    body: Body,
    run: impl AsyncFnOnce(Call, Fields, usize) -> Result<Response<Body>>,
) -> Response<Body> {
    let mut call = Call::new(&app, &parts);
    let trace = app.tracer.begin(&parts.method, path_of(&parts), traceparent(&parts.headers));
    call.trace.clone_from(&trace);
    let shape = call.shape;
    let answered = match body::read(&mut call, body).await {
        Ok((fields, length)) => run(call, fields, length).await,
        Err(failure) => Err(failure),
    };
    if let (Some(trace), Err(failure)) = (&trace, &answered) {
        trace.answered(failure.status.as_u16());
    }
    answered.unwrap_or_else(|failure| failure.response(shape))
}

fn traceparent(headers: &HeaderMap) -> Option<&str> {
    headers.get("traceparent").and_then(|value| value.to_str().ok())
}

/// Runs the request with the fields of a body of `length` bytes.
pub async fn run<A: Api>(mut call: Call, mut fields: Fields, length: usize) -> Result<Response<Body>> {
    let held = take_model(&mut call, &fields).await?;
    let app = call.app.clone();
    let fetcher = app.fetcher.as_ref().filter(|_| held.info.sees);
    let length =
        length + fetch::pictures(fetcher, &mut call.lease, app.options.max_body, &mut fields).await?;
    let work = call.app.clone();
    let cost = call.cost(length);
    let (call, held, read) = work
        .work
        .run(WorkQueue::of(length), cost, move || {
            let mut fields = fields;
            let read = A::read(&call, &held, &mut fields).and_then(|read| {
                call.app.unknown_fields(&fields)?;
                Ok(read)
            });
            (call, held, read)
        })
        .await;
    let (generation, api) = read?;
    submit(call, held, generation, api, length).await
}

/// The model that the body names, once it is loaded.
pub async fn take_model(call: &mut Call, fields: &Fields) -> Result<Held> {
    let name = match fields.get("model") {
        None => None,
        Some(value) => Some(value.as_str().ok_or_else(|| Failure::invalid("'model' must be a text"))?),
    };
    let begun = Instant::now();
    let held = call.app.models.take(name).await?;
    call.loading = begun.elapsed();
    let _ = call.model.0.set(held.shown().to_owned());
    if let Some(trace) = &call.trace {
        trace.model(held.shown());
    }
    Ok(held)
}

async fn submit<A: Api>(
    mut call: Call,
    held: Held,
    mut generation: Generation,
    api: A,
    length: usize,
) -> Result<Response<Body>> {
    let most = held.options.queue as usize;
    if generation.requests.len() > most && !generation.portions {
        return Err(Failure::invalid(format!("this server takes at most {most} prompts at a time")));
    }
    for request in &mut generation.requests {
        request.no_stream = !generation.stream;
        request.adapter = held.adapter().cloned();
        // Remove tokens that the model lacks, which cannot be generated.
        request.sampling.logit_bias.retain(|(token, _)| u64::from(*token) < held.info.vocab_size);
        request.trace = call.trace.as_ref().map(Trace::of_engine);
        request.max_unread_bytes = generation.stream.then_some(call.app.options.max_unread.min(UNSEEN));
    }
    let bytes = generation.cost.unwrap_or(length);
    if generation.stream {
        let requests = std::mem::take(&mut generation.requests);
        let kind = requests.first().map_or("prompt", feed::kind_of);
        let (held, _, streams) = feed::submit(&call.app.work, call.cost(bytes), held, requests).await;
        let streams = streams.map_err(|error| held.failure(&error).of_prompt(kind))?;
        call.lease.give(call.lease.held()); // the fields are gone
        call.submits = None;
        return Ok(stream::response(call, held, generation, api, streams));
    }
    whole(call, held, generation, api, bytes).await
}

/// Waits for all requests. If one fails, the whole answer fails.
async fn whole<A: Api>(
    mut call: Call,
    mut held: Held,
    generation: Generation,
    mut api: A,
    bytes: usize,
) -> Result<Response<Body>> {
    let mut answers = Vec::with_capacity(generation.requests.len());
    let mut totals = Totals::default();
    let generating = generation.requests.len() - generation.scores;
    let samples = generation.samples;
    let queue = held.options.queue as usize;
    let mut feed = Feed::new(generation.requests, generation.portions, queue, bytes);
    let fields = call.lease.held();
    loop {
        held = feed.fill(&call.app.work, |bytes| call.cost(bytes), held).await?;
        if feed.is_fed() && call.submits.take().is_some() {
            call.lease.give(fields); // they are gone
        }
        let Some(answer) = feed.next().await else { break };
        if let Some(failure) = failure_of(&answer.finish) {
            return Err(failure);
        }
        call.lease.take(held_by(&answer))?;
        let at = answers.len();
        if at < generating {
            totals.add(&answer.finish.usage, at % samples == 0);
        }
        answers.push(answer);
    }
    drop(held); // the model may be unloaded while the client reads
    let app = call.app.clone();
    let size = answers.iter().map(held_by).sum();
    let (mut call, text) = app
        .work
        .run(WorkQueue::of_answer(size), call.cost(size), move || (call, api.whole(answers, &totals)))
        .await;
    let text = text?;
    call.lease.take(text.len())?;
    call.traced(&totals);
    Ok(json(text, call))
}

/// Bytes that an answer takes until it is sent: a log probability is some 64, a number of an embedding 14.
fn held_by(answer: &bn::Answer) -> usize {
    let embedding = answer.finish.embedding.as_ref().map_or(0, Vec::len);
    answer.logprobs.len() * 64 + embedding * 14 + answer.text.len() + answer.reasoning.len()
}

/// The failure of a request; None: it has an answer, or a part of one.
pub fn failure_of(finish: &bn::Finish) -> Option<Failure> {
    let nothing = finish.usage.generated_tokens == 0;
    let failed = match finish.reason {
        bn::FinishReason::Failed => true,
        bn::FinishReason::Cancelled | bn::FinishReason::TimedOut => nothing,
        _ => false,
    };
    let error = finish.error.as_ref().filter(|_| failed)?;
    Some(Failure::of(error))
}

/// A JSON answer. `call` lives until it is sent.
pub fn json(text: String, call: Call) -> Response<Body> {
    let length = text.len();
    let mut response = Response::new(body::counted(text, call));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    response
}
