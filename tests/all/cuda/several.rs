//! One engine on several devices, with the emulated driver, which has as many devices as a test needs.

use super::*;

fn driver(devices: c_int) -> Emulated {
    let driver = Emulated::required();
    driver.devices(devices);
    driver.memory(-1, 1 << 30);
    driver
}

fn outcome(answers: &[Answer], want: &[Answer]) -> (usize, usize) {
    let failed = answers.iter().filter(|answer| answer.finish == FinishReason::Failed as i32).count();
    let right =
        answers.iter().zip(want).filter(|(got, want)| got.tokens == want.tokens && got.text == want.text);
    (right.count(), failed)
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn an_engine_of_three_devices_gives_the_same_answers() {
    let emulated = driver(3);
    let want = answers(&engine("cuda:0", |_| ()));
    want.iter().zip(&answers(&engine("cpu", |_| ()))).for_each(|(got, want)| near(got, want));
    let device = engine("cuda:0,cuda:2,cuda:1", |config| config.max_batch_size = 1);
    for _ in 0..2 {
        answers(&device).iter().zip(&want).for_each(|(got, want)| same(got, want));
    }
    let stats = device.stats();
    assert_eq!((stats.accepted, stats.completed_failed, stats.running), (12, 0, 0));
    assert!(stats.cached_tokens > 0, "the second time, prompts are found");
    drop(device);
    assert_eq!(emulated.live(), 0, "all is given back");
}

/// Two prompts submitted together run on two devices; a follow-up returns to its own device.
#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_prompt_goes_where_its_beginning_is() {
    let _emulated = driver(2);
    let device = engine("cuda:0,cuda:1", |config| config.kv_events_capacity = 100);
    let prompt = |n: u32| -> RequestParams<'static> {
        let ids: Vec<u32> = (0..70).map(|i| 40 + (i * (n + 3) + n) % 50).collect();
        RequestParams { prompt: Prompt::Tokens(ids.into()), max_new_tokens: 2, ..text("", 2) }
    };
    let ids = device.submit((0..2).map(prompt).collect()).unwrap();
    collect(&device, ids.len());
    for n in [1, 0, 1, 1, 0] {
        let before = device.stats().cached_tokens;
        ask(&device, prompt(n));
        assert_eq!(device.stats().cached_tokens - before, 69, "prompt {n}");
    }
    let mut stored = 0;
    device
        .kv_events(100, &mut |event| stored += usize::from(matches!(event, CacheEvent::Stored { .. })))
        .unwrap();
    assert_eq!(stored, 4, "two full blocks of each prompt");
    device.clear_cache().unwrap();
    let before = device.stats().cached_tokens;
    [0, 1].into_iter().for_each(|n| _ = ask(&device, prompt(n)));
    assert_eq!(device.stats().cached_tokens, before, "on both, all is forgotten");
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn sessions_have_a_device() {
    let _emulated = driver(2);
    let device = engine("cuda:0,cuda:1", |_| ());
    for name in ["a", "b", "c", "d", "e"] {
        ask(&device, RequestParams { session: Some(name.into()), ..text("The lazy dog", 3) });
        let saved = device.save_session(name).unwrap();
        assert_eq!(device.session_size(name).unwrap(), saved.len());
        device.drop_session(name).unwrap();
        assert_eq!(device.drop_session(name).unwrap_err().status, Status::NotFound);
        device.restore_session(name, &saved).unwrap();
    }
    assert_eq!(device.stats().sessions, 5);
}

/// Requests that ran there fail with the reason, all others are answered, and the engine continues.
#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_lost_device_leaves_the_others_to_work() {
    let emulated = driver(2);
    let want = answers(&engine("cpu", |_| ()));
    let device = engine("cuda:0,cuda:1", |config| config.max_batch_size = 1);
    emulated.fail(c"cuLaunchKernelEx", 700);
    let (right, failed) = outcome(&answers(&device), &want);
    assert_eq!((right, failed), (5, 1), "one of those that waited moved on");
    assert_eq!(outcome(&answers(&device), &want), (6, 0));
    device.clear_cache().unwrap();
    emulated.fail(c"cuLaunchKernelEx", 700);
    assert_eq!(outcome(&answers(&device), &want).1, 6, "no device is left");
    let refused = || device.submit(vec![text("more", 3)]).err().unwrap().status;
    let closing = std::iter::repeat_with(refused).find(|status| *status != Status::Shutdown);
    assert_eq!(closing, Some(Status::EngineDead));
    drop(device);
    emulated.reset();
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn devices_that_there_are_not_are_refused() {
    let emulated = driver(2);
    let refused = |device: &str| {
        Engine::create(EngineConfig { device: device.into(), ..Default::default() }).err().expect("refused")
    };
    let absent = refused("cuda:0,cuda:2");
    assert_eq!(absent.status, Status::Unsupported);
    assert!(absent.message.contains("no device cuda:2: there are 2"), "{absent}");
    assert_eq!(refused("cuda:0,cuda:0").status, Status::InvalidArgument);
    assert_eq!(emulated.live(), 0, "nothing stays behind");
}
