//! Sampling values and the like: options of the command line that `/set` changes too.
use crate::failure::{Result, failed};
use std::hash::{BuildHasher, RandomState};

/// The longest answer if it is not set.
const LONGEST_ANSWER: u32 = 1024;

/// Values, where they are given.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// 0 always takes the most likely token
    #[arg(long, value_name = "T", value_parser = temperature, allow_hyphen_values = true)]
    pub temperature: Option<f32>,
    /// Sample from the N most likely tokens; 0: all
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true)]
    pub top_k: Option<u32>,
    /// Sample from the tokens that make up probability P
    #[arg(long, value_name = "P", value_parser = top_p, allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    /// Drop tokens below P times the most likely one
    #[arg(long, value_name = "P", value_parser = min_p, allow_hyphen_values = true)]
    pub min_p: Option<f32>,
    /// Above 1: repeat less
    #[arg(long, value_name = "R", value_parser = penalty, allow_hyphen_values = true)]
    pub repetition_penalty: Option<f32>,
    /// The same seed gives the same answers (default: a new one)
    #[arg(long, value_name = "N", value_parser = seed, allow_hyphen_values = true)]
    pub seed: Option<u64>,
    /// The longest answer (default 1024); 0: what the context leaves
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true)]
    pub max_tokens: Option<u32>,
}

type Parsed<T> = std::result::Result<T, String>;

fn real(text: &str, low: f32, high: f32) -> Parsed<f32> {
    let number: f32 = text.parse().map_err(|_| "no number".to_owned())?;
    if (low..=high).contains(&number) { Ok(number) } else { Err(format!("not within {low} and {high}")) }
}

fn temperature(text: &str) -> Parsed<f32> {
    real(text, 0.0, 100.0)
}

fn top_p(text: &str) -> Parsed<f32> {
    real(text, f32::MIN_POSITIVE, 1.0)
}

fn min_p(text: &str) -> Parsed<f32> {
    real(text, 0.0, 1.0)
}

fn penalty(text: &str) -> Parsed<f32> {
    real(text, f32::MIN_POSITIVE, 100.0)
}

fn whole(text: &str) -> Parsed<u32> {
    text.parse().map_err(|_| "no whole number".to_owned())
}

fn seed(text: &str) -> Parsed<u64> {
    text.parse().map_err(|_| "no whole number".to_owned())
}

/// A setting, as `/set` shows and changes it.
pub struct Setting {
    pub name: &'static str,
    show: fn(&Settings) -> Option<String>,
    change: fn(&mut Settings, Option<&str>) -> Parsed<()>,
}

macro_rules! settings {
    ($($field:ident: $parse:ident),*) => {
        impl Settings {
            /// These values, completed with the other ones.
            pub fn or(&self, other: &Self) -> Self {
                Self { $($field: self.$field.or(other.$field)),* }
            }
        }

        pub static SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($field),
            show: |settings| settings.$field.map(|value| value.to_string()),
            change: |settings, text| {
                settings.$field = text.map($parse).transpose()?;
                Ok(())
            },
        }),*];
    };
}

settings!(
    temperature: temperature, top_k: whole, top_p: top_p, min_p: min_p, repetition_penalty: penalty, seed: seed,
    max_tokens: whole
);

/// The sources of values: the user, the model's authors, and usual values.
pub struct Sources {
    own: Settings,
    model: Settings,
    usual: Settings,
}

impl Sources {
    pub fn new(own: Settings, info: &bn::ModelInfo) -> Self {
        let recommended = &info.recommended;
        let model = Settings {
            temperature: recommended.temperature,
            top_k: recommended.top_k,
            top_p: recommended.top_p,
            min_p: recommended.min_p,
            repetition_penalty: recommended.repetition_penalty,
            ..Settings::default()
        };
        Self { own, model, usual: usual(recommended.is_empty()) }
    }

    /// Values of the next answer.
    pub fn effective(&self) -> Settings {
        self.own.or(&self.model).or(&self.usual)
    }

    /// Names, values and their sources.
    pub fn list(&self) -> impl Iterator<Item = (&'static str, String, &'static str)> {
        let sources = [(&self.own, ""), (&self.model, " (the model's)"), (&self.usual, " (default)")];
        SETTINGS.iter().map(move |setting| {
            let mut found =
                sources.iter().filter_map(|(values, from)| Some(((setting.show)(values)?, *from)));
            let (value, from) = found.next().unwrap_or(("-".to_owned(), ""));
            (setting.name, value, from)
        })
    }

    /// Sets a value; None: the default again. Names may have dashes.
    pub fn change(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name.replace('-', "_")) else {
            return failed(format!("there is no setting '{name}'; /set lists them"));
        };
        if value.is_none() && setting.name == "seed" {
            self.usual.seed = Some(new_seed());
        }
        match (setting.change)(&mut self.own, value) {
            Ok(()) => Ok(()),
            Err(_) => failed(format!("{name} cannot be '{}'", value.unwrap_or_default())),
        }
    }
}

/// Usual values. Sampling is the common one of chats if the model's authors recommend nothing at all.
fn usual(samples: bool) -> Settings {
    let sampling = Settings {
        temperature: Some(0.8),
        top_k: Some(40),
        top_p: Some(0.95),
        min_p: Some(0.05),
        ..Settings::default()
    };
    let always = Settings { seed: Some(new_seed()), max_tokens: Some(LONGEST_ANSWER), ..Settings::default() };
    if samples { always.or(&sampling) } else { always }
}

/// A seed that is short enough to be typed again.
fn new_seed() -> u64 {
    RandomState::new().hash_one(std::process::id()) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(sources: &Sources, name: &str) -> String {
        let (_, value, from) = sources.list().find(|(known, ..)| *known == name).unwrap();
        value + from
    }

    #[test]
    fn a_value_is_the_users_or_the_models_or_the_usual_one() {
        let mut info = bn::ModelInfo::default();
        let mut sources = Sources::new(Settings { top_k: Some(7), ..Settings::default() }, &info);
        assert_eq!(value(&sources, "top_k"), "7");
        assert_eq!(value(&sources, "temperature"), "0.8 (default)");
        assert_eq!(value(&sources, "max_tokens"), "1024 (default)");
        assert!(sources.change("top-k", None).is_ok());
        assert_eq!(sources.effective().top_k, Some(40));

        info.recommended.temperature = Some(0.6);
        let mut sources = Sources::new(Settings::default(), &info);
        assert_eq!(value(&sources, "temperature"), "0.6 (the model's)");
        assert_eq!(value(&sources, "top_k"), "-");
        assert!(sources.change("temperature", Some("0.5")).is_ok());
        assert_eq!(value(&sources, "temperature"), "0.5");
    }

    #[test]
    fn impossible_values_are_refused() {
        let mut sources = Sources::new(Settings::default(), &bn::ModelInfo::default());
        for (name, text) in [
            ("temperature", "-1"),
            ("temperature", "NaN"),
            ("temperature", "inf"),
            ("top_p", "0"),
            ("top_k", "-1"),
            ("top_k", "4294967296"),
            ("seed", ""),
            ("quick", "1"),
        ] {
            assert!(sources.change(name, Some(text)).is_err(), "{name} {text}");
        }
    }
}
