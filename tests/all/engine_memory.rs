//! Engines on a machine or under a limit that is too small for all the memory that they could use.

use crate::engine_support::*;
use bn_engine::base::{Result, Status};
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::model::{Facts, KvShape, Loaded, Model, Outputs};
use bn_engine::ops::{Memory, OpSet, RaggedBatch};
use std::sync::{Arc, Mutex};

/// A model whose logits are all 0.
struct Flat(Facts, KvShape);

impl Model for Flat {
    fn facts(&self) -> &Facts {
        &self.0
    }
    fn kv_shape(&self) -> KvShape {
        self.1
    }
    fn workspace_bytes(&self, _: &dyn OpSet, _: usize, _: usize) -> usize {
        0
    }
    fn forward(
        &self,
        _: &dyn OpSet,
        batch: &RaggedBatch,
        _: &mut dyn Memory,
        _: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        out.logits.clear();
        out.logits.resize(batch.logits_rows.len() * self.0.vocab_size, 0.0);
        Ok(())
    }
}

fn of(context_length: usize, shape: KvShape, change: impl FnOnce(&mut EngineConfig)) -> Result<Engine> {
    let facts = Facts { vocab_size: 4, context_length, ..Facts::default() };
    let model = Arc::new(Flat(facts, shape));
    let mut config = EngineConfig { model: Some(Loaded::of(model)), ..EngineConfig::default() };
    change(&mut config);
    Engine::create(config)
}

const CONTEXT: usize = 1 << 24;

/// 4 MiB of K and V per token: a sequence at the full context takes 64 TiB.
fn vast(change: impl FnOnce(&mut EngineConfig)) -> Result<Engine> {
    of(CONTEXT, KvShape { layers: 64, kv_heads: 64, head_dim: 256, ..KvShape::default() }, change)
}

fn ids(tokens: usize, new: u32) -> RequestParams<'static> {
    RequestParams { prompt: Prompt::Tokens(vec![1; tokens].into()), ..text("", new) }
}

#[cfg(target_os = "linux")]
fn total_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn engines_together_take_no_more_than_the_machine_has() {
    let engines: Vec<_> = (0..4).map(|_| vast(|_| ()).unwrap()).collect();
    let kv: Vec<u64> = engines.iter().map(|engine| engine.stats().kv_bytes).collect();
    assert!(kv[0] > 0 && kv.iter().sum::<u64>() < total_memory(), "{kv:?} of {}", total_memory());
    drop(engines);
}

#[test]
fn the_longest_sequence_is_what_fits() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let sink = log.clone();
    let engine = vast(|config| {
        config.log =
            Some(Arc::new(move |level, text: &str| sink.lock().unwrap().push((level, text.to_string()))));
    })
    .unwrap();
    let stats = engine.stats();
    let longest = stats.context_length as usize;
    assert!(longest < CONTEXT && stats.context_length == stats.kv_blocks_total * 32, "{stats:?}");
    assert_eq!(stats.kv_bytes, stats.context_length << 22);
    let says = format!("context_length is {longest} instead of the model's {CONTEXT}");
    let log = log.lock().unwrap();
    assert!(log.iter().any(|(level, text)| *level == LOG_WARN && text.contains(&says)), "{log:?}");
    assert_eq!(engine.submit(vec![ids(longest, 5)]).unwrap_err().status, Status::TooLong);
    assert_eq!(ask(&engine, ids(3, 5)).tokens.len(), 5);
}

#[test]
fn a_length_that_was_asked_for_is_refused_where_it_does_not_fit() {
    let error = vast(|config| config.context_length = CONTEXT as u32).err().unwrap();
    assert_eq!(error.status, Status::MemoryLimit);
    assert!(error.message.contains("one sequence of 16777216 tokens needs 524288 KV blocks"), "{error}");
    let error = vast(|config| config.memory_limit_bytes = 1 << 50).err().unwrap();
    assert_eq!(error.status, Status::MemoryLimit);
    assert!(error.message.contains("are free on this machine"), "{error}");
}

#[test]
fn a_small_limit_has_room_for_a_queue_of_short_requests() {
    // A sequence takes 1 MiB; KV for a full batch would take 32 MiB.
    let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 64, ..KvShape::default() };
    let limit = 16 << 20;
    let engine = of(4096, shape, |config| config.memory_limit_bytes = limit).unwrap();
    engine.submit((0..1024).map(|_| ids(8, 4)).collect()).unwrap();
    collect(&engine, 1024);
    let stats = engine.stats();
    assert_eq!(stats.pauses, 0);
    assert!(stats.memory_peak_bytes <= limit && stats.kv_bytes > limit / 2, "{stats:?}");
}
