//! Fill in the middle: a completion's prompt stands before its text, and `suffix` after it. Models were trained to read
//! both between control tokens of their family.
use crate::failure::Result;
use crate::models::Held;
use axum::http::StatusCode;

/// Control tokens around both texts.
struct Marks {
    first: &'static str,
    second: &'static str,
    /// Empty: there is none.
    third: &'static str,
    suffix_first: bool,
}

const fn marks(first: &'static str, second: &'static str, third: &'static str) -> Marks {
    Marks { first, second, third, suffix_first: false }
}

const FAMILIES: &[Marks] = &[
    marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), // Qwen, CodeGemma
    marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),       // StarCoder, Granite
    marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),       // SantaCoder
    marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), // DeepSeek
    marks("▁<PRE>", "▁<SUF>", "▁<MID>"),                         // Code Llama
    marks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"), // GLM
    Marks { suffix_first: true, ..marks("[SUFFIX]", "[PREFIX]", "") }, // Codestral
];

const MARK: bn::Tokenize = bn::Tokenize { add_special: false, parse_special: true };

/// Whether a model has control tokens for filling in the middle.
pub fn is_known(model: &bn::Model) -> bool {
    family(model).is_some()
}

fn family(model: &bn::Model) -> Option<&'static Marks> {
    let one = |text: &str| model.tokenize(text, MARK).is_ok_and(|tokens| tokens.len() == 1);
    let known = |marks: &&Marks| {
        [marks.first, marks.second, marks.third].iter().all(|mark| mark.is_empty() || one(mark))
    };
    FAMILIES.iter().find(known)
}

/// The prompt between a text, which `prompt` is, and a suffix.
pub fn prompt(held: &Held, prompt: bn::Prompt, suffix: &str) -> Result<bn::Prompt> {
    let bn::Prompt::Text(before) = prompt else {
        return Err(unsupported("'suffix' needs prompts that are texts"));
    };
    let marks = family(&held.model).ok_or_else(|| {
        unsupported("'suffix' is for models with tokens to fill in the middle, which this one lacks")
    })?;
    tokens(&held.model, marks, &before, suffix).map(bn::Prompt::Tokens).map_err(|error| held.failure(&error))
}

fn tokens(model: &bn::Model, marks: &Marks, before: &str, behind: &str) -> bn::Result<Vec<u32>> {
    let texts = if marks.suffix_first { [behind, before] } else { [before, behind] };
    let mut tokens = model.tokenize(marks.first, bn::Tokenize { add_special: true, ..MARK })?;
    tokens.extend(model.tokenize(texts[0], bn::Tokenize::default())?);
    tokens.extend(model.tokenize(marks.second, MARK)?);
    tokens.extend(model.tokenize(texts[1], bn::Tokenize::default())?);
    if !marks.third.is_empty() {
        tokens.extend(model.tokenize(marks.third, MARK)?);
    }
    Ok(tokens)
}

fn unsupported(words: &str) -> crate::failure::Failure {
    crate::failure::Failure::new(StatusCode::BAD_REQUEST, "unsupported", words)
}
