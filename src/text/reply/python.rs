//! Parses calls in Python's syntax: `f(a=1, b=["x", None])`, and objects in Gemma 4's: `{a:1,b:[<|"|>x<|"|>]}`.

use super::format::QUOTE;

/// Maximum nesting of lists and dicts.
const MAX_DEPTH: usize = 32;

/// Parses `text` as one call. Returns its name and its arguments as JSON, or None.
pub(super) fn call(text: &str) -> Option<(&str, String)> {
    let at = text.find('(')?;
    let mut from = Reader { rest: &text[at..], bare: false };
    let mut json = String::new();
    // An escape may turn one character into six.
    json.try_reserve(6 * text.len()).ok()?;
    from.items(&mut json, ['{', '}'], ')', &mut |from, json| {
        let name = from.identifier()?;
        from.field(name, '=', json, MAX_DEPTH)
    })?;
    from.rest.is_empty().then_some((text[..at].trim_end(), json))
}

/// Converts a list, a dict or a constant to JSON. None if `text` is not one of them.
pub(super) fn value(text: &str) -> Option<String> {
    text.starts_with(|c: char| c == '[' || c == '{' || c.is_ascii_alphabetic()).then_some(())?;
    let (mut from, mut json) = (Reader { rest: text, bare: false }, String::new());
    json.try_reserve(6 * text.len()).ok()?;
    from.value(&mut json, MAX_DEPTH)?;
    from.rest.is_empty().then_some(json)
}

/// Converts an object whose keys may have no quotes, and whose texts may stand between [`QUOTE`]s, to JSON.
pub(super) fn object(text: &str) -> Option<String> {
    text.starts_with('{').then_some(())?;
    let (mut from, mut json) = (Reader { rest: text, bare: true }, String::new());
    json.try_reserve(6 * text.len()).ok()?;
    from.value(&mut json, MAX_DEPTH)?;
    from.rest.is_empty().then_some(json)
}

struct Reader<'a> {
    rest: &'a str,
    /// Keys may have no quotes, and texts may stand between [`QUOTE`]s.
    bare: bool,
}

impl<'a> Reader<'a> {
    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\n', '\r', '\t']);
    }

    fn takes(&mut self, c: char) -> bool {
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn word(&mut self, part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn identifier(&mut self) -> Option<&'a str> {
        let word = self.word(|c| c.is_alphanumeric() || c == '_');
        word.starts_with(|c: char| !c.is_ascii_digit()).then_some(word)
    }

    fn value(&mut self, json: &mut String, depth: usize) -> Option<()> {
        self.blanks();
        match self.rest.chars().next()? {
            '"' | '\'' => {
                let text = self.text()?;
                quote(&text, json);
            }
            '<' if self.bare => quote(self.marked()?, json),
            open @ ('[' | '(') => {
                let depth = depth.checked_sub(1)?;
                let close = if open == '[' { ']' } else { ')' };
                self.items(json, ['[', ']'], close, &mut |from, json| from.value(json, depth))?
            }
            '{' => {
                let depth = depth.checked_sub(1)?;
                self.items(json, ['{', '}'], '}', &mut |from, json| {
                    let name = from.key()?;
                    from.blanks();
                    // Gemma 4 uses either sign.
                    let sign = if from.bare && from.rest.starts_with('=') { '=' } else { ':' };
                    from.field(&name, sign, json, depth)
                })?
            }
            '-' | '0'..='9' => json.push_str(self.number()?),
            _ => json.push_str(match self.identifier()? {
                "True" | "true" => "true",
                "False" | "false" => "false",
                "None" | "null" => "null",
                _ => return None,
            }),
        }
        Some(())
    }

    /// Parses items up to `close`, with commas between them.
    fn items(
        &mut self,
        json: &mut String,
        [open, end]: [char; 2],
        close: char,
        item: &mut dyn FnMut(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        self.rest = &self.rest[1..];
        json.push(open);
        let mut first = true;
        self.blanks();
        while !self.takes(close) {
            json.push_str(if std::mem::take(&mut first) { "" } else { ", " });
            item(self, json)?;
            self.blanks();
            if !self.takes(',') && !self.rest.starts_with(close) {
                return None;
            }
            self.blanks();
        }
        json.push(end);
        Some(())
    }

    /// Parses the value of `name` after `sign`.
    fn field(&mut self, name: &str, sign: char, json: &mut String, depth: usize) -> Option<()> {
        quote(name, json);
        json.push_str(": ");
        self.blanks();
        self.takes(sign).then_some(())?;
        self.value(json, depth)
    }

    fn key(&mut self) -> Option<String> {
        match self.rest.chars().next()? {
            '<' if self.bare => self.marked().map(str::to_owned),
            '"' | '\'' => self.text(),
            _ if self.bare => {
                let word = self.word(|c| !matches!(c, ':' | '=' | '<' | '"'));
                Some(word.trim_end().to_owned()).filter(|key| !key.is_empty())
            }
            _ => None,
        }
    }

    /// Parses a text between marks, where nothing is escaped.
    fn marked(&mut self) -> Option<&'a str> {
        let (text, rest) = self.rest.strip_prefix(QUOTE)?.split_once(QUOTE)?;
        self.rest = rest;
        Some(text)
    }

    /// Parses a number in JSON's syntax.
    fn number(&mut self) -> Option<&'a str> {
        let word = self.word(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        let object = format!("{{\"\":{word}}}");
        super::scan::is_object(&object).then_some(word)
    }

    fn text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| "\"'".contains(*c))?;
        let mut text = String::new();
        let mut chars = self.rest[1..].chars();
        loop {
            let c = match chars.next()? {
                c if c == quote => break,
                '\n' => return None,
                '\\' => match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\x08',
                    'f' => '\x0c',
                    'x' => code(&mut chars, 2)?,
                    'u' => code(&mut chars, 4)?,
                    'U' => code(&mut chars, 8)?,
                    c @ ('\\' | '\'' | '"') => c,
                    _ => return None,
                },
                c => c,
            };
            // Reserve character by character, because a long call may have many short texts.
            text.try_reserve(c.len_utf8()).ok()?;
            text.push(c);
        }
        self.rest = chars.as_str();
        Some(text)
    }
}

fn code(chars: &mut std::str::Chars, digits: usize) -> Option<char> {
    let all = chars.as_str().get(..digits).filter(|all| all.bytes().all(|b| b.is_ascii_hexdigit()))?;
    *chars = chars.as_str()[digits..].chars();
    char::from_u32(u32::from_str_radix(all, 16).ok()?)
}

/// Appends `text` as a JSON string.
pub(super) fn quote(text: &str, json: &mut String) {
    json.push('"');
    text.chars().for_each(|c| escape(c, json));
    json.push('"');
}

/// Appends a character of a JSON string.
pub(super) fn escape(c: char, json: &mut String) {
    match c {
        '"' => json.push_str("\\\""),
        '\\' => json.push_str("\\\\"),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        c if (c as u32) < 0x20 => json.push_str(&format!("\\u{:04x}", c as u32)),
        c => json.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_become_json() {
        for (text, name, json) in [
            ("f()", "f", "{}"),
            ("f( )", "f", "{}"),
            ("a.b-c(x=1)", "a.b-c", r#"{"x": 1}"#),
            (
                "f(a=1, b = -2.5e3,c='it\\'s \"x\"', d=\"\\n\\u00e9\\\\q\",)",
                "f",
                r#"{"a": 1, "b": -2.5e3, "c": "it's \"x\"", "d": "\né\\q"}"#,
            ),
            ("f(a=[1, 'x', [], ()], b=(1,), c={})", "f", r#"{"a": [1, "x", [], []], "b": [1], "c": {}}"#),
            (
                "f(a={'k': True, \"l\": {'m': None}}, b=False, c=true)",
                "f",
                r#"{"a": {"k": true, "l": {"m": null}}, "b": false, "c": true}"#,
            ),
        ] {
            assert_eq!(call(text), Some((name, json.to_owned())), "{text}");
        }
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "f",
            "f(",
            "f(1)",
            "f(a)",
            "f(a=)",
            "f(a=b)",
            "f(a=1 b=2)",
            "f(a=1)x",
            "f(a=01)",
            "f(a=1.)",
            "f(a='x)",
            "f(a='\n')",
            "f(a=[1)",
            "f(a={1: 2})",
            "f(a={'k'})",
            "f(a=[1 2])",
            "f(a=g())",
            "f(,)",
            "f(a=1,,b=2)",
            "f(1a=2)",
            "f(a='\\ud800')",
            "f(a='\\x1')",
            "f(a='\\q')",
        ] {
            assert_eq!(call(text), None, "{text}");
        }
        let deep = format!("f(a={}{})", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(call(&deep), None);
    }

    #[test]
    fn objects_without_quotes_become_json() {
        for (text, json) in [
            ("{}", Some("{}")),
            ("{a:1,b_c:true}", Some(r#"{"a": 1, "b_c": true}"#)),
            (
                r#"{a:<|"|>it's "x" {<|"|>,b:[<|"|><|"|>,-2.5]}"#,
                Some(r#"{"a": "it's \"x\" {", "b": ["", -2.5]}"#),
            ),
            (r#"{<|"|>a b<|"|>:null, "c": {d:None}}"#, Some(r#"{"a b": null, "c": {"d": null}}"#)),
            (r#"{é-x.y:"\n"}"#, Some(r#"{"é-x.y": "\n"}"#)),
            ("{a}", None),
            ("{:1}", None),
            ("{a:}", None),
            ("{a:b}", None),
            (r#"{a:<|"|>b}"#, None),
            ("{a:1}}", None),
            ("[1]", None),
        ] {
            assert_eq!(object(text).as_deref(), json, "{text}");
        }
        assert_eq!(object(&"{a:".repeat(100_000)), None);
        assert_eq!(value("{a: 1}"), None);
    }

    #[test]
    fn many_short_texts_take_little_time() {
        let many = format!("[{}'']", "'', ".repeat(100_000));
        assert_eq!(value(&many), Some(many.replace('\'', "\"")));
    }

    #[test]
    fn values_become_json() {
        for (text, json) in [
            ("True", Some("true")),
            ("None", Some("null")),
            ("['a', 1, {'k': False}]", Some(r#"["a", 1, {"k": false}]"#)),
            ("[1", None),
            ("[1] ", None),
            ("'a'", None),
            ("Trueish", None),
            ("(1)", None),
            ("", None),
        ] {
            assert_eq!(value(text).as_deref(), json, "{text}");
        }
    }
}
