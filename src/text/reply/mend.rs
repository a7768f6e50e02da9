//! Validates JSON arguments as they arrive, and repairs common errors of models: raw control characters and unknown
//! escapes in texts, a comma before a closing bracket, Python's constants.

use super::scan::{Scan, Step};
use std::fmt::Write;

/// A validator of an object, from its opening brace on.
#[derive(Debug, Default)]
pub(super) struct Mend {
    scan: Scan,
    /// A backslash in a text, or a comma and blanks after a value, whose meaning depends on the next
    /// character.
    held: String,
    /// The missing rest of one of Python's constants, which has already been written out.
    word: &'static str,
}

impl Mend {
    /// Takes `c`, and appends to `out` all text that is certain now. After `Bad`, `out` lacks the held-back
    /// text and `c`.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> Step {
        if let Some(rest) = self.word.strip_prefix(c) {
            self.word = rest;
            return Step::More;
        }
        if !self.word.is_empty() {
            return Step::Bad;
        }
        if self.scan.in_text() { self.text(c, out) } else { self.structure(c, out) }
    }

    /// Whether nothing is held back.
    pub(super) fn is_even(&self) -> bool {
        self.held.is_empty()
    }

    fn text(&mut self, c: char, out: &mut String) -> Step {
        if self.held.is_empty() && c == '\\' {
            self.held.push(c);
            return Step::More;
        }
        match (std::mem::take(&mut self.held).is_empty(), c) {
            (false, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u') => {
                self.put('\\', out);
                self.put(c, out)
            }
            (false, '\'') => self.put(c, out),
            (false, _) => {
                self.put('\\', out);
                self.put('\\', out);
                self.text(c, out)
            }
            (true, '\n') => self.escaped("\\n", out),
            (true, '\r') => self.escaped("\\r", out),
            (true, '\t') => self.escaped("\\t", out),
            (true, '\0'..='\x1f') => {
                let mut code = String::new();
                let _ = write!(code, "\\u{:04x}", u32::from(c)); // writing to a String does not fail
                self.escaped(&code, out)
            }
            (true, c) => self.put(c, out),
        }
    }

    fn structure(&mut self, c: char, out: &mut String) -> Step {
        let blank = matches!(c, ' ' | '\n' | '\r' | '\t');
        if c == ',' && self.held.is_empty() && self.scan.behind_value() || blank && !self.held.is_empty() {
            self.held.push(c);
            return Step::More;
        }
        let held = std::mem::take(&mut self.held);
        if !matches!(c, '}' | ']') {
            self.escaped(&held, out);
        }
        let (json, rest) = match c {
            'T' => ("true", "rue"),
            'F' => ("false", "alse"),
            'N' => ("null", "one"),
            _ => return self.put(c, out),
        };
        if !self.scan.wants_value() {
            return Step::Bad;
        }
        self.word = rest;
        self.escaped(json, out)
    }

    fn escaped(&mut self, text: &str, out: &mut String) -> Step {
        text.chars().fold(Step::More, |_, c| self.put(c, out))
    }

    fn put(&mut self, c: char, out: &mut String) -> Step {
        let step = self.scan.push(c);
        if step != Step::Bad {
            out.push(c);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::reply::scan::is_object;

    /// The output for `text`, and the last step.
    fn mended(text: &str) -> (String, Step) {
        let (mut mend, mut out) = (Mend::default(), String::new());
        let step = text.chars().fold(Step::More, |_, c| mend.push(c, &mut out));
        (out, step)
    }

    #[test]
    fn json_stays_as_it_is() {
        for good in [
            "{}",
            "{\n\t\"a\" : [ ] , \"b\":[1 ,-0.5e+10, 0, 1E-2,{}]}",
            r#"{"é\"\\\/\b\f\n\r\t\u12aF":"","":[true,false,null,[[]],{"x":{}}]}"#,
        ] {
            assert_eq!(mended(good), (good.to_owned(), Step::Done));
        }
    }

    #[test]
    fn what_models_write_becomes_json() {
        for (text, json) in [
            ("{\"a\": \"x\ny\tz\u{1}\"}", r#"{"a": "x\ny\tz\u0001"}"#),
            (r#"{"a": "C:\Users\'x\\"}"#, r#"{"a": "C:\\Users'x\\"}"#),
            ("{\"a\": \"\\\n\"}", r#"{"a": "\\\n"}"#),
            ("{\"a\": [1, 2,\n ],}", r#"{"a": [1, 2]}"#),
            (r#"{"a": True, "b": [False,None]}"#, r#"{"a": true, "b": [false,null]}"#),
        ] {
            assert_eq!(mended(text), (json.to_owned(), Step::Done), "{text}");
            assert!(is_object(json), "{json}");
        }
    }

    #[test]
    fn what_nobody_can_read_stays_wrong() {
        for bad in
            [r#"{"a": 01"#, r#"{"a": Trux"#, r#"{T"#, r#"{,"#, r#"{"a":,"#, r#"{"a": 1,,"#, r#"{"\u12g"#]
        {
            assert_eq!(mended(bad).1, Step::Bad, "{bad}");
        }
    }
}
