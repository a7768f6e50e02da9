//! Jinja's filters, as far as chat templates use them.

use super::methods::{change_case, is_space, items, lines, replace, strip};
use super::ops::{self, Number, equal, iterate, join_all, number, order};
use super::print::{JsonStyle, json, text};
use super::text::{Piece, Sink, piece};
use super::value::{Args, ITEM_WORK, List, Outcome, Run, dict, fail, kind, list};
use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, State};
use std::cmp::Ordering;
use std::sync::Arc;

/// Work units of a filter or test that is called for an item.
const CALL_WORK: usize = 256;
/// Bytes of `tojson`'s indent.
const MAX_INDENT: usize = 16;
/// Spaces of `indent`.
const MAX_WIDTH: usize = 256;

type Filter = fn(&Run, &mut State, &Args) -> Outcome<Value>;

const FILTERS: [(&str, Filter); 35] = [
    ("attr", |run, _, args| attribute(run, &args.need(0, "obj")?, piece(&args.text(1, "name")?).text)),
    ("capitalize", |run, _, args| case(run, "capitalize", args)),
    ("count", |run, _, args| length(run, args)),
    ("d", |_, _, args| default(args)),
    ("default", |_, _, args| default(args)),
    ("dictsort", |run, _, args| {
        let pairs = items(run, &args.need(0, "value")?)?;
        let mut pairs = iterate(run, &pairs)?;
        sort(
            run,
            &mut pairs,
            |pair| Ok(list(pair).map_or(Value::UNDEFINED, |pair| pair.items[0].clone())),
            false,
        )?;
        List::make(run, pairs)
    }),
    ("e", |run, _, args| escape(run, args)),
    ("escape", |run, _, args| escape(run, args)),
    ("first", |run, _, args| Ok(iterate(run, &args.need(0, "seq")?)?.into_iter().next().unwrap_or_default())),
    ("float", |run, _, args| {
        let value = args.need(0, "value")?;
        run.work(4 * piece(&value).len())?;
        let parsed = Piece::of(&value).and_then(|text| text.trim().parse::<f64>().ok());
        let float = parsed.or_else(|| f64::try_from(value.clone()).ok());
        Ok(float.map_or_else(|| args.get(1, "default").unwrap_or(Value::from(0.0)), Value::from))
    }),
    ("indent", |run, _, args| indent(run, args)),
    ("int", |run, _, args| {
        let value = args.need(0, "value")?;
        run.work(8 * piece(&value).len())?;
        let float = f64::try_from(value.clone()).ok();
        let number = match Piece::of(&value) {
            Some(text) => {
                text.trim().parse().ok().or_else(|| text.trim().parse::<f64>().ok().map(|f| f as i64))
            }
            None => value.as_i64().or(float.map(|float| float as i64)).or(value.is_true().then_some(1)),
        };
        Ok(number.map_or_else(|| args.get(1, "default").unwrap_or(Value::from(0)), Value::from))
    }),
    ("items", |run, _, args| {
        let value = args.need(0, "value")?;
        if value.is_undefined() { List::make(run, Vec::new()) } else { items(run, &value) }
    }),
    ("join", |run, _, args| {
        let mut values = iterate(run, &args.need(0, "value")?)?;
        let separator = args.get(1, "d").unwrap_or(Value::from(""));
        if let Some(name) = args.get(2, "attribute") {
            let name = text(run, &name)?;
            for value in &mut values {
                *value = attribute(run, value, piece(&name).text)?;
            }
        }
        join_all(run, &values, piece(&text(run, &separator)?))
    }),
    ("last", |run, _, args| {
        Ok(iterate(run, &args.need(0, "seq")?)?.into_iter().next_back().unwrap_or_default())
    }),
    ("length", |run, _, args| length(run, args)),
    ("list", |run, _, args| List::make(run, iterate(run, &args.need(0, "value")?)?)),
    ("lower", |run, _, args| case(run, "lower", args)),
    ("map", map),
    ("max", |run, _, args| extreme(run, args, Ordering::Greater)),
    ("min", |run, _, args| extreme(run, args, Ordering::Less)),
    ("reject", |run, state, args| select(run, state, args, false, false)),
    ("rejectattr", |run, state, args| select(run, state, args, true, false)),
    ("replace", |run, _, args| {
        let value = args.need(0, "s")?;
        let (old, new) = (args.need(1, "old")?, args.need(2, "new")?);
        let count = args.get(3, "count").and_then(|count| count.as_i64());
        let most = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
        let (value, old, new) = (text(run, &value)?, text(run, &old)?, text(run, &new)?);
        run.work(2 * (piece(&value).len() + piece(&old).len()))?;
        replace(run, piece(&value), piece(&old), piece(&new), most)
    }),
    ("reverse", |run, _, args| {
        let value = args.need(0, "value")?;
        if let Some(text) = Piece::of(&value) {
            run.work(ITEM_WORK * text.len())?;
            let mut out = Sink::new(run);
            let segments: Vec<(&str, bool)> = run.collect(text.segments().map(Ok))?;
            for (part, untrusted) in segments.into_iter().rev() {
                part.chars().rev().try_for_each(|c| out.push_char(c, untrusted))?;
            }
            return out.into_value();
        }
        let mut items = iterate(run, &value)?;
        items.reverse();
        List::make(run, items)
    }),
    ("safe", |run, _, args| text(run, &args.need(0, "value")?)),
    ("select", |run, state, args| select(run, state, args, false, true)),
    ("selectattr", |run, state, args| select(run, state, args, true, true)),
    ("sort", |run, _, args| {
        let mut items = iterate(run, &args.need(0, "value")?)?;
        let reverse = args.get(1, "reverse").is_some_and(|reverse| reverse.is_true());
        if args.get(2, "case_sensitive").is_some_and(|sensitive| sensitive.is_true()) {
            return Err(fail("sort(case_sensitive=true) is not supported in chat templates"));
        }
        match args.get(3, "attribute") {
            None => sort(run, &mut items, |item| Ok(item.clone()), reverse)?,
            Some(name) => {
                let name = text(run, &name)?;
                sort(run, &mut items, |item| attribute(run, item, piece(&name).text), reverse)?;
            }
        }
        List::make(run, items)
    }),
    ("string", |run, _, args| text(run, &args.need(0, "value")?)),
    ("title", |run, _, args| case(run, "title", args)),
    ("tojson", |run, _, args| to_json(run, args)),
    ("trim", |run, _, args| {
        let value = args.need(0, "value")?;
        let chars = args.get(1, "chars").filter(|chars| !chars.is_none());
        let value = text(run, &value)?;
        let value = piece(&value);
        let chars = chars.as_ref().map(|chars| text(run, chars)).transpose()?;
        let chars = chars.as_ref().map(|chars| piece(chars).text);
        run.work(value.len().saturating_mul(chars.map_or(4, |chars| 4 + chars.len())))?;
        run.string(value.part(strip(value.text, chars, true, true)))
    }),
    ("unique", |run, _, args| {
        let mut kept: Vec<Value> = Vec::new();
        'next: for item in iterate(run, &args.need(0, "value")?)? {
            for known in &kept {
                if equal(run, known, &item)? {
                    continue 'next;
                }
            }
            run.grow(&mut kept, 1)?;
            kept.push(item);
        }
        List::make(run, kept)
    }),
    ("upper", |run, _, args| case(run, "upper", args)),
];

pub(super) fn register(env: &mut Environment<'_>, run: &Arc<Run>) {
    for (name, filter) in FILTERS {
        let run = run.clone();
        env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let values = args.into_values();
            let args = Args::new(&values);
            let result = filter(&run, state, &args)?;
            // `map` and similar filters pass on their additional arguments.
            args.done(8)?;
            Ok::<Value, minijinja::Error>(result)
        });
    }
}

/// `value.name`; a name with dots is followed part by part.
fn attribute(run: &Run, value: &Value, name: &str) -> Outcome<Value> {
    let mut value = value.clone();
    for part in name.split('.') {
        run.work(ITEM_WORK + part.len())?;
        value = match part.parse::<usize>() {
            Ok(at) => list(&value).and_then(|list| list.items.get(at).cloned()).unwrap_or_default(),
            Err(_) => ops::attribute(run, &value, part)?,
        };
    }
    Ok(value)
}

fn length(run: &Run, args: &Args) -> Outcome<Value> {
    let value = args.need(0, "obj")?;
    let length = match (Piece::of(&value), list(&value), dict(&value)) {
        (Some(text), ..) => {
            run.work(text.len())?;
            text.chars().count()
        }
        (_, Some(list), _) => list.items.len(),
        (.., Some(dict)) => dict.pairs.len(),
        _ if value.is_undefined() => 0,
        _ => return Err(fail(format!("the length of a {}", kind(&value)))),
    };
    Ok(Value::from(length))
}

fn default(args: &Args) -> Outcome<Value> {
    let value = args.need(0, "value")?;
    let replaced = args.get(1, "default_value").unwrap_or(Value::from(""));
    let falsy_too = args.get(2, "boolean").is_some_and(|boolean| boolean.is_true());
    Ok(if value.is_undefined() || falsy_too && !value.is_true() { replaced } else { value })
}

fn case(run: &Run, how: &str, args: &Args) -> Outcome<Value> {
    let value = args.need(0, "s")?;
    let value = text(run, &value)?;
    let value = piece(&value);
    if how != "title" {
        return change_case(run, how, value);
    }
    // The filter splits words differently from the method with the same name.
    run.work(ITEM_WORK * value.len())?;
    let mut out = Sink::new(run);
    let mut begins = true;
    for (part, untrusted) in value.segments() {
        for c in part.chars() {
            match begins {
                true => c.to_uppercase().try_for_each(|c| out.push_char(c, untrusted))?,
                false => c.to_lowercase().try_for_each(|c| out.push_char(c, untrusted))?,
            }
            begins = is_space(c) || "-({[<".contains(c);
        }
    }
    out.into_value()
}

fn escape(run: &Run, args: &Args) -> Outcome<Value> {
    let value = text(run, &args.need(0, "s")?)?;
    let value = piece(&value);
    run.work(ITEM_WORK * value.len())?;
    let mut out = Sink::new(run);
    out.push_escaped(value, |c| {
        Some(match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            '"' => "&#34;".into(),
            '\'' => "&#39;".into(),
            _ => return None,
        })
    })?;
    out.into_value()
}

fn indent(run: &Run, args: &Args) -> Outcome<Value> {
    let value = args.need(0, "s")?;
    let by = match args.get(1, "width") {
        Some(width) if Piece::of(&width).is_some() => width,
        width => {
            // As in Python, a negative width means none.
            let width = width.map_or(Some(4), |width| width.as_usize()).unwrap_or(0);
            if width > MAX_WIDTH {
                return Err(fail(format!("indent: width is at most {MAX_WIDTH}, or a text")));
            }
            run.string(Piece::trusted(&" ".repeat(width)))?
        }
    };
    let is = |at, name| args.get(at, name).is_some_and(|value| value.is_true());
    let (first, blank) = (is(2, "first"), is(3, "blank"));
    let value = text(run, &value)?;
    run.work(4 * piece(&value).len())?;
    // As in Jinja, add a line end for an empty last line.
    let mut ended = Sink::new(run);
    ended.push_piece(piece(&value))?;
    ended.push("\n")?;
    let ended = ended.into_text();
    let mut out = Sink::new(run);
    for (at, line) in lines(&ended.text).enumerate() {
        run.work(ITEM_WORK)?;
        out.push(if at == 0 { "" } else { "\n" })?;
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.push_piece(piece(&by))?;
        }
        out.push_piece(ended.piece().part(line))?;
    }
    out.into_value()
}

/// As in Jinja, `map`, `select` and similar filters treat a false value (undefined, none) as a list without items.
fn iterate_if_any(run: &Run, args: &Args) -> Outcome<Vec<Value>> {
    let value = args.need(0, "value")?;
    if value.is_true() { iterate(run, &value) } else { Ok(Vec::new()) }
}

/// `map('filter', ...)` or `map(attribute='name', default=...)`.
fn map(run: &Run, state: &mut State, args: &Args) -> Outcome<Value> {
    let values = iterate_if_any(run, args)?;
    let mut out = run.list(values.len())?;
    let named = args.get(usize::MAX, "attribute");
    let default = args.get(usize::MAX, "default");
    let (name, rest) = match (&named, args.positional().get(1)) {
        (Some(_), _) | (None, None) => ("", &[][..]),
        (None, Some(name)) => (piece(name).text, &args.positional()[2..]),
    };
    for value in values {
        run.work(CALL_WORK)?;
        out.push(match &named {
            Some(named) => match (attribute(run, &value, piece(&text(run, named)?).text)?, &default) {
                (found, Some(default)) if found.is_undefined() => default.clone(),
                (found, _) => found,
            },
            None => {
                let args: Vec<Value> = std::iter::once(value).chain(rest.iter().cloned()).collect();
                state.apply_filter(name, &args)?
            }
        });
    }
    List::make(run, out)
}

/// `select`, `reject`: by a test of the item or of its attribute, or by its truth value if there is no test.
fn select(run: &Run, state: &mut State, args: &Args, by_attribute: bool, keep: bool) -> Outcome<Value> {
    let values = iterate_if_any(run, args)?;
    let mut rest = &args.positional()[args.positional().len().min(1)..];
    let name = match (by_attribute, rest.split_first()) {
        (true, Some((name, others))) => {
            rest = others;
            Some(text(run, name)?)
        }
        (true, None) => return Err(fail("selectattr needs an attribute's name")),
        (false, _) => None,
    };
    let mut out = run.list(values.len())?;
    for value in values {
        run.work(CALL_WORK)?;
        let tested = match &name {
            Some(name) => attribute(run, &value, piece(name).text)?,
            None => value.clone(),
        };
        let holds = match rest.split_first() {
            None => tested.is_true(),
            Some((test, others)) => {
                let args: Vec<Value> = std::iter::once(tested).chain(others.iter().cloned()).collect();
                state.perform_test(piece(test).text, &args)?
            }
        };
        if holds == keep {
            out.push(value);
        }
    }
    List::make(run, out)
}

/// Sorts numbers, or strings case-insensitively, by `key`.
fn sort(
    run: &Run,
    items: &mut [Value],
    key: impl Fn(&Value) -> Outcome<Value>,
    reverse: bool,
) -> Outcome<()> {
    let mut keyed = run.list(items.len())?;
    for item in items.iter() {
        let key = key(item)?;
        let key = match Piece::of(&key) {
            Some(text) => change_case(run, "lower", text)?,
            None => key,
        };
        keyed.push((key, item.clone()));
    }
    ops::sort(run, &mut keyed, |(key, _)| key, reverse)?;
    keyed.into_iter().zip(items).for_each(|((_, value), item)| *item = value);
    Ok(())
}

/// As in transformers: `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(run: &Run, args: &Args) -> Outcome<Value> {
    let value = args.need(0, "x")?;
    let given = |index, name| args.get(index, name).filter(|value: &Value| !value.is_none());
    let flag = |index, name| given(index, name).is_some_and(|value| value.is_true());
    let (ensure_ascii, sort_keys) = (flag(1, "ensure_ascii"), flag(4, "sort_keys"));
    let bad = || fail(format!("tojson: indent is 0 to {MAX_INDENT}, or a text of as many bytes"));
    let spaces = " ".repeat(MAX_INDENT);
    let indent = given(2, "indent");
    let indent = match &indent {
        None => None,
        Some(indent) => Some(match (Piece::of(indent), number(indent)) {
            (Some(text), _) if text.len() <= MAX_INDENT => text,
            (None, Some(Number::Int(width))) if width <= MAX_INDENT as i64 => {
                // As in Python, a negative width means none.
                Piece::trusted(&spaces[..width.max(0) as usize])
            }
            _ => return Err(bad()),
        }),
    };
    let separators = given(3, "separators");
    let separators = match &separators {
        None => [Piece::trusted(if indent.is_some() { "," } else { ", " }), Piece::trusted(": ")],
        Some(pair) => match list(pair).map(|pair| &pair.items[..]) {
            Some([item, key]) => match (Piece::of(item), Piece::of(key)) {
                (Some(item), Some(key)) => [item, key],
                _ => return Err(fail("tojson: separators are two texts")),
            },
            _ => return Err(fail("tojson: separators are two texts")),
        },
    };
    json(run, &value, &JsonStyle { indent, separators, ensure_ascii, sort_keys })
}

fn extreme(run: &Run, args: &Args, wanted: Ordering) -> Outcome<Value> {
    let mut best = Value::UNDEFINED;
    for item in iterate(run, &args.need(0, "value")?)? {
        if best.is_undefined() || order(run, &item, &best)? == Some(wanted) {
            best = item;
        }
    }
    Ok(best)
}
