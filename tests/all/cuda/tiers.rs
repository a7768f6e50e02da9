//! Prefixes that leave a device.

use super::*;

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn prefixes_that_leave_a_device_stay_in_the_machines_memory() {
    let emulated = Emulated::required();
    emulated.devices(1);
    emulated.memory(-1, 1 << 30);
    let small = |config: &mut EngineConfig| (config.kv_block_size, config.context_length) = (16, 128);
    let one = engine("cuda:0", small).stats();
    let device = engine("cuda:0", |config| {
        small(config);
        config.kv_cache_bytes = one.kv_bytes / one.kv_blocks_total * 9;
        config.host_cache_bytes = 1 << 24;
    });
    let prompt = |n: u32| -> RequestParams<'static> {
        let ids: Vec<u32> = (0..100).map(|i| 40 + (i * (n + 3) + n) % 50).collect();
        RequestParams { prompt: Prompt::Tokens(ids.into()), max_new_tokens: 2, ..text("", 2) }
    };
    let [first, again] = [(); 2].map(|()| (0..4).map(|n| ask(&device, prompt(n)).tokens).collect::<Vec<_>>());
    assert_eq!(first, again);
    let stats = device.stats();
    assert!(stats.kv_evictions > 10 && stats.disk_tokens >= 96, "{stats:?}");
    assert!(stats.disk_bytes > 0 && stats.disk_damaged == 0);
    drop(device);
    assert_eq!(emulated.live(), 0, "all is given back");
}

#[test]
fn the_machines_memory_is_no_tier_of_its_own() {
    let config =
        EngineConfig { host_cache_bytes: 1, model_path: Some("builtin:echo".into()), ..Default::default() };
    let error = Engine::create(config).map(drop).unwrap_err();
    assert!(error.message.starts_with("host_cache_bytes is given"), "{error}");
}
