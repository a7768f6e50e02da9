//! Validates JSON that arrives in characters.

/// Maximum nesting of lists and objects.
const MAX_DEPTH: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    /// The value is complete with this character.
    Done,
    Bad,
}

/// A validator of an object, from its opening brace on.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The enclosing containers, innermost in the lowest bit: 1 an object, 0 a list.
    stack: u64,
    depth: u32,
    at: At,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// Before the object.
    #[default]
    Start,
    /// After `{`; after a comma in an object.
    First,
    Name,
    Colon,
    /// After `[`; before any other value.
    FirstItem,
    Value,
    /// After a value.
    Behind,
    Text {
        name: bool,
    },
    /// After a backslash.
    Escape {
        name: bool,
    },
    /// `left` digits of `\u` are missing.
    Digits {
        name: bool,
        left: u8,
    },
    Number(Number),
    /// The missing rest of `true`, `false` or `null`.
    Word(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Number {
    /// The state after `c`; None if `c` cannot continue the number.
    fn next(self, c: char) -> Option<Self> {
        use Number::*;
        Some(match (self, c) {
            (Minus, '0') => Zero,
            (Minus, '1'..='9') | (Whole, '0'..='9') => Whole,
            (Zero | Whole, '.') => Point,
            (Point | Fraction, '0'..='9') => Fraction,
            (Zero | Whole | Fraction, 'e' | 'E') => Exponent,
            (Exponent, '+' | '-') => Sign,
            (Exponent | Sign | Power, '0'..='9') => Power,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Power)
    }
}

impl Scan {
    pub(super) fn push(&mut self, c: char) -> Step {
        let next = match self.at {
            At::Text { name } => text(c, name),
            At::Escape { name } => escape(c, name),
            At::Digits { name, left } => c.is_ascii_hexdigit().then_some(match left {
                1 => At::Text { name },
                _ => At::Digits { name, left: left - 1 },
            }),
            At::Word(left) => left.strip_prefix(c).map(|left| match left {
                "" => At::Behind,
                left => At::Word(left),
            }),
            At::Number(number) => match number.next(c) {
                Some(next) => Some(At::Number(next)),
                None if number.may_end() => self.structure(At::Behind, c),
                None => None,
            },
            at => self.structure(at, c),
        };
        match next {
            None => Step::Bad,
            Some(At::Behind) if self.depth == 0 => Step::Done,
            Some(at) => {
                self.at = at;
                Step::More
            }
        }
    }

    /// Within a string.
    pub(super) fn in_text(&self) -> bool {
        matches!(self.at, At::Text { .. } | At::Escape { .. } | At::Digits { .. })
    }

    pub(super) fn wants_value(&self) -> bool {
        matches!(self.at, At::Value | At::FirstItem)
    }

    /// Behind a value, where a comma may come.
    pub(super) fn behind_value(&self) -> bool {
        match self.at {
            At::Behind => true,
            At::Number(number) => number.may_end(),
            _ => false,
        }
    }

    /// Handles characters outside of strings, numbers and words.
    fn structure(&mut self, at: At, c: char) -> Option<At> {
        if matches!(c, ' ' | '\n' | '\r' | '\t') && at != At::Start {
            return Some(at);
        }
        match (at, c) {
            (At::Start | At::Value | At::FirstItem, '{') => self.open(true),
            (At::Value | At::FirstItem, '[') => self.open(false),
            (At::First, '}') => self.close(true),
            (At::FirstItem, ']') => self.close(false),
            (At::First | At::Name, '"') => Some(At::Text { name: true }),
            (At::Colon, ':') => Some(At::Value),
            (At::Behind, ',') => Some(if self.in_object() { At::Name } else { At::Value }),
            (At::Behind, '}') => self.close(true),
            (At::Behind, ']') => self.close(false),
            (At::Value | At::FirstItem, c) => value(c),
            _ => None,
        }
    }

    fn in_object(&self) -> bool {
        self.stack & 1 == 1
    }

    fn open(&mut self, object: bool) -> Option<At> {
        self.depth += 1;
        self.stack = self.stack << 1 | u64::from(object);
        (self.depth <= MAX_DEPTH).then_some(if object { At::First } else { At::FirstItem })
    }

    fn close(&mut self, object: bool) -> Option<At> {
        let closes = self.in_object() == object && self.depth > 0;
        (self.depth, self.stack) = (self.depth.saturating_sub(1), self.stack >> 1);
        closes.then_some(At::Behind)
    }
}

fn text(c: char, name: bool) -> Option<At> {
    match c {
        '"' => Some(if name { At::Colon } else { At::Behind }),
        '\\' => Some(At::Escape { name }),
        '\0'..'\x20' => None,
        _ => Some(At::Text { name }),
    }
}

fn escape(c: char, name: bool) -> Option<At> {
    match c {
        'u' => Some(At::Digits { name, left: 4 }),
        '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => Some(At::Text { name }),
        _ => None,
    }
}

/// The state after the first character of a string, number or word.
fn value(c: char) -> Option<At> {
    Some(match c {
        '"' => At::Text { name: false },
        '-' => At::Number(Number::Minus),
        '0' => At::Number(Number::Zero),
        '1'..='9' => At::Number(Number::Whole),
        't' => At::Word("rue"),
        'f' => At::Word("alse"),
        'n' => At::Word("ull"),
        _ => return None,
    })
}

/// Returns whether `text` is exactly one value, without blanks around it.
pub(super) fn is_value(text: &str) -> bool {
    let (mut scan, mut step) = (Scan { at: At::Value, ..Scan::default() }, Step::More);
    for c in text.chars() {
        // A number outside of lists and objects ends with the text.
        let number = scan.depth == 0 && matches!(scan.at, At::Number(_));
        if step != Step::More {
            return false;
        }
        step = scan.push(c);
        if number && !matches!(scan.at, At::Number(_)) {
            return false;
        }
    }
    let number = scan.depth == 0 && matches!(scan.at, At::Number(number) if number.may_end());
    step == Step::Done || step == Step::More && number
}

/// Returns whether `text` is exactly one object.
pub(super) fn is_object(text: &str) -> bool {
    let (mut scan, mut step) = (Scan::default(), Step::More);
    for c in text.chars() {
        if step != Step::More {
            return false;
        }
        step = scan.push(c);
    }
    step == Step::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_objects_and_nothing_else() {
        for good in [
            "{}",
            "{ }",
            r#"{"a":1}"#,
            "{\n\t\"a\" : [ ] , \"b\":[1 ,-0.5e+10, 0, 1E-2,{}]}",
            r#"{"é\"\\\/\b\f\n\r\t\u12aF":"","":[true,false,null,[[]],{"x":{}}]}"#,
        ] {
            assert!(is_object(good), "{good}");
            assert!(!is_object(&good[..good.len() - 1]), "{good}");
            assert!(!is_object(&format!("{good} ")), "{good}");
        }
        for bad in [
            "",
            "1",
            "[]",
            "\"\"",
            " {}",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{'a':1}",
            "{\"a\":[1,]}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":.5}",
            "{\"a\":+1}",
            "{\"a\":--1}",
            "{\"a\":1e}",
            "{\"a\":tru}",
            "{\"a\":nul1}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12g4\"}",
            "{\"a\":1]",
            "{\"a\":[1}",
            "{\"a\":1 2}",
            "{\"a\" 1}",
            "{1:1}",
            "{\"a\":1,,\"b\":2}",
            "{\"a\":[,1]}",
        ] {
            assert!(!is_object(bad), "{bad}");
        }
        let deep = |n: usize| format!("{{\"a\":{}{}}}", "[".repeat(n), "]".repeat(n));
        assert!(is_object(&deep(63)));
        assert!(!is_object(&deep(64)));
    }
    #[test]
    fn tells_values_from_other_texts() {
        for good in [
            "1",
            "-0.5e3",
            "0",
            "\"\"",
            "\"a\\n\"",
            "true",
            "null",
            "[]",
            "[1, 2]",
            "{\"a\": [\n1]}",
            "[[1], {}]",
        ] {
            assert!(is_value(good), "{good}");
        }
        for bad in [
            "", "01", "1.", "-", "1,2", "1 2", "1}", "\"a", "\"a\" b", "tru", "truex", "[1", "[1]]", "{},{}",
            "a", "'a'",
        ] {
            assert!(!is_value(bad), "{bad}");
        }
    }
}
