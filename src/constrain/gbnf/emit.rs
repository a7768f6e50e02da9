//! Writes rules as Lark.

use super::Node;
use std::fmt::Write;

/// Of a rule, while and after its references are followed.
#[derive(Clone, Copy, PartialEq)]
enum Found {
    Not,
    Open,
    Regular,
    /// It leads to itself, or to a rule that does.
    Recursive,
}

struct Emitter<'a> {
    rules: &'a [Node],
    found: Vec<Found>,
    /// Terminals made of runs within recursive rules.
    runs: Vec<String>,
}

/// Of at least one rule; the output matches the first.
pub fn lark(rules: &[Node]) -> String {
    let mut emitter = Emitter { rules, found: vec![Found::Not; rules.len()], runs: Vec::new() };
    emitter.regular_rule(0);
    let mut out = format!("start: {}\n", emitter.rule_name(0));
    let reached = |found: &[Found], want| (0..rules.len()).filter(|&n| found[n] == want).collect::<Vec<_>>();
    for n in reached(&emitter.found, Found::Recursive) {
        let body = emitter.rule_body(&rules[n]);
        let _ = writeln!(out, "r{n}: {body}");
    }
    for (n, run) in emitter.runs.iter().enumerate() {
        let _ = writeln!(out, "T{n}: {run}");
    }
    for n in reached(&emitter.found, Found::Regular) {
        let _ = writeln!(out, "R{n}: {}", emitter.terminal(&rules[n]));
    }
    out
}

impl Emitter<'_> {
    fn regular_rule(&mut self, n: usize) -> bool {
        match self.found[n] {
            Found::Not => {
                self.found[n] = Found::Open;
                let rules = self.rules;
                let regular = self.regular(&rules[n]);
                self.found[n] = if regular { Found::Regular } else { Found::Recursive };
                regular
            }
            found => found == Found::Regular,
        }
    }

    /// Follows all references, also behind one that is recursive.
    fn regular(&mut self, node: &Node) -> bool {
        match node {
            Node::Text(_) | Node::Class { .. } | Node::Any => true,
            Node::Rule(n) => self.regular_rule(*n),
            Node::Seq(all) | Node::Or(all) => all.iter().filter(|node| !self.regular(node)).count() == 0,
            Node::Repeat(node, ..) => self.regular(node),
        }
    }

    fn rule_name(&self, n: usize) -> String {
        format!("{}{n}", if self.found[n] == Found::Regular { 'R' } else { 'r' })
    }

    /// A part of a recursive rule.
    fn rule_body(&mut self, node: &Node) -> String {
        if self.regular(node) {
            return self.run(self.terminal(node));
        }
        match node {
            Node::Seq(all) => self.rule_sequence(all),
            Node::Or(all) => {
                let all: Vec<_> = all.iter().map(|node| self.rule_body(node)).collect();
                format!("({})", all.join(" | "))
            }
            Node::Repeat(node, least, most) => {
                let inner = self.rule_body(node);
                format!("{inner}{}", times(*least, *most))
            }
            Node::Rule(n) => self.rule_name(*n),
            Node::Text(_) | Node::Class { .. } | Node::Any => self.terminal(node),
        }
    }

    /// Neighbors that are regular become one terminal.
    fn rule_sequence(&mut self, all: &[Node]) -> String {
        let (mut parts, mut run) = (Vec::new(), Vec::new());
        for node in all {
            if self.regular(node) {
                run.push(self.terminal(node));
                continue;
            }
            if !run.is_empty() {
                parts.push(self.run(run.join(" ")));
                run.clear();
            }
            parts.push(self.rule_body(node));
        }
        if !run.is_empty() {
            parts.push(self.run(run.join(" ")));
        }
        if parts.len() == 1 { parts.remove(0) } else { format!("({})", parts.join(" ")) }
    }

    /// The name of a terminal that is `body`.
    fn run(&mut self, body: String) -> String {
        let known = self.runs.iter().position(|run| *run == body);
        let n = known.unwrap_or_else(|| {
            self.runs.push(body);
            self.runs.len() - 1
        });
        format!("T{n}")
    }

    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Text(text) => quoted(text),
            Node::Class { negated, ranges } => class(*negated, ranges),
            Node::Any => "/(?s:.)/".into(),
            Node::Rule(n) => self.rule_name(*n),
            Node::Seq(all) => match &all[..] {
                [] => "\"\"".into(),
                [one] => format!("({})", self.terminal(one)),
                all => all.iter().map(|node| self.terminal(node)).collect::<Vec<_>>().join(" "),
            },
            Node::Or(all) => all.iter().map(|node| self.terminal(node)).collect::<Vec<_>>().join(" | "),
            Node::Repeat(node, least, most) => format!("{}{}", self.terminal(node), times(*least, *most)),
        }
    }
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A text as JSON, which is how Lark has it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let mut out = String::from(if negated { "/[^" } else { "/[" });
    for (first, last) in ranges {
        let _ = write!(out, "\\u{{{:x}}}", u32::from(*first));
        if last > first {
            let _ = write!(out, "-\\u{{{:x}}}", u32::from(*last));
        }
    }
    out.push_str("]/");
    out
}
