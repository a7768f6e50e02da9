//! Python's methods of strings, mappings and lists, as far as chat templates call them.

use super::ops::{attribute, equal, iterate, join_all};
use super::print::text;
use super::text::{Piece, Sink, piece};
use super::value::{Args, Dict, ITEM_WORK, List, Outcome, Run, dict, fail, kind, list};
use minijinja::value::Value;

/// Calls the method `name` of `of`.
pub(super) fn call(run: &Run, of: &Value, name: &str, args: &[Value]) -> Outcome<Value> {
    let result = if let Some(text) = Piece::of(of) {
        of_string(run, text, name, &Args::new(args))?
    } else if let Some(dict) = dict(of) {
        of_mapping(run, dict, name, &Args::new(args))?
    } else if let Some(list) = list(of) {
        of_list(run, list, name, &Args::new(args))?
    } else {
        of_loop(run, of, name, args)?
    };
    result.ok_or_else(|| fail(format!("a {} has no method '{name}'", kind(of))))
}

fn of_string(run: &Run, text: Piece, method: &str, args: &Args) -> Outcome<Option<Value>> {
    run.work(4 * text.len())?;
    Ok(Some(match method {
        "startswith" | "endswith" => Value::from(affix(run, method, text, &args.need(0, "affix")?)?),
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => pieces(run, method, text, args)?,
        "join" => join_all(run, &strings(run, &args.need(0, "iterable")?)?, text)?,
        "count" | "find" | "rfind" | "index" => find(run, method, text, args)?,
        "format" => format_fields(run, text, args)?,
        _ => match predicate(method, text.text) {
            Some(holds) => args.done(0).map(|()| Value::from(holds))?,
            None => return change(run, method, text, args),
        },
    }))
}

fn of_mapping(run: &Run, of: &Dict, method: &str, args: &Args) -> Outcome<Option<Value>> {
    Ok(Some(match method {
        "get" => {
            let default = || args.get(1, "default").unwrap_or(Value::from(()));
            of.get(run, &args.need(0, "key")?)?.cloned().unwrap_or_else(default)
        }
        "keys" => List::make(run, run.collect(of.pairs.iter().map(|(key, _)| Ok(key.clone())))?)?,
        "values" => List::make(run, run.collect(of.pairs.iter().map(|(_, value)| Ok(value.clone())))?)?,
        "items" => pairs(run, of)?,
        _ => return Ok(None),
    }))
}

fn of_list(run: &Run, of: &List, method: &str, args: &Args) -> Outcome<Option<Value>> {
    if !matches!(method, "count" | "index") {
        return Ok(None);
    }
    let wanted = args.need(0, "value")?;
    let (mut first, mut count) = (None, 0);
    for (at, item) in of.items.iter().enumerate() {
        if equal(run, item, &wanted)? {
            first = first.or(Some(at));
            count += 1;
        }
    }
    match (method, first) {
        ("count", _) => Ok(Some(Value::from(count))),
        (_, Some(at)) => Ok(Some(Value::from(at))),
        (_, None) => Err(fail("index: the value is not in the list")),
    }
}

/// A method of a loop; None for other values. minijinja's own methods are neither charged nor checked.
fn of_loop(run: &Run, of: &Value, method: &str, args: &[Value]) -> Outcome<Option<Value>> {
    if of.is_undefined() {
        return Err(fail(format!("the method '{method}' of something undefined")));
    }
    let index = attribute(run, of, "index0")?.as_usize();
    match (method, index) {
        ("cycle", Some(index)) => {
            let at = index.checked_rem(args.len()).ok_or_else(|| fail("loop.cycle takes values"))?;
            Ok(Some(args[at].clone()))
        }
        ("changed", Some(_)) => Err(fail("loop.changed is not supported in chat templates")),
        _ => Ok(None),
    }
}

/// The items of a mapping, as tuples of key and value.
pub(super) fn items(run: &Run, of: &Value) -> Outcome<Value> {
    let dict = dict(of).ok_or_else(|| fail(format!("the items of a {}", kind(of))))?;
    pairs(run, dict)
}

fn pairs(run: &Run, dict: &Dict) -> Outcome<Value> {
    let pair = |(key, value): &(Value, Value)| {
        let mut pair = run.list(2)?;
        pair.extend([key.clone(), value.clone()]);
        List::tuple(run, pair)
    };
    List::make(run, run.collect(dict.pairs.iter().map(pair))?)
}

/// The items of a value, which must all be strings: Python's `join` takes no others.
fn strings(run: &Run, value: &Value) -> Outcome<Vec<Value>> {
    let items = iterate(run, value)?;
    match items.iter().find(|item| Piece::of(item).is_none()) {
        Some(odd) => Err(fail(format!("join takes strings, not a {}", kind(odd)))),
        None => Ok(items),
    }
}

/// Returns whether Python counts the character as a blank: Unicode's white space, and the four separators of
/// ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn affix(run: &Run, method: &str, text: Piece, affix: &Value) -> Outcome<bool> {
    let one = |affix: &Value| match Piece::of(affix) {
        Some(affix) if method == "startswith" => Ok(text.starts_with(affix.text)),
        Some(affix) => Ok(text.ends_with(affix.text)),
        None => Err(fail(format!("{method} takes a string, not a {}", kind(affix)))),
    };
    let Some(list) = list(affix) else { return one(affix) };
    for affix in &list.items {
        run.work(ITEM_WORK + piece(affix).len())?;
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

/// Methods that return another string; None for other names.
fn change(run: &Run, method: &str, text: Piece, args: &Args) -> Outcome<Option<Value>> {
    let stripped = |args: &Args, left: bool, right: bool| {
        let chars = args.get(0, "chars").filter(|chars| !chars.is_none());
        args.done(1)?;
        let chars = match &chars {
            None => None,
            Some(chars) => {
                let chars = Piece::of(chars).ok_or_else(|| fail(format!("{method} takes a string")))?;
                run.work(text.len().saturating_mul(chars.len()))?;
                Some(chars.text)
            }
        };
        run.string(text.part(strip(text.text, chars, left, right)))
    };
    match method {
        "strip" => stripped(args, true, true),
        "lstrip" => stripped(args, true, false),
        "rstrip" => stripped(args, false, true),
        "removeprefix" => {
            let prefix = args.text(0, "prefix")?;
            run.string(text.part(text.text.strip_prefix(piece(&prefix).text).unwrap_or(text.text)))
        }
        "removesuffix" => {
            let suffix = args.text(0, "suffix")?;
            run.string(text.part(text.text.strip_suffix(piece(&suffix).text).unwrap_or(text.text)))
        }
        "replace" => {
            let (old, new) = (args.text(0, "old")?, args.text(1, "new")?);
            let count = args.get(2, "count").and_then(|count| count.as_i64()).unwrap_or(-1);
            replace(run, text, piece(&old), piece(&new), usize::try_from(count).unwrap_or(usize::MAX))
        }
        "upper" | "lower" | "title" | "capitalize" => {
            args.done(0)?;
            change_case(run, method, text)
        }
        _ => return Ok(None),
    }
    .map(Some)
}

/// Strips blanks, or the characters of `chars`, from the ends of `text`.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right { text.trim_end_matches(drop) } else { text }
}

pub(super) fn replace(run: &Run, text: Piece, old: Piece, new: Piece, most: usize) -> Outcome<Value> {
    let mut out = Sink::new(run);
    let mut done = 0;
    for (at, found) in text.match_indices(old.text).take(most) {
        run.work(ITEM_WORK)?;
        out.push_piece(text.sub(done..at))?;
        out.push_piece(new)?;
        done = at + found.len();
    }
    out.push_piece(text.sub(done..text.len()))?;
    out.into_value()
}

/// One letter may become several and depends on its neighbors, so the whole result is untrusted if any part is.
pub(super) fn change_case(run: &Run, how: &str, text: Piece) -> Outcome<Value> {
    // A character's other case has at most three characters, of at most three bytes if the character itself has
    // two.
    run.memory(text.len().saturating_mul(4))?;
    run.work(ITEM_WORK * text.len())?;
    let changed = match how {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "capitalize" => capitalized(text.text),
        _ => titled(text.text),
    };
    run.string_as(&changed, text.has_untrusted())
}

fn titled(text: &str) -> String {
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

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map_or(String::new(), title_case);
    first + &chars.as_str().to_lowercase()
}

/// Four digraphs have a title case of their own. If the upper case has several letters, only the first stays upper
/// case.
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

/// Positions are in characters, as in Python.
fn find(run: &Run, method: &str, text: Piece, args: &Args) -> Outcome<Value> {
    let wanted = args.text(0, "sub")?;
    let wanted = piece(&wanted).text;
    args.done(1)?;
    run.work(2 * wanted.len())?;
    let at = match method {
        "count" => return Ok(Value::from(text.matches(wanted).count())),
        "rfind" => text.rfind(wanted),
        _ => text.find(wanted),
    };
    match at {
        None if method == "index" => Err(fail("index: the substring is not there")),
        at => Ok(Value::from(at.map_or(-1, |at| text[..at].chars().count() as i64))),
    }
}

/// `text` with its `{}`, `{0}` and `{name}` filled in; other fields are errors.
fn format_fields(run: &Run, format: Piece, args: &Args) -> Outcome<Value> {
    let mut out = Sink::new(run);
    let (mut rest, mut next) = (format.text, 0);
    while let Some(at) = rest.find(['{', '}']) {
        run.work(ITEM_WORK)?;
        out.push_piece(format.part(&rest[..at]))?;
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            out.push_piece(format.part(brace))?;
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
        out.push_piece(piece(&text(run, &value)?))?;
        rest = after;
    }
    out.push_piece(format.part(rest))?;
    out.into_value()
}

/// Methods that return a list of strings.
fn pieces(run: &Run, method: &str, text: Piece, args: &Args) -> Outcome<Value> {
    let list_of = |parts: &mut dyn Iterator<Item = &str>| {
        List::make(run, run.collect(parts.map(|part| run.string(text.part(part))))?)
    };
    if method == "splitlines" {
        args.done(0)?;
        return list_of(&mut lines(text.text));
    }
    let separator = args.get(0, "sep").filter(|sep| !sep.is_none());
    let separator = separator.as_ref().map(|sep| {
        let sep = Piece::of(sep).filter(|sep| !sep.is_empty());
        sep.ok_or_else(|| fail(format!("{method}: the separator is no string, or empty")))
    });
    let separator = separator.transpose()?;
    if let ("partition" | "rpartition", Some(sep)) = (method, separator) {
        return partition(run, method, text, sep);
    }
    let most = args.get(1, "maxsplit").and_then(|most| most.as_i64()).unwrap_or(-1);
    args.done(2)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    match (method, separator) {
        ("split", Some(sep)) => list_of(&mut text.text.splitn(most.saturating_add(1), sep.text)),
        ("rsplit", Some(sep)) => {
            let parts = text.text.rsplitn(most.saturating_add(1), sep.text);
            let mut parts = run.collect(parts.map(|part| run.string(text.part(part))))?;
            parts.reverse();
            List::make(run, parts)
        }
        ("split", None) => list_of(&mut Words { rest: strip(text.text, None, true, false), most }),
        _ => Err(fail(format!("{method} needs a separator"))),
    }
}

fn partition(run: &Run, method: &str, text: Piece, separator: Piece) -> Outcome<Value> {
    let first = method == "partition";
    let at = if first { text.find(separator.text) } else { text.rfind(separator.text) };
    let (before, after) = match at {
        Some(at) => (at, at + separator.len()),
        None if first => (text.len(), text.len()),
        None => (0, 0),
    };
    let parts = [0..before, before..after, after..text.len()];
    List::make(run, run.collect(parts.into_iter().map(|part| run.string(text.sub(part))))?)
}

/// The words between runs of blanks: at most `most`, and then the rest.
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

/// Lines without their ends, split as Python does.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
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
