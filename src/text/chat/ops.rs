//! The operators of a chat template, each charged for what it makes and looks at; Python's meaning of them.

use super::print::text;
use super::rewrite::names;
use super::value::{
    Args, Dict, List, Namespace, OBJECT_BYTES, Outcome, Run, Sink, VALUE_BYTES, dict, fail, list,
};
use minijinja::value::{Object, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, State};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// Jinja's sandbox has the same.
const MAX_RANGE: i64 = 100_000;

/// A function that gets its arguments as they lie on the stack.
pub struct Native {
    pub run: Arc<Run>,
    pub function: fn(&Run, &[Value]) -> Outcome<Value>,
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("function")
    }
}

impl Object for Native {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        (self.function)(&self.run, args)
    }
}

/// The operators, and the functions that templates call by name.
pub fn register(env: &mut Environment<'_>, run: &Arc<Run>) {
    type Function = fn(&Run, &[Value]) -> Outcome<Value>;
    let functions: [(&'static str, Function); 16] = [
        (names::ADD, |run, args| add(run, &args[0], &args[1])),
        (names::MUL, |run, args| multiply(run, &args[0], &args[1])),
        (names::CONCAT, |run, args| concat(run, &args[0], &args[1])),
        (names::COMPARE, compare),
        (names::ITEM, |run, args| item(run, &args[0], &args[1])),
        (names::SLICE, |run, args| slice(run, &args[0], [&args[1], &args[2], &args[3]])),
        (names::LIST, |run, args| List::make(run, args.to_vec())),
        (names::TUPLE, |run, args| List::tuple(run, args.to_vec())),
        (names::MAP, |run, args| {
            Dict::make(run, args.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())))
        }),
        (names::SET, set),
        (names::ITER, |run, args| match list(&args[0]) {
            Some(_) => Ok(args[0].clone()),
            None => List::make(run, iterate(run, &args[0])?),
        }),
        ("namespace", |run, args| {
            let namespace = Namespace::default();
            run.memory(OBJECT_BYTES)?;
            for (name, value) in pairs(run, args)? {
                namespace.set(run, &name, &value)?;
            }
            Ok(Value::from_object(namespace))
        }),
        ("dict", |run, args| {
            Dict::make(run, pairs(run, args)?.into_iter().map(|(name, value)| (Value::from(name), value)))
        }),
        ("range", range),
        ("raise_exception", |run, args| {
            let args = Args::new(args);
            Err(run.raise(text(run, &args.need(0, "message")?)?.into_owned()))
        }),
        ("strftime_now", |run, args| {
            let now = std::time::SystemTime::now();
            run.string(&super::time::format(&Args::new(args).text(0, "format")?, now)?)
        }),
    ];
    for (name, function) in functions {
        env.add_global(name, Value::from_object(Native { run: run.clone(), function }));
    }
}

/// Of `namespace(...)` and `dict(...)`: a mapping's pairs, then the named arguments.
fn pairs(run: &Run, args: &[Value]) -> Outcome<Vec<(String, Value)>> {
    let args = Args::new(args);
    let mut pairs = Vec::new();
    for value in args.positional() {
        let from = dict(value).ok_or_else(|| fail(format!("a {} is no mapping", value.kind())))?;
        for (name, value) in &from.pairs {
            let name = text(run, name)?;
            run.memory(name.len() + OBJECT_BYTES)?;
            pairs.push((name.into_owned(), value.clone()));
        }
    }
    pairs.extend(args.pairs());
    Ok(pairs)
}

fn set(run: &Run, args: &[Value]) -> Outcome<Value> {
    let (target, name) = (&args[0], args[1].as_str().unwrap_or_default());
    match target.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(run, name, &args[2]).map(|()| Value::UNDEFINED),
        None => Err(fail(format!("'{name}' of a {} can't be set, only of a namespace", target.kind()))),
    }
}

fn range(run: &Run, args: &[Value]) -> Outcome<Value> {
    let number = |value: &Value| value.as_i64().ok_or_else(|| fail("range takes integers"));
    let (start, stop, step) = match args {
        [stop] => (0, number(stop)?, 1),
        [start, stop] => (number(start)?, number(stop)?, 1),
        [start, stop, step] => (number(start)?, number(stop)?, number(step)?),
        _ => return Err(fail("range takes one to three arguments")),
    };
    let distance = if step > 0 { stop.checked_sub(start) } else { start.checked_sub(stop) };
    let count = match (distance, step.checked_abs()) {
        (_, Some(0)) => return Err(fail("range's step is 0")),
        (Some(distance), Some(step)) => distance.max(0) / step + i64::from(distance.max(0) % step != 0),
        _ => i64::MAX,
    };
    if count > MAX_RANGE {
        return Err(fail(format!("range is longer than {MAX_RANGE}")));
    }
    run.memory(VALUE_BYTES * count as usize)?;
    List::make(run, (0..count).map(|i| Value::from(start + i * step)).collect())
}

/// A number as Python's arithmetic takes it: bools count.
enum Number {
    Int(i64),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(value.is_true().into())),
        ValueKind::Number => match value.as_i64().filter(|_| value.is_integer()) {
            Some(int) => Some(Number::Int(int)),
            None => f64::try_from(value.clone()).ok().map(Number::Float),
        },
        _ => None,
    }
}

fn arithmetic(
    (a, b): (&Value, &Value),
    sign: &str,
    int: fn(i64, i64) -> Option<i64>,
    float: fn(f64, f64) -> f64,
) -> Outcome<Value> {
    let as_float = |n: &Number| match n {
        Number::Int(i) => *i as f64,
        Number::Float(f) => *f,
    };
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => {
            int(x, y).map(Value::from).ok_or_else(|| fail(format!("{x} {sign} {y} is out of range")))
        }
        (Some(x), Some(y)) => Ok(Value::from(float(as_float(&x), as_float(&y)))),
        _ => Err(fail(format!("a {} {sign} a {}", a.kind(), b.kind()))),
    }
}

fn add(run: &Run, a: &Value, b: &Value) -> Outcome<Value> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return join(run, x, y);
    }
    if let (Some(x), Some(y)) = (list(a), list(b))
        && x.is_tuple == y.is_tuple
    {
        run.memory(VALUE_BYTES * (x.items.len() + y.items.len()))?;
        return x.another(run, x.items.iter().chain(&y.items).cloned().collect());
    }
    arithmetic((a, b), "+", i64::checked_add, |x, y| x + y)
}

fn join(run: &Run, x: &str, y: &str) -> Outcome<Value> {
    run.memory(x.len() + y.len())?;
    run.string(&[x, y].concat())
}

fn concat(run: &Run, a: &Value, b: &Value) -> Outcome<Value> {
    join(run, &text(run, a)?, &text(run, b)?)
}

fn multiply(run: &Run, a: &Value, b: &Value) -> Outcome<Value> {
    let (what, by) = if number(a).is_some() { (b, a) } else { (a, b) };
    let times = || match number(by) {
        Some(Number::Int(times)) => Ok(usize::try_from(times).unwrap_or(0)),
        _ => Err(fail(format!("a {} * a {}", a.kind(), b.kind()))),
    };
    if let Some(text) = what.as_str() {
        let times = times()?;
        run.memory(text.len().saturating_mul(times))?;
        return run.string(&text.repeat(if text.is_empty() { 0 } else { times }));
    }
    if let Some(list) = list(what) {
        let times = if list.items.is_empty() { 0 } else { times()? };
        run.memory(list.items.len().saturating_mul(times).saturating_mul(VALUE_BYTES))?;
        let all = std::iter::repeat_n(&list.items, times).flatten();
        return list.another(run, all.cloned().collect());
    }
    arithmetic((a, b), "*", i64::checked_mul, |x, y| x * y)
}

/// `a < b <= c ...`: operands and signs in turn. All operands are already computed.
fn compare(run: &Run, args: &[Value]) -> Outcome<Value> {
    for link in args.windows(3).step_by(2) {
        if !compare_two(run, link[1].as_str().unwrap_or_default(), &link[0], &link[2])? {
            return Ok(Value::from(false));
        }
    }
    Ok(Value::from(true))
}

pub fn compare_two(run: &Run, sign: &str, a: &Value, b: &Value) -> Outcome<bool> {
    Ok(match sign {
        "==" => equal(run, a, b)?,
        "!=" => !equal(run, a, b)?,
        "in" => contains(run, b, a)?,
        "not in" => !contains(run, b, a)?,
        "<" => order(run, a, b)? == Some(Ordering::Less),
        "<=" => matches!(order(run, a, b)?, Some(Ordering::Less | Ordering::Equal)),
        ">" => order(run, a, b)? == Some(Ordering::Greater),
        _ => matches!(order(run, a, b)?, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// None where a float is no number.
pub fn order(run: &Run, a: &Value, b: &Value) -> Outcome<Option<Ordering>> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        run.work(x.len().min(y.len()))?;
        return Ok(Some(x.cmp(y)));
    }
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => Ok(Some(x.cmp(&y))),
        (Some(Number::Int(x)), Some(Number::Float(y))) => Ok((x as f64).partial_cmp(&y)),
        (Some(Number::Float(x)), Some(Number::Int(y))) => Ok(x.partial_cmp(&(y as f64))),
        (Some(Number::Float(x)), Some(Number::Float(y))) => Ok(x.partial_cmp(&y)),
        _ => Err(fail(format!("a {} and a {} have no order", a.kind(), b.kind()))),
    }
}

pub fn equal(run: &Run, a: &Value, b: &Value) -> Outcome<bool> {
    run.work(1)?;
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        run.work(if x.len() == y.len() { x.len() } else { 0 })?;
        return Ok(x == y);
    }
    if number(a).is_some() && number(b).is_some() {
        return Ok(order(run, a, b)? == Some(Ordering::Equal));
    }
    if let (Some(x), Some(y)) = (list(a), list(b)) {
        if x.items.len() != y.items.len() || x.is_tuple != y.is_tuple {
            return Ok(false);
        }
        for (x, y) in x.items.iter().zip(&y.items) {
            if !equal(run, x, y)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if let (Some(x), Some(y)) = (dict(a), dict(b)) {
        if x.pairs.len() != y.pairs.len() {
            return Ok(false);
        }
        for (key, value) in &x.pairs {
            run.work(y.pairs.len())?;
            match y.get(key) {
                Some(other) if equal(run, value, other)? => {}
                _ => return Ok(false),
            }
        }
        return Ok(true);
    }
    Ok(a.kind() == b.kind() && matches!(a.kind(), ValueKind::None | ValueKind::Undefined))
}

pub fn contains(run: &Run, whole: &Value, part: &Value) -> Outcome<bool> {
    if let Some(text) = whole.as_str() {
        let part = part.as_str().ok_or_else(|| fail(format!("a {} in a string", part.kind())))?;
        run.work(text.len() + part.len())?;
        return Ok(text.contains(part));
    }
    if let Some(dict) = dict(whole) {
        run.work(dict.pairs.len())?;
        return Ok(dict.get(part).is_some());
    }
    if let Some(list) = list(whole) {
        for item in &list.items {
            if equal(run, item, part)? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    match whole.is_undefined() {
        true => Ok(false),
        false => Err(fail(format!("'in' a {}", whole.kind()))),
    }
}

fn item(run: &Run, of: &Value, key: &Value) -> Outcome<Value> {
    if of.is_undefined() {
        return Err(fail("an item of something undefined"));
    }
    let at = key.as_i64().filter(|_| key.is_integer());
    let index = |len: usize, at: i64| {
        let at = if at < 0 { at.checked_add_unsigned(len as u64)? } else { at };
        usize::try_from(at).ok().filter(|at| *at < len)
    };
    if let (Some(text), Some(at)) = (of.as_str(), at) {
        run.work(text.len())?;
        let found = index(text.chars().count(), at).and_then(|at| text.chars().nth(at));
        return Ok(found.map_or(Value::UNDEFINED, Value::from));
    }
    if let (Some(list), Some(at)) = (list(of), at) {
        return Ok(index(list.items.len(), at).map_or(Value::UNDEFINED, |at| list.items[at].clone()));
    }
    if let Some(dict) = dict(of) {
        run.work(dict.pairs.len() + key.as_str().map_or(0, str::len))?;
        return Ok(dict.get(key).cloned().unwrap_or_default());
    }
    // As Jinja: what has no such item may have such an attribute.
    let attribute = |name: &str| of.get_attr(name).unwrap_or_default();
    Ok(key.as_str().map_or(Value::UNDEFINED, attribute))
}

/// `of[start:stop:step]`, by characters or items.
fn slice(run: &Run, of: &Value, parts: [&Value; 3]) -> Outcome<Value> {
    let part = |value: &Value| match value.kind() {
        ValueKind::None => Ok(None),
        _ if value.is_integer() => Ok(value.as_i64()),
        other => Err(fail(format!("a {other} in a slice"))),
    };
    let (start, stop, step) = (part(parts[0])?, part(parts[1])?, part(parts[2])?.unwrap_or(1));
    if let Some(text) = of.as_str() {
        run.work(text.len())?;
        run.memory(4 * text.len())?;
        let chars: Vec<char> = text.chars().collect();
        let chosen: String = positions(start, stop, step, chars.len())?.map(|at| chars[at]).collect();
        return run.string(&chosen);
    }
    if let Some(list) = list(of) {
        let chosen = positions(start, stop, step, list.items.len())?;
        run.memory(VALUE_BYTES * list.items.len())?;
        return list.another(run, chosen.map(|at| list.items[at].clone()).collect());
    }
    Err(fail(format!("a slice of a {}", of.kind())))
}

/// The positions of a slice of `len` items, as Python counts them.
fn positions(
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
    len: usize,
) -> Outcome<impl Iterator<Item = usize>> {
    if step == 0 {
        return Err(fail("a slice's step is 0"));
    }
    let len = len as i64;
    // Where no position is left: before the first for a backward slice, behind the last for a forward one.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clip = |at: i64| (if at < 0 { at.saturating_add(len) } else { at }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (start.map_or(first, clip), stop.map_or(last, clip));
    let walk = std::iter::successors(Some(start), move |at| at.checked_add(step));
    Ok(walk.take_while(move |at| if step > 0 { *at < stop } else { *at > stop }).map(|at| at as usize))
}

/// What a `for` runs over: items, keys, or characters.
pub fn iterate(run: &Run, value: &Value) -> Outcome<Vec<Value>> {
    if let Some(list) = list(value) {
        run.memory(VALUE_BYTES * list.items.len())?;
        return Ok(list.items.clone());
    }
    if let Some(dict) = dict(value) {
        run.memory(VALUE_BYTES * dict.pairs.len())?;
        return Ok(dict.pairs.iter().map(|(key, _)| key.clone()).collect());
    }
    if let Some(text) = value.as_str() {
        run.memory(VALUE_BYTES * text.len())?;
        return Ok(text.chars().map(Value::from).collect());
    }
    match value.is_undefined() {
        true => Ok(Vec::new()),
        false => Err(fail(format!("a {} can't be iterated over", value.kind()))),
    }
}

/// `separator.join(values)`.
pub fn join_all(run: &Run, values: &[Value], separator: &str) -> Outcome<Value> {
    let mut out = Sink::new(run);
    for (at, value) in values.iter().enumerate() {
        out.push(if at == 0 { "" } else { separator })?;
        out.push(&text(run, value)?)?;
    }
    out.into_value()
}
