//! The numbers of `multipleOf`. llguidance merges those that apply to the same value, and derivre divides by
//! the result. Both count in u32, and in release builds an overflow goes unnoticed.

use super::Refusal;
use super::keywords::{Draft, Holds, holds, schemas};
use super::normal::Fields;
use super::rewrite::Rewriter;
use serde_json::{Number, Value};

/// The value of a `multipleOf`: `coef` / 10^`exp`, with the smallest possible `exp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Multiple {
    coef: u64,
    exp: u32,
}

impl Multiple {
    /// Reads a number as it is written. None if its digits do not fit u64, or if it is not above 0.
    pub(super) fn of(value: &Value) -> Option<Self> {
        let text = value.as_number()?.to_string();
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let coef = format!("{whole}{fraction}").parse::<u64>().ok().filter(|coef| *coef > 0)?;
        let exponent = exponent.parse::<i32>().ok()?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let tens = u32::try_from(exponent).unwrap_or(0);
        let coef = coef.checked_mul(10u64.checked_pow(tens)?)?;
        Some(Self { coef, exp: exponent.min(0).unsigned_abs() }.shortest())
    }

    fn shortest(mut self) -> Self {
        while self.exp > 0 && self.coef.is_multiple_of(10) {
            (self.coef, self.exp) = (self.coef / 10, self.exp - 1);
        }
        self
    }

    /// The least common multiple of both.
    pub(super) fn lcm(self, other: Self) -> Option<Self> {
        let exp = self.exp.max(other.exp);
        let scaled = |of: Self| of.coef.checked_mul(10u64.checked_pow(exp - of.exp)?);
        let (a, b) = (scaled(self)?, scaled(other)?);
        Some(Self { coef: (a / gcd(a, b)).checked_mul(b)?, exp }.shortest())
    }

    /// True if derivre's division does not overflow: it multiplies a remainder by ten and adds a digit.
    fn is_small(self) -> bool {
        let digit = 10u64.checked_pow(self.exp).and_then(|scale| scale.checked_mul(9));
        let most = digit.and_then(|digit| self.coef.checked_mul(10)?.checked_add(digit));
        most.is_some_and(|most| most <= u64::from(u32::MAX))
    }

    /// True if any two such numbers can be merged: llguidance multiplies them at the smaller one's scale.
    fn may_meet(self) -> bool {
        self.is_small() && self.coef.checked_mul(self.coef).is_some_and(|most| most <= u64::from(u32::MAX))
    }

    /// The JSON number that llguidance reads as this value.
    fn value(self) -> Option<Value> {
        let value = match self.exp {
            0 => Value::from(self.coef),
            exp => Value::Number(Number::from_f64(format!("{}e-{exp}", self.coef).parse().ok()?)?),
        };
        (taken(value.as_f64()?) == Some(self)).then_some(value)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// llguidance's conversion of a float to digits.
fn taken(mut value: f64) -> Option<Multiple> {
    let mut exp = 0;
    while value.fract() != 0.0 {
        (value, exp) = (value * 10.0, exp + 1);
    }
    (value <= f64::from(u32::MAX)).then(|| Multiple { coef: value as u64, exp }.shortest())
}

fn refusal(value: &Value) -> Refusal {
    Refusal::new(format!("multipleOf is {value}"))
}

/// Merges the numbers of a schema and its `allOf` into one.
pub(super) fn one(_: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let mut all = Vec::new();
    gather(fields, &mut all);
    let Some((first, rest)) = all.split_first() else { return Ok(()) };
    let read = |value: &Value| Multiple::of(value).ok_or_else(|| refusal(value));
    let mut lcm = read(first)?;
    for value in rest {
        lcm = lcm.lcm(read(value)?).ok_or_else(too_large)?;
    }
    let why = || if rest.is_empty() { refusal(first) } else { too_large() };
    let value = lcm.value().filter(|_| lcm.is_small()).ok_or_else(why)?;
    let several = !rest.is_empty();
    if several {
        members(fields).for_each(strip);
    }
    if several || fields.contains_key("multipleOf") {
        fields.insert("multipleOf".to_owned(), value);
    }
    Ok(())
}

fn too_large() -> Refusal {
    Refusal::new("its values of multipleOf are too large together")
}

fn gather<'a>(fields: &'a Fields, all: &mut Vec<&'a Value>) {
    all.extend(fields.get("multipleOf"));
    let members = fields.get("allOf").and_then(Value::as_array).into_iter().flatten();
    members.filter_map(Value::as_object).for_each(|member| gather(member, all));
}

fn members(fields: &mut Fields) -> impl Iterator<Item = &mut Fields> {
    let all = fields.get_mut("allOf").and_then(Value::as_array_mut);
    all.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn strip(fields: &mut Fields) {
    fields.shift_remove("multipleOf");
    members(fields).for_each(strip);
}

/// The least common multiple of all numbers in a schema, if it fits u64.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    None,
    Of(Multiple),
    Beyond,
}

impl Sum {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, one) | (one, Self::None) => one,
            (Self::Of(a), Self::Of(b)) => a.lcm(b).map_or(Self::Beyond, Self::Of),
            _ => Self::Beyond,
        }
    }
}

/// Refuses numbers that llguidance may merge with each other if the result would be too large.
pub(super) fn meet<'a>(
    root: &'a Value,
    definitions: impl Iterator<Item = &'a Value> + Clone,
) -> Result<(), Refusal> {
    let mut named = Sum::None;
    for definition in definitions.clone() {
        named = named.and(within(definition, Sum::None)?);
    }
    definitions.chain([root]).try_for_each(|schema| within(schema, named).map(drop))
}

/// The sum over a schema's subschemas; each reference counts as `named`.
fn within(schema: &Value, named: Sum) -> Result<Sum, Refusal> {
    let Value::Object(fields) = schema else { return Ok(Sum::None) };
    let of = |value| Multiple::of(value).map_or(Sum::Beyond, Sum::Of);
    let mut beside = fields.get("multipleOf").map_or(Sum::None, of);
    let mut parts = Vec::new();
    for (keyword, of) in fields {
        let held = holds(keyword, Draft::Of2020);
        parts.extend((held == Some(Holds::Reference)).then_some(named));
        let inner = schemas(held, of).into_iter().map(|one| within(one, named));
        let inner = inner.collect::<Result<Vec<_>, _>>()?;
        let either = || inner.iter().fold(Sum::None, |all, one| all.and(*one));
        match keyword.as_str() {
            "allOf" => parts.extend(inner),
            // Alternatives do not meet each other. A pattern meets a property.
            "anyOf" | "oneOf" | "patternProperties" => parts.push(either()),
            _ => beside = beside.and(either()),
        }
    }
    parts.push(beside);
    parts.retain(|part| *part != Sum::None);
    let all = parts.iter().fold(Sum::None, |all, part| all.and(*part));
    let meets = match all {
        Sum::None => true,
        Sum::Of(all) => all.may_meet(),
        Sum::Beyond => false,
    };
    if meets || parts.len() < 2 { Ok(all) } else { Err(too_large()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(coef: u64, exp: u32) -> Value {
        serde_json::from_str(&format!("{coef}e-{exp}")).unwrap()
    }

    /// Compares with a search in u128, for numbers with few digits.
    #[test]
    fn the_least_common_multiple_is_that_of_a_search() {
        let all = [1u64, 2, 3, 4, 6, 10, 15, 25, 40, 100, 250, 997];
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
            for (x, y) in (0..4).flat_map(|x| (0..4).map(move |y| (x, y))) {
                let scaled = |coef: u64, exp: u32| u128::from(coef) * 10u128.pow(4 - exp);
                let (p, q) = (scaled(a, x), scaled(b, y));
                let found = (1..).map(|n| n * p).find(|n| n % q == 0).unwrap();
                let lcm =
                    Multiple::of(&value(a, x)).unwrap().lcm(Multiple::of(&value(b, y)).unwrap()).unwrap();
                assert_eq!(scaled(lcm.coef, lcm.exp), found, "{a}e-{x} {b}e-{y}");
            }
        }
    }

    #[test]
    fn none_is_more_than_u32_has() {
        for (value, fits) in [
            (json!(429_496_728), true),
            (json!(429_496_729), false),
            (json!(100_000_000), true),
            (json!(1_000_000_000), false),
            (json!(4_294_967_295u64), false),
            (value(3, 8), true),
            (value(1, 9), false),
            (json!(1e-300), false),
            (json!(1e300), false),
        ] {
            assert_eq!(Multiple::of(&value).is_some_and(Multiple::is_small), fits, "{value}");
        }
        for wrong in [json!(0), json!(-1), json!(0.0), json!("1"), json!(null)] {
            assert_eq!(Multiple::of(&wrong), None, "{wrong}");
        }
    }
}
