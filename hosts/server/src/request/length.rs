//! Bounds on answers, and cutting of texts to a number of tokens.
use crate::failure::Result;
use crate::fields::{U32, Whole};
use crate::models::Held;
use serde::de::{Deserialize, Deserializer, Error};

/// Maximum number of new tokens. 0, which clients write as -1: as many as the context leaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewTokens(pub u32);

impl<'de> Deserialize<'de> for NewTokens {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        match Whole::<-1, U32>::deserialize(from) {
            Ok(Whole(0)) | Err(_) => Err(D::Error::custom(format!("must be a whole number from 1 to {U32}"))),
            Ok(tokens) => Ok(Self(u32::try_from(tokens.0).unwrap_or(0))),
        }
    }
}

/// Maximum number of tokens that the tokenizer appends to a text to embed.
const BEHIND: usize = 2;

/// Maximum number of tokens of a prompt.
pub fn context(held: &Held) -> Result<usize> {
    let stats = held.engine.stats().map_err(|error| held.failure(&error))?;
    Ok(usize::try_from(stats.context_length).unwrap_or(usize::MAX))
}

/// Texts to embed, each cut at its end to what the model takes.
pub fn fit_all(held: &Held, prompts: Vec<bn::Prompt>) -> Result<Vec<bn::Prompt>> {
    let most = context(held)?;
    Ok(prompts.into_iter().map(|prompt| fit(held, prompt, most)).collect())
}

fn fit(held: &Held, prompt: bn::Prompt, most: usize) -> bn::Prompt {
    match prompt {
        bn::Prompt::Text(text) => {
            let how = bn::Tokenize { add_special: true, parse_special: false };
            let length = cut(&held.model, &text, most.saturating_sub(BEHIND), how).len();
            bn::Prompt::Text(shortened(text, length))
        }
        bn::Prompt::Tokens(mut tokens) => {
            tokens.truncate(most);
            bn::Prompt::Tokens(tokens)
        }
        other => other,
    }
}

fn shortened(mut text: String, length: usize) -> String {
    text.truncate(length);
    text
}

/// The longest beginning of a text that is at most `most` tokens, or nearly the longest: a longer text may have fewer
/// tokens.
pub fn cut<'a>(model: &bn::Model, text: &'a str, most: usize, how: bn::Tokenize) -> &'a str {
    longest(text, |text| model.tokenize(text, how).is_ok_and(|tokens| tokens.len() <= most))
}

fn longest(text: &str, fits: impl Fn(&str) -> bool) -> &str {
    if fits(text) {
        return text;
    }
    // `low` fits, `high` does not. Both are between characters.
    let (mut low, mut high) = (0, text.len());
    loop {
        let begins = |at: &usize| text.is_char_boundary(*at);
        let middle = (low + 1).max(low + (high - low) / 2);
        let Some(next) = (middle..high).find(begins).or_else(|| (low + 1..middle).rfind(begins)) else {
            return &text[..low];
        };
        if fits(&text[..next]) { low = next } else { high = next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let all = [
            ("abcdef", 6, 6),
            ("abcdef", 4, 4),
            ("aéé", 2, 1),
            ("éa", 1, 0),
            ("", 0, 0),
            ("日aa", 3, 3),
            ("aa日", 4, 2),
        ];
        for (text, most, length) in all {
            assert_eq!(longest(text, |text| text.len() <= most), &text[..length], "{text} {most}");
        }
    }

    #[test]
    fn no_character_is_left_out_at_the_end() {
        let text = "日本語日本語";
        for most in 0..=6 {
            assert_eq!(longest(text, |text| text.chars().count() <= most).chars().count(), most);
        }
    }
}
