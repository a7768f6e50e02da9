//! bn_engine, a continuous-batching LLM engine, for threads and tasks.
//!
//! ```no_run
//! fn main() -> bn::Result<()> {
//!     let engine = bn::Engine::new(bn::EngineOptions { model_path: Some("model.gguf".into()), ..Default::default() })?;
//!     let mut stream = engine.submit(&bn::Request::prompt("Once upon a time"))?;
//!     while let Some(event) = stream.recv() { // or stream.next().await
//!         print!("{}", event.text);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! An [`Engine`] runs a [`Model`]. A [`Request`] that is submitted becomes a [`Stream`] of [`Event`]s, which threads and
//! tasks read. Any number of requests run together. No executor is needed, and any will do.
//!
//! Closures that the library calls ([`Log`], [`OnLogits`], [`OnSpan`], [`Progress`]) must not wait for it. Wakers run on its
//! delivery thread, as every executor expects. A panic in any of them stays there.
//!
//! A child that was forked may use models of its parent. Its parent's engines and streams give errors of the kind
//! [`ErrorKind::Forked`].

#[cfg(feature = "static")]
extern crate bn_engine as _;

mod adapter;
mod callback;
mod chat;
mod constraint;
mod decision;
mod engine;
mod engine_options;
mod error;
mod event;
mod finish;
mod handle;
mod inbox;
mod log;
mod logits;
mod metrics;
mod model;
mod model_info;
mod model_options;
mod params;
mod picture;
mod request;
mod sampling;
mod score;
mod session;
mod settings;
mod shared;
mod span;
#[rustfmt::skip]
mod stats;
mod stream;
mod submit;
#[rustfmt::skip]
#[allow(non_camel_case_types, missing_docs, rustdoc::all)]
pub mod sys;
mod text;

pub use adapter::Adapter;
pub use chat::{Chat, Message};
pub use constraint::{Constraint, ConstraintKind, JsonFlags};
pub use decision::{Decision, DecisionOption, MAX_OPTIONS, MAX_QUESTIONS, Question, QuestionKind};
pub use engine::{Engine, Shutdown, State};
pub use engine_options::{Instructions, KvType};
pub use error::{Error, ErrorKind, Result};
pub use event::{Answer, Event, Logprob, ToolCall, ToolCallPart};
pub use finish::{Finish, FinishReason, Times, Usage};
pub use log::{Log, LogLevel};
pub use logits::{Logits, OnLogits};
pub use model::{Model, Tokenize};
pub use model_info::{ModelInfo, RecommendedSampling};
pub use model_options::{ModelOptions, Progress, WeightType};
pub use picture::{MAX_PICTURES, Picture};
pub use request::{
    EmbeddingParams, MAX_DRAFT_TOKENS, MAX_STOPS, NO_LIMIT, Normalization, PRIORITY_DEFAULT, PRIORITY_MAX,
    Pooling, Prompt, Request, Speculation, Task, Trace,
};
pub use sampling::{Sampler, Sampling};
pub use score::Score;
pub use session::{KvEvent, KvEventKind};
pub use settings::EngineOptions;
pub use span::{OnSpan, Span, SpanKind};
pub use stats::{Latency, Lengths, Stats};
pub use stream::{Canceller, RequestInfo, Stage, Stream};

/// The version of the linked library, like `0.1.0`.
pub fn version() -> &'static str {
    // SAFETY: the text is static.
    unsafe { error::static_text(sys::bn_version()) }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
