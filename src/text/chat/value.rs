//! The values that a chat template computes with, and the budget that it may spend.
//!
//! minijinja bounds neither the size of strings nor the depth of lists. So every value that a template can make is
//! one of these: numbers, strings charged by their bytes (`text`), and the containers below, which are charged,
//! know their depth, and never contain themselves.

use super::text::{Piece, Sink, Text};
use crate::base;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) type Outcome<T> = Result<T, Error>;

/// Maximum nesting of lists; also the depth of the recursion that compares, prints and frees them.
pub(super) const MAX_DEPTH: u16 = 64;
/// Bytes of a value, and overhead of a heap object: upper bounds of what minijinja and the allocator take.
pub(super) const VALUE_BYTES: usize = 24;
pub(super) const OBJECT_BYTES: usize = 96;
/// Work units for copying, comparing or dropping an item.
pub(super) const ITEM_WORK: usize = 16;

/// The remaining budget of one rendering, and its output so far.
pub(super) struct Run {
    /// Bytes that it may still allocate; freed ones are not returned.
    memory: AtomicU64,
    /// Remaining units of work: one for an examined byte, more for an item. A unit takes about a nanosecond.
    work: AtomicU64,
    /// The error that ended the rendering, if it is not the template's fault.
    stopped: Mutex<Option<base::Error>>,
    /// Pieces of output; see [`Run::write`].
    pieces: Mutex<Vec<Value>>,
}

impl Run {
    pub(super) fn new(memory: u64, work: u64) -> Self {
        Self { memory: memory.into(), work: work.into(), stopped: Mutex::default(), pieces: Mutex::default() }
    }

    /// Charges `bytes` before they are allocated.
    pub(super) fn memory(&self, bytes: usize) -> Outcome<()> {
        spend(&self.memory, bytes, "memory")
    }

    /// Charges `units` before the work is done.
    pub(super) fn work(&self, units: usize) -> Outcome<()> {
        spend(&self.work, units, "work")
    }

    /// Charges and reserves room for `more` items.
    pub(super) fn grow<T>(&self, list: &mut Vec<T>, more: usize) -> Outcome<()> {
        let bytes = more.saturating_mul(size_of::<T>());
        self.memory(bytes)?;
        list.try_reserve(more).map_err(|_| self.no_memory(bytes))
    }

    /// An empty list with room for `len` items, charged.
    pub(super) fn list<T>(&self, len: usize) -> Outcome<Vec<T>> {
        let mut list = Vec::new();
        self.grow(&mut list, len).map(|()| list)
    }

    /// Collects all items, charging them one by one.
    pub(super) fn collect<T>(&self, items: impl Iterator<Item = Outcome<T>>) -> Outcome<Vec<T>> {
        let mut list = Vec::new();
        for item in items {
            self.grow(&mut list, 1)?;
            list.push(item?);
        }
        Ok(list)
    }

    /// A copy of a piece.
    pub(super) fn string(&self, piece: Piece) -> Outcome<Value> {
        let mut out = Sink::new(self);
        out.reserve(piece.len())?;
        out.push_piece(piece)?;
        out.into_value()
    }

    /// A string that is untrusted as a whole if `untrusted` is set.
    pub(super) fn string_as(&self, text: &str, untrusted: bool) -> Outcome<Value> {
        let mut out = Sink::new(self);
        out.reserve(text.len())?;
        out.push_as(text, untrusted)?;
        out.into_value()
    }

    /// Stores a string for the output and returns its placeholder. minijinja's captures and macros join the output
    /// into one string without marks.
    pub(super) fn write(&self, string: Value) -> Outcome<String> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        self.memory(2 * VALUE_BYTES)?;
        pieces.try_reserve(1).map_err(|_| self.no_memory(VALUE_BYTES))?;
        pieces.push(string);
        Ok(format!("{};", pieces.len() - 1))
    }

    /// The text that the placeholders in `written` stand for.
    pub(super) fn read(&self, written: &str) -> Outcome<Text> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Sink::new(self);
        for number in written.split_terminator(';') {
            let piece = number.parse::<usize>().ok().and_then(|at| Piece::of(pieces.get(at)?));
            out.push_piece(piece.ok_or_else(|| fail("what was captured is no output"))?)?;
        }
        Ok(out.into_text())
    }

    /// Ends the rendering with an error for the caller.
    pub(super) fn stop(&self, why: base::Error) -> Error {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        fail("the rendering was stopped")
    }

    pub(super) fn no_memory(&self, bytes: usize) -> Error {
        self.stop(base::Error::out_of_memory("a chat template", bytes))
    }

    pub(super) fn stopped(&self) -> Option<base::Error> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn spend(left: &AtomicU64, amount: usize, what: &str) -> Outcome<()> {
    let amount = amount as u64;
    match left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(amount)) {
        Ok(_) => Ok(()),
        Err(_) => Err(fail(format!("it takes more {what} than a template may"))),
    }
}

pub(super) fn fail(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// A list or tuple.
pub(super) struct List {
    pub items: Vec<Value>,
    pub is_tuple: bool,
    depth: u16,
}

/// A mapping in the order of insertion. Templates spell mappings out, so they are small, and search is linear.
pub(super) struct Dict {
    pub pairs: Vec<(Value, Value)>,
    depth: u16,
}

/// `namespace()`, whose attributes survive a loop's scope.
#[derive(Default)]
pub(super) struct Namespace {
    pairs: Mutex<Vec<(String, Value)>>,
}

impl List {
    /// Makes a list of `items`, which are charged already. Checks their depth.
    pub(super) fn make(run: &Run, items: Vec<Value>) -> Outcome<Value> {
        Self::of(run, items, false)
    }

    /// Like `make`, for a tuple.
    pub(super) fn tuple(run: &Run, items: Vec<Value>) -> Outcome<Value> {
        Self::of(run, items, true)
    }

    fn of(run: &Run, items: Vec<Value>, is_tuple: bool) -> Outcome<Value> {
        run.memory(OBJECT_BYTES)?;
        run.work(ITEM_WORK * items.len())?;
        let depth = depth_above(items.iter())?;
        Ok(Value::from_object(Self { items, is_tuple, depth }))
    }

    /// Makes a list or tuple of the same kind as this.
    pub(super) fn another(&self, run: &Run, items: Vec<Value>) -> Outcome<Value> {
        if self.is_tuple { Self::tuple(run, items) } else { Self::make(run, items) }
    }
}

impl Dict {
    /// Makes a mapping. If keys are equal, the last one counts.
    pub(super) fn make(run: &Run, pairs: impl Iterator<Item = (Value, Value)>) -> Outcome<Value> {
        let mut kept: Vec<(Value, Value)> = Vec::new();
        for (key, value) in pairs {
            if !is_scalar(&key) {
                return Err(fail(format!("a {} can't be a mapping's key", kind(&key))));
            }
            run.work(search_work(kept.len(), &key))?;
            match kept.iter().position(|(k, _)| same_key(k, &key)) {
                Some(at) => kept[at].1 = value,
                None => {
                    run.grow(&mut kept, 1)?;
                    kept.push((key, value));
                }
            }
        }
        run.memory(OBJECT_BYTES)?;
        run.work(ITEM_WORK * kept.len())?;
        let depth = depth_above(kept.iter().map(|(_, value)| value))?;
        Ok(Value::from_object(Self { pairs: kept, depth }))
    }

    pub(super) fn get(&self, run: &Run, key: &Value) -> Outcome<Option<&Value>> {
        run.work(search_work(self.pairs.len(), key))?;
        Ok(self.pairs.iter().find(|(k, _)| same_key(k, key)).map(|(_, value)| value))
    }
}

/// Work of a search among `len` names.
fn search_work(len: usize, key: &Value) -> usize {
    len.saturating_mul(4 + Piece::of(key).map_or(0, |key| key.len() / 8))
}

fn same_key(a: &Value, b: &Value) -> bool {
    match (Piece::of(a), Piece::of(b)) {
        (Some(a), Some(b)) => a.text == b.text,
        (None, None) => is_scalar(b) && a == b,
        _ => false,
    }
}

impl Namespace {
    /// Refuses values that could contain this namespace.
    pub(super) fn set(&self, run: &Run, name: &str, value: &Value) -> Outcome<()> {
        depth_above(std::iter::once(value))?;
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        run.work(pairs.len() * (4 + name.len() / 8))?;
        match pairs.iter_mut().find(|(n, _)| n == name) {
            Some(pair) => pair.1 = value.clone(),
            None => {
                run.memory(name.len() + OBJECT_BYTES)?;
                run.grow(&mut pairs, 1)?;
                pairs.push((name.to_owned(), value.clone()));
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, run: &Run, name: &str) -> Outcome<Value> {
        let pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        run.work(pairs.len() * (4 + name.len() / 8))?;
        Ok(pairs.iter().find(|(n, _)| n == name).map_or(Value::UNDEFINED, |(_, value)| value.clone()))
    }
}

/// One more than the depth of the deepest of `values`. Fails above `MAX_DEPTH`, and for values that are not plain:
/// a loop, a macro or a namespace.
fn depth_above<'a>(values: impl Iterator<Item = &'a Value>) -> Outcome<u16> {
    let mut depth = 1;
    for value in values {
        let below = match (value.downcast_object_ref::<List>(), value.downcast_object_ref::<Dict>()) {
            (Some(list), _) => list.depth,
            (_, Some(dict)) => dict.depth,
            _ if value.is_undefined() || is_scalar(value) => 0,
            _ => {
                return Err(fail(format!("a {} can't be kept in a list or namespace", kind(value))));
            }
        };
        depth = depth.max(below + 1);
    }
    if depth > MAX_DEPTH {
        return Err(fail(format!("lists are nested more than {MAX_DEPTH} deep")));
    }
    Ok(depth)
}

pub(super) fn is_scalar(value: &Value) -> bool {
    Piece::of(value).is_some()
        || matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
}

/// The kind of a value in messages.
pub(super) fn kind(value: &Value) -> ValueKind {
    if Piece::of(value).is_some() { ValueKind::String } else { value.kind() }
}

pub(super) fn list(value: &Value) -> Option<&List> {
    value.downcast_object_ref::<List>()
}

pub(super) fn dict(value: &Value) -> Option<&Dict> {
    value.downcast_object_ref::<Dict>()
}

/// minijinja prints these values in its own messages. The output is short, however large they are.
macro_rules! short_debug {
    ($($name:ident $text:literal),*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($text)
            }
        }
    )* };
}
pub(super) use short_debug;
short_debug!(List "list", Dict "mapping", Namespace "namespace");

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }
    // Templates look up keys through `ops`. This serves the VM's look-up of variables, of which there are only a
    // few.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let named = |pair: &&(Value, Value)| pair.0.as_str() == Some(key);
        self.pairs.iter().find(named).map(|(_, value)| value.clone())
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }
    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.pairs.len())
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// The positional and named arguments of a call.
pub(super) struct Args<'a> {
    positional: &'a [Value],
    named: Option<Kwargs>,
}

impl<'a> Args<'a> {
    pub(super) fn new(values: &'a [Value]) -> Self {
        let named = values.last().filter(|last| last.is_kwargs());
        match named.and_then(|last| Kwargs::try_from(last.clone()).ok()) {
            Some(named) => Self { positional: &values[..values.len() - 1], named: Some(named) },
            None => Self { positional: values, named: None },
        }
    }

    pub(super) fn positional(&self) -> &'a [Value] {
        self.positional
    }

    /// The argument at `index` or with this name.
    pub(super) fn get(&self, index: usize, name: &str) -> Option<Value> {
        let named = || self.named.as_ref()?.get::<Option<Value>>(name).ok()?;
        self.positional.get(index).cloned().or_else(named)
    }

    /// Like `get`, but fails without such an argument.
    pub(super) fn need(&self, index: usize, name: &str) -> Outcome<Value> {
        self.get(index, name).ok_or_else(|| fail(format!("the argument '{name}' is missing")))
    }

    /// Like `need`, for a string.
    pub(super) fn text(&self, index: usize, name: &str) -> Outcome<Value> {
        let value = self.need(index, name)?;
        match Piece::of(&value) {
            Some(_) => Ok(value),
            None => Err(fail(format!("the argument '{name}' is no string"))),
        }
    }

    /// The named arguments.
    pub(super) fn pairs(&self) -> Vec<(String, Value)> {
        let Some(named) = &self.named else { return Vec::new() };
        named.args().map(|name| (name.to_owned(), named.get(name).unwrap_or_default())).collect()
    }

    /// Call after all arguments were read: other arguments are an error. `most` is the maximum number of
    /// positional ones.
    pub(super) fn done(&self, most: usize) -> Outcome<()> {
        if self.positional.len() > most {
            return Err(fail(format!("{} arguments where at most {most} are taken", self.positional.len())));
        }
        self.named.as_ref().map_or(Ok(()), Kwargs::assert_all_used)
    }
}
