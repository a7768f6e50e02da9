//! Tests that need the emulated driver: it counts, fails on demand, and can be a smaller device.

use super::*;

/// One step of one sequence: q, k and v are a launch, as are gate and up, and a bias is none.
#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn one_launch_takes_all_matrices_of_a_type() {
    let emulated = Emulated::required();
    // Launches of a layer, and beside the layers. Quantized types make their rows first and then quantize them.
    let known = [
        ("falcon-e-ternary", 2 * 11 + 6),
        ("llama-bf16", 2 * 10 + 6),
        ("qwen2", 10 + 6),
        ("type-q4_k.gguf", 14 + 7),
        ("qwen3moe", 2 * 16 + 6),
    ];
    for (name, want) in known {
        let device = on_device(&load_file(&format!("tests/golden/models/{name}"), 1).unwrap());
        let sequences = [vec![1, 2, 3, 4]];
        let mut session = Session::new(&device, &sequences, 16, 7);
        session.step(&[(0, 3)]);
        let before = emulated.launches()[0];
        session.step(&[(0, 1)]);
        assert_eq!(emulated.launches()[0] - before, want, "{name}");
    }
}

/// As on an A100 and an L40, and with static shared memory in each kernel.
#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn devices_with_less_shared_memory_give_the_same_answers() {
    let emulated = Emulated::required();
    let all = |kind: KvType| answers(&engine("cuda:0", |config| config.kv_type = kind));
    for kind in [KvType::F16, KvType::F32] {
        emulated.reset();
        emulated.memory(-1, 1 << 30);
        let want = all(kind);
        for (most, own) in [(163 << 10, 0), (99 << 10, 0), (227 << 10, 1 << 10)] {
            emulated.shared(most, own);
            all(kind).iter().zip(&want).for_each(|(got, want)| same(got, want));
        }
    }
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_graph_that_cannot_be_launched_is_done_without() {
    let emulated = Emulated::required();
    let device = engine("cuda:0", |_| ());
    let want = answers(&device);
    let request = || vec![text(PROMPTS[0], 12), text(PROMPTS[1], 12)];
    let tokens = |ids: &[RequestId]| -> Vec<Vec<u32>> {
        let answers = collect(&device, ids.len());
        ids.iter().map(|id| answers[id].tokens.clone()).collect()
    };
    let first = tokens(&device.submit(request()).unwrap());
    emulated.fail(c"cuGraphLaunch", 2);
    // Each sequence of the failed step runs alone, and later steps of its size run together.
    assert_eq!(tokens(&device.submit(request()).unwrap()), first);
    answers(&device).iter().zip(&want).for_each(|(got, want)| same(got, want));
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn memory_that_a_device_lacks_is_refused() {
    let emulated = Emulated::required();
    let refused = |bytes: usize, change: &dyn Fn(&mut EngineConfig)| {
        emulated.memory(-1, bytes);
        let mut config = EngineConfig { device: "cuda:0".into(), threads: 1, ..Default::default() };
        config.context_length = 256;
        change(&mut config);
        Engine::create(config).err().expect("too small a device")
    };
    let writes = emulated.counts().writes;
    let weights = refused(100 << 10, &|_| ());
    assert_eq!(weights.status, Status::OutOfMemory, "{weights}");
    let said = "bytes on the device, and 102400 bytes are free there";
    assert!(weights.message.contains(said), "{weights}");
    let kv = refused(3 << 20, &|_| ());
    assert_eq!(kv.status, Status::MemoryLimit, "{kv}");
    assert!(kv.message.contains("one sequence of 256 tokens needs"), "{kv}");
    emulated.memory(-1, 1 << 30);
    let limit = refused(1 << 30, &|config| config.memory_limit_bytes = 2 << 20);
    assert_eq!(limit.status, Status::MemoryLimit, "{limit}");
    assert_eq!(emulated.counts().writes, writes, "no weights are brought there before");
    assert_eq!(emulated.live(), 0, "nothing stays behind");
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_lost_device_ends_its_engine_and_no_other() {
    let emulated = Emulated::required();
    let (device, cpu) = (engine("cuda:0", |_| ()), engine("cpu", |_| ()));
    ask(&device, text(PROMPTS[0], 3));
    emulated.fail(c"cuLaunchKernelEx", 700);
    let ids = device.submit(PROMPTS.iter().map(|prompt| text(prompt, 4)).collect()).unwrap();
    let answers = collect(&device, ids.len());
    for answer in answers.values() {
        assert_eq!(answer.finish, FinishReason::Failed as i32);
        assert!(answer.message.contains("cuda:0 was lost: CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", answer.message);
    }
    // The engine is closing, and then dead.
    let refused = || device.submit(vec![text("more", 3)]).err().unwrap().status;
    let closing = std::iter::repeat_with(refused).find(|status| *status != Status::Shutdown);
    assert_eq!(closing, Some(Status::EngineDead));
    assert_eq!(ask(&cpu, text(PROMPTS[0], 3)).finish, ask(&cpu, text(PROMPTS[0], 3)).finish);
    drop(device);
    emulated.reset();
    near(&ask(&engine("cuda:0", |_| ()), with_logprobs(text(PROMPTS[0], 3))), &{
        ask(&cpu, with_logprobs(text(PROMPTS[0], 3)))
    });
}
