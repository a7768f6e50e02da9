//! Jinja's tests, which may follow `is`.

use super::ops::{compare_two, contains};
use super::text::Piece;
use super::value::{Args, Outcome, Run, dict, fail, kind, list};
use minijinja::Environment;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use std::sync::Arc;

type Check = fn(&Run, &Value, &Args) -> Outcome<bool>;

const CHECKS: [(&str, Check); 36] = [
    ("!=", |run, value, args| compare_two(run, "!=", value, &args.need(1, "other")?)),
    ("<", |run, value, args| compare_two(run, "<", value, &args.need(1, "other")?)),
    ("<=", |run, value, args| compare_two(run, "<=", value, &args.need(1, "other")?)),
    ("==", |run, value, args| compare_two(run, "==", value, &args.need(1, "other")?)),
    (">", |run, value, args| compare_two(run, ">", value, &args.need(1, "other")?)),
    (">=", |run, value, args| compare_two(run, ">=", value, &args.need(1, "other")?)),
    ("boolean", |_, value, _| Ok(value.kind() == ValueKind::Bool)),
    ("callable", |_, value, _| Ok(kind(value) == ValueKind::Plain)),
    ("defined", |_, value, _| Ok(!value.is_undefined())),
    ("divisibleby", |_, value, args| {
        let by = integer(&args.need(1, "num")?)?;
        let remainder = integer(value)?.checked_rem(by);
        Ok(remainder.ok_or_else(|| fail("divisibleby 0"))? == 0)
    }),
    ("eq", |run, value, args| compare_two(run, "==", value, &args.need(1, "other")?)),
    ("equalto", |run, value, args| compare_two(run, "==", value, &args.need(1, "other")?)),
    ("even", |_, value, _| Ok(integer(value)? % 2 == 0)),
    ("false", |_, value, _| Ok(value.kind() == ValueKind::Bool && !value.is_true())),
    ("float", |_, value, _| Ok(value.kind() == ValueKind::Number && !value.is_integer())),
    ("ge", |run, value, args| compare_two(run, ">=", value, &args.need(1, "other")?)),
    ("greaterthan", |run, value, args| compare_two(run, ">", value, &args.need(1, "other")?)),
    ("gt", |run, value, args| compare_two(run, ">", value, &args.need(1, "other")?)),
    ("in", |run, value, args| contains(run, &args.need(1, "seq")?, value)),
    ("integer", |_, value, _| Ok(value.kind() == ValueKind::Number && value.is_integer())),
    ("iterable", |_, value, _| Ok(has_items(value) || value.is_undefined())),
    ("le", |run, value, args| compare_two(run, "<=", value, &args.need(1, "other")?)),
    ("lessthan", |run, value, args| compare_two(run, "<", value, &args.need(1, "other")?)),
    ("lower", |run, value, _| cased(run, value, char::is_lowercase, char::is_uppercase)),
    ("lt", |run, value, args| compare_two(run, "<", value, &args.need(1, "other")?)),
    ("mapping", |_, value, _| Ok(dict(value).is_some())),
    ("ne", |run, value, args| compare_two(run, "!=", value, &args.need(1, "other")?)),
    ("none", |_, value, _| Ok(value.is_none())),
    ("number", |_, value, _| Ok(matches!(value.kind(), ValueKind::Number | ValueKind::Bool))),
    ("odd", |_, value, _| Ok(integer(value)? % 2 != 0)),
    ("sameas", |run, value, args| {
        let other = args.need(1, "other")?;
        Ok(kind(value) == kind(&other) && compare_two(run, "==", value, &other)?)
    }),
    ("sequence", |_, value, _| Ok(has_items(value) || value.is_undefined())),
    ("string", |_, value, _| Ok(Piece::of(value).is_some())),
    ("true", |_, value, _| Ok(value.kind() == ValueKind::Bool && value.is_true())),
    ("undefined", |_, value, _| Ok(value.is_undefined())),
    ("upper", |run, value, _| cased(run, value, char::is_uppercase, char::is_lowercase)),
];

pub(super) fn register(env: &mut Environment<'_>, run: &Arc<Run>) {
    for (name, check) in CHECKS {
        let run = run.clone();
        env.add_test(name, move |args: Rest<ValueOrKwargs>| {
            let values = args.into_values();
            let args = Args::new(&values);
            let holds = check(&run, &args.need(0, "value")?, &args)?;
            args.done(2)?;
            Ok::<bool, minijinja::Error>(holds)
        });
    }
}

fn has_items(value: &Value) -> bool {
    Piece::of(value).is_some() || list(value).is_some() || dict(value).is_some()
}

fn integer(value: &Value) -> Outcome<i64> {
    value.as_i64().ok_or_else(|| fail(format!("a {} is no integer", kind(value))))
}

fn cased(run: &Run, value: &Value, is: fn(char) -> bool, is_other: fn(char) -> bool) -> Outcome<bool> {
    let text = super::print::text(run, value)?;
    let text = super::text::piece(&text).text;
    run.work(4 * text.len())?;
    Ok(text.chars().any(is) && !text.chars().any(is_other))
}
