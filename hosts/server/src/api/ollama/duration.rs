//! `keep_alive`: how long a model stays. Ollama's are Go's durations.
use crate::models::FOREVER;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;
use std::time::Duration;

/// Number of seconds that counts as forever, some thirty years.
const LONG: f64 = 1e9;

/// Seconds as a number, or a text like `1h30m`. Below 0: forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive(pub Duration);

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let seconds = match Value::deserialize(from)? {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => seconds(text.trim()),
            _ => None,
        };
        let words = "must be a number of seconds, or a time like \"5m\" or \"1h30m\"";
        let seconds = seconds.ok_or_else(|| D::Error::custom(words))?;
        let time = if (0.0..LONG).contains(&seconds) { Duration::from_secs_f64(seconds) } else { FOREVER };
        Ok(Self(time))
    }
}

const UNITS: &[(&str, f64)] = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if let Some(number) = plain(rest) {
        return Some(sign * number);
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number = plain(&rest[..digits])?;
        let behind = &rest[digits..];
        let name = &behind[..behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len())];
        sum += number * UNITS.iter().find(|(unit, _)| *unit == name)?.1;
        rest = &behind[name.len()..];
    }
    text.ends_with(char::is_alphabetic).then_some(sign * sum)
}

/// A number of digits and a point alone.
fn plain(text: &str) -> Option<f64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Option<Duration> {
        KeepAlive::deserialize(value).ok().map(|keep| keep.0)
    }

    #[test]
    fn gos_durations_and_seconds_are_known() {
        for (value, seconds) in [
            (json!("1h30m"), 5400.0),
            (json!("5m"), 300.0),
            (json!("1.5h"), 5400.0),
            (json!("1m0.5s"), 60.5),
            (json!("250ms"), 0.25),
            (json!("10"), 10.0),
            (json!("0"), 0.0),
            (json!("+5s"), 5.0),
            (json!(7), 7.0),
            (json!(0.5), 0.5),
        ] {
            assert_eq!(read(value.clone()), Some(Duration::from_secs_f64(seconds)), "{value}");
        }
        for value in [json!("-1"), json!(-1), json!("-1m"), json!("1e3"), json!(1e300), json!("99999999h")] {
            let forever = read(value.clone());
            assert_eq!(forever, (value != "1e3").then_some(FOREVER), "{value}");
        }
        for value in
            [json!("soon"), json!("5x"), json!("m"), json!(""), json!("-"), json!("1.2.3s"), json!(true)]
        {
            assert_eq!(read(value.clone()), None, "{value}");
        }
    }
}
