//! Tests the parser with answers in each format, which a seeded generator makes of known parts.

mod dialects;
mod harmony;
mod tags;

use super::format::FORMATS;
use super::*;

/// The parser's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parsed {
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    ids: Vec<String>,
}

impl Sink for Parsed {
    fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }
    fn reasoning(&mut self, text: &str) {
        self.reasoning.push_str(text);
    }
    fn call(&mut self, index: u32, id: &str, name: &str) {
        assert_eq!(index as usize, self.calls.len());
        self.calls.push((name.into(), String::new()));
        self.ids.push(id.into());
    }
    fn arguments(&mut self, index: u32, text: &str) {
        assert_eq!(index as usize + 1, self.calls.len());
        self.calls.last_mut().unwrap().1.push_str(text);
    }
}

/// A tool whose parameters `t0`, `t1`, ... are text.
fn known(name: &str) -> Known {
    let parameters = (0..4).flat_map(|i| [(format!("t{i}"), Kind::Text), (format!("n{i}"), Kind::Nullable)]);
    Known { name: name.into(), parameters: parameters.collect() }
}

fn parts(format: &str) -> ReplyParts {
    ReplyParts {
        format: format_named(format),
        thoughts: thoughts_named("think"),
        thinking: false,
        begun: false,
        tools: ["f", "get_weather", "a.b-c"].map(known).to_vec(),
        seed: 7,
    }
}

/// Parses `pieces` one after the other. Those that are markers among `controls` count as control tokens.
fn parse_as(parts: ReplyParts, controls: &[&str], pieces: &[&str]) -> Parsed {
    let mut reply = Reply::new(parts, &|mark| controls.contains(&mark));
    let mut parsed = Parsed::default();
    for piece in pieces {
        reply.reserve(piece.len()).unwrap();
        match reply.is_mark(piece.as_bytes()) {
            true => reply.mark(piece.as_bytes(), &mut parsed),
            false => reply.push(piece, &mut parsed),
        }
    }
    reply.finish(false, &mut parsed);
    assert_eq!(reply.calls() as usize, parsed.calls.len());
    parsed
}

/// Parses `text` whole, cut in two at every position, and character by character, and checks that the results
/// agree.
fn parse_parts(parts: ReplyParts, text: &str) -> Parsed {
    let whole = parse_as(parts.clone(), &[], &[text]);
    for (at, _) in text.char_indices() {
        let cut = parse_as(parts.clone(), &[], &[&text[..at], &text[at..]]);
        assert_eq!(cut, whole, "{text:?} cut at {at}");
    }
    let each: Vec<String> = text.chars().map(String::from).collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    assert_eq!(parse_as(parts, &[], &each), whole, "{text:?} by characters");
    whole
}

fn parse(format: &str, text: &str) -> Parsed {
    parse_parts(parts(format), text)
}

fn parsed(text: &str, calls: &[(&str, &str)]) -> Parsed {
    let ids = (0..calls.len()).map(|i| id(7, i as u32)).collect();
    let calls = calls.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string())).collect();
    Parsed { text: text.into(), reasoning: String::new(), calls, ids }
}

#[test]
fn calls_in_each_format() {
    let weather = [("get_weather", r#"{"city": "Paris"}"#)];
    let both = [weather[0], ("f", "{}")];
    for (format, text, expected) in [
        (
            "qwen3_coder",
            "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n\
             <tool_call>\n<function=f>\n</function>\n</tool_call>\nSo.",
            parsed("I look.\nSo.", &both),
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
            parsed("", &weather),
        ),
        (
            "hermes",
            "I look.\n\n<tool_call>{\"arguments\":{\"city\": \"Paris\"},\"name\":\"get_weather\"}</tool_call>\n<tool_call>\n\
             {\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n\nSo.\n",
            parsed("I look.\nSo.\n", &both),
        ),
        ("hermes", "<tool_call>{\"name\": \"unknown\"}", parsed("", &[("unknown", "{}")])),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
            parsed("", &both),
        ),
        (
            "llama3",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
            parsed("", &weather),
        ),
        (
            "llama3",
            "\n <|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
            parsed("", &weather),
        ),
        (
            "llama3",
            " {\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"f\", \"parameters\": {}}",
            parsed("", &both),
        ),
        ("llama3", "[get_weather(city='Paris'), f()]", parsed("", &both)),
        (
            "mistral",
            "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]",
            parsed("", &weather),
        ),
        (
            "mistral",
            "Hm[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"abc123XYZ\"}, \
             {\"name\": \"f\", \"arguments\": {}}]",
            parsed("Hm", &both),
        ),
        (
            "mistral11",
            "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]f[ARGS]{}",
            parsed("", &both),
        ),
        (
            "mistral11",
            "[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{\"city\": \"Paris\"}",
            parsed("", &weather),
        ),
        ("mistral11", "[TOOL_CALLS]get_weather {\"city\": \"Paris\"}", parsed("", &weather)),
        ("gemma", "[get_weather(city=\"Paris\"), f()]", parsed("", &both)),
        (
            "gemma",
            "I call.\n```tool_code\nget_weather(city=\"Paris\")\n```\nDone",
            parsed("I call.\nDone", &weather),
        ),
        (
            "gemma",
            "```json\n[{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}]\n```",
            parsed("", &weather),
        ),
        (
            "gemma",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}\n",
            parsed("", &weather),
        ),
    ] {
        assert_eq!(parse(format, text), expected, "{format}: {text}");
    }
}

#[test]
fn what_is_no_call_is_text() {
    for (format, text) in [
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"f\""),
        ("hermes", "a <tool_call"),
        ("hermes", "<tool_call>f()</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": []}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"f\", \"other\": 1}</tool_call>"),
        ("hermes", "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": }</tool_call>"),
        ("hermes", "<tool_call>{\"arguments\": {\"a\": 01}, \"name\": \"f\"}</tool_call>"),
        ("hermes", "<tool_call>{}</tool_call>"),
        ("hermes", "\n\n <tool_call>\n\n</tool_call> \n"),
        ("hermes", "{\"name\": \"f\", \"arguments\": {}}"),
        ("hermes", "</tool_call>\n\n</think>"),
        ("hermes", "<tool_call>{\"name\": \"\\u0066\"}</tool_call>"),
        ("llama3", "{\"name\": \"Bob\", \"parameters\": {}}"),
        ("llama3", "{\"city\": \"Paris\"}"),
        ("llama3", "[1, 2, 3]"),
        ("llama3", "[other(a=1)]"),
        ("llama3", "f(a=1)"),
        ("llama3", "Text {\"name\": \"f\", \"parameters\": {}}"),
        ("llama3", "<|python_tag|>print('x')"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS] []"),
        ("mistral", "[TOOL_CALLS] [1]"),
        ("mistral", "[TOOL_CALLS]f"),
        ("mistral", "[TOOL_CALLS]f[ARGS]"),
        ("mistral", "[TOOL_CALLS]f[ARG]{}"),
        ("mistral", "[TOOL_CALLS]f[ARGS][]"),
        ("mistral", "[TOOL_CALLS]f(a=1)"),
        ("gemma", "```tool_code\nf(1)\n```"),
        ("gemma", "```json\n{\"a\": 1}\n```"),
        ("gemma", "```python\nf(a=1)\n```"),
        ("gemma", "[f(a=g())]"),
        ("gemma", "[f(a='x"),
        ("gemma", " \n\t"),
    ] {
        assert_eq!(parse(format, text), parsed(text, &[]), "{format}: {text}");
    }
}

/// Arguments that are nearly JSON become JSON.
#[test]
fn calls_that_are_nearly_json() {
    for (arguments, json) in [
        ("{\"city\": \"a\nb\"}", r#"{"city": "a\nb"}"#),
        (r#"{"city": "C:\Users\'x"}"#, r#"{"city": "C:\\Users'x"}"#),
        (r#"{"city": "x", "on": True, "by": None,}"#, r#"{"city": "x", "on": true, "by": null}"#),
        ("null", "{}"),
    ] {
        let weather = [("get_weather", json)];
        let text =
            format!("<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {arguments}}}\n</tool_call>");
        assert_eq!(parse("hermes", &text), parsed("", &weather), "{text}");
        let text =
            format!("<tool_call>[{{\"arguments\": {arguments}, \"name\": \"get_weather\"}}]</tool_call>");
        assert_eq!(parse("hermes", &text), parsed("", &weather), "{text}");
    }
    let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\\";
    assert_eq!(parse("hermes", cut), parsed("", &[("f", "{\"a\": \"x")]));
}

/// Emitted parts stay emitted, and the rest is text.
#[test]
fn calls_that_go_wrong_late() {
    for (format, text, rest, calls) in [
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>",
            "1}}</tool_call>",
            &[("f", "{\"a\": 0")][..],
        ),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1", "", &[("f", "{\"a\": [1")]),
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"x\": 1}</tool_call>",
            ", \"x\": 1}</tool_call>",
            &[("f", "{}")],
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n}\n</tool_call>",
            "}\n</tool_call>",
            &[("f", "{}")],
        ),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_", "</tool_", &[("f", "{}")]),
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}} <tool_call>{\"name\": \"a.b-c\"}</tool_call>",
            " ",
            &[("f", "{}"), ("a.b-c", "{}")],
        ),
        (
            "hermes",
            "<tool_call>oops<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
            "<tool_call>oops",
            &[("f", "{}")],
        ),
        (
            "hermes",
            "<tool_call>{\"arguments\": {\"x\": \"<tool_call>{\"name\": \"f\"}</tool_call>",
            "<tool_call>{\"arguments\": {\"x\": \"",
            &[("f", "{}")],
        ),
        ("llama3", "{\"name\": \"f\", \"parameters\": {}}; and", "; and", &[("f", "{}")]),
        ("llama3", "{\"name\": \"f\", \"parameters\": {}}\nand", "and", &[("f", "{}")]),
        ("llama3", "[f(a=1), other", ", other", &[("f", "{\"a\": 1}")]),
        ("mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"nam", ", {\"nam", &[("f", "{}")]),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS", "[TOOL_CALLS]g[ARGS", &[("f", "{}")]),
    ] {
        assert_eq!(parse(format, text), parsed(rest, calls), "{format}: {text}");
    }
}

#[test]
fn reasoning_is_told_apart() {
    let parsed = |reasoning: &str, text: &str| Parsed { reasoning: reasoning.into(), ..parsed(text, &[]) };
    for (text, expected) in [
        ("<think>\nhm\n\nso\n</think>\n\nYes.\n", parsed("hm\n\nso", "Yes.\n")),
        ("\n<think></think>Yes", parsed("", "Yes")),
        ("<think>a < b </thin k>", parsed("a < b </thin k>", "")),
        ("<think>cut\n", parsed("cut\n", "")),
        ("Yes <think>no</think>", parsed("", "Yes <think>no</think>")),
        ("<think>a</think><think>b</think>", parsed("a", "<think>b</think>")),
        ("<thin", parsed("", "<thin")),
        ("\n\nYes\n\n", parsed("", "\n\nYes\n\n")),
    ] {
        assert_eq!(parse("hermes", text), expected, "{text}");
        assert_eq!(parse_parts(ReplyParts { format: None, ..parts("") }, text), expected, "{text}");
    }
    let begun = |text: &str| parse_parts(ReplyParts { thinking: true, ..parts("llama3") }, text);
    assert_eq!(begun("\nhm\n</think>\n\nYes"), parsed("hm", "Yes"));
    assert_eq!(begun("<think>hm<think>"), parsed("hm<think>", ""), "the first is the prompt's, once more");
    let call = begun("hm</think>\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}");
    assert_eq!((&*call.reasoning, &*call.text, &*call.calls[0].1), ("hm", "", "{\"a\": 1}"));
    let brackets = ReplyParts { thoughts: thoughts_named("mistral"), ..parts("mistral") };
    assert_eq!(parse_parts(brackets, "[THINK]hm[/THINK]Yes"), parsed("hm", "Yes"));
    let channel = ReplyParts { thoughts: thoughts_named("gemma4"), format: None, ..parts("") };
    for (text, expected) in [
        ("<|channel>thought\nhm\n<channel|>Yes", parsed("hm", "Yes")),
        ("<|channel>thought\n<channel|>Yes", parsed("", "Yes")),
        ("<|channel>thoughtful<channel|>Yes", parsed("thoughtful", "Yes")),
        ("<|channel>\nthought\nthought\n<channel|>Yes", parsed("thought", "Yes")),
        ("<|channel>though", parsed("though", "")),
    ] {
        assert_eq!(parse_parts(channel.clone(), text), expected, "{text}");
    }
    let controls = ["<|channel>", "<channel|>"];
    let pieces = ["<|channel>", "thou", "ght\nhm", "<channel|>", "Yes"];
    assert_eq!(parse_as(channel, &controls, &pieces), parsed("hm", "Yes"));
    let none = ReplyParts { thoughts: None, format: None, ..parts("") };
    assert_eq!(parse_parts(none, "\n<think>hm</think>"), parsed("", "\n<think>hm</think>"));
}

#[test]
fn markers_that_are_control_tokens_are_only_those() {
    let controls = ["[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"];
    let parse = |pieces: &[&str]| parse_as(parts("mistral"), &controls, pieces);
    let call = [("f", "{\"a\": 1}")];
    assert_eq!(parse(&["Hm\n", "[TOOL_CALLS]", "f", "[ARGS]", "{\"a\"", ": 1}"]), parsed("Hm", &call));
    assert_eq!(
        parse(&["[TOOL_CALLS]", " [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "[TOOL_CALLS]", "f {}"]),
        parsed("", &[call[0], ("f", "{}")])
    );
    // Spelled out by other tokens.
    assert_eq!(parse(&["[TOOL_", "CALLS]f{}"]), parsed("[TOOL_CALLS]f{}", &[]));
    assert_eq!(
        parse(&["[TOOL_CALLS]", "f", "[ARGS", "]{}"]),
        parsed("", &[("f", "{}")]),
        "either way behind a name"
    );
    // Control tokens that are out of place are left out.
    assert_eq!(parse(&["a", "[ARGS]", "b", "</think>", "c"]), parsed("abc", &[]));
    assert_eq!(parse(&["[TOOL_CALLS]", "[TOOL_CALLS]", "f{}"]), parsed("[TOOL_CALLS]", &[("f", "{}")]));
    assert_eq!(parse(&["[TOOL_CALLS]", "f", "</think>", "x"]), parsed("[TOOL_CALLS]fx", &[]));
    let thoughts = parse(&["<think>", "\nhm\n", "</think>", "\n\nYes"]);
    assert_eq!((&*thoughts.reasoning, &*thoughts.text), ("hm", "Yes"));
}

#[test]
fn ids_are_nine_letters_or_digits_and_differ() {
    let mut all = std::collections::BTreeSet::new();
    for seed in 0..100 {
        for index in 0..100 {
            let id = id(seed, index);
            assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
            all.insert(id);
        }
    }
    assert_eq!(all.len(), 10_000);
}

#[test]
fn templates_tell_their_format() {
    let named = |template: &str| format_of(template).map(|format| format.name);
    assert_eq!(named("{{ '[TOOL_CALLS]' ~ name ~ '[ARGS]' }}"), Some("mistral11"));
    assert_eq!(named("{{ '[TOOL_CALLS] [' }}"), Some("mistral"));
    assert_eq!(named("<|start_header_id|> <tool_call>"), Some("hermes"));
    assert_eq!(named("{{ '<tool_call>\\n<function=' ~ name }}"), Some("qwen3_coder"));
    // Llama's own calls have tags, but not this block.
    assert_eq!(named("<|start_header_id|> <function=f>{}</function>"), Some("llama3"));
    assert_eq!(named("<|start_header_id|>"), Some("llama3"));
    assert_eq!(named("respond only with <|tool_call|> followed by a JSON list"), Some("granite"));
    assert_eq!(named("List of tools: <|tool_list_start|>["), Some("lfm2"));
    assert_eq!(named("'<tool_calls>['"), Some("hunyuan_a13b"));
    assert_eq!(named("<tool_calls><tool_call>"), Some("hunyuan"));
    assert_eq!(named("List of tools: ["), Some("lfm2"));
    assert_eq!(named("'List of tools: ' + (tools | tojson)"), Some("lfm2"));
    assert_eq!(named("wrap them in <function_calls></function_calls>"), Some("olmo3"));
    assert_eq!(named("<|tool_call>call:' + name + '{ }<tool_call|>"), Some("gemma4"));
    assert_eq!(named("<|tool_call_start|>\\n```python"), Some("minicpm"));
    assert_eq!(named("<|tool|> and <|/tool|>"), Some("phi4_mini"));
    assert_eq!(named("<tool_call>{name}\n<arg_key>"), Some("glm"));
    assert_eq!(named("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json"), Some("deepseek_v3"));
    assert_eq!(named("<｜tool▁calls▁begin｜>"), Some("deepseek_v31"));
    assert_eq!(named("<|start|>developer<|message|> <|channel|>"), Some("harmony"));
    assert_eq!(thoughts_of("<|channel|> <|end|>").map(|tags| tags.name), Some("harmony"));
    assert_eq!(thoughts_of("<|thought_end|>").map(|tags| tags.name), Some("minicpm"));
    assert_eq!(thoughts_of("<｜hy_User｜> <think>\n\n</think>").map(|tags| tags.name), Some("hunyuan"));
    assert_eq!(named("prefix calls with functools["), Some("phi4_mini"));
    assert_eq!(named("<seed:tool_call>\n<function="), Some("seed_oss"));
    assert_eq!(thoughts_of("</seed:think>").map(|tags| tags.name), Some("seed"));
    assert_eq!(named("<start_of_turn>"), Some("gemma"));
    assert_eq!(named("{{ messages }}"), None);
    assert_eq!(thoughts_of("c.split('</think>')").map(|tags| tags.name), Some("think"));
    assert_eq!(thoughts_of("text.split('<channel|>')").map(|tags| tags.name), Some("gemma4"));
    assert_eq!(thoughts_of("{{ messages }}"), None);
    for format in &FORMATS {
        assert_eq!(format_named(format.name), Some(format));
    }
}

/// Pseudo-random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn value(&mut self, depth: usize) -> serde_json::Value {
        let leaves = [
            "\"x\"",
            "\"it's \\\"q\\\" \\n é 東\"",
            "\"<tool_call>\"",
            "\"</tool_call>\"",
            "\"}]);\"",
            "\"[TOOL_CALLS]\"",
            "12",
            "-0.5",
            "1e30",
            "true",
            "null",
        ];
        match self.below(if depth == 0 { 1 } else { 4 }) {
            0 | 1 => serde_json::from_str(self.of(&leaves)).unwrap(),
            2 => (0..self.below(3)).map(|_| self.value(depth - 1)).collect::<Vec<_>>().into(),
            _ => self.object(depth - 1).into(),
        }
    }

    fn object(&mut self, depth: usize) -> serde_json::Map<String, serde_json::Value> {
        let key = |value: &serde_json::Value| if value.is_string() { "t" } else { "k" };
        (0..self.below(4))
            .map(|i| (i, self.value(depth)))
            .map(|(i, v)| (format!("{}{i}", key(&v)), v))
            .collect()
    }
}

/// A value in Python's syntax.
fn python(value: &serde_json::Value) -> String {
    use serde_json::Value::*;
    match value {
        Null => "None".into(),
        Bool(true) => "True".into(),
        Bool(false) => "False".into(),
        Number(number) => number.to_string(),
        String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n")),
        Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(k, v)| format!("'{k}': {}", python(v))).collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

type Calls = Vec<(&'static str, serde_json::Map<String, serde_json::Value>)>;

/// Calls in one of the ways in which models of the family write them.
fn written(format: &str, calls: &Calls, dice: &mut Dice) -> String {
    let json = |arguments: &serde_json::Map<_, _>| serde_json::to_string(arguments).unwrap();
    let object = |key: &str, (name, arguments): &(&str, serde_json::Map<_, _>)| {
        format!("{{\"name\": \"{name}\", \"{key}\": {}}}", json(arguments))
    };
    let objects = |key: &str| calls.iter().map(|call| object(key, call)).collect::<Vec<_>>();
    let lines = |between: &str| {
        let calls = calls.iter().map(|(name, arguments)| {
            let arguments: Vec<_> = arguments.iter().map(|(k, v)| format!("{k}={}", python(v))).collect();
            format!("{name}({})", arguments.join(", "))
        });
        calls.collect::<Vec<_>>().join(between)
    };
    let pythons = || format!("[{}]", lines(", "));
    match (format, dice.below(2)) {
        ("qwen3_coder", way) => calls.iter().map(|call| tags::written(call, way == 1, "tool_call")).collect(),
        ("seed_oss", way) => {
            calls.iter().map(|call| tags::written(call, way == 1, "seed:tool_call")).collect()
        }
        ("harmony", way) => {
            let kind = [" <|constrain|>json", "<|constrain|>json"][way];
            let one = |(name, arguments): &(&str, serde_json::Map<_, _>)| {
                let header = format!("<|channel|>commentary to=functions.{name}{kind}");
                format!("<|start|>assistant{header}<|message|>{}<|call|>", json(arguments))
            };
            calls.iter().map(one).collect()
        }
        ("phi4_mini", way) => {
            let list = objects(["arguments", "parameters"][way]).join(", ");
            [format!("<|tool_call|>[{list}]<|/tool_call|>"), format!("functools[{list}]")][way].clone()
        }
        ("minicpm", 0) => {
            let calls = pythons();
            format!("<|tool_call_start|>\n```python\n{calls}\n```\n<|tool_call_end|>")
        }
        ("minicpm", _) => {
            format!("<|tool_call_start|>[{}]<|tool_call_end|>", objects("arguments").join(", "))
        }
        ("glm", way) => calls.iter().map(|call| dialects::pairs(call, way == 1)).collect(),
        ("deepseek_v3", way) => {
            let one = |(name, arguments): &(&str, serde_json::Map<_, _>)| {
                let sep = "<｜tool▁sep｜>";
                format!(
                    "<｜tool▁call▁begin｜>function{sep}{name}\n```json\n{}\n```<｜tool▁call▁end｜>",
                    json(arguments)
                )
            };
            let begin = ["<｜tool▁calls▁begin｜>", ""][way];
            format!("{begin}{}<｜tool▁calls▁end｜>", calls.iter().map(one).collect::<Vec<_>>().join("\n"))
        }
        ("deepseek_v31", way) => {
            let one = |(name, arguments): &(&str, serde_json::Map<_, _>)| {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{}<｜tool▁call▁end｜>", json(arguments))
            };
            let begin = ["<｜tool▁calls▁begin｜>", ""][way];
            format!("{begin}{}<｜tool▁calls▁end｜>", calls.iter().map(one).collect::<String>())
        }
        ("hunyuan", way) => {
            let line = ["\n", ""][way];
            let one = |(name, arguments): &(&str, serde_json::Map<_, _>)| {
                format!("<tool_call>{name}\n```json\n{}\n```{line}</tool_call>{line}", json(arguments))
            };
            format!("<tool_calls>{line}{}</tool_calls>", calls.iter().map(one).collect::<String>())
        }
        ("olmo3", way) => {
            let line = ["\n", ""][way];
            format!("<function_calls>{line}{}{line}</function_calls>", lines("\n"))
        }
        ("gemma4", way) => calls.iter().map(|call| dialects::braced(call, way == 1)).collect(),
        ("granite", way) => {
            format!("{}[{}]", ["<|tool_call|>", "<tool_call>"][way], objects("arguments").join(", "))
        }
        ("hunyuan_a13b", way) => {
            let list = objects("arguments").join(", ");
            [format!("<tool_calls>[{list}]</tool_calls>"), format!("<tool_calls>\n[{list}]\n</tool_calls>\n")]
                [way]
                .clone()
        }
        ("lfm2", 0) => format!("<|tool_call_start|>{}<|tool_call_end|>", pythons()),
        ("lfm2", _) => format!("<|tool_call_start|>[{}]<|tool_call_end|>", objects("arguments").join(", ")),
        ("hermes", 0) => {
            objects("arguments").iter().map(|call| format!("<tool_call>\n{call}\n</tool_call>\n")).collect()
        }
        ("hermes", _) => {
            objects("arguments").iter().map(|call| format!("<tool_call>{call}</tool_call>")).collect()
        }
        ("mistral", _) => format!("[TOOL_CALLS] [{}]", objects("arguments").join(", ")),
        ("mistral11", sign) => {
            let sign = ["[ARGS]", "[CALL_ID]a1b2c3d4e[ARGS]"][sign];
            calls
                .iter()
                .map(|(name, arguments)| format!("[TOOL_CALLS]{name}{sign}{}", json(arguments)))
                .collect()
        }
        ("llama3", 0) => objects("parameters").join("; "),
        ("gemma", 0) => format!("```tool_code\n{}\n```", pythons()),
        _ => pythons(),
    }
}

/// Answers made of known parts: each part is recovered, however the answer is cut.
#[test]
fn generated_answers_come_back_as_they_were() {
    let mut dice = Dice(1);
    let texts = ["", "Let me look.", "a < b, [1] {x}", "Ünï 東京 🐍", "`code` \"quoted\"\n\nnext"];
    let thoughts = ["I should call f.\n\nOr not?", "a <tool_call> b", "{\"name\": \"f\"}"];
    for round in 0..600 {
        let format = FORMATS[round % FORMATS.len()].name;
        let count = dice.below(4);
        let calls: Calls =
            (0..count).map(|_| (["f", "get_weather", "a.b-c"][dice.below(3)], dice.object(3))).collect();
        let wrote = if calls.is_empty() { String::new() } else { written(format, &calls, &mut dice) };
        // Without a marker, calls are the whole answer.
        let bare = wrote.starts_with(['{', '[']) && !wrote.starts_with("[TOOL");
        let text = if bare { "" } else { dice.of(&texts) };
        let thought = if dice.below(2) == 0 { dice.of(&thoughts) } else { "" };
        let mut answer = String::new();
        if format == "harmony" {
            answer = harmony::before(thought, text);
        } else if !thought.is_empty() {
            answer = format!("<think>\n{thought}\n</think>\n\n");
        }
        let text_before = if format == "harmony" { "" } else { text };
        answer += &format!(
            "{text_before}{}{wrote}",
            if text_before.is_empty() || wrote.is_empty() { "" } else { "\n" }
        );
        let came = parse(format, &answer);
        assert_eq!((&*came.text, &*came.reasoning), (text, thought), "{format}: {answer}");
        let came: Calls = came
            .calls
            .iter()
            .zip(&calls)
            .map(|((name, json), (known, _))| {
                assert_eq!(name, known, "{answer}");
                (*known, serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json} of {answer}")))
            })
            .collect();
        assert_eq!(came, calls, "{format}: {answer}");
    }
}

/// Arbitrary answers: cuts make no difference, and emitted text and reasoning occur in the answer in this order.
#[test]
fn damaged_answers_lose_nothing() {
    let mut dice = Dice(2);
    let bits = [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "```tool_code",
        "```",
        "{\"name\": \"",
        "f",
        "\", \"arguments\": ",
        "{}",
        "}",
        "[",
        "]",
        "f(a='b')",
        "\n",
        "\"",
        ",",
        ";",
        " ",
        "{\"a\": [1, \"x\"]}",
        "é",
        "\\",
        "<function=f>",
        "<|tool_call|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<tool_calls>",
        "</tool_calls>",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<parameter=t0>",
        "</parameter>",
        "</function>",
        "<",
        "<arg_key>t0</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "```json",
        "```python",
        "functools",
        "<|/tool_call|>",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "commentary to=functions.f ",
        "<function_calls>",
        "</function_calls>",
        "<|tool_call>",
        "call:f{",
        "<|\"|>",
        "<tool_call|>",
    ];
    for round in 0..2500 {
        let format = FORMATS[round % FORMATS.len()].name;
        let answer: String = (0..1 + dice.below(12)).map(|_| dice.of(&bits)).collect();
        let came = parse(format, &answer);
        for part in [&came.text, &came.reasoning] {
            let mut rest = answer.chars();
            // Messages are separated by line breaks.
            let mut own = part.chars().filter(|c| format != "harmony" || *c != '\n');
            assert!(own.all(|c| rest.any(|r| r == c)), "{format}: {answer:?} {came:?}");
        }
        // The line breaks and backslashes of text are escaped in arguments.
        let plain = |json: &str| match format {
            "qwen3_coder" | "seed_oss" | "glm" | "gemma4" => json.replace("\\\\", "").replace("\\n", ""),
            _ => json.into(),
        };
        // Characters that are in no part belong to markers, or to the syntax around names and arguments.
        let known = |c: &char| c.is_alphanumeric();
        let parsed = came.text.clone()
            + &came.reasoning
            + &came.calls.iter().map(|(n, a)| n.clone() + &plain(a)).collect::<String>();
        let mut lost: Vec<char> = answer.chars().filter(known).collect();
        for c in parsed.chars().filter(known) {
            let at = lost
                .iter()
                .position(|l| *l == c)
                .unwrap_or_else(|| panic!("{c} is new: {answer:?} {came:?}"));
            lost.swap_remove(at);
        }
        let lost: String = lost.into_iter().collect();
        // A header is not part of an answer.
        if format == "harmony" {
            continue;
        }
        let markers =
            "toolcalltoolcallthinkthinkTOOLCALLSARGSpythontagtoolcodenameargumentsfunctionparameterseedstartendsjsonsepargkeyargvaluecallfunctioncalls"
                .repeat(12);
        assert!(lost.chars().all(|c| markers.contains(c)), "{format}: {answer:?} lost {lost}");
        if came.calls.is_empty() && came.reasoning.is_empty() && !answer.contains("think>") {
            assert_eq!(came.text, answer, "{format}");
        }
    }
}

#[test]
fn a_control_token_that_begins_a_call_ends_open_reasoning() {
    let controls = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
    let call = "\n{\"name\": \"f\", \"arguments\": {}}\n";
    let expected =
        |text: &str, reasoning: &str| Parsed { reasoning: reasoning.into(), ..parsed(text, &[("f", "{}")]) };
    let open = ReplyParts { thinking: true, ..parts("hermes") };
    let pieces = ["Hm.\n", "<tool_call>", call, "</tool_call>"];
    assert_eq!(parse_as(open.clone(), &controls, &pieces), expected("", "Hm."));
    let closed = ["<think>", "\nHm.\n", "<tool_call>", call, "</tool_call>", "\n", "</think>", "\n\nDone."];
    assert_eq!(parse_as(parts("hermes"), &controls, &closed), expected("Done.", "Hm."));
    // This does not become a call: it is reasoning, which goes on.
    let other = ["Hm. ", "<tool_call>", "[1]", "</think>", "So."];
    let reasoning = Parsed { reasoning: "Hm. <tool_call>[1]".into(), ..parsed("So.", &[]) };
    assert_eq!(parse_as(open.clone(), &controls, &other), reasoning);
    // Spelled out, it is reasoning too.
    let spelled = format!("Hm.<tool_call>{call}</tool_call></think>So.");
    let reasoning = Parsed { reasoning: format!("Hm.<tool_call>{call}</tool_call>"), ..parsed("So.", &[]) };
    assert_eq!(parse_parts(open, &spelled), reasoning);
}

#[test]
fn the_beginning_of_another_call_that_was_cut_is_no_text() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let cut = |text: &str| {
        let mut reply = Reply::new(parts("hermes"), &|_| false);
        let mut parsed = Parsed::default();
        reply.push(text, &mut parsed);
        reply.finish(true, &mut parsed);
        parsed
    };
    for rest in ["", "\n", "\n<tool", "<tool_call>", "\n<tool_call>\n{\"na"] {
        assert_eq!(cut(&format!("{call}{rest}")), parsed("", &[("f", "{}")]), "{rest:?}");
    }
    assert_eq!(cut(&format!("{call}\nSo <")), parsed("So <", &[("f", "{}")]));
    assert_eq!(cut("So <tool"), parsed("So <tool", &[]), "nothing tells that it was a call");
}
