//! State that all requests share.
use crate::api::pairs::Template;
use crate::failure::{Failure, Result};
use crate::fetch::Fetcher;
use crate::fields::Fields;
use crate::memory::Memory;
use crate::models::Models;
use crate::options::Options;
use crate::serve::{Keys, Life, Tls};
use crate::sessions::Sessions;
use crate::store::Store;
use crate::watch::Tracer;
use crate::work::Work;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct App {
    pub options: Options,
    pub models: Arc<Models>,
    /// The memory that clients make the server hold (`--max-memory`).
    pub memory: Memory,
    /// Threads for long work.
    pub work: Work,
    /// The state of the server: loading, serving, draining or cancelling.
    pub life: Life,
    pub keys: Keys,
    pub tls: Tls,
    /// The server listens on a loopback address.
    pub local: bool,
    /// Number of unknown request fields that were ignored.
    pub ignored_fields: AtomicU64,
    /// Stored responses (`--keep-responses`).
    pub store: Store,
    /// Saved sessions (`--session-path`).
    pub sessions: Sessions,
    pub tracer: Tracer,
    /// `--fetch-images`.
    pub fetcher: Option<Fetcher>,
    /// `--rerank-template`.
    pub template: Option<Template>,
    /// The next request's number; the first is drawn at random.
    pub next_id: AtomicU64,
}

impl App {
    /// Err: the error in the options.
    pub fn new(options: Options) -> std::result::Result<Self, String> {
        let tls = Tls::new(&options)?;
        let tracer = Tracer::new(options.otlp_endpoint.as_deref())?;
        let template = options.rerank_template.as_deref().map(str::parse::<Template>).transpose();
        let template = template.map_err(|words| format!("--rerank-template {words}"))?;
        let checked = template.clone().unwrap_or_default();
        let models = Models::new(&options, tracer.on_span(), Box::new(move |model| checked.check(model)))?;
        Ok(Self {
            models,
            memory: Memory::new(options.max_memory),
            work: Work::new().map_err(|error| format!("cannot start threads: {error}"))?,
            life: Life::default(),
            keys: Keys::new(&options).map_err(|error| format!("--api-key-file: {error}"))?,
            tls,
            local: false,
            ignored_fields: AtomicU64::new(0),
            store: Store::new(options.keep_responses),
            sessions: Sessions::new(&options)?,
            tracer,
            fetcher: options.fetch_images.clone().map(Fetcher::new),
            template,
            // Ids of an earlier process are not issued again.
            next_id: AtomicU64::new(RandomState::new().hash_one("id")),
            options,
        })
    }

    /// Ignores unknown fields, or refuses them with `--strict`.
    pub fn unknown_fields(&self, fields: &Fields) -> Result<()> {
        let names: Vec<_> = fields.unknown().collect();
        match names.first() {
            None => Ok(()),
            Some(name) if self.options.strict => {
                Err(Failure::invalid(format!("'{name}' is not a field of this request")))
            }
            Some(_) => {
                self.ignored_fields.fetch_add(names.len() as u64, Ordering::Relaxed);
                tracing::debug!("fields that are not known: {}", names.join(", "));
                Ok(())
            }
        }
    }
}
