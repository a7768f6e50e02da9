//! Engines that decode.

use bn_engine::base::{Error, Result};
use bn_engine::engine::Engine;
use bn_engine::engine::api::{FinishReason, Which};

/// Waits until this many requests have made all their tokens, and releases them.
pub fn finish(engine: &Engine, mut left: usize) -> Result<()> {
    let mut failed = None;
    while left > 0 {
        let (mut leases, mut ended) = (Vec::new(), Vec::new());
        engine.poll(Which::Any, 64, None, &mut |lease, event| {
            leases.push((event.request, lease));
            match event.finish {
                FinishReason::None => {}
                FinishReason::Length => ended.push(event.request),
                _ => failed = Some(Error::internal(format!("{:?} {}", event.finish, event.message))),
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        engine.give_back(&mut leases.into_iter());
        left -= ended.len();
        ended.into_iter().try_for_each(|id| engine.release(id))?;
    }
    Ok(())
}
