//! Pictures whose rows see each other in both directions, and so run in one step: Gemma's. Answers are those of a request
//! alone in any company, in chunks, after preemptions, and behind cached prefixes.

use crate::engine_disk::{Outcome, Temporary};
use crate::engine_goldens::*;
use crate::engine_pictures::{Case, case_of, picture, requests, talking};
use crate::engine_support::*;
use crate::folder_support::Copy;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::attention::KvType;

struct Gemma {
    folder: Copy,
    case: Case,
}

impl Gemma {
    fn new(model: &str) -> Self {
        let case = case_of(model);
        Self { folder: talking(&case), case }
    }

    fn engine(&self, change: impl FnOnce(&mut EngineConfig)) -> Engine {
        engine(&self.folder.path(), |config| {
            (config.kv_type, config.context_length) = (KvType::F32, 128);
            change(config);
        })
    }

    fn wanted(&self) -> Vec<Outcome> {
        let engine = self.engine(|_| ());
        let asked = |request| outcome(&ask(&engine, RequestParams { cache: false, ..request }));
        requests(&self.case).into_iter().map(asked).collect()
    }

    /// Submits `rounds` times all requests at once, and compares the answers.
    fn compare(&self, engine: &Engine, rounds: usize, want: &[Outcome]) {
        let all = (0..rounds).flat_map(|_| requests(&self.case)).collect();
        let ids = engine.submit(all).unwrap();
        let answers = collect(engine, ids.len());
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(outcome(&answers[id]), want[at % want.len()], "request {at}");
        }
    }
}

#[test]
fn answers_are_the_same_in_any_company() {
    // Pictures of 9 vectors, and of up to 64.
    for (model, rows) in [("gemma3", 12), ("gemma4-mutual", 73), ("gemma4-inputs", 5)] {
        let gemma = Gemma::new(model);
        let want = gemma.wanted();
        let small = |config: &mut EngineConfig| (config.max_batch_tokens, config.max_batch_size) = (rows, 4);
        gemma.compare(&gemma.engine(small), 1, &want);
        let engine = gemma.engine(|config| config.max_batch_size = 17);
        gemma.compare(&engine, 6, &want);
        gemma.compare(&engine, 1, &want);
        assert!(engine.stats().cached_tokens > 0, "{:?}", engine.stats());
    }
}

#[test]
fn preemption_changes_no_answer() {
    let gemma = Gemma::new("gemma3");
    let want = gemma.wanted();
    let stats = gemma.engine(|_| ()).stats();
    let block = stats.kv_bytes / stats.kv_blocks_total;
    let engine = gemma.engine(|config| {
        (config.max_batch_size, config.max_batch_tokens, config.context_length) = (4, 16, 64);
        config.kv_cache_bytes = 5 * block;
    });
    gemma.compare(&engine, 8, &want);
    assert!(engine.stats().preemptions > 0, "{:?}", engine.stats());
}

#[test]
fn prefixes_outlive_the_engine() {
    let gemma = Gemma::new("gemma3");
    let (want, folder) = (gemma.wanted(), Temporary::new());
    for from_disk in [false, true] {
        let engine = gemma.engine(|config| config.cache_path = folder.text());
        gemma.compare(&engine, 1, &want);
        assert_eq!(engine.stats().disk_tokens > 0, from_disk, "{:?}", engine.stats());
        engine.destroy().unwrap();
    }
}

/// Scores from within a picture: with their rows all others of the picture are computed.
#[test]
fn a_cached_prefix_ends_outside_of_a_picture() {
    let gemma = Gemma::new("gemma3");
    let own = |text: &str, cache| RequestParams {
        prompt: Prompt::Text(text.to_owned().into()),
        parse_special: true,
        cache,
        scores: Some(ScoreParams { from: 30, generates: false }),
        ..requests(&gemma.case).swap_remove(0)
    };
    let engine = gemma.engine(|config| config.max_batch_size = 1);
    let text = "a fairly long beginning<start_of_image>abc";
    let want = outcome(&ask(&engine, own(text, false)));
    for _ in 0..3 {
        assert_eq!(outcome(&ask(&engine, own(text, true))), want);
    }
    // The beginning, two line breaks and a token come before the vectors.
    assert_eq!(engine.stats().cached_tokens, 2 * 26);
}

#[test]
fn what_does_not_fit_a_step_is_refused_in_words() {
    let gemma = Gemma::new("gemma3");
    let own = || requests(&gemma.case).swap_remove(0);
    let narrow = gemma.engine(|config| (config.max_batch_tokens, config.max_batch_size) = (12, 5));
    refused(&narrow, own(), Status::InvalidArgument, "run in one step");
    let wide = gemma.engine(|config| config.max_batch_size = 60);
    let scores = Some(ScoreParams { from: 0, generates: false });
    refused(&wide, RequestParams { scores, ..own() }, Status::Unsupported, "rows of logits");
    // Gemma 4's are made smaller.
    let large = Gemma::new("gemma4-mutual");
    let narrow = large.engine(|config| (config.max_batch_tokens, config.max_batch_size) = (20, 5));
    let positions = |engine: &Engine| engine.picture_positions(&picture([60, 40], 0)).unwrap();
    assert_eq!((positions(&large.engine(|_| ())), positions(&narrow)), (2 + 60, 2 + 12));
}
