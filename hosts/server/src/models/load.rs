//! Opens a model with its draft, its engine and its adapters.
use super::list::{self, DEMO, Files, Listing};
use super::sizes::Sizes;
use crate::failure::Failure;
use crate::options::{ModelOptions, NO_PICTURES, UnseenImages, name_fields};
use crate::request::conversation::Conversation;
use crate::request::forms::{self, Told};
use crate::request::picture::Sight;
use crate::request::roles::Manners;
use axum::http::StatusCode;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A loaded model.
pub struct Loaded {
    /// The client's name for it.
    pub name: String,
    pub engine: bn::Engine,
    pub model: bn::Model,
    pub info: bn::ModelInfo,
    pub manners: Manners,
    pub options: ModelOptions,
    /// Its file or folder; None: the demo.
    pub path: Option<PathBuf>,
    pub files: Files,
    /// What the files say of shorter embeddings.
    pub sizes: Sizes,
    /// In the order of the options.
    pub adapters: Vec<(String, bn::Adapter)>,
}

/// The reason why a model is not loaded.
#[derive(Clone, Debug)]
pub struct Unloaded {
    pub message: String,
    /// An option does not fit the model.
    pub wrong_option: bool,
    /// The end of the server stopped the loading.
    pub stopped: bool,
    /// Unloading another model may help.
    pub lacks_memory: bool,
}

/// Loads models.
pub struct Loader {
    pub on_span: Option<bn::OnSpan>,
    pub check: Check,
    /// Set at the end of the server.
    pub stop: Arc<AtomicBool>,
}

/// The files of a model.
#[derive(Default)]
struct Paths {
    /// None: the demo.
    path: Option<PathBuf>,
    /// The part that sees.
    pictures: Option<PathBuf>,
    /// It was found beside the model, and not asked for.
    found: bool,
}

/// A look for a model by its name.
type Look<T> =
    fn(&str, &bn_hub::Settings, &mut dyn bn_hub::Progress, &AtomicBool) -> Result<T, bn_hub::Error>;

/// A check of the server's options. Err: why one does not fit a model.
pub type Check = Box<dyn Fn(&bn::Model) -> Result<(), String> + Send + Sync>;

impl From<bn::Error> for Unloaded {
    fn from(error: bn::Error) -> Self {
        use bn::ErrorKind::{Cancelled, MemoryLimit, OutOfMemory};
        Self {
            stopped: error.kind() == Cancelled,
            lacks_memory: matches!(error.kind(), MemoryLimit | OutOfMemory),
            ..Self::new(name_fields(error.message()))
        }
    }
}

impl Unloaded {
    pub fn new(message: impl AsRef<str>) -> Self {
        let message = bn_hub::printable_lines(message.as_ref()).into_owned();
        Self { message, wrong_option: false, stopped: false, lacks_memory: false }
    }
}

impl Loader {
    pub fn load(&self, listing: &Listing) -> Result<Loaded, Unloaded> {
        let options = &listing.options;
        let Paths { path, pictures, found } = self.find(listing)?;
        let drafter = options.drafter.as_ref().map(|drafter| self.resolve(Path::new(drafter))).transpose()?;
        let open = |pictures_path: Option<PathBuf>| {
            let own = bn::ModelOptions {
                mtp: options.mtp,
                drafter_path: drafter.clone(),
                pictures_path,
                skip_zeros: options.skip_zeros,
                ..bn::ModelOptions::default()
            };
            self.open(options, path.as_deref(), own)
        };
        let model = match open(pictures.clone()) {
            // Nobody asked for the part.
            Err(error) if found && error.message.contains("--pictures") => {
                tracing::warn!("images are not seen: {}", error.message);
                open(None)?
            }
            opened => opened?,
        };
        (self.check)(&model).map_err(|why| Unloaded { wrong_option: true, ..Unloaded::new(why) })?;
        let draft = match &options.draft_model {
            Some(draft) => {
                let path = self.resolve(Path::new(draft))?;
                Some(self.open(options, Some(&path), bn::ModelOptions::default())?)
            }
            None => None,
        };
        let mut info = model.info().clone();
        let name = name_of(listing, &info, path.as_deref());
        let engine = bn::Engine::new(self.engine_options(options, &name, model.clone(), draft))?;
        // An engine on a device, or without picture_tokens, sees nothing.
        let probe = bn::Picture::pixels(64, 64, vec![0; 3 * 64 * 64]);
        let refused = |error: &bn::Error| error.kind() == bn::ErrorKind::Unsupported;
        info.sees = info.sees && !engine.picture_positions(&probe).is_err_and(|error| refused(&error));
        let mut adapters = Vec::new();
        for (adapter, path) in &options.adapters {
            adapters.push((adapter.clone(), engine.open_adapter(path)?));
        }
        let part = pictures.filter(|_| info.sees);
        let (manners, files) = (Manners::of(&model), Files::of(path.as_deref(), part.as_deref()));
        let (sizes, options) = (Sizes::of(path.as_deref()), options.clone());
        Ok(Loaded { name, engine, model, info, manners, options, path, files, sizes, adapters })
    }

    fn find(&self, listing: &Listing) -> Result<Paths, Unloaded> {
        let resolved = || listing.path.as_deref().map(|path| self.resolve(path)).transpose();
        let given = |pictures| Ok(Paths { path: resolved()?, pictures, found: false });
        match (listing.options.pictures.as_deref(), &listing.path) {
            (Some(NO_PICTURES), _) | (None, None) => given(None),
            (Some(pictures), _) => given(Some(self.resolve(Path::new(pictures))?)),
            (None, Some(path)) => {
                let found = self.look(path, bn_hub::resolve_seeing)?;
                if let Some(why) = &found.unclear {
                    tracing::warn!("{why}");
                }
                Ok(Paths {
                    path: Some(found.path),
                    found: found.pictures.is_some(),
                    pictures: found.pictures,
                })
            }
        }
    }

    /// The path of a model. A model that is named on a hub is downloaded.
    fn resolve(&self, path: &Path) -> Result<PathBuf, Unloaded> {
        match path.to_str().filter(|name| bn_hub::is_remote(name)) {
            Some(_) => self.look(path, bn_hub::resolve),
            None => Ok(path.to_owned()),
        }
    }

    fn look<T>(&self, path: &Path, look: Look<T>) -> Result<T, Unloaded> {
        let name = path.to_str().ok_or_else(|| Unloaded::new("the model's path is not UTF-8"))?;
        let settings = bn_hub::Settings::from_env();
        let found = look(name, &settings, &mut bn_hub::Bar::new("bn-server"), &self.stop);
        found.map_err(|error| Unloaded { stopped: error.is_stopped(), ..Unloaded::new(error.to_string()) })
    }

    fn open(
        &self,
        of: &ModelOptions,
        path: Option<&Path>,
        own: bn::ModelOptions,
    ) -> Result<bn::Model, Unloaded> {
        let stop = self.stop.clone();
        let go_on = move |_: f32, _: &str| {
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        Ok(bn::Model::open_with(bn::ModelOptions {
            path: path.map(Path::to_owned),
            memory_limit_bytes: of.memory_limit,
            threads: of.threads,
            log: Some(Arc::new(log)),
            progress: Some(Box::new(go_on)),
            ..own
        })?)
    }

    fn engine_options(
        &self,
        of: &ModelOptions,
        name: &str,
        model: bn::Model,
        draft_model: Option<bn::Model>,
    ) -> bn::EngineOptions {
        // An encoder keeps nothing.
        let keeps = !model.info().encodes;
        bn::EngineOptions {
            cache_path: of.prompt_cache.clone().filter(|_| keeps).map(PathBuf::from),
            cache_bytes: of.prompt_cache_bytes,
            host_cache_bytes: if keeps { of.prompt_cache_memory } else { 0 },
            model: Some(model),
            draft_model,
            speculation: of.speculation,
            model_name: Some(name.to_owned()),
            device: Some(of.device.clone()),
            threads: of.threads,
            max_batch_size: of.max_batch,
            max_batch_tokens: of.max_batch_tokens,
            context_length: of.context,
            queue_capacity: of.queue,
            queue_token_capacity: of.queue_tokens,
            memory_limit_bytes: of.memory_limit,
            kv_cache_bytes: of.kv_cache,
            kv_type: of.kv_type,
            snapshots: of.snapshots,
            snapshot_interval: of.snapshot_interval,
            adapter_bytes: of.adapter_bytes,
            picture_tokens: if of.may_see() { of.picture_tokens.into() } else { 0 },
            target_itl_ms: of.target_itl,
            default_timeout_ms: of.timeout,
            idle_release_ms: u64::try_from(of.idle_release.as_millis()).unwrap_or(u64::MAX),
            log: Some(Arc::new(log)),
            on_span: self.on_span.clone(),
            ..bn::EngineOptions::default()
        }
    }
}

/// The name for clients and metrics: the one that was given, the model's own, or its file's.
fn name_of(listing: &Listing, info: &bn::ModelInfo, path: Option<&Path>) -> String {
    let own = bn_hub::printable(&info.name);
    match (listing.name.as_str(), own.trim(), path) {
        ("", "", Some(path)) => list::name_of(path),
        ("", "", None) => DEMO.to_owned(),
        ("", own, _) => own.to_owned(),
        (given, _, _) => given.to_owned(),
    }
}

fn log(level: bn::LogLevel, line: &str) {
    let line = bn_hub::printable(line);
    match level {
        bn::LogLevel::Off => {}
        bn::LogLevel::Error => tracing::error!("{line}"),
        bn::LogLevel::Warn => tracing::warn!("{line}"),
        bn::LogLevel::Info => tracing::info!("{line}"),
        bn::LogLevel::Debug => tracing::debug!("{line}"),
    }
}

impl Loaded {
    /// A line for the log on how the model is served.
    pub fn summary(&self) -> String {
        let stats = self.engine.stats().unwrap_or_default();
        let options = &self.options;
        let context = match stats.context_length {
            0 => String::new(),
            tokens => format!("context of {tokens} tokens, "),
        };
        format!(
            "{}: {} with {} parameters, {context}KV cache {}, {} on {}, {} at a time, {} in the queue",
            self.name,
            bn_hub::printable(&self.info.architecture),
            self.info.parameters,
            bn_hub::bytes(stats.kv_bytes),
            bn_hub::counted(stats.threads, "thread"),
            options.device,
            bn_hub::counted(options.max_batch.into(), "request"),
            options.queue
        )
    }

    /// A conversation for the engine, in a form that the model's template accepts.
    pub fn told(&self, conversation: Conversation) -> crate::failure::Result<Told> {
        let sight = match (self.info.sees, self.options.unseen_images) {
            (true, _) => Sight::Sees,
            (false, UnseenImages::Refuse) => Sight::Refuses,
            (false, UnseenImages::LeaveOut) => Sight::LeavesOut,
        };
        forms::told(conversation, &self.model, self.manners, sight)
    }

    /// The number of tokens of a conversation with its pictures.
    pub fn length(&self, told: &Told) -> crate::failure::Result<usize> {
        let failure = |error: &bn::Error| self.failure(error);
        let mut tokens = self.model.chat_tokenize(&told.chat).map_err(|error| failure(&error))?.len();
        for (picture, at) in told.pictures.iter().zip(&told.places) {
            let positions = self.engine.picture_positions(picture);
            let positions = positions.map_err(|error| failure(&error).at(at))?;
            // One token has its place.
            tokens += (positions as usize).saturating_sub(1);
        }
        Ok(tokens)
    }

    /// The failure of a call of this model's engine.
    pub fn failure(&self, error: &bn::Error) -> Failure {
        let failure = Failure::of(error);
        // If the engine is otherwise empty, a request that lacks memory does not fit at all.
        let alone = || self.engine.stats().is_ok_and(|stats| stats.unreleased == 0);
        if error.kind() == bn::ErrorKind::MemoryLimit && alone() {
            return Failure::new(StatusCode::BAD_REQUEST, "context_length_exceeded", failure.message);
        }
        failure
    }

    pub fn died(&self) -> bool {
        self.engine.state().is_ok_and(|state| state == bn::State::Dead)
    }
}
