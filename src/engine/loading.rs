//! A model from its files, with progress.

use super::api::{LOG_INFO, ModelConfig, ProgressSink};
use super::callback::{self, Log};
use super::config;
use crate::base::{Result, threads};
use crate::kernels::Pool;
use crate::model::{self, LoadOptions, Loaded, Source};

/// For regular expressions that are compiled, files that nest and an engine's parts: a host's thread may have 64 KiB.
const LOAD_STACK: usize = 2 << 20;

/// Runs what opens a model or makes an engine, on a stack that has room for it.
pub(super) fn with_room<T: Send>(make: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    threads::run_on_stack("bn-load", LOAD_STACK, make)?
}

/// Opens a model that engines may share.
pub fn open_model(config: ModelConfig) -> Result<Loaded> {
    with_room(|| {
        let log = Log::new(config.log, config.log_level)?;
        let pool = Pool::new(config::threads(config.threads)?)?;
        load(&config.source, &config.options, &pool, &log, config.progress)
    })
}

/// Loads with progress through the host's callback, and as log lines every tenth.
pub fn load(
    source: &Source,
    options: &LoadOptions,
    pool: &Pool,
    log: &Log,
    mut host: Option<ProgressSink>,
) -> Result<Loaded> {
    let mut logged = -1;
    let mut progress = |fraction: f32, what: &str| {
        let tenth = (fraction * 10.0) as i32;
        if tenth > logged {
            logged = tenth;
            log.write(LOG_INFO, format!("loading: {}% ({what})", tenth * 10));
        }
        host.as_mut().is_some_and(|host| callback::run(|| host(fraction, what)))
    };
    model::load(source, options, pool, &|level, message| log.write(level, message), &mut progress)
}
