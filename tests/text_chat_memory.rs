//! Untrusted chat templates: each ends, in an error or a text, within stated memory. One test: the counters
//! are the process's.

mod counting;

use bn_engine::base::Status;
use bn_engine::text::{ChatTemplate, Message};
use counting::{LIVE, PEAK};
use std::sync::atomic::Ordering::SeqCst;

/// Limits of held bytes: rendering a short conversation, and compiling 256 KiB of source.
const RENDER_BYTES: usize = 24 << 20;
const COMPILE_BYTES: usize = 32 << 20;
/// Hosts call from threads with small stacks.
const STACK: usize = 512 << 10;

/// Runs `f`, and returns the peak of its held bytes above the initial level.
fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.load(SeqCst);
    PEAK.store(before, SeqCst);
    let result = f();
    (result, PEAK.load(SeqCst) - before)
}

/// (source, whether it must fail)
fn nasty() -> Vec<(String, bool)> {
    let grow = |what: &str| {
        format!("{{% set ns = namespace(x='ab') %}}{{% for i in range(9999) %}}{what}{{% endfor %}}")
    };
    let runtime = [
        grow("{% set ns.x = ns.x ~ ns.x %}"),
        grow("{% set ns.x = ns.x + ns.x %}"),
        grow("{% set ns.x = ns.x * 9 %}"),
        grow("{% set ns.x = ns.x.replace('a', 'aaaaaaaa') %}"),
        grow("{% set ns.x = ns.x | replace('', 'aaaaaaaa') %}"),
        grow("{% set ns.x = [ns.x, ns.x] | join(ns.x) %}"),
        grow("{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
        grow("{% set ns.x = ns.x | tojson %}"),
        grow("{% set ns.x = ns.x | escape | replace('&', '&&') ~ '<' %}"),
        grow("{% set ns.x = ns.x | indent(200, true) ~ '\\n' ~ ns.x %}"),
        grow("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        grow("{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}"),
        grow("{% filter upper %}{% for i in range(999) %}0123456789{% endfor %}{% endfilter %}"),
        grow("{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x }}",
        grow("{% set ns.x = [ns.x] %}"),
        grow("{% set ns.x = {'a': ns.x} %}"),
        grow("{% set ns.x = dict(a=ns.x) %}"),
        grow("{% set ns.x = [ns.x] | list %}"),
        grow("{% set ns.x = ns.x | map('upper') %}{% set ns.x = [ns.x, 1] %}"),
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
            .into(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}\
         {{ ns.x | tojson }}"
            .into(),
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
            .into(),
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x in [ns.y] }}{{ [ns.x, ns.y] | unique }}"
            .into(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}".into(),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".into(),
        "{% set ns = namespace() %}{% set ns.x = [ns] %}".into(),
        "{{ 'a' * 1000000000 }}".into(),
        "{{ ('a' * 100000) * 100000 }}".into(),
        "{{ [1] * 1000000000 }}".into(),
        "{{ ('ab' ~ 'cd') * 99999999 ~ ('ab' * 99999999) }}".into(),
        "{% if 'a' * 100000000 == 'b' * 100000000 %}{% endif %}".into(),
        "{{ range(1000000000) }}".into(),
        "{{ range(0, 9223372036854775807, 1) | list }}".into(),
        "{{ range(-9223372036854775807, 9223372036854775807) }}".into(),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
        "{% for a in range(99999) %}{% for b in range(99999) %}abcdefghijklmnopqrstuvwxyz{% endfor %}{% endfor %}".into(),
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into(),
        "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('aaaa') }}".into(),
        "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(30) }}".into(),
        "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}".into(),
        "{% for x in [[1]] recursive %}{% set y = loop([x]) %}{% endfor %}".into(),
        "{% macro f() %}{{ caller() }}{% call f() %}x{% endcall %}{% endmacro %}{% call f() %}y{% endcall %}".into(),
        "{% set x = 'ab' * 100000 %}{% for i in range(99999) %}{% if x == x.upper() %}{% endif %}{% endfor %}".into(),
        "{% set x = 'ab' * 100000 %}{% for i in range(99999) %}{% if 'zz' in x %}{% endif %}{% endfor %}".into(),
        "{% set x = 'ab' * 100000 %}{% for i in range(99999) %}{{ x[-1] }}{{ x.split('b') | length }}{% endfor %}".into(),
        "{% set x = range(99999) | list %}{% for i in x %}{{ x | sort | first }}{{ x | reverse | first }}{% endfor %}"
            .into(),
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + [i] %}{% endfor %}".into(),
        "{% for i in range(99999) %}{{ [1] | tojson(indent=1000000000) }}{% endfor %}".into(),
        "{{ 'x' | indent(1000000000, true) }}{{ 'x' | center(1000000000) }}".into(),
        "{{ '%1000000000d' % 5 }}".into(),
        "{{ '%1000000000d' | format(5) }}{{ '{:1000000000}'.format(5) }}".into(),
        "{{ 10 ** 10 ** 10 }}".into(),
        "{{ (2 ** 62) * 4 }}".into(),
        "{{ strftime_now('%Y' * 100000) }}".into(),
        "{{ raise_exception('a' * 5000000) }}".into(),
        "{{ lipsum(n=1000000) }}".into(),
        "{% for i in range(99999) %}{% macro m() %}{{ i }}{{ messages }}{% endmacro %}{% endfor %}{{ 0 / 0 }}".into(),
        "{% set x = [] %}{{ x.append(x) }}".into(),
        "{{ f(*range(99999)) }}".into(),
        "{{ dict(**messages[0]) }}".into(),
        "{{ loop }}{{ self }}{{ self.x() }}{{ super() }}".into(),
        "{% for i in [1] %}{% set x = [loop] %}{% endfor %}".into(),
        "{% for i in [1] %}{{ loop.changed(messages) }}{{ 0 / 0 }}{% endfor %}".into(),
    ];
    // Split into lines, whose length is bounded too.
    let many = |text: &str, n: usize| {
        let parts = (0..n).map(|at| format!("{text}{}", if at % 500 == 499 { "\n" } else { "" }));
        parts.collect::<String>()
    };
    let source = [
        format!("{{{{ {}1{} }}}}", many("(", 100_000), many(")", 100_000)),
        format!("{{{{ {}1{} }}}}", many("[", 100_000), many("]", 100_000)),
        format!("{{{{ x{} }}}}", many(".a", 100_000)),
        format!("{{{{ x{} }}}}", many("[0]", 80_000)),
        format!("{{{{ x{} }}}}", many("|d", 100_000)),
        format!("{{{{ 1{} }}}}", many("+1", 100_000)),
        format!("{{{{ 'a'{} }}}}", many("*9", 100_000)),
        format!("{{{{ 1{} }}}}", many("**1", 60_000)),
        format!("{{{{ {}1 }}}}", many("not ", 60_000)),
        format!("{{{{ {}1 }}}}", many("-", 200_000)),
        format!("{{{{ 1{} }}}}", many(" if 1 else 1", 20_000)),
        format!("{{{{ 1{} }}}}", many(" is none", 30_000)),
        format!("{{{{ 1{} }}}}", many(" < 1", 60_000)),
        format!("{{% if 1 %}}{}", many("{% elif 1 %}", 20_000)),
        many("{% if 1 %}", 20_000),
        many("{% for a in b %}", 15_000),
        many("{% macro a() %}", 15_000),
        format!("{}{{{{ 0 / 0 }}}}", many("{{ x }}", 30_000)),
        format!("{}{{{{ 0 / 0 }}}}", many("{% set a = {'k': [1, 2, 3]} %}", 8_000)),
        many("{{", 100_000),
        many("{% raw %}", 20_000),
        many("{#", 100_000),
        many(
            "
", 200_000,
        ) + "{{ 0 / 0 }}",
        "x".repeat(70_000),
        "x".repeat(300_000),
    ];
    let fine = [
        // Nesting just within the limit.
        format!("{{{{ {}1{} }}}}", many("(", 60), many(")", 60)),
        format!("{{{{ x{} }}}}", many("|d", 1000)),
        format!("{{{{ 1{} }}}}", many("+1", 1000)),
        format!("{{% if 0 %}}{}{{% endif %}}", many("{% elif 0 %}", 500)),
        many("{% if 1 %}", 60) + &many("{% endif %}", 60),
        many("{% for a in [1] %}", 60) + &many("{% endfor %}", 60),
        "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(30) }}".into(),
        "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"
            .into(),
        many("{{ messages[0].content }}{% set a = 1 %}", 5_000),
        "{% for i in range(9999) %}{{ i }}, {% endfor %}".into(),
    ];
    let failing = runtime.into_iter().chain(source).map(|source| (source, true));
    failing.chain(fine.into_iter().map(|source| (source, false))).collect()
}

#[test]
fn a_strangers_template_ends_within_its_memory() {
    let messages = [Message { role: "user", content: "hello" }];
    // Make the objects that exist once per process, which do not count for a template.
    ChatTemplate::new("{{ messages }}", Vec::new()).unwrap().render(&messages, true).unwrap();
    let (mut most_compiled, mut most_rendered) = (0, 0);
    let run = move || {
        for (source, must_fail) in nasty() {
            let what: String = source.chars().take(120).collect();
            let before = LIVE.load(SeqCst);
            let (template, compiled) = peak(|| ChatTemplate::new(&source, Vec::new()));
            assert!(compiled <= COMPILE_BYTES, "{what}: compiling took {compiled} bytes");
            let result = template.and_then(|template| {
                let live = LIVE.load(SeqCst);
                let (held, declared) = (live - before, template.table_bytes() + 4096);
                assert!(held <= declared, "{what}: holds {held} bytes, {declared} are declared");
                let (result, rendered) = peak(|| template.render(&messages, true));
                assert!(rendered <= RENDER_BYTES, "{what}: rendering took {rendered} bytes");
                most_rendered = most_rendered.max(rendered);
                drop(peak(|| result.as_ref().err().cloned()));
                let kept = result.as_ref().map_or_else(|e| e.message.capacity(), |made| made.text.capacity());
                assert!(LIVE.load(SeqCst) <= live + kept + 4096, "{what}: memory stayed behind");
                result
            });
            most_compiled = most_compiled.max(compiled);
            match result {
                Ok(text) => assert!(!must_fail, "{what}: made {} bytes", text.text.len()),
                Err(error) => {
                    assert!(must_fail, "{what}: {error}");
                    assert!(
                        matches!(error.status, Status::Unsupported | Status::InvalidArgument),
                        "{what}: {error}"
                    );
                    assert!(error.message.len() < 4096, "{what}: a message of {} bytes", error.message.len());
                    println!("{what}\n    {:.200}", error.message);
                }
            }
        }
        println!("most: {most_compiled} bytes to compile, {most_rendered} to render");
    };
    std::thread::Builder::new().stack_size(STACK).spawn(run).unwrap().join().unwrap();
    long_conversations();
}

/// A template's limits grow with the messages, so a long conversation passes.
fn long_conversations() {
    let source =
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content | trim + '<|end|>\n' }}{% endfor %}";
    let template = ChatTemplate::new(source, Vec::new()).unwrap();
    for (count, content) in [(20_000, "a short one".to_owned()), (8, "word ".repeat(1 << 20))] {
        let messages = vec![Message { role: "user", content: &content }; count];
        let input = count * (content.len() + 260);
        let (text, took) = peak(|| template.render(&messages, true));
        assert!(text.unwrap().text.len() > count * (content.len() - 1));
        assert!(took <= RENDER_BYTES + 8 * input, "{took} bytes for {input}");
    }
    let long = "x".repeat(65 << 20);
    let error = template.render(&[Message { role: "user", content: &long }], true).unwrap_err();
    assert_eq!(error.status, Status::TooLong);
}
