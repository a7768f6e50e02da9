//! Replaces exclusive bounds that llguidance mishandles with inclusive bounds of the next number.
//!
//! From 2^53 on, llguidance adds 1 to a whole bound although f64 lacks that number. If a range is bounded by
//! an excluded whole number and a number less than 1 farther from 0, it admits the whole number. Bounds meet
//! through `allOf` and references, so each counts for the whole schema.

use super::Refusal;
use super::keywords::each_below;
use super::normal::Fields;
use serde_json::{Number, Value};
use std::collections::HashMap;

/// From here on, f64 does not have every whole number.
const LARGE: f64 = 9_007_199_254_740_992.0;
/// Decimal digits that f64 preserves however the number is parsed.
const DIGITS: i32 = 15;
/// Limit on the zeros between the decimal point and the next number's first digit.
const MOST_ZEROS: i32 = 100;

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Low,
    High,
}

const SIDES: [(Side, &str, &str); 2] =
    [(Side::Low, "minimum", "exclusiveMinimum"), (Side::High, "maximum", "exclusiveMaximum")];

/// Fractional bounds by their whole part: the one closest to it, as a distance from 0.
#[derive(Default)]
pub(super) struct Ranges {
    above: HashMap<u64, f64>,
    below: HashMap<u64, f64>,
}

impl Ranges {
    /// Records the bounds of a schema.
    pub(super) fn note(&mut self, fields: &Fields) {
        for (side, inclusive, exclusive) in SIDES {
            // A bound from above closes the range towards 0 if it is above 0.
            let (far, sign) =
                if side == Side::High { (&mut self.above, 1.0) } else { (&mut self.below, -1.0) };
            for keyword in [inclusive, exclusive] {
                let bound = fields.get(keyword).and_then(Value::as_f64).map(|bound| bound * sign);
                if let Some(bound) = bound.filter(|bound| *bound > 0.0 && bound.fract() != 0.0) {
                    let known = far.entry(bound as u64).or_insert(bound);
                    *known = known.min(bound);
                }
            }
        }
    }

    /// Rewrites the bounds of a schema and of those within it.
    pub(super) fn close(&self, schema: &mut Value) -> Result<(), Refusal> {
        let Value::Object(fields) = schema else { return Ok(()) };
        self.close_own(fields)?;
        each_below(fields, &mut |one| self.close(one))
    }

    fn close_own(&self, fields: &mut Fields) -> Result<(), Refusal> {
        for (side, inclusive, exclusive) in SIDES {
            let Some(bound) = fields.get(exclusive).and_then(Value::as_f64) else { continue };
            let (far, sign) = if side == Side::Low { (&self.above, 1.0) } else { (&self.below, -1.0) };
            let Some(next) = next(bound * sign, far).map_err(|()| {
                Refusal::new(format!("{exclusive} is {bound} with another bound close to it"))
            })?
            else {
                continue;
            };
            let beside =
                fields.get(inclusive).and_then(Value::as_f64).map_or(f64::NEG_INFINITY, |n| n * sign);
            fields.shift_remove(exclusive);
            if beside < next {
                fields.insert(inclusive.to_owned(), number(next * sign));
            }
        }
        Ok(())
    }
}

/// The least number beyond `bound` that replaces it as an inclusive bound; None if `bound` may stay.
fn next(bound: f64, far: &HashMap<u64, f64>) -> Result<Option<f64>, ()> {
    if bound.abs() >= LARGE {
        return Ok(Some(bound.next_up()));
    }
    // Turns -0 into 0.
    let bound = bound + 0.0;
    if bound < 0.0 || bound.fract() != 0.0 {
        return Ok(None);
    }
    let Some(far) = far.get(&(bound as u64)) else { return Ok(None) };
    let digits = match bound == 0.0 {
        true => DIGITS - far.log10().floor() as i32,
        false => DIGITS - (bound as u64).to_string().len() as i32,
    };
    if !(1..=MOST_ZEROS).contains(&digits) {
        return Err(());
    }
    let fraction = "0".repeat(digits as usize - 1);
    let next = format!("{bound}.{fraction}1").parse::<f64>().map_err(drop)?;
    if next > bound && next < *far { Ok(Some(next)) } else { Err(()) }
}

fn number(of: f64) -> Value {
    match of.fract() == 0.0 && of.abs() < 1e19 {
        true if of < 0.0 => Value::from(of as i64),
        true => Value::from(of as u64),
        false => Number::from_f64(of).map_or(Value::Null, Value::Number),
    }
}
