use super::*;

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String> {
    let messages: Vec<_> = messages.iter().map(|&(role, content)| Message { role, content }).collect();
    let tokens =
        vec![("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
    ChatTemplate::new(source, tokens)?.render(&messages, true).map(|rendered| rendered.text)
}

/// Renders a template that does not depend on its messages.
fn value(source: &str) -> String {
    render(source, &[("user", "hi")]).unwrap_or_else(|e| format!("{:?}: {e}", e.status))
}

#[test]
fn a_conversation() {
    let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}\n{% endfor %}\
                  {% if add_generation_prompt %}[assistant]{% endif %}";
    let text = render(source, &[("system", " be brief "), ("user", "hé")]).unwrap();
    assert_eq!(text, "<s>[system] be brief\n[user] hé\n[assistant]");
}

#[test]
fn refusals_say_why() {
    let refused = |source: &str| {
        let error = render(source, &[("user", "hi")]).unwrap_err();
        (error.status, error.message)
    };
    let (status, message) = refused("\n{{ raise_exception('roles must ' ~ 'alternate') }}");
    assert_eq!(status, Status::InvalidArgument);
    assert!(message.ends_with("refuses these messages: roles must alternate"), "{message}");
    for (source, part) in [
        ("{{ messages.x.y }}", "undefined"),
        ("a\nb{{ 1 + 'a' }}", "a number + a string (line 2)"),
        ("{{ 'a' | nothing }}", "nothing"),
        ("{{ 'a'.nothing() }}", "nothing"),
        ("{{ 'a' is nothing }}", "nothing"),
        ("{% if %}", "not understood"),
        ("{% include 'x' %}", "several templates"),
        ("{% do x() %}", "'do'"),
        ("{% set a.b = 1 %}", "only of a namespace"),
        ("{{ {'a': 1}['a'](1) }}", "not callable"),
        ("{{ 'a'.upper(1) }}", "at most 0"),
        ("{{ 'a' | trim(bad=1) }}", "bad"),
        ("{{ {[1]: 2} }}", "mapping's key"),
        ("{{ range(1, 2, 0) }}", "step is 0"),
        ("{{ 'a'[::0] }}", "step is 0"),
        ("{{ [1] < [2] }}", "no order"),
        ("{{ range }}", "can't be written out"),
        ("{{ messages | tojson(indent=17) }}", "indent"),
        ("{{ messages | tojson(indent='12345678901234567') }}", "indent"),
        ("{{ messages | tojson(indent=1.5) }}", "indent"),
        ("{{ messages | tojson(separators=',') }}", "separators"),
        ("{{ messages | tojson(separators=(',', 1)) }}", "separators"),
        ("{{ {1: 2, 'a': 3} | tojson(sort_keys=true) }}", "no order"),
        ("{{ messages | tojson(skipkeys=true) }}", "skipkeys"),
        ("{{ 'a' | indent(257) }}", "at most 256"),
        ("{% for x in 5 %}{% endfor %}", "iterated"),
        ("{{ '{} {}'.format(1) }}", "format"),
        ("{{ strftime_now('%Q') }}", "%Q"),
    ] {
        let (status, message) = refused(source);
        assert_eq!(status, Status::Unsupported, "{source}: {message}");
        assert!(message.contains(part), "{source}: {message}");
    }
}

#[test]
fn a_template_that_needs_messages_is_not_to_blame() {
    for made in [render("{{ messages[0].role }}", &[]), {
        let template = ChatTemplate::new("{{ messages[0].role }}", Vec::new()).unwrap();
        template.render_chat(&Chat::parse(r#"{"messages": []}"#).unwrap()).map(|rendered| rendered.text)
    }] {
        let error = made.unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
        assert!(error.message.starts_with("there are no messages: "), "{error}");
    }
    assert_eq!(render("a", &[]).unwrap(), "a");
}

#[test]
fn line_ends_are_one() {
    assert_eq!(value("a\r\nb\rc\n{{ 'x\r\ny' }}\n"), "a\nb\nc\nx\ny");
}

#[test]
fn generation_marks_are_blocks_of_no_effect() {
    assert_eq!(value("a{% generation %}b{{ 1 }}{% endgeneration %}c"), "ab1c");
    assert_eq!(value("a\n  {%- generation -%}  \n b {%+ endgeneration %}\nc"), "ab c");
    assert_eq!(
        value("{{ 'generation' }}{# {% generation %} #}{% raw %}{% generation %}{% endraw %}"),
        "generation{% generation %}"
    );
}

#[test]
fn the_date_is_todays() {
    let today = time::format("%Y-%m-%d", std::time::SystemTime::now()).unwrap();
    let rendered = value("{{ strftime_now('%Y-%m-%d') if strftime_now is defined else 'none' }}");
    // Midnight may pass between the two.
    assert!(rendered >= today, "{rendered}");
}

#[test]
fn operators_of_templates_cannot_be_taken_over() {
    assert_eq!(value("{% set range = 5 %}{% set x = 'a' ~ 'b' %}{{ x + 'c' }}{{ range }}"), "abc5");
}

#[test]
fn many_threads_may_render_one_template() {
    let template =
        ChatTemplate::new("{% for m in messages %}{{ m.content * 3 }}{% endfor %}", Vec::new()).unwrap();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let (template, content) = (&template, i.to_string());
            scope.spawn(move || {
                for _ in 0..50 {
                    let messages = [Message { role: "user", content: &content }];
                    assert_eq!(template.render(&messages, false).unwrap().text, content.repeat(3));
                }
            });
        }
    });
}

#[test]
fn json_gives_the_default_template() {
    let of = |text: &str| {
        let json = serde_json::from_str(text).unwrap();
        template_of_json(&json).map(|template| template.map(str::to_owned)).map_err(|e| e.status)
    };
    let some = |text: &str| Ok(Some(text.to_owned()));
    assert_eq!(of(r#"{"chat_template": "a"}"#), some("a"));
    let two = r#"[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]"#;
    assert_eq!(of(&format!(r#"{{"chat_template": {two}}}"#)), some("d"));
    assert_eq!(of(r#"{"chat_template": [{"name": "x", "template": "only"}]}"#), some("only"));
    let two = serde_json::from_str(&format!(r#"{{"chat_template": {two}}}"#)).unwrap();
    assert_eq!(template_for_tools(&two), Some("t"));
    assert_eq!(template_for_tools(&serde_json::json!({"chat_template": "a"})), None);
    let others = r#"{"chat_template": [{"name": "x", "template": "1"}, {"name": "y", "template": "2"}]}"#;
    assert_eq!(of(others), Ok(None));
    assert_eq!(of("{}"), Ok(None));
    assert_eq!(of(r#"{"chat_template": null}"#), Ok(None));
    for bad in ["5", r#"[5]"#, r#"[{"name": "default"}]"#, r#"{"default": "x"}"#] {
        assert_eq!(of(&format!(r#"{{"chat_template": {bad}}}"#)), Err(Status::BadModel), "{bad}");
    }
}

#[test]
fn a_template_for_tools_stands_in_where_there_are_some() {
    use crate::formats::gguf::writer;
    let pairs = ["", ".default", ".tool_use"].map(|name| {
        let source = format!("{name}{{{{ messages[0].content }}}}{{{{ tools | length if tools }}}}");
        (format!("{}{name}", "tokenizer.chat_template"), source.as_str().into())
    });
    let gguf = Gguf::from_bytes(crate::base::Bytes::new(writer::metadata_only(&pairs)), "x").unwrap();
    let template = ChatTemplate::from_gguf(&gguf, &|_| {}).unwrap().unwrap();
    let render = |tools: &str| {
        let chat = format!(r#"{{"messages": [{{"role": "user", "content": "hi"}}], "tools": [{tools}]}}"#);
        template.render_chat(&Chat::parse(&chat).unwrap()).unwrap().text
    };
    assert_eq!(render(r#"{"function": {"name": "f"}}"#), ".tool_usehi1");
    assert_eq!(template.render(&[Message { role: "user", content: "hi" }], true).unwrap().text, "hi");
}

/// Untrusted templates that cost minutes while being charged little or nothing, before the limits.
fn hostile() -> Vec<String> {
    let shared = "{% set ns = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
                  {% set ns.y = [ns.y, ns.y] %}{% endfor %}";
    let loops = |body: &str| format!("{shared}{{% for a in range(99999) %}}{body}{{% endfor %}}");
    let with =
        |n: usize, body: &str| format!("{}{body}{}", "{% with z = 1 %}".repeat(n), "{% endwith %}".repeat(n));
    let names: String = (0..450).map(|i| format!("key_{i:04}=1,")).collect();
    let lines = names.replace(",key_0200", ",\nkey_0200");
    vec![
        loops("{{ loop.changed(ns.x) }}{{ loop.changed(ns.y) }}"),
        loops("{{ loop.cycle() }}"),
        loops("{{ ns.x == ns.y }}"),
        loops("{{ ns.x in [ns.y] }}{{ [ns.x, ns.y] | unique }}"),
        loops("{{ ns.x | string }}"),
        loops("{{ loop.previtem }}{{ loop.nextitem }}{{ loop.index }}{{ loop.length }}"),
        format!("{{% set x = range(9000) %}}{{% set y = range(9000) %}}{}", loops("{{ x == y }}")),
        format!("{{% set x = range(9000) | list %}}{}", loops("{{ x | unique | length }}")),
        format!("{{% set x = range(9000) | list %}}{}", loops("{{ x | sort | first }}{{ x | max }}")),
        format!("{{% set x = range(9000) | list %}}{}", loops("{{ (x | map('string') | list | length) }}")),
        format!("{{% set x = range(9000) | list %}}{}", loops("{{ x[::-1] | length }}{{ x | join }}")),
        format!("{{% set x = dict({lines}) %}}{}", loops("{{ x.key_0449 }}{{ x['key_0448'] }}")),
        format!("{{% set x = namespace({lines}) %}}{}", loops("{% set x.key_0449 = x.key_0448 %}")),
        format!("{{% set x = dict({lines}) %}}{}", loops("{{ x == dict(x) }}{{ 'a' in x }}{{ x.nothing }}")),
        format!("{{% set x = 'ab' * 300000 %}}{}", loops("{{ x == x }}")),
        format!("{{% set x = 'ab' * 300000 %}}{}", loops("{{ x | length }}{{ x.find('ba' * 300) }}")),
        format!(
            "{{% set x = 'ab' * 300000 %}}{}",
            loops("{{ x.strip('ab') }}{{ x is upper }}{{ x.isalpha() }}")
        ),
        format!(
            "{{% set x = 'ab' * 300000 %}}{}",
            loops("{{ x[5] }}{{ x[-1] }}{{ x[5:6] }}{{ x[::70000] }}")
        ),
        format!("{{% set x = 'ab' * 300000 %}}{}", loops("{{ x | int }}{{ x | float }}{{ x.count('b') }}")),
        format!("{{% set x = '%' * 250 %}}{}", loops("{{ strftime_now(x) }}")),
        loops("{{ nothing }}{% set b = a %}"),
        with(60, &loops("{{ nothing }}{{ nothing }}{{ nothing }}")),
        with(60, &loops("{{ 1 + 1 }}{{ messages[0].role.upper() }}")),
        loops("{% macro m(a, b, c, d, e, f) %}{{ nothing }}{% endmacro %}{{ m() }}{{ m(1, 2, 3) }}"),
        "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(30) }}".into(),
        "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}".into(),
        loops("{% set b %}{% filter upper %}abc{% endfilter %}{% endset %}"),
        loops("{% for b in [] %}{% endfor %}"),
        loops("{% with %}{% macro m() %}{{ a }}{{ ns }}{{ messages }}{% endmacro %}{% endwith %}"),
        loops("{{ [a, 1, 2, 3] | map('int') | select('odd') | list | tojson }}"),
        format!("{{% set x = dict({lines}) %}}{}", loops("{{ x | tojson(sort_keys=true) | length }}")),
        format!(
            "{{% set x = 'ab' * 300000 %}}{}",
            loops("{{ [1, 2] | tojson(separators=[x, x]) | length }}")
        ),
        loops("{{ '{} {}'.format(a, a) }}{{ 'a b c'.split() | join('-') }}"),
        loops("{{ 1 < a < 3 }}{{ a is divisibleby 3 }}{{ a ** 2 }}{{ a // 7 }}"),
        loops(&"{{ a }}".repeat(50)),
    ]
}

#[test]
fn what_was_free_is_charged() {
    for source in hostile() {
        let error = render(&source, &[("user", "hi")]).unwrap_err();
        assert_eq!(error.status, Status::Unsupported, "{source}");
        let charged = ["than a template may", "recursion limit", "loop.c"]
            .iter()
            .any(|why| error.message.contains(why));
        assert!(charged, "{error}: {source}");
    }
}

/// Python's `json.dumps` output with the arguments that transformers passes on.
#[test]
fn tojson_has_the_arguments_of_transformers() {
    let x = "{'b': [1, {'z': 'é\u{7f}😀', 'a': none}], 'B': {}, 'a': []}";
    for (args, json) in [
        ("", r#"{"b": [1, {"z": "é😀", "a": null}], "B": {}, "a": []}"#.replace("é😀", "é\u{7f}😀")),
        ("ensure_ascii=true", r#"{"b": [1, {"z": "\u00e9\u007f\ud83d\ude00", "a": null}], "B": {}, "a": []}"#.into()),
        ("true", r#"{"b": [1, {"z": "\u00e9\u007f\ud83d\ude00", "a": null}], "B": {}, "a": []}"#.into()),
        ("sort_keys=true", "{\"B\": {}, \"a\": [], \"b\": [1, {\"a\": null, \"z\": \"é\u{7f}😀\"}]}".into()),
        ("separators=(',', ':')", "{\"b\":[1,{\"z\":\"é\u{7f}😀\",\"a\":null}],\"B\":{},\"a\":[]}".into()),
        ("false, 1, [';', '='], true", "{\n \"B\"={};\n \"a\"=[];\n \"b\"=[\n  1;\n  {\n   \"a\"=null;\n   \"z\"=\"é\u{7f}😀\"\n  }\n ]\n}".into()),
        ("indent='->', sort_keys=false, separators=none", "{\n->\"b\": [\n->->1,\n->->{\n->->->\"z\": \"é\u{7f}😀\",\n->->->\"a\": null\n->->}\n->],\n->\"B\": {},\n->\"a\": []\n}".into()),
        ("indent=-3", "{\n\"b\": [\n1,\n{\n\"z\": \"é\u{7f}😀\",\n\"a\": null\n}\n],\n\"B\": {},\n\"a\": []\n}".into()),
    ] {
        assert_eq!(value(&format!("{{{{ {x} | tojson({args}) }}}}")), json, "{args}");
    }
    assert_eq!(
        value("{{ {10: 1, 9: 2} | tojson(sort_keys=true) }}{{ {none: 1} | tojson(sort_keys=true) }}"),
        r#"{"9": 2, "10": 1}{"null": 1}"#
    );
}
