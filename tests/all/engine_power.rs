//! Pauses, changes of the number of threads while requests run, and the release of an idle engine's weights.

use crate::common::root;
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Controls the steps of a request, which stops in the third one until it may go on.
#[derive(Default)]
struct Steps {
    seen: AtomicU32,
    go_on: AtomicBool,
}

fn stopping(steps: &Arc<Steps>) -> RequestParams<'static> {
    let own = steps.clone();
    let count = move |_: &mut LogitsRow| {
        let seen = own.seen.fetch_add(1, Ordering::SeqCst) + 1;
        until("nobody lets it go on", || seen != 3 || own.go_on.load(Ordering::SeqCst));
        0
    };
    RequestParams { ignore_eos: true, on_logits: Some(LogitsHook(Arc::new(count))), ..text("abc", 300) }
}

/// Waits until `done`; 30 seconds are a hang.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn no_step_begins_after_a_pause_and_requests_go_on_with_the_same_output() {
    let steps = Arc::<Steps>::default();
    steps.go_on.store(true, Ordering::SeqCst);
    let engine = echo(|_| ());
    let want = ask(&engine, stopping(&steps));
    let steps = Arc::<Steps>::default();
    let running = engine.submit(vec![stopping(&steps)]).unwrap()[0];
    let seen = || steps.seen.load(Ordering::SeqCst);
    until("no step", || seen() == 3);
    std::thread::scope(|scope| {
        let pause = scope.spawn(|| engine.pause());
        until("no pause", || engine.stats().engine_paused == 1);
        assert!(!pause.is_finished(), "it waits for the step");
        steps.go_on.store(true, Ordering::SeqCst);
        pause.join().unwrap().unwrap();
    });
    let before = engine.stats().steps;
    let waiting = engine.submit(vec![text("later", 20)]).unwrap()[0];
    // Calls go through the engine's loop, which has had its chances to begin a step.
    (0..20).for_each(|_| engine.clear_cache().unwrap());
    engine.pause().unwrap();
    assert_eq!((seen(), engine.stats().steps), (3, before));
    let stats = engine.stats();
    assert_eq!((stats.engine_paused, stats.running, stats.queued), (1, 1, 1));
    engine.resume().unwrap();
    engine.resume().unwrap();
    let answers = collect(&engine, 2);
    assert_eq!((&answers[&running].text, &answers[&running].tokens), (&want.text, &want.tokens));
    assert_eq!(answers[&waiting].text, "later");
    assert_eq!(engine.stats().engine_paused, 0);
}

#[test]
fn requests_of_a_paused_engine_expire_and_are_cancelled() {
    let engine = echo(|_| ());
    engine.pause().unwrap();
    let queue = RequestParams { queue_timeout_ms: 1, ..text("b", 9) };
    let timeout = RequestParams { timeout_ms: 1, ..text("a", 9) };
    let ids = engine.submit(vec![timeout, queue, text("c", 9), text("d", 9)]).unwrap();
    let late = collect(&engine, 2);
    for id in &ids[..2] {
        assert_eq!(late[id].finish, FinishReason::TimedOut as i32, "{}", late[id].message);
    }
    engine.cancel(Which::One(ids[2])).unwrap();
    assert_eq!(collect(&engine, 1)[&ids[2]].finish, FinishReason::Cancelled as i32);
    engine.release(ids[3]).unwrap();
    until("the released request stays", || engine.stats().unreleased == 0);
    assert_eq!((engine.stats().steps, engine.stats().engine_paused), (0, 1));
    engine.destroy().unwrap();
}

#[test]
fn a_shutdown_ends_a_pause() {
    for mode in [ShutdownMode::Drain, ShutdownMode::Cancel] {
        let engine = echo(|_| ());
        engine.pause().unwrap();
        let id = engine.submit(vec![text("last", 9)]).unwrap()[0];
        engine.shutdown(mode).unwrap();
        let drained = mode == ShutdownMode::Drain;
        assert_eq!(collect(&engine, 1)[&id].text, if drained { "last" } else { "" });
        assert_eq!(engine.stats().engine_paused, 0);
        until("no end", || engine.poll(Which::Any, 1, None, &mut |_, _| ()).is_err());
        assert_eq!(engine.pause().unwrap_err().status, Status::Shutdown);
        engine.resume().unwrap();
    }
}

#[test]
fn the_number_of_threads_changes_while_requests_run_and_no_bit_with_it() {
    let request = |n: usize| RequestParams {
        ignore_eos: true,
        ..with_logprobs(text(["3+4=", "a longer prompt, 12+5=", "7+1="][n], 60))
    };
    let alone = demo(|_| ());
    let want: Vec<Answer> = (0..3).map(|n| ask(&alone, request(n))).collect();
    let engine = demo(|config| config.threads = 3);
    assert_eq!(engine.stats().threads, 3);
    let ids = engine.submit((0..3).map(request).collect()).unwrap();
    for threads in [1, 3, 2, 0, 1, 2].into_iter().cycle().take(30) {
        engine.set_threads(threads).unwrap();
        assert_eq!(engine.stats().threads, if threads == 0 { 3 } else { threads.into() });
    }
    let answers = collect(&engine, 3);
    for (id, want) in ids.iter().zip(&want) {
        assert_eq!((&answers[id].text, &answers[id].logprob_bits), (&want.text, &want.logprob_bits));
    }
    let error = engine.set_threads(4).unwrap_err();
    assert_eq!(
        (error.status, &*error.message),
        (Status::InvalidArgument, "threads = 4 is out of range: 0 to 3")
    );
    engine.shutdown(ShutdownMode::Drain).unwrap();
    assert_eq!(engine.set_threads(1).unwrap_err().status, Status::Shutdown);
}

fn mapped(idle_release_ms: u64) -> Engine {
    let path = root().join("tests/golden/llama-tiny-f32.gguf");
    let config = EngineConfig {
        model_path: Some(path.to_string_lossy().into_owned()),
        threads: 1,
        idle_release_ms,
        ..EngineConfig::default()
    };
    Engine::create(config).unwrap()
}

#[test]
fn an_idle_or_paused_engine_lets_mapped_weights_go_and_reads_them_again() {
    let request = || RequestParams {
        prompt: Prompt::Tokens(vec![3, 1, 4, 1, 5].into()),
        ignore_eos: true,
        ..with_logprobs(text("", 6))
    };
    let keeping = mapped(0);
    let want = ask(&keeping, request());
    let engine = mapped(1);
    for round in 1..4 {
        until("no release", || engine.stats().weight_releases == round);
        let bytes = engine.stats().weights_released_bytes;
        assert!(bytes > 200_000, "{bytes} bytes");
        let again = ask(&engine, request());
        assert_eq!((&again.tokens, &again.logprob_bits), (&want.tokens, &want.logprob_bits));
    }
    let more = || engine.stats().weight_releases == 4 && engine.stats().weights_released_bytes > 0;
    until("no release", more);
    engine.pause().unwrap();
    let waiting = engine.submit(vec![request()]).unwrap()[0];
    engine.resume().unwrap();
    assert_eq!(collect(&engine, 1)[&waiting].tokens, want.tokens);
    assert_eq!((keeping.stats().weight_releases, keeping.stats().weights_released_bytes), (0, 0));
    // A thread that waits for the next release still ends at once.
    mapped(604_800_000).destroy().unwrap();
    let config = EngineConfig { idle_release_ms: 604_800_001, ..EngineConfig::default() };
    let error = Engine::create(config).err().unwrap();
    assert_eq!(error.message, "idle_release_ms = 604800001 is out of range: 0 to 604800000");
}

#[test]
fn an_embedded_model_has_nothing_to_release() {
    let engine = demo(|config| config.idle_release_ms = 1);
    assert_eq!(ask(&engine, text("3+4=", 4)).finish, FinishReason::Stop as i32);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((engine.stats().weight_releases, engine.stats().weights_released_bytes), (0, 0));
}
