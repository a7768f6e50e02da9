//! Loading a model from its files, with progress.

use super::config;
use crate::base::{Result, threads};
use crate::engine::api::{LOG_INFO, ModelConfig, ProgressSink};
use crate::engine::delivery::callback;
use crate::engine::delivery::callback::Log;
use crate::kernels::Pool;
use crate::model::{self, LoadOptions, Loaded, Source};

/// Stack size for compiling regular expressions, parsing nested files and making an engine's parts: the thread of
/// a host may have only 64 KiB.
const LOAD_STACK: usize = 2 << 20;

/// Runs a function that opens a model or makes an engine, on a stack that is large enough.
pub(super) fn with_room<T: Send>(make: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    threads::run_on_stack("bn-load", LOAD_STACK, make)?
}

/// Opens a model that several engines may share.
pub fn open_model(config: ModelConfig) -> Result<Loaded> {
    with_room(|| {
        let log = Log::new(config.log, config.log_level)?;
        let pool = Pool::new(config::threads(config.threads)?)?;
        load(&config.source, &config.options, &pool, &log, config.progress)
    })
}

/// Loads a model. Reports progress to the host's callback, and to the log every 10 %.
pub(crate) fn load(
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
