//! How deep a Lark grammar's rules lead into each other.
//!
//! llguidance compiles a rule within the one that names it. An error within a rule is wrapped anew on each level. If
//! the environment asks for backtraces, each wrapper captures the whole stack: 4,000 levels take a minute, in one step
//! that `text::watch` cannot stop. The environment belongs to the host, and std reads it once, so this module bounds
//! such grammars.

use super::source::refused;
use crate::base::Result;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::HashMap;

/// Limit on the levels while errors capture backtraces; 0.1 s at this limit.
const MOST_LEVELS: usize = 400;

/// Fails with `InvalidArgument` if an error in `lark` could capture too many frames.
pub(super) fn check(lark: &str) -> Result<()> {
    let captures = Backtrace::capture().status() == BacktraceStatus::Captured;
    if captures && levels(lark) > MOST_LEVELS {
        return Err(refused(format!(
            "its rules lead more than {MOST_LEVELS} levels deep, too many for errors with backtraces; unset \
             RUST_BACKTRACE, or set RUST_LIB_BACKTRACE to 0"
        )));
    }
    Ok(())
}

/// The most rules that are being compiled at once.
fn levels(lark: &str) -> usize {
    let rules = rules(lark);
    let numbers: HashMap<&str, usize> = rules.iter().enumerate().map(|(n, (name, _))| (*name, n)).collect();
    let (mut seen, mut deepest) = (vec![false; rules.len()], 0);
    let first = numbers.get("start").copied();
    for root in first.into_iter().chain(0..rules.len()) {
        // Rules being compiled, and how many of the names in each have been followed.
        let mut open = Vec::new();
        if !std::mem::replace(&mut seen[root], true) {
            open.push((root, 0));
            deepest = deepest.max(1);
        }
        while let Some((rule, at)) = open.last_mut() {
            let Some(name) = rules[*rule].1.get(*at) else {
                open.pop();
                continue;
            };
            *at += 1;
            if let Some(&next) = numbers.get(name)
                && !std::mem::replace(&mut seen[next], true)
            {
                open.push((next, 0));
            }
            deepest = deepest.max(open.len());
        }
    }
    deepest
}

/// Each rule's name, and the names in it.
fn rules(lark: &str) -> Vec<(&str, Vec<&str>)> {
    let mut rules: Vec<(&str, Vec<&str>)> = Vec::new();
    let bytes = lark.as_bytes();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - at);
            }
            quote @ (b'"' | b'/') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            byte if is_name(&byte) => {
                let length = bytes[at..].iter().position(|byte| !is_name(byte)).unwrap_or(bytes.len() - at);
                let name = &lark[at..at + length];
                at += length;
                match (body(&bytes[at..]), rules.last_mut()) {
                    (Some(body), _) => {
                        rules.push((name, Vec::new()));
                        at += body;
                    }
                    (None, Some((_, names))) => names.push(name),
                    (None, None) => {}
                }
            }
            _ => at += 1,
        }
    }
    rules
}

/// The text after a rule's name, from its body on: after a colon, which may follow a priority or attributes in
/// brackets. None if this is not the rule's definition.
fn body(behind: &[u8]) -> Option<usize> {
    let (mut at, mut open) = (0, 0usize);
    while let Some(byte) = behind.get(at) {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.checked_sub(1)?,
            b':' if open == 0 => return (behind.get(at + 1) != Some(&b':')).then_some(at + 1),
            b' ' | b'\t' | b'.' | b'0'..=b'9' => {}
            _ if open > 0 && *byte != b'\n' => {}
            _ => return None,
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn levels_are_rules_within_rules() {
        for (lark, wanted) in [
            ("start: \"a\"", 1),
            ("start: a b\na: b\nb[lazy]: /x: c/ // : d\nc: d\nd: \"\\\"c\"", 3),
            ("a: b\nb: start\nstart.2: a | \"b:\" c\nc{x}: A\nA: B & C\nB: C\nC: \"c\"", 5),
            ("start: %json {\"a\": 1} a\na: start", 2),
        ] {
            assert_eq!(levels(lark), wanted, "{lark}");
        }
        let chain = (0..5000).fold("start: r0\n".to_owned(), |mut text, n| {
            let _ = writeln!(text, "r{n}: r{} \"x\"", n + 1);
            text
        });
        assert_eq!(levels(&chain), 5001);
    }
}
