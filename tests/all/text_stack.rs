//! Hosts may call from threads with small stacks: texts and templates use other threads' stacks or the heap.

use bn_engine::base::Status;
use bn_engine::text::reply::{Advice, ReplyParts, grammar};
use bn_engine::text::{Chat, ChatTemplate, JsonFiles, Message, Tokenizer};
use serde_json::{Value, json};

const STACK: usize = 64 << 10;

fn on_a_small_stack<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, f).unwrap();
        thread.join().unwrap()
    })
}

#[test]
fn templates() {
    let nested = |open: &str, middle: &str, close: &str| open.repeat(60) + middle + &close.repeat(60);
    let deep = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x] %}{% endfor %}";
    for (source, works) in [
        ("{% macro f(x) %}{% if x %}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(30) }}".into(), true),
        (
            "{% macro f(x) %}{{ [1] | map('string') | list }}{{ f(x ~ x) }}{% endmacro %}{{ f('a') }}".into(),
            false,
        ),
        ("{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{% call f() %}{% endcall %}".into(), false),
        (deep.to_owned() + "{{ ns.x }}{{ ns.x | tojson }}{{ ns.x == ns.x }}", true),
        (format!("{{{{ {} }}}}", nested("(", "1", ")")), true),
        (nested("{% for a in [1] %}", "{{ a }}", "{% endfor %}"), true),
        (nested("{% if 1 %}{% set x %}", "{{ messages }}", "{% endset %}{% endif %}"), true),
    ] {
        let result = on_a_small_stack(|| {
            ChatTemplate::new(&source, Vec::new())?.render(&[Message { role: "user", content: "hi" }], true)
        });
        match result {
            Ok(_) => assert!(works, "{source}"),
            Err(error) => {
                assert!(!works, "{source}: {error}");
                assert_eq!(error.status, Status::Unsupported, "{error}");
            }
        }
    }
}

/// As deep as JSON may be, in arguments, schemas and variables.
#[test]
fn conversations() {
    let deep = |n: usize| format!("{{\"a\": {}1{}}}", "[".repeat(n), "]".repeat(n));
    let chat = |n: usize| {
        let (arguments, deep) = (serde_json::to_string(&deep(n + 5)).unwrap(), deep(n));
        format!(
            r#"{{"messages": [{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}],
            "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {deep}}}}}], "tool_choice": "required",
            "chat_template_kwargs": {{"deep": {deep}}}}}"#
        )
    };
    for source in
        ["{{ messages[0].content }}", "{{ tools | tojson }}{{ messages }}{{ deep == deep }}<tool_call>"]
    {
        let template = ChatTemplate::new(source, Vec::new()).unwrap();
        let (text, grammar) = on_a_small_stack(|| {
            let chat = Chat::parse(&chat(42)).unwrap();
            let made = template.render_chat(&chat).unwrap();
            let parts = ReplyParts::of(&chat, &template, &made.text).unwrap();
            (made.text, grammar(&chat, &parts, None, Advice::Taken, &|_| None).unwrap().unwrap())
        });
        let innermost = |text: &str| text.contains(&"[".repeat(42));
        assert!(innermost(&text) && innermost(&grammar), "{text}");
        assert_eq!(
            on_a_small_stack(|| Chat::parse(&chat(50_000))).unwrap_err().status,
            Status::InvalidArgument
        );
    }
}

fn tokenizer(pattern: Option<&str>) -> Tokenizer {
    let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let vocab = alphabet.iter().zip(0..).map(|(c, id)| (c.to_string(), json!(id)));
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let cuts = match pattern {
        None => byte_level(true),
        Some(pattern) => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, byte_level(false)]}),
    };
    let file = json!({
        "added_tokens": [], "normalizer": {"type": "NFC"}, "post_processor": null, "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": cuts,
        "model": {"type": "BPE", "vocab": vocab.collect::<serde_json::Map<String, Value>>(), "merges": []}});
    let bytes = serde_json::to_vec(&file).unwrap();
    let files = JsonFiles { tokenizer: &bytes, config: None, generation: None };
    Tokenizer::from_json(&files, "tokenizer.json", &|_| {}).unwrap()
}

#[test]
fn texts() {
    let nested = format!("{}a{}|(?s:.)", "(?=(?>".repeat(8), "))".repeat(8));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/bn-demo.gguf");
    let demo = bn_engine::formats::Gguf::open(folder).unwrap();
    let demo = Tokenizer::from_gguf(&demo, &|_| {}).unwrap().unwrap();
    let patterns = [None, Some(r"\p{L}+|\s+(?!\S)|(?s:.)"), Some(&nested[..])];
    let all = patterns.map(tokenizer).into_iter().chain([demo]);
    for t in all {
        for text in ["a".repeat(200_000), "Ein Text, 123 \u{4e00}\u{300}. ".repeat(5000), " ".repeat(100_000)]
        {
            let ids = on_a_small_stack(|| t.encode(&text, true, true)).unwrap();
            assert!(ids.len() > 100);
        }
    }
}
