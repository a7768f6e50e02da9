//! LoRA adapters.
use crate::support::{eventually, generate, golden, open_with, wants};
use bn::{Adapter, ErrorKind, Request, Sampling};

#[test]
fn adapters_change_outputs() {
    // 13
    let engine = open_with(golden("models/llama-llama3"), |options| {
        (options.context_length, options.adapter_bytes) = (128, 1 << 20)
    });
    let prompt: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 60).collect();
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    let request = |adapter: Option<&Adapter>, scale| Request {
        max_new_tokens: 12,
        ignore_eos: true,
        sampling: sampling.clone(),
        adapter: adapter.cloned(),
        adapter_scale: scale,
        ..Request::prompt(prompt.clone())
    };
    let tokens = |adapter, scale| generate(&engine, &request(adapter, scale)).tokens;
    let plain = tokens(None, 1.0);
    let folder = engine.open_adapter(golden("adapters/llama")).unwrap();
    let file = engine.open_adapter(golden("adapters/llama.gguf")).unwrap();
    let adapted = tokens(Some(&folder), 1.0);
    assert_ne!(adapted, plain);
    assert_eq!(tokens(Some(&file), 1.0), adapted);
    assert_ne!(tokens(Some(&file), -2.0), adapted);
    assert_eq!(tokens(None, 1.0), plain);
    let again = engine.open_adapter(golden("adapters/llama")).unwrap();
    assert_eq!(again.fingerprint().unwrap(), folder.fingerprint().unwrap());
    drop(again);

    let request = request(Some(&folder), 1.0);
    let stream = engine.submit(&request).unwrap();
    drop((folder, request)); // the request keeps it
    assert_eq!(stream.answer().tokens, adapted);
    wants(engine.open_adapter("/nowhere"), ErrorKind::Io, "/nowhere");
    wants(engine.open_adapter(golden("adapters/qwen3")), ErrorKind::BadModel, "attn_q");
    let before = engine.stats().unwrap().memory_used_bytes;
    drop(file);
    eventually(|| engine.stats().unwrap().memory_used_bytes < before);
}

#[test]
fn an_adapter_is_its_engines_and_keeps_it() {
    let make = || open_with(golden("models/llama-llama3"), |options| options.context_length = 128);
    let (one, two) = (make(), make());
    let adapter = one.open_adapter(golden("adapters/llama")).unwrap();
    drop(one);
    adapter.fingerprint().unwrap();
    let request = Request { adapter: Some(adapter), ..Request::prompt(vec![3, 4, 5]) };
    wants(two.submit(&request), ErrorKind::InvalidArgument, "adapter");
}
