//! What a chat template computes with, and what it may spend on it.
//!
//! minijinja bounds neither the size of strings nor the depth of lists. So every value that a template can make is
//! one of these: numbers, strings charged by their bytes, and the containers below, which are charged, know their
//! depth, and hold nothing that could hold them.

use minijinja::value::{DynObject, Enumerator, Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

pub type Outcome<T> = Result<T, Error>;

/// Lists in lists, at most; also the depth of the recursion that compares, prints and frees them.
pub const MAX_DEPTH: u16 = 64;
/// Bytes of a value, and of what stands around a heap object: a bound on what minijinja and the allocator take.
pub const VALUE_BYTES: usize = 24;
pub const OBJECT_BYTES: usize = 96;

/// What one rendering may still spend.
pub struct Run {
    /// Bytes that it may still allocate; freed ones don't come back.
    memory: AtomicU64,
    /// Bytes and list items that it may still look at.
    work: AtomicU64,
    /// What `raise_exception` was called with.
    raised: Mutex<Option<String>>,
}

impl Run {
    pub fn new(memory: u64, work: u64) -> Self {
        Self { memory: memory.into(), work: work.into(), raised: Mutex::new(None) }
    }

    /// Before `bytes` are allocated.
    pub fn memory(&self, bytes: usize) -> Outcome<()> {
        spend(&self.memory, bytes, "memory")
    }

    /// Before `units` bytes or items are looked at.
    pub fn work(&self, units: usize) -> Outcome<()> {
        spend(&self.work, units, "work")
    }

    pub fn raise(&self, message: String) -> Error {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        fail("raise_exception was called")
    }

    pub fn raised(&self) -> Option<String> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A string that is yet to be copied.
    pub fn string(&self, text: &str) -> Outcome<Value> {
        self.memory(text.len() + OBJECT_BYTES)?;
        Ok(Value::from(text))
    }
}

fn spend(left: &AtomicU64, amount: usize, what: &str) -> Outcome<()> {
    let amount = amount as u64;
    match left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(amount)) {
        Ok(_) => Ok(()),
        Err(_) => Err(fail(format!("it takes more {what} than a template may"))),
    }
}

pub fn fail(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Text under construction, charged before it grows.
pub struct Sink<'a> {
    pub run: &'a Run,
    text: String,
}

impl<'a> Sink<'a> {
    pub fn new(run: &'a Run) -> Self {
        Self { run, text: String::new() }
    }

    pub fn push(&mut self, text: &str) -> Outcome<()> {
        self.run.memory(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub fn into_string(self) -> String {
        self.text
    }

    pub fn into_value(self) -> Outcome<Value> {
        self.run.string(&self.text)
    }
}

/// A list or tuple.
pub struct List {
    pub items: Vec<Value>,
    pub is_tuple: bool,
    depth: u16,
}

/// A mapping in the order of insertion. Templates write them out, so they are small: searched one by one.
pub struct Dict {
    pub pairs: Vec<(Value, Value)>,
    depth: u16,
}

/// `namespace()`: what survives a loop's scope.
#[derive(Default)]
pub struct Namespace {
    pairs: Mutex<Vec<(String, Value)>>,
}

impl List {
    /// Charges and checks `items`.
    pub fn make(run: &Run, items: Vec<Value>) -> Outcome<Value> {
        run.memory(VALUE_BYTES * items.len() + OBJECT_BYTES)?;
        let depth = depth_above(items.iter())?;
        Ok(Value::from_object(Self { items, is_tuple: false, depth }))
    }

    /// As `make`, a tuple.
    pub fn tuple(run: &Run, items: Vec<Value>) -> Outcome<Value> {
        run.memory(VALUE_BYTES * items.len() + OBJECT_BYTES)?;
        let depth = depth_above(items.iter())?;
        Ok(Value::from_object(Self { items, is_tuple: true, depth }))
    }

    /// Of the same kind as this.
    pub fn another(&self, run: &Run, items: Vec<Value>) -> Outcome<Value> {
        if self.is_tuple { Self::tuple(run, items) } else { Self::make(run, items) }
    }
}

impl Dict {
    /// Of equal keys the last counts.
    pub fn make(run: &Run, pairs: impl Iterator<Item = (Value, Value)>) -> Outcome<Value> {
        let mut kept: Vec<(Value, Value)> = Vec::new();
        for (key, value) in pairs {
            run.memory(4 * VALUE_BYTES)?;
            run.work(kept.len())?;
            if !is_scalar(&key) {
                return Err(fail(format!("a {} can't be a mapping's key", key.kind())));
            }
            match kept.iter_mut().find(|(k, _)| *k == key) {
                Some(pair) => pair.1 = value,
                None => kept.push((key, value)),
            }
        }
        run.memory(OBJECT_BYTES)?;
        let depth = depth_above(kept.iter().map(|(_, value)| value))?;
        Ok(Value::from_object(Self { pairs: kept, depth }))
    }

    pub fn get(&self, key: &Value) -> Option<&Value> {
        self.pairs.iter().find(|(k, _)| is_scalar(key) && k == key).map(|(_, value)| value)
    }
}

impl Namespace {
    /// Refuses what could lead back here.
    pub fn set(&self, run: &Run, name: &str, value: &Value) -> Outcome<()> {
        depth_above(std::iter::once(value))?;
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        run.work(pairs.len())?;
        match pairs.iter_mut().find(|(n, _)| n == name) {
            Some(pair) => pair.1 = value.clone(),
            None => {
                run.memory(name.len() + OBJECT_BYTES)?;
                pairs.push((name.to_owned(), value.clone()));
            }
        }
        Ok(())
    }
}

/// One more than the deepest of `values`. Fails above `MAX_DEPTH`, and for what is no plain value: a loop, a macro
/// or a namespace.
fn depth_above<'a>(values: impl Iterator<Item = &'a Value>) -> Outcome<u16> {
    let mut depth = 1;
    for value in values {
        let below = match (value.downcast_object_ref::<List>(), value.downcast_object_ref::<Dict>()) {
            (Some(list), _) => list.depth,
            (_, Some(dict)) => dict.depth,
            _ if value.is_undefined() || is_scalar(value) => 0,
            _ => {
                return Err(fail(format!("a {} can't be kept in a list or namespace", value.kind())));
            }
        };
        depth = depth.max(below + 1);
    }
    if depth > MAX_DEPTH {
        return Err(fail(format!("lists are nested more than {MAX_DEPTH} deep")));
    }
    Ok(depth)
}

pub fn is_scalar(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::String)
}

pub fn list(value: &Value) -> Option<&List> {
    value.downcast_object_ref::<List>()
}

pub fn dict(value: &Value) -> Option<&Dict> {
    value.downcast_object_ref::<Dict>()
}

// What minijinja itself prints of these (in its messages) is short, however large they are.
macro_rules! short_debug {
    ($($name:ident $text:literal),*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($text)
            }
        }
    )* };
}
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
    fn custom_cmp(self: &Arc<Self>, _: &DynObject) -> Option<std::cmp::Ordering> {
        None
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key).cloned()
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.pairs.iter().map(|(key, _)| key.clone()).collect())
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
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let name = key.as_str()?;
        let pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Positional and named arguments of a call.
pub struct Args<'a> {
    positional: &'a [Value],
    named: Option<Kwargs>,
}

impl<'a> Args<'a> {
    pub fn new(values: &'a [Value]) -> Self {
        let named = values.last().filter(|last| last.is_kwargs());
        match named.and_then(|last| Kwargs::try_from(last.clone()).ok()) {
            Some(named) => Self { positional: &values[..values.len() - 1], named: Some(named) },
            None => Self { positional: values, named: None },
        }
    }

    pub fn positional(&self) -> &'a [Value] {
        self.positional
    }

    /// The argument at `index` or of that name.
    pub fn get(&self, index: usize, name: &str) -> Option<Value> {
        let named = || self.named.as_ref()?.get::<Option<Value>>(name).ok()?;
        self.positional.get(index).cloned().or_else(named)
    }

    /// As `get`, and there must be one.
    pub fn need(&self, index: usize, name: &str) -> Outcome<Value> {
        self.get(index, name).ok_or_else(|| fail(format!("the argument '{name}' is missing")))
    }

    pub fn text(&self, index: usize, name: &str) -> Outcome<String> {
        let value = self.need(index, name)?;
        let text = value.as_str().ok_or_else(|| fail(format!("the argument '{name}' is no string")))?;
        Ok(text.to_owned())
    }

    /// Of named arguments only.
    pub fn pairs(&self) -> Vec<(String, Value)> {
        let Some(named) = &self.named else { return Vec::new() };
        named.args().map(|name| (name.to_owned(), named.get(name).unwrap_or_default())).collect()
    }

    /// After all were asked for: a call with others is a mistake. `most` counts the positional ones.
    pub fn done(&self, most: usize) -> Outcome<()> {
        if self.positional.len() > most {
            return Err(fail(format!("{} arguments where at most {most} are taken", self.positional.len())));
        }
        self.named.as_ref().map_or(Ok(()), Kwargs::assert_all_used)
    }
}
