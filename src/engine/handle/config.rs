//! Checks the configuration: the table's ranges, and those that depend on more. Errors name the field.

use crate::base::{Error, Result, in_range};
use crate::engine::api::EngineConfig;
use crate::model::Facts;
use crate::schedule::MAX_DRAFT;

/// The default of `max_batch_tokens`, and its maximum.
const BATCH_TOKENS: u32 = 512;
const MAX_BATCH_TOKENS: u32 = 65_536;

pub(crate) fn check(config: &EngineConfig) -> Result<()> {
    config.check_ranges()?;
    if config.max_batch_tokens != 0 {
        let (tokens, least) = (config.max_batch_tokens.into(), config.max_batch_size.into());
        in_range("max_batch_tokens", tokens, least, MAX_BATCH_TOKENS.into())?;
    }
    if config.cache_path.is_some() && config.cache_bytes == 0 {
        return Err(Error::invalid("cache_path is given, and cache_bytes is 0"));
    }
    if ![16, 32, 64, 128].contains(&config.kv_block_size) {
        let size = config.kv_block_size;
        return Err(Error::invalid(format!("kv_block_size = {size} is out of range: 16, 32, 64 or 128")));
    }
    Ok(())
}

pub(crate) fn draft_tokens(asked: u32) -> Result<()> {
    in_range("draft_tokens", asked.into(), 0, MAX_DRAFT as i64)
}

/// Returns `asked` (0: the model's context length), checked against the model.
pub(crate) fn sequence_length(asked: u32, context_length: usize) -> Result<usize> {
    match asked as usize {
        0 => Ok(context_length),
        n => in_range("context_length", n as i64, 2, context_length as i64).map(|()| n),
    }
}

/// Sets `max_batch_tokens` if the host did not: an encoder's step holds a text of `max_sequence` tokens, or of as many
/// as there is memory for by `fits`.
pub(crate) fn set_batch_tokens(
    config: &mut EngineConfig,
    facts: &Facts,
    max_sequence: usize,
    fits: impl Fn(&EngineConfig) -> bool,
) {
    if config.max_batch_tokens != 0 {
        return;
    }
    let least = config.max_batch_size.max(BATCH_TOKENS);
    let longest = if facts.encodes { max_sequence.min(MAX_BATCH_TOKENS as usize) as u32 } else { 0 };
    config.max_batch_tokens = least.max(longest);
    while config.max_batch_tokens > least && !fits(config) {
        config.max_batch_tokens = (config.max_batch_tokens / 2).max(least);
    }
}

/// Returns `asked`, or if that is 0 the number of CPUs that this process may use: by the affinity mask of the
/// calling thread, and by the CPU quotas of its control group and those above it (v1 and v2), rounded down. More
/// threads than a quota allows are only throttled.
pub(crate) fn threads(asked: u32) -> Result<usize> {
    in_range("threads", asked.into(), 0, 256)?;
    match asked {
        0 => Ok(std::thread::available_parallelism().map_or(1, |n| n.get()).min(256)),
        n => Ok(n as usize),
    }
}

/// Checks a session's name: 1 to 256 bytes.
pub(crate) fn session_name(name: &str) -> Result<()> {
    match name.len() {
        1..=256 => Ok(()),
        n => Err(Error::invalid(format!("a session's name has {n} bytes, not 1 to 256"))),
    }
}
