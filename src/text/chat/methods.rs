//! Python's methods of strings, mappings and lists, as far as chat templates call them.

use super::ops::{equal, iterate, join_all};
use super::value::{Args, List, OBJECT_BYTES, Outcome, Run, Sink, VALUE_BYTES, dict, fail, list};
use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

/// A method of `of`, `UnknownMethod` where it has none of that name.
pub fn call(run: &Run, of: &Value, method: &str, args: &[Value]) -> Outcome<Value> {
    if let Some(text) = of.as_str() {
        run.work(text.len())?;
        let args = Args::new(args);
        return match method {
            "startswith" | "endswith" => affix(run, method, text, &args.need(0, "affix")?).map(Value::from),
            "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => {
                pieces(run, method, text, &args)
            }
            "join" => join_all(run, &strings(run, &args.need(0, "iterable")?)?, text),
            "count" | "find" | "rfind" | "index" => find(run, method, text, &args),
            "format" => format_fields(run, text, &args),
            _ => match predicate(method, text) {
                Some(holds) => args.done(0).map(|()| Value::from(holds)),
                None => change(run, method, text, &args),
            },
        };
    }
    if let Some(dict) = dict(of) {
        run.memory(VALUE_BYTES * dict.pairs.len() + OBJECT_BYTES)?;
        run.work(dict.pairs.len())?;
        return match method {
            "get" => {
                let args = Args::new(args);
                let default = || args.get(1, "default").unwrap_or(Value::from(()));
                Ok(dict.get(&args.need(0, "key")?).cloned().unwrap_or_else(default))
            }
            "keys" => List::make(run, dict.pairs.iter().map(|(key, _)| key.clone()).collect()),
            "values" => List::make(run, dict.pairs.iter().map(|(_, value)| value.clone()).collect()),
            "items" => items(run, of),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        };
    }
    if let Some(list) = list(of) {
        let wanted = |args: &[Value]| Args::new(args).need(0, "value");
        let mut found = Vec::new();
        if matches!(method, "count" | "index") {
            let wanted = wanted(args)?;
            for (at, item) in list.items.iter().enumerate() {
                if equal(run, item, &wanted)? {
                    run.memory(size_of::<usize>())?;
                    found.push(at);
                }
            }
        }
        return match (method, found.first()) {
            ("count", _) => Ok(Value::from(found.len())),
            ("index", Some(at)) => Ok(Value::from(*at)),
            ("index", None) => Err(fail("index: the value is not in the list")),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        };
    }
    Err(Error::from(ErrorKind::UnknownMethod))
}

/// Tuples of a mapping's key and value.
pub fn items(run: &Run, of: &Value) -> Outcome<Value> {
    let Some(dict) = dict(of) else { return Err(fail(format!("the items of a {}", of.kind()))) };
    let pair = |(key, value): &(Value, Value)| List::tuple(run, vec![key.clone(), value.clone()]);
    List::make(run, dict.pairs.iter().map(pair).collect::<Outcome<_>>()?)
}

/// Items that are all strings: Python's `join` takes no others.
fn strings(run: &Run, value: &Value) -> Outcome<Vec<Value>> {
    let items = iterate(run, value)?;
    match items.iter().find(|item| item.as_str().is_none()) {
        Some(odd) => Err(fail(format!("join takes strings, not a {}", odd.kind()))),
        None => Ok(items),
    }
}

/// Python's idea of a blank character: Unicode's, and the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn affix(run: &Run, method: &str, text: &str, affix: &Value) -> Outcome<bool> {
    let one = |affix: &Value| match affix.as_str() {
        Some(affix) if method == "startswith" => Ok(text.starts_with(affix)),
        Some(affix) => Ok(text.ends_with(affix)),
        None => Err(fail(format!("{method} takes a string, not a {}", affix.kind()))),
    };
    let Some(list) = list(affix) else { return one(affix) };
    for affix in &list.items {
        run.work(affix.as_str().map_or(1, str::len))?;
        if one(affix)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn predicate(method: &str, text: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let any = |test: fn(char) -> bool| text.chars().any(test);
    Some(match method {
        "isspace" => all(is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => text.is_ascii(),
        "isupper" => any(char::is_uppercase) && !any(char::is_lowercase),
        "islower" => any(char::is_lowercase) && !any(char::is_uppercase),
        _ => return None,
    })
}

/// Methods that make another string.
fn change(run: &Run, method: &str, text: &str, args: &Args) -> Outcome<Value> {
    let stripped = |args: &Args, left: bool, right: bool| {
        let chars = args.get(0, "chars").filter(|chars| !chars.is_none());
        args.done(1)?;
        let chars = match &chars {
            None => None,
            Some(chars) => {
                let chars = chars.as_str().ok_or_else(|| fail(format!("{method} takes a string")))?;
                run.work(text.len().saturating_mul(chars.len()))?;
                Some(chars)
            }
        };
        run.string(strip(text, chars, left, right))
    };
    match method {
        "strip" => stripped(args, true, true),
        "lstrip" => stripped(args, true, false),
        "rstrip" => stripped(args, false, true),
        "removeprefix" => {
            let prefix = args.text(0, "prefix")?;
            run.string(text.strip_prefix(&*prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let suffix = args.text(0, "suffix")?;
            run.string(text.strip_suffix(&*suffix).unwrap_or(text))
        }
        "replace" => {
            let (old, new) = (args.text(0, "old")?, args.text(1, "new")?);
            let count = args.get(2, "count").and_then(|count| count.as_i64()).unwrap_or(-1);
            replace(run, text, &old, &new, usize::try_from(count).unwrap_or(usize::MAX))
        }
        "upper" | "lower" | "title" | "capitalize" => {
            args.done(0)?;
            change_case(run, method, text)
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// `text` without what blanks, or those of `chars`, stand at its ends.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right { text.trim_end_matches(drop) } else { text }
}

pub fn replace(run: &Run, text: &str, old: &str, new: &str, most: usize) -> Outcome<Value> {
    let count = text.matches(old).count().min(most);
    run.memory(text.len().saturating_add(count.saturating_mul(new.len())))?;
    run.string(&text.replacen(old, new, count))
}

pub fn change_case(run: &Run, how: &str, text: &str) -> Outcome<Value> {
    // No character's other case is more than three characters, of three bytes at most where one has two.
    run.memory(text.len().saturating_mul(4))?;
    run.string(&match how {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "capitalize" => capitalized(text),
        _ => {
            let mut out = String::new();
            let mut rest = text;
            while !rest.is_empty() {
                let word = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
                out.push_str(&capitalized(&rest[..word]));
                let gap = rest[word..].find(char::is_alphabetic).map_or(rest.len(), |gap| word + gap);
                out.push_str(&rest[word..gap]);
                rest = &rest[gap..];
            }
            out
        }
    })
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map_or(String::new(), title_case);
    first + &chars.as_str().to_lowercase()
}

/// Four letters that are two have a form of their own; of one that becomes several only the first is large.
fn title_case(c: char) -> String {
    match c {
        '\u{1c4}'..='\u{1c6}' => "\u{1c5}".into(),
        '\u{1c7}'..='\u{1c9}' => "\u{1c8}".into(),
        '\u{1ca}'..='\u{1cc}' => "\u{1cb}".into(),
        '\u{1f1}'..='\u{1f3}' => "\u{1f2}".into(),
        c => {
            let mut upper = c.to_uppercase();
            upper.next().into_iter().chain(upper.flat_map(char::to_lowercase)).collect()
        }
    }
}

/// Positions are in characters, as Python's.
fn find(run: &Run, method: &str, text: &str, args: &Args) -> Outcome<Value> {
    let wanted = args.text(0, "sub")?;
    args.done(1)?;
    run.work(wanted.len())?;
    let at = match method {
        "count" => return Ok(Value::from(text.matches(&*wanted).count())),
        "rfind" => text.rfind(&*wanted),
        _ => text.find(&*wanted),
    };
    match at {
        None if method == "index" => Err(fail("index: the substring is not there")),
        at => Ok(Value::from(at.map_or(-1, |at| text[..at].chars().count() as i64))),
    }
}

/// `text` with its `{}`, `{0}` and `{name}` filled in; no other form of field.
fn format_fields(run: &Run, text: &str, args: &Args) -> Outcome<Value> {
    let mut out = Sink::new(run);
    let (mut rest, mut next) = (text, 0);
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            out.push(brace)?;
            rest = after;
            continue;
        }
        let (field, after) = match after.split_once('}') {
            Some(split) if brace == "{" => split,
            _ => return Err(fail("format: a single brace")),
        };
        let value = match field.parse::<usize>() {
            Ok(index) => args.positional().get(index).cloned(),
            Err(_) if field.is_empty() => {
                next += 1;
                args.positional().get(next - 1).cloned()
            }
            Err(_) => args.get(usize::MAX, field),
        };
        let value = value.ok_or_else(|| fail("format: a field without a value, or with more than a name"))?;
        out.push(&super::print::text(run, &value)?)?;
        rest = after;
    }
    out.push(rest)?;
    out.into_value()
}

/// Methods that make a list of strings.
fn pieces(run: &Run, method: &str, text: &str, args: &Args) -> Outcome<Value> {
    if method == "splitlines" {
        args.done(0)?;
        return list_of(run, lines(text));
    }
    let separator = match args.get(0, "sep").filter(|sep| !sep.is_none()) {
        Some(sep) => {
            let sep = sep.as_str().filter(|sep| !sep.is_empty());
            Some(
                sep.ok_or_else(|| fail(format!("{method}: the separator is no string, or empty")))?
                    .to_owned(),
            )
        }
        None => None,
    };
    if let ("partition" | "rpartition", Some(sep)) = (method, &separator) {
        let parts =
            match if method == "partition" { text.split_once(&**sep) } else { text.rsplit_once(&**sep) } {
                Some((before, after)) => [before, sep, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
        return list_of(run, parts.into_iter());
    }
    let most = args.get(1, "maxsplit").and_then(|most| most.as_i64()).unwrap_or(-1);
    args.done(2)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    match (method, &separator) {
        ("split", Some(sep)) => list_of(run, text.splitn(most.saturating_add(1), &**sep)),
        ("rsplit", Some(sep)) => {
            run.memory(VALUE_BYTES * text.len())?;
            let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), &**sep).collect();
            parts.reverse();
            list_of(run, parts.into_iter())
        }
        ("split", None) => list_of(run, Words { rest: strip(text, None, true, false), most }),
        _ => Err(fail(format!("{method} needs a separator"))),
    }
}

/// Charged as it grows: `parts` may be many and short.
fn list_of<'a>(run: &Run, parts: impl Iterator<Item = &'a str>) -> Outcome<Value> {
    let mut out = Vec::new();
    for part in parts {
        run.memory(2 * VALUE_BYTES)?;
        out.push(run.string(part)?);
    }
    List::make(run, out)
}

/// Words between runs of blanks, at most `most` and the rest.
struct Words<'a> {
    rest: &'a str,
    most: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;
    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let end = if self.most == 0 { None } else { self.rest.find(is_space) };
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = strip(rest, None, true, false);
        self.most = self.most.saturating_sub(1);
        Some(word)
    }
}

/// Lines without their ends, which are Python's.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find(ends) else { return Some(std::mem::take(&mut rest)) };
        let line = &rest[..at];
        let end = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        rest = &rest[at + end..];
        Some(line)
    })
}
