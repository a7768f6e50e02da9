//! The operators of a chat template, with Python's semantics. Each is charged for the memory and work that it
//! takes.

use super::methods;
use super::print::text;
use super::rewrite::names;
use super::text::{Piece, Sink, piece};
use super::value::{
    Args, Dict, ITEM_WORK, List, Namespace, OBJECT_BYTES, Outcome, Run, dict, fail, kind, list, short_debug,
};
use crate::base;
use minijinja::value::{Object, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, State};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// Jinja's sandbox has the same limit.
const MAX_RANGE: i64 = 100_000;

/// A function that takes its arguments as they are on the stack.
pub(super) struct Native {
    pub run: Arc<Run>,
    pub function: fn(&Run, &[Value]) -> Outcome<Value>,
}

/// Calls its first argument with the others. The output of a macro becomes a string with marks.
struct Caller(Arc<Run>);

short_debug!(Caller "function", Native "function");

impl Object for Caller {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let result = args[0].call(state, &args[1..])?;
        let is_ours = args[0].downcast_object_ref::<Native>().is_some();
        if is_ours { Ok(result) } else { captured(&self.0, &result) }
    }
}

/// The output of a capture or a macro, as a string with marks.
fn captured(run: &Run, written: &Value) -> Outcome<Value> {
    let mut out = Sink::new(run);
    out.push_piece(run.read(written.as_str().ok_or_else(|| fail("this is no output"))?)?.piece())?;
    out.into_value()
}

impl Object for Native {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        (self.function)(&self.run, args)
    }
}

/// Registers the operators, and the functions that templates call by name.
pub(super) fn register(env: &mut Environment<'_>, run: &Arc<Run>) {
    type Function = fn(&Run, &[Value]) -> Outcome<Value>;
    let functions: [(&'static str, Function); 19] = [
        (names::ADD, |run, args| add(run, &args[0], &args[1])),
        (names::MUL, |run, args| multiply(run, &args[0], &args[1])),
        (names::CONCAT, |run, args| concat(run, &args[0], &args[1])),
        (names::COMPARE, compare),
        (names::ITEM, |run, args| item(run, &args[0], &args[1])),
        (names::SLICE, |run, args| slice(run, &args[0], [&args[1], &args[2], &args[3]])),
        (names::LIST, |run, args| List::make(run, copied(run, args)?)),
        (names::TUPLE, |run, args| List::tuple(run, copied(run, args)?)),
        (names::MAP, |run, args| {
            Dict::make(run, args.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())))
        }),
        (names::SET, set),
        (names::ATTR, |run, args| attribute(run, &args[0], piece(&args[1]).text)),
        (names::METHOD, |run, args| methods::call(run, &args[0], piece(&args[1]).text, &args[2..])),
        (names::CAPTURED, |run, args| captured(run, &args[0])),
        (names::ITER, |run, args| match list(&args[0]) {
            Some(_) => Ok(args[0].clone()),
            None => List::make(run, iterate(run, &args[0])?),
        }),
        ("namespace", |run, args| {
            let namespace = Namespace::default();
            run.memory(OBJECT_BYTES)?;
            for (name, value) in pairs(run, args)? {
                namespace.set(run, piece(&name).text, &value)?;
            }
            Ok(Value::from_object(namespace))
        }),
        ("dict", |run, args| Dict::make(run, pairs(run, args)?.into_iter())),
        ("range", range),
        ("raise_exception", |run, args| {
            let args = Args::new(args);
            let why = text(run, &args.need(0, "message")?)?;
            Err(run.stop(base::Error::invalid(format!(
                "the model's chat template refuses these messages: {}",
                super::cut(piece(&why).text)
            ))))
        }),
        ("strftime_now", |run, args| {
            let now = std::time::SystemTime::now();
            let format = Args::new(args).text(0, "format")?;
            let format = piece(&format);
            run.string_as(&super::time::format(format.text, now)?, format.has_untrusted())
        }),
    ];
    env.add_global(names::CALL, Value::from_object(Caller(run.clone())));
    for (name, function) in functions {
        env.add_global(name, Value::from_object(Native { run: run.clone(), function }));
    }
}

/// The pairs of `namespace(...)` and `dict(...)`: those of mappings, then the named arguments.
fn pairs(run: &Run, args: &[Value]) -> Outcome<Vec<(Value, Value)>> {
    let args = Args::new(args);
    let mut pairs = Vec::new();
    for value in args.positional() {
        let from = dict(value).ok_or_else(|| fail(format!("a {} is no mapping", kind(value))))?;
        run.grow(&mut pairs, from.pairs.len())?;
        for (name, value) in &from.pairs {
            pairs.push((text(run, name)?, value.clone()));
        }
    }
    for (name, value) in args.pairs() {
        run.grow(&mut pairs, 1)?;
        pairs.push((run.string(Piece::trusted(&name))?, value));
    }
    Ok(pairs)
}

fn copied(run: &Run, values: &[Value]) -> Outcome<Vec<Value>> {
    let mut copy = run.list(values.len())?;
    copy.extend_from_slice(values);
    Ok(copy)
}

/// `of.name`; undefined if there is no such attribute.
pub(super) fn attribute(run: &Run, of: &Value, name: &str) -> Outcome<Value> {
    if let Some(dict) = dict(of) {
        return Ok(dict.get(run, &Value::from(name))?.cloned().unwrap_or_default());
    }
    match of.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.get(run, name),
        // Loops and macros, which have only a few names.
        None => of.get_attr(name),
    }
}

fn set(run: &Run, args: &[Value]) -> Outcome<Value> {
    let (target, name) = (&args[0], piece(&args[1]).text);
    match target.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(run, name, &args[2]).map(|()| Value::UNDEFINED),
        None => Err(fail(format!("'{name}' of a {} can't be set, only of a namespace", kind(target)))),
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
    let mut items = run.list(count as usize)?;
    items.extend((0..count).map(|i| Value::from(start + i * step)));
    List::make(run, items)
}

/// A number as in Python's arithmetic, in which bools are numbers.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

pub(super) fn number(value: &Value) -> Option<Number> {
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
        _ => Err(fail(format!("a {} {sign} a {}", kind(a), kind(b)))),
    }
}

fn add(run: &Run, a: &Value, b: &Value) -> Outcome<Value> {
    if let (Some(x), Some(y)) = (Piece::of(a), Piece::of(b)) {
        return join(run, x, y);
    }
    if let (Some(x), Some(y)) = (list(a), list(b))
        && x.is_tuple == y.is_tuple
    {
        let mut items = run.list(x.items.len() + y.items.len())?;
        items.extend(x.items.iter().chain(&y.items).cloned());
        return x.another(run, items);
    }
    arithmetic((a, b), "+", i64::checked_add, |x, y| x + y)
}

fn join(run: &Run, x: Piece, y: Piece) -> Outcome<Value> {
    let mut out = Sink::new(run);
    out.reserve(x.len() + y.len())?;
    out.push_piece(x)?;
    out.push_piece(y)?;
    out.into_value()
}

fn concat(run: &Run, a: &Value, b: &Value) -> Outcome<Value> {
    join(run, piece(&text(run, a)?), piece(&text(run, b)?))
}

fn multiply(run: &Run, a: &Value, b: &Value) -> Outcome<Value> {
    let (what, by) = if number(a).is_some() { (b, a) } else { (a, b) };
    let times = || match number(by) {
        Some(Number::Int(times)) => Ok(usize::try_from(times).unwrap_or(0)),
        _ => Err(fail(format!("a {} * a {}", kind(a), kind(b)))),
    };
    if let Some(text) = Piece::of(what) {
        let times = if text.is_empty() { 0 } else { times()? };
        let mut out = Sink::new(run);
        out.reserve(text.len().saturating_mul(times))?;
        run.work(times.saturating_mul(ITEM_WORK))?;
        (0..times).try_for_each(|_| out.push_piece(text))?;
        return out.into_value();
    }
    if let Some(list) = list(what) {
        let times = if list.items.is_empty() { 0 } else { times()? };
        let mut items = run.list(list.items.len().saturating_mul(times))?;
        items.extend(std::iter::repeat_n(&list.items, times).flatten().cloned());
        return list.another(run, items);
    }
    arithmetic((a, b), "*", i64::checked_mul, |x, y| x * y)
}

/// `a < b <= c ...`: operands and operators alternate. All operands are evaluated already.
fn compare(run: &Run, args: &[Value]) -> Outcome<Value> {
    for link in args.windows(3).step_by(2) {
        if !compare_two(run, piece(&link[1]).text, &link[0], &link[2])? {
            return Ok(Value::from(false));
        }
    }
    Ok(Value::from(true))
}

pub(super) fn compare_two(run: &Run, sign: &str, a: &Value, b: &Value) -> Outcome<bool> {
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

/// The order of two values; None if one of them is NaN.
pub(super) fn order(run: &Run, a: &Value, b: &Value) -> Outcome<Option<Ordering>> {
    run.work(ITEM_WORK)?;
    if let (Some(x), Some(y)) = (Piece::of(a), Piece::of(b)) {
        run.work(x.len().min(y.len()))?;
        return Ok(Some(x.text.cmp(y.text)));
    }
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => Ok(Some(x.cmp(&y))),
        (Some(Number::Int(x)), Some(Number::Float(y))) => Ok((x as f64).partial_cmp(&y)),
        (Some(Number::Float(x)), Some(Number::Int(y))) => Ok(x.partial_cmp(&(y as f64))),
        (Some(Number::Float(x)), Some(Number::Float(y))) => Ok(x.partial_cmp(&y)),
        _ => Err(fail(format!("a {} and a {} have no order", kind(a), kind(b)))),
    }
}

/// Sorts by `key`. Numbers have an order, and strings.
pub(super) fn sort<T>(run: &Run, items: &mut [T], key: impl Fn(&T) -> &Value, reverse: bool) -> Outcome<()> {
    let mut units = 0usize;
    for (at, item) in items.iter().enumerate() {
        // A single key needs no order.
        if at > 0 {
            order(run, key(&items[0]), key(item))?;
        }
        units = units.saturating_add(ITEM_WORK + piece(key(item)).len());
    }
    // The library's sort takes half as much memory again.
    run.memory(items.len().saturating_mul(size_of::<T>()))?;
    run.work(units.saturating_mul((usize::BITS - items.len().leading_zeros()) as usize))?;
    items.sort_by(|a, b| match reverse {
        false => total_order(key(a), key(b)),
        true => total_order(key(b), key(a)),
    });
    Ok(())
}

/// A total order for sorting values that have an order. It also covers NaN, and floats next to integers that
/// no float represents.
fn total_order(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match number(value) {
        Some(Number::Int(int)) => (int as f64, int),
        Some(Number::Float(float)) => (float + 0.0, 0),
        None => (0.0, 0),
    };
    let ((x, i), (y, j)) = (rank(a), rank(b));
    x.total_cmp(&y).then(i.cmp(&j)).then_with(|| piece(a).text.cmp(piece(b).text))
}

pub(super) fn equal(run: &Run, a: &Value, b: &Value) -> Outcome<bool> {
    run.work(ITEM_WORK)?;
    if let (Some(x), Some(y)) = (Piece::of(a), Piece::of(b)) {
        run.work(if x.len() == y.len() { x.len() } else { 0 })?;
        return Ok(x.text == y.text);
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
            match y.get(run, key)? {
                Some(other) if equal(run, value, other)? => {}
                _ => return Ok(false),
            }
        }
        return Ok(true);
    }
    Ok(a.kind() == b.kind() && matches!(a.kind(), ValueKind::None | ValueKind::Undefined))
}

pub(super) fn contains(run: &Run, whole: &Value, part: &Value) -> Outcome<bool> {
    if let Some(text) = Piece::of(whole) {
        let part = Piece::of(part).ok_or_else(|| fail(format!("a {} in a string", kind(part))))?;
        run.work(2 * (text.len() + part.len()))?;
        return Ok(text.contains(part.text));
    }
    if let Some(dict) = dict(whole) {
        return Ok(dict.get(run, part)?.is_some());
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
        false => Err(fail(format!("'in' a {}", kind(whole)))),
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
    if let (Some(text), Some(at)) = (Piece::of(of), at) {
        run.work(2 * text.len())?;
        let found = index(text.chars().count(), at).and_then(|at| text.characters().nth(at));
        return found.map_or(Ok(Value::UNDEFINED), |c| run.string(c));
    }
    if let (Some(list), Some(at)) = (list(of), at) {
        return Ok(index(list.items.len(), at).map_or(Value::UNDEFINED, |at| list.items[at].clone()));
    }
    if let Some(dict) = dict(of) {
        return Ok(dict.get(run, key)?.cloned().unwrap_or_default());
    }
    // As in Jinja, without such an item the attribute of this name is taken.
    Piece::of(key).map_or(Ok(Value::UNDEFINED), |name| attribute(run, of, name.text))
}

/// `of[start:stop:step]`, by characters or items.
fn slice(run: &Run, of: &Value, parts: [&Value; 3]) -> Outcome<Value> {
    let part = |value: &Value| match value.kind() {
        ValueKind::None => Ok(None),
        _ if value.is_integer() => Ok(value.as_i64()),
        other => Err(fail(format!("a {other} in a slice"))),
    };
    let (start, stop, step) = (part(parts[0])?, part(parts[1])?, part(parts[2])?.unwrap_or(1));
    if let Some(text) = Piece::of(of) {
        run.work(4 * text.len())?;
        let mut starts: Vec<u32> = run.list(text.chars().count())?;
        starts.extend(text.char_indices().map(|(at, _)| at as u32));
        let mut chosen = positions(start, stop, step, starts.len())?;
        let byte = |at: usize| starts.get(at).map_or(text.len(), |&byte| byte as usize);
        if step == 1 {
            let Some(first) = chosen.next() else { return Ok(Value::from("")) };
            return run.string(text.sub(byte(first)..byte(first + 1 + chosen.count())));
        }
        let mut out = Sink::new(run);
        for at in chosen {
            run.work(ITEM_WORK)?;
            out.push_piece(text.sub(byte(at)..byte(at + 1)))?;
        }
        return out.into_value();
    }
    if let Some(list) = list(of) {
        let chosen = positions(start, stop, step, list.items.len())?;
        return list.another(run, run.collect(chosen.map(|at| Ok(list.items[at].clone())))?);
    }
    Err(fail(format!("a slice of a {}", kind(of))))
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
    // The end positions without an item: before the first for a backward slice, after the last for a forward one.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clip = |at: i64| (if at < 0 { at.saturating_add(len) } else { at }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (start.map_or(first, clip), stop.map_or(last, clip));
    let walk = std::iter::successors(Some(start), move |at| at.checked_add(step));
    Ok(walk.take_while(move |at| if step > 0 { *at < stop } else { *at > stop }).map(|at| at as usize))
}

/// The values that a `for` iterates over: items, keys, or characters.
pub(super) fn iterate(run: &Run, value: &Value) -> Outcome<Vec<Value>> {
    if let Some(list) = list(value) {
        return copied(run, &list.items);
    }
    if let Some(dict) = dict(value) {
        return run.collect(dict.pairs.iter().map(|(key, _)| Ok(key.clone())));
    }
    if let Some(text) = Piece::of(value) {
        return run.collect(text.characters().map(|c| run.string(c)));
    }
    match value.is_undefined() {
        true => Ok(Vec::new()),
        false => Err(fail(format!("a {} can't be iterated over", kind(value)))),
    }
}

/// `separator.join(values)`.
pub(super) fn join_all(run: &Run, values: &[Value], separator: Piece) -> Outcome<Value> {
    let mut out = Sink::new(run);
    for (at, value) in values.iter().enumerate() {
        run.work(ITEM_WORK)?;
        if at > 0 {
            out.push_piece(separator)?;
        }
        out.push_piece(piece(&text(run, value)?))?;
    }
    out.into_value()
}
