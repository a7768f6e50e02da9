//! Sampling advice of a model's files: `generation_config.json`, and GGUF's `general.sampling.*`.

use std::ops::RangeInclusive;

/// Each value is set if the files give it and it is in range. `temperature` 0 is greedy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 to 100.
    pub temperature: Option<f32>,
    /// 0 is off.
    pub top_k: Option<u32>,
    /// Above 0 and at most 1.
    pub top_p: Option<f32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0 and at most 100.
    pub repetition_penalty: Option<f32>,
}

/// Names in `generation_config.json`, in the order of `SamplingDefaults`.
pub(super) const HF_KEYS: [&str; 5] = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"];
/// Names in GGUF files, from llama.cpp.
pub(super) const GGUF_KEYS: [&str; 5] = [
    "general.sampling.temp",
    "general.sampling.top_k",
    "general.sampling.top_p",
    "general.sampling.min_p",
    "general.sampling.penalty_repeat",
];

const ABOVE_0: f64 = 1e-30;
const MOST_TOP_K: f64 = u32::MAX as f64;

impl SamplingDefaults {
    /// Reads the values. `find` gives the value of one of `keys`, NaN if it is not a number. A value out of range is
    /// reported to `warn`, with the name `what` of the file.
    pub fn read(
        keys: &[&str; 5],
        find: &dyn Fn(&str) -> Option<f64>,
        what: &str,
        warn: &dyn Fn(&str),
    ) -> Self {
        let value = |key: usize, range: RangeInclusive<f64>| {
            let (key, value) = (keys[key], find(keys[key])?);
            if range.contains(&value) {
                return Some(value);
            }
            let (low, high) = range.into_inner();
            warn(&format!("{what}: '{key}' is not a number from {low} to {high}; it is not used"));
            None
        };
        Self {
            temperature: value(0, 0.0..=100.0).map(|x| x as f32),
            top_k: value(1, 0.0..=MOST_TOP_K).map(|x| x as u32),
            top_p: value(2, ABOVE_0..=1.0).map(|x| x as f32),
            min_p: value(3, 0.0..=1.0).map(|x| x as f32),
            repetition_penalty: value(4, ABOVE_0..=100.0).map(|x| x as f32),
        }
    }

    /// transformers draws only if `do_sample` is true, at temperature 1 if none is given.
    pub fn drawn_if(self, do_sample: bool) -> Self {
        let temperature = match do_sample {
            true => self.temperature.or(Some(1.0)),
            false if self == Self::default() => None,
            false => Some(0.0),
        };
        Self { temperature, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn read(values: [Option<f64>; 5]) -> (SamplingDefaults, Vec<String>) {
        let find = |key: &str| values[HF_KEYS.iter().position(|known| *known == key).unwrap()];
        let said = RefCell::default();
        let found = SamplingDefaults::read(&HF_KEYS, &find, "file", &|message| {
            RefCell::<Vec<String>>::borrow_mut(&said).push(message.into())
        });
        (found, said.into_inner())
    }

    #[test]
    fn values_in_range_are_taken() {
        assert_eq!(read([None; 5]), (SamplingDefaults::default(), Vec::new()));
        let (found, said) = read([Some(0.0), Some(0.0), Some(1.0), Some(0.0), Some(1.1)]);
        let want = SamplingDefaults {
            temperature: Some(0.0),
            top_k: Some(0),
            top_p: Some(1.0),
            min_p: Some(0.0),
            repetition_penalty: Some(1.1),
        };
        assert_eq!((found, said.len()), (want, 0));
    }

    #[test]
    fn others_are_warned_of() {
        for values in
            [[-0.1, -1.0, 0.0, -0.1, 0.0], [f64::NAN; 5], [f64::INFINITY; 5], [101.0, 5e9, 1.1, 2.0, 101.0]]
        {
            let (found, said) = read(values.map(Some));
            assert_eq!(found, SamplingDefaults::default(), "{values:?}");
            let named = HF_KEYS.iter().zip(&said).all(|(key, said)| said.contains(&format!("file: '{key}'")));
            assert!(said.len() == 5 && named, "{said:?}");
        }
    }

    #[test]
    fn without_do_sample_it_is_greedy() {
        let some = SamplingDefaults { temperature: Some(0.6), top_k: Some(5), ..Default::default() };
        assert_eq!(some.drawn_if(true), some);
        assert_eq!(some.drawn_if(false), SamplingDefaults { temperature: Some(0.0), ..some });
        let none = SamplingDefaults::default();
        assert_eq!((none.drawn_if(true).temperature, none.drawn_if(false)), (Some(1.0), none));
    }
}
