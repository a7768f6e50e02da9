//! Translates patterns from ECMA-262, JSON Schema's dialect, to Rust's. The result matches the same texts, or
//! the pattern is refused.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
const SPACE: &str =
    r"\t\n\x0B\x0C\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}";

const NUL: &str = r"\x00";
const NO_NUL: &str = "the character U+0000";
/// llguidance adds `\"` and `\\` to any class with all control characters, whether or not it has `"` and `\`,
/// so classes exclude U+0000. derivre turns alternatives of single characters into a class, so those exclude
/// it too.
const NEGATED: &str = r"[^\x00";

/// The error is the reason for a refusal.
pub fn rust(pattern: &str) -> Result<String, String> {
    let mut reader = Reader { rest: pattern.chars().peekable(), out: String::new(), counts: false };
    match reader.pattern() {
        Ok(()) => Ok(reader.out),
        Err(why) => Err(format!("the pattern {pattern:?} has {why}")),
    }
}

/// A regular expression for whole texts in which `pattern` (Rust's syntax) is found. Anchors within a group stay.
pub fn whole(pattern: &str) -> String {
    let (mut all, mut from) = (Vec::new(), 0);
    let (mut escaped, mut groups, mut classes) = (false, 0, 0);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => {}
            '[' => classes += 1,
            ']' => classes -= 1,
            '(' if classes == 0 => groups += 1,
            ')' if classes == 0 => groups -= 1,
            '|' if classes == 0 && groups == 0 => {
                all.push(found(&pattern[from..at]));
                from = at + 1;
            }
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    all.push(found(&pattern[from..]));
    all.join("|")
}

/// Like `whole`, for one alternative.
fn found(part: &str) -> String {
    let (before, part) = match part.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => ("(?s:.*)", part),
    };
    let ends = |rest: &&str| rest.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0;
    let (part, behind) = match part.strip_suffix('$').filter(ends) {
        Some(rest) => (rest, ""),
        None => (part, "(?s:.*)"),
    };
    format!("{before}(?:{part}){behind}")
}

type Read<T> = Result<T, String>;

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    /// A brace is open that begins a repetition count.
    counts: bool,
}

impl Reader<'_> {
    fn takes(&mut self, c: char) -> bool {
        self.rest.next_if_eq(&c).is_some()
    }

    fn ahead(&self, text: &str) -> bool {
        let mut rest = self.rest.clone();
        text.chars().all(|c| rest.next() == Some(c))
    }

    fn pattern(&mut self) -> Read<()> {
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => self.escape()?,
                '.' => self.out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
                '[' => self.class()?,
                '(' => self.group()?,
                '{' if self.counts() => {
                    self.counts = true;
                    self.out.push('{');
                }
                '}' if std::mem::take(&mut self.counts) => self.out.push('}'),
                '{' | ']' | '}' => self.out.extend(['\\', c]),
                '\0' => return Err(NO_NUL.to_owned()),
                c => self.out.push(c),
            }
        }
        Ok(())
    }

    /// Returns true if digits and a brace follow, as in `{2}`, `{2,}` and `{2,3}`.
    fn counts(&self) -> bool {
        let mut rest = self.rest.clone();
        let digits = |rest: &mut Peekable<Chars>| {
            let mut any = false;
            while rest.next_if(char::is_ascii_digit).is_some() {
                any = true;
            }
            any
        };
        if !digits(&mut rest) {
            return false;
        }
        if rest.next_if_eq(&',').is_some() {
            digits(&mut rest);
        }
        rest.next() == Some('}')
    }

    fn group(&mut self) -> Read<()> {
        self.out.push('(');
        if !self.ahead("?") {
            return Ok(());
        }
        for look in ["?=", "?!", "?<=", "?<!"] {
            if self.ahead(look) {
                return Err(format!("({look}, which looks around"));
            }
        }
        let named = if self.ahead("?P<") { "?P<" } else { "?<" };
        if self.ahead(named) {
            // Group names do not matter.
            self.rest.by_ref().find(|&c| c == '>').ok_or("a name without an end")?;
        } else if self.ahead("?:") || self.ahead("?i)") || self.ahead("?i:") {
            self.out.push('?');
            self.rest.next();
        } else {
            return Err("a group of an unknown kind".to_owned());
        }
        Ok(())
    }

    /// Reads an escape after its backslash, outside of a class.
    fn escape(&mut self) -> Read<()> {
        let c = self.rest.next().ok_or("a backslash at its end")?;
        match c {
            'd' | 'w' | 's' => write!(self.out, "[{}]", set(c)),
            'D' | 'W' | 'S' => write!(self.out, "[^{}]", set(c)),
            'b' | 'B' => return Err("a word boundary".to_owned()),
            '1'..='9' | 'k' => return Err("a back reference".to_owned()),
            'p' | 'P' => return self.property(c),
            _ => {
                let c = self.literal(c)?;
                if c == '\0' {
                    return Err(NO_NUL.to_owned());
                }
                self.push(c);
                Ok(())
            }
        }
        .map_err(|e| e.to_string())
    }

    /// Reads `\p{...}`.
    fn property(&mut self, c: char) -> Read<()> {
        let open = self.takes('{');
        let name: String = self.rest.by_ref().take_while(|&c| c != '}').collect();
        if !open || name.is_empty() {
            return Err("a property without a name".to_owned());
        }
        write!(self.out, "[\\{c}{{{name}}}&&{NEGATED}]]").map_err(|e| e.to_string())
    }

    /// The character that an escape stands for.
    fn literal(&mut self, c: char) -> Read<char> {
        let code = match c {
            'n' => 0x0a,
            'r' => 0x0d,
            't' => 0x09,
            'f' => 0x0c,
            'v' => 0x0b,
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => 0,
            'x' => self.hex(2)?,
            'c' => match self.rest.next() {
                Some(letter) if letter.is_ascii_alphabetic() => u32::from(letter) % 32,
                _ => return Err("\\c without a letter".to_owned()),
            },
            'u' if self.takes('{') => {
                let digits: String = self.rest.by_ref().take_while(|&c| c != '}').collect();
                u32::from_str_radix(&digits, 16).map_err(|_| "\\u{} without digits")?
            }
            'u' => match self.hex(4)? {
                high @ 0xd800..0xdc00 if self.ahead(r"\u") => {
                    self.rest.next();
                    self.rest.next();
                    let low = self.hex(4)?.checked_sub(0xdc00).filter(|low| *low < 0x400);
                    0x10000 + ((high - 0xd800) << 10) + low.ok_or("half a character")?
                }
                code => code,
            },
            c if c.is_ascii_alphanumeric() => return Err(format!("\\{c}, which is no escape")),
            c => u32::from(c),
        };
        char::from_u32(code).ok_or_else(|| "half a character".to_owned())
    }

    fn hex(&mut self, digits: usize) -> Read<u32> {
        let text: String = self.rest.by_ref().take(digits).collect();
        match text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => u32::from_str_radix(&text, 16).map_err(|e| e.to_string()),
            false => Err("an escape without its digits".to_owned()),
        }
    }

    /// Writes a character that stands for itself, in a class or outside.
    fn push(&mut self, c: char) {
        match c {
            c if c.is_ascii_alphanumeric() || !c.is_ascii() => self.out.push(c),
            c => drop(write!(self.out, "\\x{:02X}", u32::from(c))),
        }
    }

    fn class(&mut self) -> Read<()> {
        let negated = self.takes('^');
        if self.takes(']') {
            if !negated {
                return Err("an empty class".to_owned());
            }
            self.out.push_str("(?s:.)");
            return Ok(());
        }
        self.out.push_str(if negated { NEGATED } else { "[" });
        loop {
            let (from, single) = match self.rest.next().ok_or("a class without an end")? {
                ']' => break,
                c => self.member(c)?,
            };
            let mut rest = self.rest.clone();
            let ranges = rest.next() == Some('-') && rest.next().is_some_and(|c| c != ']');
            if !single || !ranges {
                if from == NUL && !negated {
                    return Err(NO_NUL.to_owned());
                }
                self.out.push_str(&from);
                continue;
            }
            self.rest.next();
            let next = self.rest.next().ok_or("a class without an end")?;
            let (to, single) = self.member(next)?;
            // A class after a hyphen makes the hyphen a literal.
            let hyphen = if single { "-" } else { r"\x2D" };
            let from = if from == NUL { r"\x01" } else { &from };
            write!(self.out, "{from}{hyphen}{to}").map_err(|e| e.to_string())?;
        }
        self.out.push(']');
        Ok(())
    }

    /// Reads a member of a class that begins with `c`. Returns its text, and whether it is a single
    /// character.
    fn member(&mut self, c: char) -> Read<(String, bool)> {
        let outside = std::mem::take(&mut self.out);
        let single = match c {
            '\\' => self.class_escape()?,
            c => {
                self.push(c);
                true
            }
        };
        Ok((std::mem::replace(&mut self.out, outside), single))
    }

    fn class_escape(&mut self) -> Read<bool> {
        match self.rest.next().ok_or("a backslash at its end")? {
            c @ ('d' | 'w' | 's') => self.out.push_str(set(c)),
            c @ ('D' | 'W' | 'S') => drop(write!(self.out, "[^{}]", set(c))),
            c @ ('p' | 'P') => self.property(c)?,
            c => {
                let c = if c == 'b' { '\u{8}' } else { self.literal(c)? };
                self.push(c);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn set(class: char) -> &'static str {
    match class.to_ascii_lowercase() {
        'd' => DIGIT,
        'w' => WORD,
        _ => SPACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_found_anywhere_in_a_whole_text() {
        for (pattern, wanted) in [
            ("a", "(?s:.*)(?:a)(?s:.*)"),
            ("^a$", "(?:a)"),
            ("^a|b$", "(?:a)(?s:.*)|(?s:.*)(?:b)"),
            (r"^(a|b)[|$]\$", r"(?:(a|b)[|$]\$)(?s:.*)"),
            (r"\\$", r"(?s:.*)(?:\\)"),
        ] {
            assert_eq!(whole(pattern), wanted, "{pattern}");
        }
    }
}
