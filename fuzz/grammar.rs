//! Inputs made from grammars. They reach code that byte mutations do not, since parsers refuse almost all
//! mutated inputs.

/// A number below its argument: the source of all choices.
pub type Choose<'a> = &'a mut dyn FnMut(usize) -> usize;

fn one<'a>(choose: Choose, of: &[&'a str]) -> &'a str {
    of[choose(of.len())]
}

/// A chat template of statements that run long, grow, nest and share.
pub fn template(choose: Choose) -> String {
    let mut out = String::from("{% set ns = namespace(x=[1], y='ab', z={'k': 'v'}) %}");
    for _ in 0..1 + choose(4) {
        statement(choose, 4, &mut out);
    }
    out
}

fn statement(choose: Choose, depth: usize, out: &mut String) {
    let kind = if depth == 0 { choose(3) } else { choose(11) };
    match kind {
        0 => wrap(choose, out, "{{ ", " }}"),
        1 => {
            let name = one(choose, &["ns.x", "ns.y", "ns.z", "v"]);
            wrap(choose, out, &format!("{{% set {name} = "), " %}");
        }
        2 => out.push_str(one(choose, &["text", "<|x|>", "\n", " "])),
        3..6 => {
            let over =
                one(choose, &["range(99999)", "range(60)", "messages", "ns.x", "ns.y", "ns.z | items"]);
            let tail = one(choose, &["", " recursive", " if i"]);
            block(choose, depth, out, &format!("{{% for i in {over}{tail} %}}"), "{% endfor %}");
        }
        6 => {
            wrap(choose, out, "{% if ", " %}");
            block(choose, depth, out, "", "{% endif %}");
        }
        7 => block(choose, depth, out, "{% macro f(a, b=ns) %}", "{% endmacro %}{{ f(ns.x, ns.y) }}"),
        8 => block(choose, depth, out, "{% set v %}", "{% endset %}"),
        9 => {
            let name = one(choose, FILTERS);
            block(choose, depth, out, &format!("{{% filter {name} %}}"), "{% endfilter %}");
        }
        _ => block(choose, depth, out, "{% call f(1) %}", "{% endcall %}"),
    }
}

fn wrap(choose: Choose, out: &mut String, before: &str, behind: &str) {
    out.push_str(before);
    expression(choose, 4, out);
    out.push_str(behind);
}

fn block(choose: Choose, depth: usize, out: &mut String, before: &str, behind: &str) {
    out.push_str(before);
    for _ in 0..1 + choose(3) {
        statement(choose, depth - 1, out);
    }
    out.push_str(behind);
}

const FILTERS: &[&str] = &[
    "upper",
    "trim",
    "list",
    "length",
    "unique",
    "sort",
    "join",
    "tojson",
    "string",
    "first",
    "last",
    "reverse",
    "max",
    "items",
    "map('upper')",
    "map('length')",
    "select('odd')",
    "indent(200)",
    "escape",
    "replace('a', 'aa')",
    "title",
    "default(1)",
    "int",
    "float",
    "dictsort",
    "map(attribute='k')",
    "sort(reverse=true)",
    "capitalize",
    "batch(2)",
];
const METHODS: &[&str] = &[
    "split('a')",
    "split()",
    "upper()",
    "strip('ab')",
    "replace('', 'ab')",
    "join(ns.x)",
    "splitlines()",
    "items()",
    "get('k')",
    "count('a')",
    "index('a')",
    "cycle()",
    "cycle(1, 2)",
    "changed(ns.x)",
    "format(1, 2)",
    "title()",
    "partition('b')",
    "rsplit('a', 1)",
    "startswith(['a', 'b'])",
    "values()",
    "find('b')",
    "k",
    "previtem",
    "nextitem",
];
const OPERATORS: &[&str] = &[
    " + ", " ~ ", " * ", " == ", " != ", " < ", " in ", " not in ", " and ", " or ", " - ", " / ", " // ",
    " % ", " ** ",
];

fn expression(choose: Choose, depth: usize, out: &mut String) {
    let kind = if depth == 0 { 0 } else { choose(9) };
    match kind {
        0 => out.push_str(one(
            choose,
            &[
                "1",
                "-1",
                "99999999",
                "0.5",
                "'ab'",
                "'{} {0}'",
                "''",
                "none",
                "true",
                "ns",
                "ns.x",
                "ns.y",
                "ns.z",
                "i",
                "v",
                "loop",
                "messages",
                "messages[0].content",
                "loop.index",
                "nothing",
                "f",
                "caller",
                "range(500)",
                "f(1)",
                "loop(ns.x)",
                "caller()",
            ],
        )),
        1 => {
            expression(choose, depth - 1, out);
            out.push_str(one(choose, OPERATORS));
            expression(choose, depth - 1, out);
        }
        2 | 3 => {
            out.push('(');
            expression(choose, depth - 1, out);
            out.push_str(") | ");
            out.push_str(one(choose, FILTERS));
        }
        4 | 5 => {
            out.push('(');
            expression(choose, depth - 1, out);
            out.push_str(").");
            out.push_str(one(choose, METHODS));
        }
        6 => list(choose, depth, out, "[", "]"),
        7 => {
            out.push('(');
            expression(choose, depth - 1, out);
            out.push_str(one(
                choose,
                &[")[0]", ")[-1]", ")[::-1]", ")[1:]", ")[::2]", ")['k']", ") is odd", ") is string"],
            ));
        }
        _ => list(choose, depth, out, "{'k': ", "}"),
    }
}

/// Doubles a list repeatedly, so that its halves are shared.
fn list(choose: Choose, depth: usize, out: &mut String, before: &str, behind: &str) {
    let mut part = String::new();
    expression(choose, depth - 1, &mut part);
    let parts = if before == "[" && choose(2) == 0 { format!("{part}, {part}") } else { part };
    out.push_str(&format!("{before}{parts}{behind}"));
}

/// A pattern of parts that backtrack, look around and repeat, over few letters.
pub fn pattern(choose: Choose) -> String {
    let mut out = String::new();
    part(choose, 5, &mut out);
    out
}

fn part(choose: Choose, depth: usize, out: &mut String) {
    let kind = if depth == 0 { 0 } else { choose(8) };
    match kind {
        0 => out.push_str(one(
            choose,
            &[
                "a", "b", "ab", "\\s", "\\S", "[\\s\\S]", "\\p{L}", "\\p{N}", "[^a]", ".", "(?i:A)", "^",
                "$", "\\b", "\\z", "",
            ],
        )),
        1 | 2 => {
            part(choose, depth - 1, out);
            part(choose, depth - 1, out);
        }
        3 => group(choose, depth, out, "(?:", "|"),
        4 | 5 => {
            group(choose, depth, out, "(?:", "");
            out.push_str(one(choose, &["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{2,}", "*+", "++"]));
        }
        6 => {
            let open = one(choose, &["(?=", "(?!", "(?<=", "(?<!"]);
            group(choose, depth, out, open, "");
        }
        _ => group(choose, depth, out, "(?>", "|"),
    }
}

/// A group of one part, or of two with `between` them.
fn group(choose: Choose, depth: usize, out: &mut String, open: &str, between: &str) {
    out.push_str(open);
    part(choose, depth - 1, out);
    if !between.is_empty() {
        out.push_str(between);
        part(choose, depth - 1, out);
    }
    out.push(')');
}
