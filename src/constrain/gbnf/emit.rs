//! Writes rules as Lark.

use super::Node;
use std::collections::HashMap;
use std::fmt::Write;

/// State of a rule, during and after following its references.
#[derive(Clone, Copy, PartialEq)]
enum Found {
    Not,
    Open,
    Regular,
    /// The rule is recursive, or refers to a rule that is.
    Recursive,
}

struct Emitter<'a> {
    rules: &'a [Node],
    found: Vec<Found>,
    /// Terminals for runs of regular parts within recursive rules, with their numbers.
    runs: HashMap<String, usize>,
}

/// Emits at least one rule; the output matches the first.
pub(super) fn lark(rules: &[Node]) -> String {
    let mut emitter = Emitter { rules, found: vec![Found::Not; rules.len()], runs: HashMap::new() };
    emitter.regular_rule(0);
    let mut out = format!("start: {}\n", emitter.rule_name(0));
    let reached = |found: &[Found], want| (0..rules.len()).filter(|&n| found[n] == want).collect::<Vec<_>>();
    for n in reached(&emitter.found, Found::Recursive) {
        let body = emitter.rule_body(&rules[n]);
        let _ = writeln!(out, "r{n}: {body}");
    }
    let mut runs: Vec<_> = emitter.runs.iter().map(|(run, n)| (*n, run)).collect();
    runs.sort_unstable();
    for (n, run) in runs {
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

    /// Follows all references, even after finding a recursive one.
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

    /// Emits a part of a recursive rule.
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

    /// Merges neighbouring regular parts into one terminal.
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

    /// The name of the terminal with this body.
    fn run(&mut self, body: String) -> String {
        let next = self.runs.len();
        format!("T{}", self.runs.entry(body).or_insert(next))
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

/// A JSON string, which is Lark's literal syntax.
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
