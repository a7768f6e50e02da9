//! Jinja's filters, as far as chat templates use them.

use super::methods::{change_case, is_space, items, lines, replace, strip};
use super::ops::{equal, iterate, join_all, order};
use super::print::{json, text};
use super::value::{Args, List, Outcome, Run, Sink, VALUE_BYTES, dict, fail, list};
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, State};
use std::cmp::Ordering;
use std::sync::Arc;

type Filter = fn(&Run, &mut State, &Args) -> Outcome<Value>;

const FILTERS: [(&str, Filter); 35] = [
    ("attr", |run, _, args| attribute(run, &args.need(0, "obj")?, &args.text(1, "name")?)),
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
            |pair| list(pair).map_or(Value::UNDEFINED, |pair| pair.items[0].clone()),
            false,
        )?;
        List::make(run, pairs)
    }),
    ("e", |run, _, args| escape(run, args)),
    ("escape", |run, _, args| escape(run, args)),
    ("first", |run, _, args| Ok(iterate(run, &args.need(0, "seq")?)?.into_iter().next().unwrap_or_default())),
    ("float", |_, _, args| {
        let value = args.need(0, "value")?;
        let parsed = value.as_str().and_then(|text| text.trim().parse::<f64>().ok());
        let float = parsed.or_else(|| f64::try_from(value.clone()).ok());
        Ok(float.map_or_else(|| args.get(1, "default").unwrap_or(Value::from(0.0)), Value::from))
    }),
    ("indent", |run, _, args| indent(run, args)),
    ("int", |_, _, args| {
        let value = args.need(0, "value")?;
        let float = f64::try_from(value.clone()).ok();
        let number = match value.as_str() {
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
            let name = text(run, &name)?.into_owned();
            for value in &mut values {
                *value = attribute(run, value, &name)?;
            }
        }
        join_all(run, &values, &text(run, &separator)?)
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
        let value = text(run, &value)?;
        run.work(value.len())?;
        replace(run, &value, &text(run, &old)?, &text(run, &new)?, most)
    }),
    ("reverse", |run, _, args| {
        let value = args.need(0, "value")?;
        if let Some(text) = value.as_str() {
            run.memory(text.len())?;
            return run.string(&text.chars().rev().collect::<String>());
        }
        let mut items = iterate(run, &value)?;
        items.reverse();
        List::make(run, items)
    }),
    ("safe", |run, _, args| run.string(&text(run, &args.need(0, "value")?)?)),
    ("select", |run, state, args| select(run, state, args, false, true)),
    ("selectattr", |run, state, args| select(run, state, args, true, true)),
    ("sort", |run, _, args| {
        let mut items = iterate(run, &args.need(0, "value")?)?;
        let reverse = args.get(1, "reverse").is_some_and(|reverse| reverse.is_true());
        if args.get(2, "case_sensitive").is_some_and(|sensitive| sensitive.is_true()) {
            return Err(fail("sort(case_sensitive=true) is not supported in chat templates"));
        }
        match args.get(3, "attribute") {
            None => sort(run, &mut items, Value::clone, reverse)?,
            Some(name) => {
                let name = text(run, &name)?.into_owned();
                sort(run, &mut items, |item| attribute(run, item, &name).unwrap_or_default(), reverse)?;
            }
        }
        List::make(run, items)
    }),
    ("string", |run, _, args| run.string(&text(run, &args.need(0, "value")?)?)),
    ("title", |run, _, args| case(run, "title", args)),
    ("tojson", |run, _, args| {
        let value = args.need(0, "x")?;
        let plain = |name: &str| args.get(usize::MAX, name).is_none_or(|value| !value.is_true());
        if !plain("ensure_ascii") || !plain("sort_keys") || !plain("separators") {
            return Err(fail("tojson with ensure_ascii, separators or sort_keys is not supported"));
        }
        let indent = args.get(2, "indent").filter(|indent| !indent.is_none());
        let indent = match indent {
            Some(indent) => {
                let width = indent.as_usize().filter(|width| *width <= 16);
                Some(width.ok_or_else(|| fail("tojson: indent goes from 0 to 16"))?)
            }
            None => None,
        };
        json(run, &value, indent)
    }),
    ("trim", |run, _, args| {
        let value = args.need(0, "value")?;
        let chars = args.get(1, "chars").filter(|chars| !chars.is_none());
        let value = text(run, &value)?;
        let chars = chars.as_ref().map(|chars| text(run, chars)).transpose()?;
        run.work(value.len().saturating_mul(chars.as_ref().map_or(1, |chars| chars.len())))?;
        run.string(strip(&value, chars.as_deref(), true, true))
    }),
    ("unique", |run, _, args| {
        let mut kept: Vec<Value> = Vec::new();
        'next: for item in iterate(run, &args.need(0, "value")?)? {
            for known in &kept {
                if equal(run, known, &item)? {
                    continue 'next;
                }
            }
            kept.push(item);
        }
        List::make(run, kept)
    }),
    ("upper", |run, _, args| case(run, "upper", args)),
];

pub fn register(env: &mut Environment<'_>, run: &Arc<Run>) {
    for (name, filter) in FILTERS {
        let run = run.clone();
        env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let values = args.into_values();
            let args = Args::new(&values);
            let result = filter(&run, state, &args)?;
            // `map` and its like pass theirs on.
            args.done(8)?;
            Ok::<Value, minijinja::Error>(result)
        });
    }
}

/// `value.name`, by parts where there are dots.
fn attribute(run: &Run, value: &Value, name: &str) -> Outcome<Value> {
    let mut value = value.clone();
    for part in name.split('.') {
        run.work(part.len() + dict(&value).map_or(1, |dict| dict.pairs.len()))?;
        value = match part.parse::<usize>() {
            Ok(at) => list(&value).and_then(|list| list.items.get(at).cloned()).unwrap_or_default(),
            Err(_) => value.get_attr(part)?,
        };
    }
    Ok(value)
}

fn length(run: &Run, args: &Args) -> Outcome<Value> {
    let value = args.need(0, "obj")?;
    let length = match (value.as_str(), list(&value), dict(&value)) {
        (Some(text), ..) => {
            run.work(text.len())?;
            text.chars().count()
        }
        (_, Some(list), _) => list.items.len(),
        (.., Some(dict)) => dict.pairs.len(),
        _ if value.is_undefined() => 0,
        _ => return Err(fail(format!("the length of a {}", value.kind()))),
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
    if how != "title" {
        return change_case(run, how, &value);
    }
    // Words as the filter sees them, which are not those of the method of the same name.
    run.memory(value.len().saturating_mul(4))?;
    let mut out = String::new();
    let mut begins = true;
    for c in value.chars() {
        match begins {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        begins = is_space(c) || "-({[<".contains(c);
    }
    run.string(&out)
}

fn escape(run: &Run, args: &Args) -> Outcome<Value> {
    let value = args.need(0, "s")?;
    let value = text(run, &value)?;
    let mut out = Sink::new(run);
    let mut buffer = [0; 4];
    for c in value.chars() {
        out.push(match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '"' => "&#34;",
            '\'' => "&#39;",
            c => c.encode_utf8(&mut buffer),
        })?;
    }
    out.into_value()
}

fn indent(run: &Run, args: &Args) -> Outcome<Value> {
    let value = args.need(0, "s")?;
    let by = match args.get(1, "width") {
        Some(width) if width.as_str().is_some() => text(run, &width)?.into_owned(),
        width => {
            " ".repeat(width.map_or(Some(4), |width| width.as_usize()).map_or(0, |width| width.min(256)))
        }
    };
    let is = |at, name| args.get(at, name).is_some_and(|value| value.is_true());
    let (first, blank) = (is(2, "first"), is(3, "blank"));
    let mut out = Sink::new(run);
    let value = text(run, &value)?;
    // Jinja's own trick: an end more, for a last line that is empty.
    run.memory(value.len())?;
    for (at, line) in lines(&format!("{value}\n")).enumerate() {
        out.push(if at == 0 { "" } else { "\n" })?;
        let indented = if at == 0 { first } else { blank || !line.is_empty() };
        out.push(if indented { &by } else { "" })?;
        out.push(line)?;
    }
    out.into_value()
}

/// As Jinja's, `map`, `select` and their like take none for a list without items.
fn iterate_if_any(run: &Run, args: &Args) -> Outcome<Vec<Value>> {
    let value = args.need(0, "value")?;
    if value.is_true() { iterate(run, &value) } else { Ok(Vec::new()) }
}

/// `map('filter', ...)` or `map(attribute='name', default=...)`.
fn map(run: &Run, state: &mut State, args: &Args) -> Outcome<Value> {
    let values = iterate_if_any(run, args)?;
    let mut out = Vec::with_capacity(values.len());
    let named = args.get(usize::MAX, "attribute");
    let default = args.get(usize::MAX, "default");
    let (name, rest) = match (&named, args.positional().get(1)) {
        (Some(_), _) | (None, None) => ("", &[][..]),
        (None, Some(name)) => (name.as_str().unwrap_or_default(), &args.positional()[2..]),
    };
    for value in values {
        run.work(1)?;
        out.push(match &named {
            Some(named) => match (attribute(run, &value, &text(run, named)?)?, &default) {
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

/// `select`, `reject`: by a test of the item, or of its attribute; by its truth without one.
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
    run.memory(VALUE_BYTES * values.len())?;
    let mut out = Vec::new();
    for value in values {
        run.work(1)?;
        let tested = match &name {
            Some(name) => attribute(run, &value, name)?,
            None => value.clone(),
        };
        let holds = match rest.split_first() {
            None => tested.is_true(),
            Some((test, others)) => {
                let args: Vec<Value> = std::iter::once(tested).chain(others.iter().cloned()).collect();
                state.perform_test(test.as_str().unwrap_or_default(), &args)?
            }
        };
        if holds == keep {
            out.push(value);
        }
    }
    List::make(run, out)
}

/// Sorts numbers, or strings without regard to case, by `key`.
fn sort(run: &Run, items: &mut [Value], key: impl Fn(&Value) -> Value, reverse: bool) -> Outcome<()> {
    run.memory(4 * VALUE_BYTES * items.len())?;
    let mut keyed = Vec::with_capacity(items.len());
    let mut bytes = 0usize;
    for item in items.iter() {
        let key = match key(item) {
            key if key.as_str().is_some() => change_case(run, "lower", key.as_str().unwrap_or_default())?,
            key => key,
        };
        // With the first: whether these have an order at all.
        if let Some((first, _)) = keyed.first() {
            order(run, first, &key)?;
        }
        bytes = bytes.saturating_add(key.as_str().map_or(1, str::len));
        keyed.push((key, item.clone()));
    }
    let rounds = usize::BITS - keyed.len().leading_zeros();
    run.work(bytes.saturating_mul(rounds as usize))?;
    let compare = |a: &(Value, Value), b: &(Value, Value)| {
        order(run, &a.0, &b.0).ok().flatten().unwrap_or(Ordering::Equal)
    };
    match reverse {
        false => keyed.sort_by(compare),
        true => keyed.sort_by(|a, b| compare(b, a)),
    }
    keyed.into_iter().zip(items).for_each(|((_, value), item)| *item = value);
    Ok(())
}

fn extreme(run: &Run, args: &Args, wanted: Ordering) -> Outcome<Value> {
    let mut best = Value::UNDEFINED;
    for item in iterate(run, &args.need(0, "value")?)? {
        if best.kind() == ValueKind::Undefined || order(run, &item, &best)? == Some(wanted) {
            best = item;
        }
    }
    Ok(best)
}
