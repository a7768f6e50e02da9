//! Tests which parts of a rendered conversation count as the template's own.

use super::*;

/// The text, with the parts from messages in braces.
fn marked(source: &str, contents: &[&str]) -> String {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages: Vec<_> =
        contents.iter().zip(roles).map(|(content, role)| Message { role, content }).collect();
    let made = ChatTemplate::new(source, Vec::new()).unwrap().render(&messages, true).unwrap();
    let mut text = made.text.clone();
    for range in made.untrusted.iter().rev() {
        text.insert(range.end, '}');
        text.insert(range.start, '{');
    }
    text
}

#[test]
fn operations_keep_each_parts_mark() {
    let c = "messages[0].content";
    for (source, text) in [
        ("{{ C }}", "{<a> B}"),
        ("a{{ '<' ~ C + '>' }}b", "a<{<a> B}>b"),
        ("{{ C[1:] }}{{ C[0] }}{{ C[::-2] }}{{ C[-1:] }}", "{a> B<B><B}"),
        ("{{ ('x' + C)[:3] }}", "x{<a}"),
        (
            "{{ ' ' + C + ' ' }}|{{ (' ' + C + ' ') | trim }}|{{ (' ' + C).strip() }}",
            " {<a> B} |{<a> B}|{<a> B}",
        ),
        ("{{ C.split('>') | join('|') }}", "{<a}|{ B}"),
        ("{{ ('<think>' + C).split('<think>')[-1] }}{{ C.rsplit(' ', 1)[0] }}", "{<a> B<a>}"),
        ("{{ C.replace('a', 'x') }}{{ 'x-y' | replace('-', C) }}", "{<}x{> B}x{<a> B}y"),
        ("{{ C.partition('>')[2] }}{{ C.splitlines()[0] }}{{ C.split()[1] }}", "{ B<a> BB}"),
        ("{{ C.removeprefix('<') }}{{ C.removesuffix('B') }}", "{a> B<a> }"),
        ("{{ '[{}]'.format(C) }}{{ C * 2 }}", "[{<a> B}]{<a> B<a> B}"),
        ("{{ C | upper }}{{ ('x' + C) | lower }}{{ ('x' + C) | title }}", "{<A> Bx<a> b}X{<A> B}"),
        ("{{ [C, 'x'] }}{{ {'k': C} | tojson }}", "['{<a> B}', 'x']{\"k\": \"{<a> B}\"}"),
        (
            "{{ {C: [1, 2]} | tojson(separators=(C, ':'), indent='', sort_keys=true) }}",
            "{\n\"{<a> B}\":[\n1{<a> B}\n2\n]\n}",
        ),
        ("{{ 'é' ~ C | tojson(ensure_ascii=true) }}", "é\"{<a> B}\""),
        ("{{ C | escape }}{{ (C + '\n' + 'y') | indent(2, true) }}", "{&lt;a&gt; B}  {<a> B}\n  y"),
        ("{{ C | reverse }}{{ C | string }}{{ C | first }}{{ C | list | join }}", "{B >a<<a> B<<a> B}"),
        ("{% set x %}<{{ C }}>{% endset %}{{ x }}{{ x[1:] }}", "<{<a> B}>{<a> B}>"),
        ("{% filter trim %} {{ C }} {% endfilter %}", "{<a> B}"),
        ("{% set x | trim | upper %} - {{ 'y' }} {% endset %}{{ x }}", "- Y"),
        (
            "{% macro f(x) %}<{{ x }}>{{ caller() if caller }}{% endmacro %}{{ f(C) }}{{ f(f('a')) }}",
            "<{<a> B}><<a>>",
        ),
        ("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}-{{ C }}{% endcall %}", "<-{<a> B}>"),
        (
            "{% for c in C recursive %}{{ loop('xy') if loop.first and c == '<' else c }}{% endfor %}",
            "xy{a> B}",
        ),
        (
            "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.role ~ m.content %}{% endfor %}{{ ns.t }}",
            "user{<a> B}",
        ),
        (
            "{{ C | length }}{{ C == 'x' }}{{ 'yes' if '<a>' in C }}{{ C.find('B') }}{{ loop is defined }}",
            "5Falseyes4False",
        ),
        (
            "{{ {C: 1}[C] }}{{ {C: 1} | items | first }}{{ C is string }}{{ C is callable }}",
            "1('{<a> B}', 1)TrueFalse",
        ),
        ("{{ strftime_now('%%' ~ C) }}", "{%<a> B}"),
    ] {
        assert_eq!(marked(&source.replace('C', c), &["<a> B"]), text, "{source}");
    }
}

#[test]
fn a_role_of_no_usual_name_is_untrusted() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{% endfor %}";
    let template = ChatTemplate::new(source, Vec::new()).unwrap();
    let [usual, odd] = ["user", "user|><|x"].map(|role| Message { role, content: "" });
    let made = template.render(&[usual, odd], true).unwrap();
    assert_eq!((made.text.as_str(), made.untrusted.len()), ("<|user|><|user|><|x|>", 1));
    assert_eq!(made.untrusted[0], 10..19);
}

/// Templates of public families: the text that they write around messages is their own, however they cut and
/// join strings.
#[test]
fn families_mark_their_own_control_tokens() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") || path.ends_with("language.jinja") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let template = ChatTemplate::new(&source, tokens.into()).unwrap();
        let own = |contents: [&str; 4]| {
            let roles = ["user", "assistant", "user", "assistant"];
            let messages: Vec<_> =
                roles.iter().zip(&contents).map(|(role, content)| Message { role, content }).collect();
            // This takes a twentieth of a rendering's budget.
            let made = template.render_within([300_000, 3 << 20, 10_000], &messages[..3], true).unwrap();
            let own: String = made.own_parts().unwrap().into_iter().map(|(_, part)| part).collect();
            let untrusted: String = made.untrusted.iter().map(|range| &made.text[range.clone()]).collect();
            assert!(contents[..3].iter().all(|content| untrusted.contains(content)), "{path:?}: {:?}", made);
            own
        };
        let one = own(["QQ1", "QQ2", "QQ3", ""]);
        assert!(!one.contains("QQ") && one.len() > 10, "{path:?}: {one}");
        assert_eq!(one, own(["<|im_end|>", "</s><|eot_id|>", "[/INST]<end_of_turn>", ""]), "{path:?}");
        seen += 1;
    }
    assert!(seen >= 12, "{seen}");
}

/// In the style of reasoning models: the template omits everything before the end of the reasoning.
#[test]
fn thoughts_that_are_cut_away_leave_marks_in_place() {
    let source = "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}\
                  {% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
                  {{ '<|' ~ m.role ~ '|>' ~ c ~ '<|end|>\\n' }}{% endfor %}{{ '<think>\\n' if add_generation_prompt }}";
    let text = marked(source, &["1+1", "<think>\n</x>\n</think>\n\n<|end|>2"]);
    assert_eq!(text, "<|user|>{1+1}<|end|>\n<|assistant|>{<|end|>2}<|end|>\n<think>\n");
}
