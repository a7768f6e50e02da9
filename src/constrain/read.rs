//! Reads a constraint before llguidance sees it.

use super::queue::CompileSlot;
use super::source::{Constraint, timed_out};
use crate::base::clock::now_ns;
use crate::base::{Result, threads};
use crate::text::watch::{self, Watch};
use llguidance::api::GrammarWithLexer;
use serde_json::Value;
use std::sync::Arc;

/// Large, because schemas and rules are walked recursively.
const STACK: usize = 64 << 20;

pub(super) struct Read {
    pub grammars: Vec<GrammarWithLexer>,
    /// See `bounds`.
    pub steps: u64,
}

impl Read {
    /// Reads `constraint` in `slot`, within `core_ns` of CPU time. Returns None if that is too
    /// little.
    pub(super) fn of(
        constraint: &Constraint,
        slot: &CompileSlot,
        core_ns: u64,
        until_ns: u64,
    ) -> Result<Option<Self>> {
        let watch = Arc::new(Watch::new(until_ns, core_ns, u64::MAX));
        slot.begin(&watch);
        let read = || {
            let (grammar, steps) = watch::run(&watch, || constraint.grammar())?;
            Ok(Self { grammars: grammar.grammars, steps })
        };
        let read = threads::run_on_stack("bn-grammar", STACK, read).flatten();
        slot.queue().open()?;
        match read {
            Err(_) if watch.is_over() && now_ns() >= until_ns => Err(timed_out()),
            Err(_) if watch.is_over() => Ok(None),
            read => read.map(Some),
        }
    }
}

impl Drop for Read {
    /// Dropped level by level: rewriting nests a schema deeper, and the caller's stack may be small.
    fn drop(&mut self) {
        let schemas = self.grammars.iter_mut().filter_map(|one| one.json_schema.take());
        schemas.for_each(take_apart);
    }
}

fn take_apart(value: Value) {
    let mut left = Vec::new();
    // Without memory for the list, the value is leaked.
    let keep = |left: &mut Vec<Value>, one| match left.try_reserve(1) {
        Ok(()) => left.push(one),
        Err(_) => std::mem::forget(one),
    };
    keep(&mut left, value);
    while let Some(value) = left.pop() {
        match value {
            Value::Array(all) => all.into_iter().for_each(|one| keep(&mut left, one)),
            Value::Object(fields) => fields.into_iter().for_each(|(_, one)| keep(&mut left, one)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_deep_schema_is_dropped_on_a_small_stack() {
        let mut deep = Value::Null;
        for _ in 0..50_000 {
            deep = Value::Array(vec![Value::from_iter([("a", deep)]), json!(1)]);
        }
        let grammars = vec![GrammarWithLexer { json_schema: Some(deep), ..Default::default() }];
        let read = Read { grammars, steps: 0 };
        let small = std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(read));
        small.unwrap().join().unwrap();
    }
}
