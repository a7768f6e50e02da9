//! Finds out whether a pattern matches only a few texts, or all texts.

use llguidance::derivre::{Regex, RegexAst, RegexBuilder, StateID};

/// Limits on the texts of a pattern, their bytes, and the bytes of a pattern that is examined.
const MOST_TEXTS: usize = 100;
const LONGEST_TEXT: usize = 200;
const LONGEST_PATTERN: usize = 4_000;
/// Limit on the steps of a proof, the same as llguidance's.
const FUEL: u64 = 10_000;

fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(pattern.to_owned())
}

/// The texts in which `pattern` (Rust's syntax) is found; None if there are too many.
pub(super) fn texts(pattern: &str) -> Option<Vec<String>> {
    if pattern.len() > LONGEST_PATTERN {
        return None;
    }
    let mut builder = RegexBuilder::new();
    let found = builder.mk(&search(pattern)).ok()?;
    let mut walk = Walk {
        regex: builder.to_regex_limited(found, FUEL).ok()?,
        path: Vec::new(),
        text: Vec::new(),
        all: Vec::new(),
    };
    let start = walk.regex.initial_state();
    walk.from(start)?;
    Some(walk.all)
}

/// Follows each byte that leads to a text.
struct Walk {
    regex: Regex,
    path: Vec<StateID>,
    text: Vec<u8>,
    all: Vec<String>,
}

impl Walk {
    fn from(&mut self, state: StateID) -> Option<()> {
        // A text leads out of each state, so a cycle means that there are infinitely many texts.
        if self.path.contains(&state) || self.text.len() > LONGEST_TEXT {
            return None;
        }
        if state.is_dead() {
            return Some(());
        }
        if self.regex.is_accepting(state) {
            self.all.push(String::from_utf8(self.text.clone()).ok()?);
        }
        self.path.push(state);
        for byte in 0..=255 {
            let next = self.regex.transition(state, byte);
            if next.is_dead() {
                continue;
            }
            self.text.push(byte);
            self.from(next)?;
            self.text.pop();
            if self.all.len() > MOST_TEXTS {
                return None;
            }
        }
        self.path.pop();
        Some(())
    }
}

/// Whether each text is one of `names` or contains a match of one of `patterns`. False if it cannot be
/// decided.
pub(super) fn are_all(patterns: &[&str], names: &[&str]) -> bool {
    if patterns.iter().chain(names).map(|text| text.len()).sum::<usize>() > LONGEST_PATTERN {
        return false;
    }
    let literals = names.iter().map(|name| RegexAst::Literal((*name).to_owned()));
    let known = RegexAst::Or(patterns.iter().map(|pattern| search(pattern)).chain(literals).collect());
    let any = RegexAst::Regex("(?s:.*)".to_owned());
    let mut builder = RegexBuilder::new();
    let Ok(others) = builder.mk(&any.contained_in(&known)) else { return false };
    // The empty text is another one, which is found without a search.
    if builder.is_nullable(others) {
        return false;
    }
    builder.to_regex_limited(others, FUEL).is_ok_and(|mut regex| regex.always_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_texts_are_listed() {
        let few = |pattern: &str| texts(pattern).map(|texts| texts.join(","));
        for (pattern, wanted) in [
            ("^a$", "a"),
            ("^(b|a)$", "a,b"),
            ("^x?é$", "xé,é"),
            ("^[^\\n]{0,0}$", ""),
            ("^[ab]{2}$", "aa,ab,ba,bb"),
            ("^a$|^b$", "a,b"),
        ] {
            assert_eq!(few(pattern).as_deref(), Some(wanted), "{pattern}");
        }
        for pattern in ["a", "^a", "", "^a*$", "^[a-z]{2}$", "^.$", &format!("^{}$", "a".repeat(300))] {
            assert_eq!(few(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn patterns_leave_other_texts_or_none() {
        assert!(are_all(&[""], &[]) && are_all(&["^"], &[]) && are_all(&["^(?s:.*)$"], &[]));
        assert!(are_all(&["(?s:.)"], &[""]) && are_all(&["^a", "^[^a]", "^$"], &[]));
        assert!(!are_all(&[], &["a"]) && !are_all(&["^a"], &[]) && !are_all(&["(?s:.)"], &["a"]));
        assert!(!are_all(&["^.*$"], &[]), "a line break is not in it");
    }
}
