//! The engine's own behavior on the echo model: events, limits, cancelling, shutting down, statistics.

use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::available;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn two_hundred_and_fifty_six_requests_each_get_their_own_prompt_back() {
    let engine = echo(|config| config.max_batch_size = 256);
    let prompts: Vec<_> = (0..256).map(|i| format!("request {i}: {}é😀", "x".repeat(i % 37))).collect();
    let ids = engine.submit(prompts.iter().map(|p| text(p, 400)).collect()).unwrap();
    let answers = collect(&engine, 256);
    for (id, prompt) in ids.iter().zip(&prompts) {
        let answer = &answers[id];
        assert_eq!(&answer.text, prompt);
        assert_eq!(answer.finish, FinishReason::Stop as i32);
        assert_eq!(answer.usage.generated_tokens as usize, prompt.len() + 1);
    }
    let stats = engine.stats();
    assert_eq!((stats.accepted, stats.completed_stop, stats.unreleased), (256, 256, 0));
    assert_eq!((stats.running, stats.queued, stats.kv_blocks_used), (0, 0, 0));
    assert_eq!(stats.time_to_first_token.count, 256);
    assert_eq!(stats.generated_tokens, prompts.iter().map(|p| p.len() as u64 + 1).sum::<u64>());
}

#[test]
fn length_stop_tokens_stop_strings_and_the_echoed_prompt() {
    let engine = echo(|_| ());
    let cut = ask(&engine, text("hello", 3));
    assert_eq!((cut.text.as_str(), cut.finish), ("hel", FinishReason::Length as i32));

    let mut request = text("hello world", 50);
    request.stop_strings = vec!["never".into(), "o w".into()];
    let stopped = ask(&engine, request);
    assert_eq!((stopped.text.as_str(), stopped.finish), ("hell", FinishReason::StopString as i32));
    assert_eq!(stopped.stop, Some(1));

    let mut request = text("hello", 50);
    request.stop_tokens = vec![b'x' as u32, b'o' as u32].into();
    let stopped = ask(&engine, request);
    assert_eq!((stopped.text.as_str(), stopped.finish), ("hell", FinishReason::Stop as i32));
    assert_eq!(stopped.stop, Some(1));
    assert_eq!(ask(&engine, text("hello", 50)).stop, None, "the model's own end");

    let mut request = text("ab", 7);
    request.ignore_eos = true;
    let over = ask(&engine, request);
    assert_eq!((over.text.as_str(), over.finish), ("ababa", FinishReason::Length as i32));

    // Neither an end nor a stop token comes too early, though ends are ignored.
    let mut request = text("ab", 7);
    (request.ignore_eos, request.sampling.min_new_tokens) = (true, 4);
    let held = ask(&engine, request.clone());
    assert_eq!((held.tokens.len(), held.finish), (7, FinishReason::Length as i32));
    assert_eq!(held.tokens.iter().position(|token| *token == over.tokens[2]), Some(5), "{:?}", held.tokens);
    request.stop_tokens = vec![b'b' as u32].into();
    let stopped = ask(&engine, request.clone());
    assert_eq!((stopped.tokens.len(), stopped.stop), (5, Some(0)), "{:?}", stopped.tokens);
    (request.stop_tokens, request.stop_strings) = (Vec::new().into(), vec!["ab".into()]);
    assert_eq!(ask(&engine, request).finish, FinishReason::StopString as i32, "which may come at any time");

    let mut request = text("ab", 50);
    request.echo_prompt = true;
    let echoed = ask(&engine, with_logprobs(request));
    assert_eq!((echoed.text.as_str(), echoed.tokens.len()), ("abab", 3 + 3));
    assert_eq!(echoed.logprob_bits.len(), 6 * 4);
    assert!(
        f32::from_bits(echoed.logprob_bits[0].1).is_nan() && f32::from_bits(echoed.logprob_bits[12].1) < 0.0
    );
}

#[test]
fn without_streaming_there_is_one_event() {
    let engine = echo(|_| ());
    let answer = ask(&engine, RequestParams { stream: false, ..text("all at once", 50) });
    assert_eq!((answer.events, answer.text.as_str()), (1, "all at once"));
    let event = engine.generate(text("blocking", 50)).unwrap();
    assert_eq!((event.text.as_str(), event.tokens.len()), ("blocking", 9));
    assert_eq!(engine.stats().unreleased, 0);
}

#[test]
fn what_a_request_may_not_ask_is_refused_by_name() {
    let engine = echo(|config| (config.queue_capacity, config.context_length) = (4, 64));
    refused(&engine, text(&"x".repeat(64), 1), Status::TooLong, "the context of 64 tokens");
    refused(&engine, text(&"x".repeat(1 << 20), 1), Status::TooLong, "1048576 bytes");
    let tokens = |ids: Vec<u32>| RequestParams { prompt: Prompt::Tokens(ids.into()), ..text("", 4) };
    refused(&engine, tokens(vec![]), Status::InvalidArgument, "empty");
    refused(&engine, tokens(vec![1, 258]), Status::InvalidArgument, "token id 258 at index 1");
    let mut request = text("x", 4);
    request.stop_strings = vec!["".into()];
    refused(&engine, request, Status::InvalidArgument, "stop_strings[0]");
    let mut request = text("x", 4);
    request.sampling.temperature = f32::NAN;
    refused(&engine, request, Status::InvalidArgument, "temperature");
    let error = engine.submit((0..5).map(|_| text("x", 4)).collect()).unwrap_err();
    assert!(
        error.status == Status::InvalidArgument && error.message.contains("queue_capacity is 4"),
        "{error}"
    );
    let error = engine.submit(vec![text("fine", 4), tokens(vec![])]).unwrap_err();
    assert!(error.message.contains("request 1"), "{error}");
    let stats = engine.stats();
    assert_eq!((stats.accepted, stats.unreleased), (0, 0), "all or nothing");
    assert_eq!((stats.rejected_invalid, stats.rejected_too_long), (11, 2));
    assert!(ask(&engine, text("fits", 4)).text == "fits");
}

#[test]
fn configurations_out_of_range_are_refused_by_name() {
    let refused = |says: &str, change: &dyn Fn(&mut EngineConfig)| {
        let mut config = EngineConfig { model_path: Some("builtin:echo".into()), ..Default::default() };
        change(&mut config);
        let error = Engine::create(config).map(drop).unwrap_err();
        assert!(error.message.contains(says), "{error} should say {says}");
    };
    refused("threads = 257", &|c| c.threads = 257);
    refused("max_batch_size = 0", &|c| c.max_batch_size = 0);
    refused("max_batch_tokens = 31 is out of range: 32 to 65536", &|c| c.max_batch_tokens = 31);
    refused("kv_block_size = 17", &|c| c.kv_block_size = 17);
    refused("queue_capacity", &|c| c.queue_capacity = 0);
    refused("max_wait_us", &|c| c.max_wait_us = 1_000_001);
    refused("max_step_ms", &|c| c.max_step_ms = 0);
    refused("context_length = 1 ", &|c| c.context_length = 1);
    refused("log_level", &|c| c.log_level = 5);
    refused("memory_limit_bytes = 1000 is too small", &|c| c.memory_limit_bytes = 1000);
    let lacking = Isa::ALL.into_iter().find(|isa| !available().contains(isa)).expect("no machine has all");
    let says = format!("instructions is {}, which this machine lacks", lacking.name());
    refused(&says, &|c| c.instructions = Some(lacking));
    refused("builtin:echo computes nothing", &|c| c.instructions = Some(Isa::Scalar));
    refused("nosuch", &|c| c.model_path = Some("/nosuch/model.gguf".into()));
    refused("builtin:", &|c| c.model_path = Some("builtin:parrot".into()));
}

#[test]
fn cancelling_and_timeouts_end_requests_with_what_they_had() {
    let engine = echo(|config| config.model_path = Some("builtin:echo?us_per_token=2000".into()));
    let mut endless = text("ab", 400);
    endless.ignore_eos = true;
    let ids = engine.submit(vec![endless.clone(), endless.clone()]).unwrap();
    engine.cancel(Which::One(ids[0])).unwrap();
    engine.cancel(Which::One(ids[0])).unwrap();
    let first = collect(&engine, 1).remove(&ids[0]).expect("only the first ended");
    assert_eq!(first.finish, FinishReason::Cancelled as i32);
    engine.cancel(Which::Any).unwrap();
    assert_eq!(collect(&engine, 1)[&ids[1]].finish, FinishReason::Cancelled as i32);

    endless.timeout_ms = 30;
    let late = ask(&engine, endless);
    assert_eq!(late.finish, FinishReason::TimedOut as i32);
    assert!(late.message.contains("timeout"), "{}", late.message);
    assert_eq!(engine.cancel(Which::One(ids[0])).unwrap_err().status, Status::NotFound);
    assert_eq!(engine.stats().kv_blocks_used, 0);
}

#[test]
fn a_flood_of_cancels_costs_nothing_and_holds_nobody_up() {
    let engine = echo(|config| config.model_path = Some("builtin:echo?us_per_token=200".into()));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                engine.cancel(Which::Any).unwrap();
            }
        });
        for _ in 0..20 {
            let answer = ask(&engine, text("soon over, one way or the other", 400));
            assert!([FinishReason::Stop as i32, FinishReason::Cancelled as i32].contains(&answer.finish));
        }
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn what_is_counted_as_accepted_can_be_cancelled() {
    let engine = echo(|config| config.model_path = Some("builtin:echo?us_per_token=2000".into()));
    for n in 1..=200 {
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| {
                while engine.stats().accepted < n {
                    std::hint::spin_loop();
                }
                engine.cancel(Which::Any).unwrap();
            });
            let mut endless = text("ab", 500);
            endless.ignore_eos = true;
            ask(&engine, endless)
        });
        assert_eq!(answer.finish, FinishReason::Cancelled as i32, "request {n}");
    }
}

#[test]
fn draining_finishes_what_runs_and_cancelling_ends_it() {
    let engine = echo(|_| ());
    engine.submit(vec![text("first", 50), text("second", 50)]).unwrap();
    engine.shutdown(ShutdownMode::Drain).unwrap();
    assert_eq!(engine.submit(vec![text("late", 5)]).unwrap_err().status, Status::Shutdown);
    let answers = collect(&engine, 2);
    assert!(answers.values().all(|a| a.finish == FinishReason::Stop as i32));
    let end = engine.poll(Which::Any, 1, None, &mut |_, _| ()).unwrap_err();
    assert_eq!(end.status, Status::Shutdown);

    let engine = echo(|config| config.model_path = Some("builtin:echo?us_per_token=100000".into()));
    let id = engine.submit(vec![text(&"slow".repeat(50), 200)]).unwrap()[0];
    engine.shutdown(ShutdownMode::Cancel).unwrap();
    assert_eq!(collect(&engine, 1)[&id].finish, FinishReason::Cancelled as i32);
}

#[test]
fn callbacks_come_in_order_on_one_thread_and_may_call_back() {
    type Log = Arc<Mutex<Vec<(u64, String, bool)>>>;
    let (seen, threads) = (Log::default(), Arc::new(Mutex::new(Vec::new())));
    let engine_cell: Arc<Mutex<Option<Arc<Engine>>>> = Arc::default();
    let refused = Arc::new(AtomicUsize::new(0));
    let sink = {
        let (seen, threads, cell, refused) =
            (seen.clone(), threads.clone(), engine_cell.clone(), refused.clone());
        move |event: &Event| {
            threads.lock().unwrap().push(std::thread::current().name().map(String::from));
            let last = event.finish != FinishReason::None;
            seen.lock().unwrap().push((event.user_data, event.text.clone(), last));
            if let Some(engine) = cell.lock().unwrap().as_ref() {
                let _ = engine.stats();
                let poll = engine.check_call(true).unwrap_err();
                let destroy = engine.destroy().unwrap_err();
                refused.fetch_add(
                    (poll.status == Status::Reentrant && destroy.status == Status::Reentrant) as usize,
                    Ordering::SeqCst,
                );
                if last && event.user_data < 3 {
                    engine
                        .submit(vec![RequestParams { user_data: event.user_data + 1, ..text("again", 20) }])
                        .unwrap();
                }
            }
        }
    };
    let engine = Arc::new(echo(|config| config.on_event = Some(Box::new(sink))));
    *engine_cell.lock().unwrap() = Some(engine.clone());
    assert_eq!(engine.wait_fd().unwrap_err().status, Status::WrongMode);
    assert_eq!(engine.poll(Which::Any, 1, None, &mut |_, _| ()).unwrap_err().status, Status::WrongMode);
    engine.submit(vec![RequestParams { user_data: 1, ..text("begin", 20) }]).unwrap();
    while seen.lock().unwrap().iter().filter(|e| e.2).count() < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    *engine_cell.lock().unwrap() = None;
    engine.destroy().unwrap();
    let all = seen.lock().unwrap();
    let text_of = |user: u64| all.iter().filter(|e| e.0 == user).map(|e| e.1.as_str()).collect::<String>();
    assert_eq!((text_of(1).as_str(), text_of(2).as_str(), text_of(3).as_str()), ("begin", "again", "again"));
    assert!(threads.lock().unwrap().iter().all(|name| name.as_deref() == Some("bn-delivery")));
    assert!(refused.load(Ordering::SeqCst) > 0);
}

#[test]
fn memory_in_use_never_passes_the_limit() {
    let limit = 8 << 20;
    let engine = echo(|config| (config.memory_limit_bytes, config.queue_capacity) = (limit, 4096));
    let (mut accepted, prompt) = (0, "hold".repeat(100));
    let refused = loop {
        // Longer than those for which a small limit has room.
        let mut request = text(&prompt, 50);
        request.ignore_eos = true;
        match engine.submit(vec![request]) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.status, Status::MemoryLimit, "{refused} after {accepted}");
    let stats = engine.stats();
    assert!(stats.memory_peak_bytes <= limit && stats.memory_used_bytes > 0);
    assert_eq!(stats.rejected_memory, 1);
    collect(&engine, accepted);
    assert!(engine.stats().memory_used_bytes < stats.memory_used_bytes);
}

#[test]
fn the_requests_of_two_engines_do_not_mix() {
    let (a, b) = (echo(|_| ()), echo(|_| ()));
    let mine = a.submit(vec![text("mine", 9)]).unwrap()[0];
    assert_eq!(b.release(mine).unwrap_err().status, Status::NotFound);
    assert_eq!(b.poll(Which::One(mine), 1, None, &mut |_, _| ()).unwrap_err().status, Status::NotFound);
    assert_eq!(collect(&a, 1)[&mine].text, "mine");
}

#[test]
fn an_idle_engine_holds_its_first_step_open_for_company() {
    let engine = echo(|config| {
        // A second, unless the batch is full before.
        (config.max_wait_us, config.max_batch_size) = (1_000_000, 2);
        config.speculation = Some(Speculation::Off);
    });
    engine.submit(vec![text("one", 20)]).unwrap();
    engine.submit(vec![text("two", 20)]).unwrap();
    collect(&engine, 2);
    let stats = engine.stats();
    assert_eq!((stats.steps, stats.mean_batch_size()), (4, 2.0), "every step had both");
}

#[test]
fn sequential_mode_runs_one_after_another() {
    let engine = echo(|config| {
        (config.max_batch_size, config.max_batch_tokens, config.speculation) = (1, 8, Some(Speculation::Off));
    });
    engine.submit(vec![text("first in", 20), text("second", 20), text("third", 20)]).unwrap();
    collect(&engine, 3);
    let stats = engine.stats();
    assert_eq!((stats.mean_batch_size(), stats.max_batch_size), (1.0, 1));
    assert_eq!(
        stats.steps,
        (2 + 8) + 7 + 6,
        "prompts in chunks of 8 at most, then a step for each further token"
    );
}

#[test]
fn the_engines_default_timeout_is_for_requests_without_one() {
    let engine = echo(|config| {
        config.model_path = Some("builtin:echo?us_per_token=2000".into());
        config.default_timeout_ms = 30;
    });
    let late = ask(&engine, RequestParams { ignore_eos: true, ..text("ab", 400) });
    assert_eq!(late.finish, FinishReason::TimedOut as i32);
    let patient = ask(&engine, RequestParams { timeout_ms: 60_000, ..text("abcdefghijklmnop", 40) });
    assert_eq!(patient.finish, FinishReason::Stop as i32, "{}", patient.message);
}

#[test]
fn requests_that_end_in_one_step_are_told_in_the_order_of_their_submission() {
    let engine = echo(|config| config.max_wait_us = 200_000);
    let ids = engine.submit((0..8).map(|_| text("alike", 20)).collect()).unwrap();
    let mut ended = Vec::new();
    while ended.len() < ids.len() {
        engine
            .poll(Which::Any, 64, Some(Duration::from_secs(60)), &mut |_, event| {
                if event.finish != FinishReason::None {
                    ended.push(event.request);
                }
            })
            .unwrap();
    }
    assert_eq!(ended, ids);
}
