//! Reads GBNF.

use super::{Node, Parsed};
use std::collections::HashMap;

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    /// Names, numbered in order of first appearance.
    names: HashMap<&'a str, usize>,
    /// Rules by number, each with the line that first names it.
    rules: Vec<(Option<Node>, usize)>,
}

/// The rules; the first is root.
pub(super) fn rules(text: &str) -> Parsed<Vec<Node>> {
    let mut parser = Parser { rest: text, line: 1, names: HashMap::new(), rules: Vec::new() };
    parser.rule_number("root");
    parser.space(true);
    while !parser.rest.is_empty() {
        parser.rule()?;
        parser.space(true);
    }
    let mut names: Vec<_> = parser.names.iter().map(|(name, at)| (*at, *name)).collect();
    names.sort_unstable();
    let found = parser.rules.into_iter().zip(names);
    let whole = found.map(|((rule, line), (at, name))| match (rule, at) {
        (Some(rule), _) => Ok(rule),
        (None, 0) => Err("there is no rule named root".to_owned()),
        (None, _) => Err(format!("line {line}: there is no rule named {name}")),
    });
    whole.collect()
}

impl<'a> Parser<'a> {
    fn wrong<T>(&self, what: impl std::fmt::Display) -> Parsed<T> {
        Err(format!("line {}: {what}", self.line))
    }

    fn rule_number(&mut self, name: &'a str) -> usize {
        let next = self.rules.len();
        let number = *self.names.entry(name).or_insert(next);
        if number == next {
            self.rules.push((None, self.line));
        }
        number
    }

    /// Skips blanks and comments, line breaks too if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.rest.chars().next() {
            match c {
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                ' ' | '\t' => self.rest = &self.rest[1..],
                '\r' | '\n' if lines => {
                    self.line += usize::from(c == '\n');
                    self.rest = &self.rest[1..];
                }
                _ => return,
            }
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn name(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c));
        let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        name
    }

    fn rule(&mut self) -> Parsed<()> {
        let name = self.name();
        if name.is_empty() {
            let c = self.rest.chars().next().unwrap_or(' ');
            return self.wrong(format_args!("what is {:?} here?", c.to_string()));
        }
        self.space(false);
        if !self.take("::=") {
            return self.wrong("a rule's name must be followed by ::=");
        }
        let number = self.rule_number(name);
        if self.rules[number].0.is_some() {
            return self.wrong(format_args!("{name} is defined twice"));
        }
        self.space(true);
        self.rules[number].0 = Some(self.alternatives(false)?);
        match self.rest.chars().next() {
            None | Some('\n' | '\r') => Ok(()),
            Some(c) => self.wrong(format_args!("what is {:?} here?", c.to_string())),
        }
    }

    fn alternatives(&mut self, nested: bool) -> Parsed<Node> {
        let mut all = vec![self.sequence(nested)?];
        while self.take("|") {
            self.space(true);
            all.push(self.sequence(nested)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Or(all) })
    }

    fn sequence(&mut self, nested: bool) -> Parsed<Node> {
        let mut parts = Vec::new();
        while let Some(c) = self.rest.chars().next() {
            let part = match c {
                '"' => self.text()?,
                '[' => self.class()?,
                '(' => self.group()?,
                '.' => {
                    self.rest = &self.rest[1..];
                    Node::Any
                }
                '<' | '!' => return self.wrong("names of tokens are not supported"),
                '*' | '+' | '?' | '{' => {
                    let (least, most) = self.repetition()?;
                    match parts.pop() {
                        None => return self.wrong("nothing to repeat"),
                        Some(Node::Repeat(..)) => return self.wrong("a repetition of a repetition"),
                        Some(part) => Node::Repeat(Box::new(part), least, most),
                    }
                }
                c if c.is_ascii_alphanumeric() => {
                    let name = self.name();
                    Node::Rule(self.rule_number(name))
                }
                _ => break,
            };
            parts.push(part);
            self.space(nested);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Seq(parts) })
    }

    fn group(&mut self) -> Parsed<Node> {
        self.rest = &self.rest[1..];
        self.space(true);
        // A node of its own, so that a repetition of the group repeats all of it.
        let inner = Node::Seq(vec![self.alternatives(true)?]);
        if !self.take(")") {
            return self.wrong("a parenthesis without its other");
        }
        Ok(inner)
    }

    fn repetition(&mut self) -> Parsed<(u32, Option<u32>)> {
        for (sign, range) in [("*", (0, None)), ("+", (1, None)), ("?", (0, Some(1)))] {
            if self.take(sign) {
                return Ok(range);
            }
        }
        let Some(end) = self.rest.find('}') else { return self.wrong("a { without its }") };
        let (text, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        let inner = &text[1..end];
        let (least, most) = match inner.split_once(',') {
            None => (inner.trim().parse().ok(), inner.trim().parse().ok().map(Some)),
            Some((least, most)) if most.trim().is_empty() => (least.trim().parse().ok(), Some(None)),
            Some((least, most)) => (least.trim().parse().ok(), most.trim().parse().ok().map(Some)),
        };
        match (least, most) {
            (Some(least), Some(most)) if most.is_none_or(|most| most >= least) => Ok((least, most)),
            _ => self.wrong(format_args!("{text} is no repetition")),
        }
    }

    fn text(&mut self) -> Parsed<Node> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        loop {
            if self.take("\"") {
                return Ok(Node::Text(text));
            }
            match self.char()? {
                Some(c) => text.push(c),
                None => return self.wrong("a text without an end"),
            }
        }
    }

    fn class(&mut self) -> Parsed<Node> {
        self.rest = &self.rest[1..];
        let (negated, mut ranges) = (self.take("^"), Vec::new());
        while !self.take("]") {
            let Some(first) = self.char()? else { return self.wrong("a class without an end") };
            let ranged = self.rest.starts_with('-') && !self.rest.starts_with("-]") && self.take("-");
            let last = if ranged { self.char()? } else { Some(first) };
            match last {
                None => return self.wrong("a class without an end"),
                Some(last) if last < first => {
                    return self.wrong(format_args!("the class goes from {first:?} down to {last:?}"));
                }
                Some(last) => ranges.push((first, last)),
            }
        }
        if ranges.is_empty() {
            return self.wrong("an empty class");
        }
        Ok(Node::Class { negated, ranges })
    }

    /// A character of a text or class; None at the end of the line.
    fn char(&mut self) -> Parsed<Option<char>> {
        let mut chars = self.rest.chars();
        let c = match chars.next() {
            None | Some('\n') => return Ok(None),
            Some('\\') => {
                let Some(escape) = chars.next() else { return Ok(None) };
                self.rest = chars.as_str();
                return self.escaped(escape).map(Some);
            }
            Some(c) => c,
        };
        self.rest = chars.as_str();
        Ok(Some(c))
    }

    fn escaped(&mut self, escape: char) -> Parsed<char> {
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return self.wrong(format_args!("\\{escape} is no escape")),
        };
        let hex = self.rest.get(..digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let Some(c) = code else {
            return self.wrong(format_args!("\\{escape} needs {digits} digits of a character"));
        };
        self.rest = &self.rest[digits..];
        Ok(c)
    }
}
