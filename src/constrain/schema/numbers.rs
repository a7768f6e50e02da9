//! Numbers that llguidance represents exactly: it compares as f64, and counts in i64.

use super::Refusal;
use serde_json::{Number, Value};

const MOST_BOUND: f64 = 9e18;

/// A whole number without an exact f64 would be rounded to another one.
fn is_exact(number: &Number) -> bool {
    let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    whole.is_none_or(|whole| whole as f64 as i128 == whole)
}

/// Checks all numbers of a `const` or an `enum`.
pub(super) fn exact(keyword: &str, value: &Value) -> Result<(), Refusal> {
    match value {
        Value::Number(number)
            if !is_exact(number) || number.as_f64().is_some_and(|n| n.abs() > MOST_BOUND) =>
        {
            Err(Refusal::new(format!("{keyword} has {number}, which no f64 is")))
        }
        Value::Array(all) => all.iter().try_for_each(|one| exact(keyword, one)),
        Value::Object(fields) => fields.values().try_for_each(|one| exact(keyword, one)),
        _ => Ok(()),
    }
}

/// Checks the number of `minimum` and similar keywords; draft 4 also has `true` and `false`.
pub(super) fn bound(keyword: &str, value: &Value) -> Result<Value, Refusal> {
    match value {
        Value::Bool(_) => Ok(value.clone()),
        Value::Number(number) if number.as_f64().is_some_and(|bound| bound.abs() > MOST_BOUND) => {
            Err(Refusal::new(format!("{keyword} is {number}, beyond the range of integers")))
        }
        Value::Number(number) if !is_exact(number) => {
            Err(Refusal::new(format!("{keyword} is {number}, which no f64 is")))
        }
        Value::Number(_) => Ok(value.clone()),
        _ => Err(Refusal::new(format!("{keyword} is not a number"))),
    }
}

/// Checks the number of `maxItems` and similar keywords; 2.0 is 2.
pub(super) fn size(keyword: &str, value: &Value) -> Result<Value, Refusal> {
    let whole = value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=MOST_BOUND).contains(n));
    match (value.as_u64(), whole) {
        (Some(n), _) => Ok(n.into()),
        (None, Some(n)) => Ok((n as u64).into()),
        (None, None) => Err(Refusal::new(format!("{keyword} is {value}, which counts nothing"))),
    }
}
