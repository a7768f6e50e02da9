//! Engines of golden models, requests of token ids, and answers by their bits.

use crate::common::load_file;
use crate::engine_support::*;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;

pub fn engine(model: &str, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig {
        model: Some(load_file(model, 1).unwrap().loaded),
        threads: 2,
        max_batch_size: 4,
        kv_block_size: 16,
        kv_type: KvType::F32,
        ..Default::default()
    };
    change(&mut config);
    create(config).unwrap()
}

/// Token ids that differ by `seed` after the first `common` ones.
pub fn prompt(common: usize, len: usize, seed: usize) -> Vec<u32> {
    let token = |at: usize| 4 + (at * at * 7 + at * 31 + if at < common { 0 } else { seed * (at + 13) }) % 60;
    (0..len).map(|at| token(at) as u32).collect()
}

pub fn request(ids: &[u32], new: u32) -> RequestParams<'static> {
    let request = RequestParams {
        prompt: Prompt::Tokens(ids.to_vec().into()),
        max_new_tokens: new,
        ignore_eos: true,
        ..Default::default()
    };
    with_logprobs(request)
}

/// The answer's tokens and the bits of their log probabilities.
pub fn outcome(answer: &Answer) -> (Vec<u32>, Vec<(u32, u32)>) {
    assert_eq!(answer.message, "");
    (answer.tokens.clone(), answer.logprob_bits.clone())
}
