//! A tokenizer from GGUF's `tokenizer.ggml.*` metadata.

use super::bpe::Bpe;
use super::bytes::{ByteMap, TokenBytes};
use super::special::Specials;
use super::split::SplitRule;
use super::{Kind, Tokenizer};
use crate::base::{Error, Result};
use crate::formats::Gguf;
use std::collections::HashSet;
use tokenizers::models::bpe::Vocab;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
/// Each of these, where the file has it, ends a generation: end of sequence, of turn, of message.
const ENDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Control tokens of these names end a generation too: most files name only one id, and chat models end their
/// turns with another.
const END_NAMES: [&str; 7] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
];

/// What `token_type` says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    /// Text in stand-in characters.
    Normal,
    /// Unknown and control tokens: they stand for no text.
    Control,
    /// Added by hand, written as it is.
    UserDefined,
    /// Padding of the vocabulary.
    Unused,
}

fn bad(gguf: &Gguf, key: &str, message: impl std::fmt::Display) -> Error {
    Error::bad_model(format!("{}: metadata key '{key}': {message}", gguf.what()))
}

/// See [`Tokenizer::from_gguf`].
pub(super) fn load(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
    if !gguf.keys().any(|key| key.starts_with("tokenizer.ggml.")) {
        return Ok(None);
    }
    match gguf.get::<&str>(MODEL)? {
        "gpt2" => {}
        "none" | "no_vocab" => return Ok(None),
        other => {
            return Err(Error::unsupported(format!(
                "{}: metadata key '{MODEL}' is '{}'; only gpt2 (byte-level BPE) is read, so this model takes and \
                 gives token ids only",
                gguf.what(),
                other.escape_debug()
            )));
        }
    }
    let tokens: Vec<&str> = gguf.get(TOKENS)?;
    if tokens.is_empty() || tokens.len() > i32::MAX as usize {
        return Err(bad(gguf, TOKENS, format_args!("{} tokens", tokens.len())));
    }
    let bos = special_id(gguf, BOS, tokens.len())?;
    let mut ends = Vec::new();
    for key in ENDS {
        ends.extend(special_id(gguf, key, tokens.len())?);
    }
    let types = token_types(gguf, tokens.len(), bos, &ends, log)?;
    ends.extend((0u32..).zip(&tokens).zip(&types).filter_map(|((id, token), ty)| {
        (*ty == TokenType::Control && END_NAMES.contains(token)).then_some(id)
    }));
    ends.sort_unstable();
    ends.dedup();
    if ends.is_empty() {
        log(&format!("{}: the file names no end token; generations end by their limits only", gguf.what()));
    }
    let rule = SplitRule::of(gguf, tokens.len(), log)?;
    let vocab = build_vocab(gguf, &tokens, &types)?;
    let merges = build_merges(gguf, &vocab)?;
    let is_special = |ty: &TokenType| matches!(ty, TokenType::Control | TokenType::UserDefined);
    let forms = (0u32..).zip(&tokens).zip(&types).filter(|(_, ty)| is_special(ty));
    let specials = Specials::new(forms.map(|((id, token), _)| (token.as_bytes().to_vec(), id)));
    let bytes = token_bytes(&tokens, &types)?;
    let longest_text = (0..bytes.len() as u32).filter_map(|id| bytes.get(id)).map(<[u8]>::len).max();
    Ok(Some(Tokenizer {
        longest: longest_text.unwrap_or(0).max(specials.longest()).max(1),
        bytes,
        specials,
        first: first_token(gguf, bos, rule, log)?,
        kind: Kind::Bpe(Box::new(Bpe::new(rule, vocab, merges)?)),
        bos,
        ends,
    }))
}

fn special_id(gguf: &Gguf, key: &str, n: usize) -> Result<Option<u32>> {
    match gguf.find::<u32>(key)? {
        Some(id) if id as usize >= n => {
            Err(bad(gguf, key, format_args!("id {id} is out of range, the vocabulary has {n} tokens")))
        }
        id => Ok(id),
    }
}

/// The token that begins every prompt, if the file asks for one.
fn first_token(gguf: &Gguf, bos: Option<u32>, rule: SplitRule, log: &dyn Fn(&str)) -> Result<Option<u32>> {
    if gguf.find::<bool>("tokenizer.ggml.add_eos_token")? == Some(true) {
        log(&format!(
            "{}: add_eos_token is not followed: a prompt that is to go on ends with no EOS",
            gguf.what()
        ));
    }
    match (gguf.find::<bool>(ADD_BOS)?, bos) {
        (Some(true), None) => Err(bad(gguf, ADD_BOS, format_args!("it is true, but '{BOS}' is missing"))),
        (Some(true), bos) => Ok(bos),
        (None, bos) if rule.adds_bos() => Ok(bos),
        _ => Ok(None),
    }
}

fn token_types(
    gguf: &Gguf,
    n: usize,
    bos: Option<u32>,
    ends: &[u32],
    log: &dyn Fn(&str),
) -> Result<Vec<TokenType>> {
    let Some(numbers) = gguf.find::<Vec<i32>>(TOKEN_TYPE)? else {
        log(&format!(
            "{}: '{TOKEN_TYPE}' is missing; only BOS and the end tokens count as control",
            gguf.what()
        ));
        let mut types = vec![TokenType::Normal; n];
        bos.iter().chain(ends).for_each(|&id| types[id as usize] = TokenType::Control);
        return Ok(types);
    };
    if numbers.len() != n {
        return Err(bad(gguf, TOKEN_TYPE, format_args!("{} entries, but '{TOKENS}' has {n}", numbers.len())));
    }
    let known = |(i, number): (usize, &i32)| match number {
        // Undefined, normal, byte.
        0 | 1 | 6 => Ok(TokenType::Normal),
        2 | 3 => Ok(TokenType::Control),
        4 => Ok(TokenType::UserDefined),
        5 => Ok(TokenType::Unused),
        other => Err(bad(gguf, TOKEN_TYPE, format_args!("entry {i} is {other}, types go from 0 to 6"))),
    };
    numbers.iter().enumerate().map(known).collect()
}

/// What merging may produce: all but control tokens, so that no text can become one by its letters.
fn build_vocab(gguf: &Gguf, tokens: &[&str], types: &[TokenType]) -> Result<Vocab> {
    let mut seen = HashSet::new();
    let mut vocab = Vocab::default();
    for ((id, &token), &ty) in (0u32..).zip(tokens).zip(types) {
        let fresh = seen.insert(token);
        // Converters may pad a vocabulary with equal fillers.
        if ty == TokenType::Unused {
            continue;
        }
        if !fresh {
            return Err(bad(
                gguf,
                TOKENS,
                format_args!("token {id}, '{}', stands there twice", shown(token)),
            ));
        }
        if ty != TokenType::Control {
            vocab.insert(token.to_owned(), id);
        }
    }
    Ok(vocab)
}

fn build_merges(gguf: &Gguf, vocab: &Vocab) -> Result<Vec<(String, String)>> {
    let lines: Vec<&str> = gguf.get(MERGES)?;
    let mut seen = HashSet::new();
    let mut merges = Vec::new();
    for (i, line) in lines.into_iter().enumerate() {
        let refuse = |why: String| bad(gguf, MERGES, format_args!("entry {i}, '{}': {why}", shown(line)));
        let parts = line.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty());
        let (a, b) = parts.ok_or_else(|| refuse("it is not two tokens with a space between".into()))?;
        for part in [a, b, &format!("{a}{b}")] {
            if !vocab.contains_key(part) {
                return Err(refuse(format!("'{}' is no token of the vocabulary", shown(part))));
            }
        }
        if !seen.insert((a, b)) {
            return Err(refuse("it stands there twice".into()));
        }
        merges.push((a.to_owned(), b.to_owned()));
    }
    Ok(merges)
}

fn token_bytes(tokens: &[&str], types: &[TokenType]) -> Result<TokenBytes> {
    let map = ByteMap::new();
    let mut bytes = TokenBytes::new(tokens.len())?;
    for (token, ty) in tokens.iter().zip(types) {
        match (ty, map.bytes(token)) {
            (TokenType::Control, _) => bytes.push(b"")?,
            (TokenType::Normal | TokenType::Unused, Some(text)) => bytes.push(&text)?,
            _ => bytes.push(token.as_bytes())?,
        }
    }
    Ok(bytes)
}

/// A token in an error message: escaped, and cut where a bad file made it long.
fn shown(token: &str) -> String {
    token.chars().take(40).flat_map(char::escape_debug).collect()
}
