//! A tokenizer from GGUF's `tokenizer.ggml.*` metadata.

use super::bpe::Bpe;
use super::bytes::{ByteMap, TokenBytes, byte_token, shown};
use super::special::Specials;
use super::split::Rule;
use super::spm::{Spaces, Spm, spaced};
use super::{Kind, Tokenizer, vocab_json};
use crate::base::{Error, Result, reserve, reserved};
use crate::formats::Gguf;
use std::collections::{HashMap, HashSet};
use tokenizers::models::bpe::Vocab;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
/// Each of these, if the file has it, ends a generation: end of sequence, of turn, of message.
const ENDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Control tokens with these names end a generation too: most files name only one id, and chat models end their
/// turns with another.
const END_NAMES: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
];
/// Where an answer is a sequence of messages, as gpt-oss's is, these end it, and [`MESSAGE_END`] does not.
const ANSWER_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];
const MESSAGE_END: &str = "<|end|>";

/// The names of control tokens that end a generation, in a vocabulary that `has` these control tokens.
pub(super) fn ends_by_name(has: &dyn Fn(&str) -> bool) -> impl Fn(&str) -> bool + use<> {
    let messages = ANSWER_ENDS.iter().all(|name| has(name));
    move |name| match name {
        MESSAGE_END => !messages,
        name => END_NAMES.contains(&name) || messages && ANSWER_ENDS.contains(&name),
    }
}

/// The type of a token in `token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    /// Text: in stand-in characters, or with U+2581 for spaces.
    Normal,
    /// Replaces text that cannot be spelled; stands for no text.
    Unknown,
    /// Stands for no text.
    Control,
    /// Added by hand; written as it is.
    UserDefined,
    /// Padding of the vocabulary; stands for no text.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

pub(super) fn bad(gguf: &Gguf, key: &str, message: impl std::fmt::Display) -> Error {
    Error::bad_model(format!("{}: metadata key '{key}': {message}", gguf.what()))
}

/// The metadata that both kinds of vocabulary have.
struct Common<'a> {
    gguf: &'a Gguf,
    tokens: Vec<&'a str>,
    types: Vec<TokenType>,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: Vec<u32>,
}

/// See [`Tokenizer::from_gguf`].
pub(super) fn load(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
    if !gguf.keys().any(|key| key.starts_with("tokenizer.ggml.")) {
        return Ok(None);
    }
    match gguf.get::<&str>(MODEL)? {
        "gpt2" => load_bpe(Common::read(gguf, false, log)?, log).map(Some),
        "llama" => {
            let common = Common::read(gguf, true, log)?;
            let scores = scores(&common)?;
            load_spm(common, &scores).map(Some)
        }
        // Gemma 4: a SentencePiece vocabulary without scores, which follow from its merges.
        "gemma4" => {
            let common = Common::read(gguf, true, log)?;
            let scores = scores_of_merges(&common)?;
            load_spm(common, &scores).map(Some)
        }
        "bert" => vocab_json::word_piece(gguf, log).map(Some),
        "t5" => vocab_json::unigram(gguf, log).map(Some),
        "none" | "no_vocab" => Ok(None),
        other => Err(Error::unsupported(format!(
            "{}: metadata key '{MODEL}' is '{}'; only gpt2 (byte-level BPE), llama and gemma4 (SentencePiece BPE), \
             bert (WordPiece) and t5 (Unigram) are read, so this model takes and gives token ids only",
            gguf.what(),
            shown(other)
        ))),
    }
}

impl<'a> Common<'a> {
    /// `spm`: if the file names none, BOS is token 1 and EOS token 2, provided they are control tokens, as in
    /// llama.cpp.
    fn read(gguf: &'a Gguf, spm: bool, log: &dyn Fn(&str)) -> Result<Self> {
        let tokens: Vec<&str> = gguf.get(TOKENS)?;
        if tokens.is_empty() || tokens.len() > i32::MAX as usize {
            return Err(bad(gguf, TOKENS, format_args!("{} tokens", tokens.len())));
        }
        let mut bos = special_id(gguf, BOS, tokens.len())?;
        let mut eos = special_id(gguf, ENDS[0], tokens.len())?;
        let mut ends = end_tokens(gguf, tokens.len())?;
        let types = token_types(gguf, tokens.len(), bos, &ends, log)?;
        if spm {
            let control =
                |id: u32| Some(id).filter(|&id| types.get(id as usize) == Some(&TokenType::Control));
            bos = bos.or(control(1));
            eos = eos.or(control(2));
            ends.extend(eos);
        }
        let controls = || tokens.iter().zip(&types).filter(|(_, ty)| **ty == TokenType::Control);
        let by_name = ends_by_name(&|name| controls().any(|(token, _)| *token == name));
        ends.extend(
            (0u32..)
                .zip(&tokens)
                .zip(&types)
                .filter_map(|((id, token), ty)| (*ty == TokenType::Control && by_name(token)).then_some(id)),
        );
        ends.sort_unstable();
        ends.dedup();
        Ok(Self { gguf, tokens, types, bos, eos, ends })
    }

    fn entries(&self) -> impl Iterator<Item = (u32, &'a str, TokenType)> {
        (0u32..).zip(&self.tokens).zip(&self.types).map(|((id, &token), &ty)| (id, token, ty))
    }

    /// Checks that no text occurs twice. Unused tokens may: converters pad a vocabulary with equal fillers.
    fn check_unique(&self) -> Result<()> {
        let mut seen = HashSet::new();
        let n = self.tokens.len();
        reserved(seen.try_reserve(n), "the vocabulary", n.saturating_mul(size_of::<&str>()))?;
        for (id, token, ty) in self.entries() {
            if !seen.insert(token) && ty != TokenType::Unused {
                return Err(bad(
                    self.gguf,
                    TOKENS,
                    format_args!("token {id}, '{}', stands there twice", shown(token)),
                ));
            }
        }
        Ok(())
    }

    /// The special tokens of the types `which`. `text` gives a token's written form.
    fn specials(&self, text: &dyn Fn(&str) -> Vec<u8>, which: &[TokenType]) -> Result<Specials> {
        let forms = self.entries().filter(|(_, _, ty)| which.contains(ty));
        Specials::new(forms.map(|(id, token, _)| (text(token), id)))
    }

    /// `table`: the bytes of the tokens, and what the tables take for each. `shrinks`: factor by which a text may
    /// become shorter as it is tokenized; None if one token can stand for a text of any length.
    fn tokenizer(
        self,
        kind: Kind,
        (bytes, table): (TokenBytes, usize),
        written: &dyn Fn(&str) -> Vec<u8>,
        adds_bos: bool,
        shrinks: Option<usize>,
    ) -> Result<Tokenizer> {
        let specials = self.specials(written, &CONTROLS)?;
        let longest = bytes.longest().max(specials.longest()).max(1);
        Ok(Tokenizer {
            longest,
            text_of_a_token: shrinks.map_or(usize::MAX, |factor| longest.saturating_mul(factor)),
            space_prefix: matches!(&kind, Kind::Spm(spm) if spm.spaces.prefix),
            table_bytes: table * bytes.len(),
            bytes,
            specials,
            always: self.specials(written, &[TokenType::UserDefined])?,
            first: asked(self.gguf, ADD_BOS, (BOS, self.bos), adds_bos)?,
            pair: None,
            last: asked(self.gguf, ADD_EOS, (ENDS[0], self.eos), false)?,
            kind,
            bos: self.bos,
            ends: self.ends,
            beyond: Vec::new(),
        })
    }
}

const CONTROLS: [TokenType; 3] = [TokenType::Control, TokenType::Unknown, TokenType::UserDefined];

fn load_bpe(mut common: Common, log: &dyn Fn(&str)) -> Result<Tokenizer> {
    let gguf = common.gguf;
    for ty in &mut common.types {
        match ty {
            TokenType::Byte => *ty = TokenType::Normal,
            TokenType::Unknown => *ty = TokenType::Control,
            _ => {}
        }
    }
    let rule = Rule::of(gguf, common.tokens.len(), log)?;
    common.check_unique()?;
    let vocab = build_vocab(&common)?;
    let merges = build_merges(gguf, &vocab)?;
    let bytes = token_bytes(&common)?;
    // Composing turns at most three bytes into one (a Hangul syllable, the Kelvin sign).
    let shrinks = Some(if rule.nfc { 3 } else { 1 });
    let adds_bos = rule.adds_bos;
    let bpe = Kind::Bpe(Box::new(Bpe::new(rule, vocab, merges)?));
    // The `tokenizers` crate keeps vocabulary and merges in both directions.
    common.tokenizer(bpe, (bytes, 640), &|token| token.as_bytes().to_vec(), adds_bos, shrinks)
}

fn scores(common: &Common) -> Result<Vec<f32>> {
    let (gguf, n) = (common.gguf, common.tokens.len());
    let scores: Vec<f32> = gguf.get(SCORES)?;
    if scores.len() != n {
        return Err(bad(gguf, SCORES, format_args!("{} entries, but '{TOKENS}' has {n}", scores.len())));
    }
    if let Some(i) = scores.iter().position(|score| score.is_nan()) {
        return Err(bad(gguf, SCORES, format_args!("entry {i} is not a number")));
    }
    Ok(scores)
}

/// A token's score by the first merge that makes it. NaN for tokens of several characters that no merge makes.
fn scores_of_merges(common: &Common) -> Result<Vec<f32>> {
    let normal = |(_, token, ty): &(u32, &str, TokenType)| *ty == TokenType::Normal && !token.is_empty();
    let mut ids: HashMap<&str, u32> = HashMap::new();
    let (n, gguf) = (common.tokens.len(), common.gguf);
    reserved(ids.try_reserve(n), "the vocabulary", n.saturating_mul(size_of::<(&str, u32)>()))?;
    ids.extend(common.entries().filter(normal).map(|(id, token, _)| (token, id)));
    let mut scores: Vec<f32> = Vec::new();
    reserve(&mut scores, n, "the vocabulary")?;
    scores.extend(common.tokens.iter().map(|token| match token.chars().nth(1) {
        None => 0.0,
        Some(_) => f32::NAN,
    }));
    let lines: Vec<&str> = gguf.get(MERGES)?;
    for (i, line) in lines.into_iter().enumerate() {
        let refuse = |why: &str| bad(gguf, MERGES, format_args!("entry {i}, '{}': {why}", shown(line)));
        let parts = line.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty());
        let (a, b) = parts.ok_or_else(|| refuse("it is not two tokens with a space between"))?;
        let made = ids.get(&*format!("{a}{b}")).filter(|_| ids.contains_key(a) && ids.contains_key(b));
        let made = made.ok_or_else(|| refuse("a part or the whole is no token of the vocabulary"))?;
        let score = &mut scores[*made as usize];
        *score = if score.is_nan() { -(i as f32) } else { *score };
    }
    Ok(scores)
}

/// `scores`: one for each token; NaN for one that merging does not make.
fn load_spm(common: Common, scores: &[f32]) -> Result<Tokenizer> {
    let gguf = common.gguf;
    let n = common.tokens.len();
    if gguf.contains(CHARSMAP) {
        return Err(Error::unsupported(format!(
            "{}: metadata key '{CHARSMAP}' asks for a text normalization that is not read; the model takes and gives \
             token ids only",
            gguf.what()
        )));
    }
    common.check_unique()?;
    let mut spelled = [None; 256];
    let mut bytes = TokenBytes::new(n)?;
    for (id, token, ty) in common.entries() {
        match ty {
            TokenType::Control | TokenType::Unknown | TokenType::Unused => {
                bytes.push_silent(spaced(token).as_bytes())?
            }
            TokenType::Byte => {
                let byte = byte_token(token).ok_or_else(|| {
                    let why = format_args!(
                        "token {id}, '{}', is of type byte and not written <0x00>",
                        shown(token)
                    );
                    bad(gguf, TOKENS, why)
                })?;
                spelled[byte as usize].get_or_insert(id);
                bytes.push(&[byte])?;
            }
            _ => bytes.push(spaced(token).as_bytes())?,
        }
    }
    let unknown = match special_id(gguf, UNKNOWN, n)? {
        None => common.types.iter().position(|ty| *ty == TokenType::Unknown).map(|id| id as u32),
        id => id,
    };
    let spaces = Spaces {
        prefix: gguf.find::<bool>("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        squeeze: gguf.find::<bool>("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    };
    let pieces = common.entries().filter(|(id, token, ty)| {
        *ty == TokenType::Normal && !token.is_empty() && !scores[*id as usize].is_nan()
    });
    let spm =
        Spm::new(pieces.map(|(id, token, _)| (id, token, scores[id as usize])), spelled, unknown, spaces)?;
    // A U+2581 in a text (three bytes) is a space (one byte) in a token. A run of unknown characters is one token.
    let shrinks = Some(3).filter(|_| spm.spells_all_bytes() && !spaces.squeeze);
    let written = |token: &str| spaced(token).into_bytes();
    common.tokenizer(Kind::Spm(Box::new(spm)), (bytes, 256), &written, true, shrinks)
}

pub(super) fn special_id(gguf: &Gguf, key: &str, n: usize) -> Result<Option<u32>> {
    match gguf.find::<u32>(key)? {
        Some(id) if id as usize >= n => {
            Err(bad(gguf, key, format_args!("id {id} is out of range, the vocabulary has {n} tokens")))
        }
        id => Ok(id),
    }
}

/// The end tokens that the file names by id, for a vocabulary of `n` tokens.
pub fn end_tokens(gguf: &Gguf, n: usize) -> Result<Vec<u32>> {
    let mut ends = Vec::new();
    for key in ENDS {
        ends.extend(special_id(gguf, key, n)?);
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// The token `id` of the key `name`, if the file asks for it by `key`, or if it does not say and `by_default` is set.
pub(super) fn asked(
    gguf: &Gguf,
    key: &str,
    (name, id): (&str, Option<u32>),
    by_default: bool,
) -> Result<Vec<u32>> {
    match (gguf.find::<bool>(key)?, id) {
        (Some(true), None) => Err(bad(gguf, key, format_args!("it is true, but '{name}' is missing"))),
        (asked, id) => Ok(id.into_iter().filter(|_| asked.unwrap_or(by_default)).collect()),
    }
}

pub(super) fn token_types(
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
        let mut types = Vec::new();
        reserve(&mut types, n, "the vocabulary")?;
        types.resize(n, TokenType::Normal);
        bos.iter().chain(ends).for_each(|&id| types[id as usize] = TokenType::Control);
        return Ok(types);
    };
    if numbers.len() != n {
        return Err(bad(gguf, TOKEN_TYPE, format_args!("{} entries, but '{TOKENS}' has {n}", numbers.len())));
    }
    let known = |(i, number): (usize, &i32)| match number {
        // Undefined or normal.
        0 | 1 => Ok(TokenType::Normal),
        2 => Ok(TokenType::Unknown),
        3 => Ok(TokenType::Control),
        4 => Ok(TokenType::UserDefined),
        5 => Ok(TokenType::Unused),
        6 => Ok(TokenType::Byte),
        other => Err(bad(gguf, TOKEN_TYPE, format_args!("entry {i} is {other}, types go from 0 to 6"))),
    };
    let mut types = Vec::new();
    reserve(&mut types, n, "the vocabulary")?;
    for entry in numbers.iter().enumerate() {
        types.push(known(entry)?);
    }
    Ok(types)
}

/// The texts that merging may produce: all except control tokens, so that no text can spell one.
fn build_vocab(common: &Common) -> Result<Vocab> {
    let mut vocab = Vocab::new();
    let n = common.tokens.len();
    reserved(vocab.try_reserve(n), "the vocabulary", n.saturating_mul(size_of::<(String, u32)>()))?;
    let made = common.entries().filter(|(.., ty)| !matches!(ty, TokenType::Control | TokenType::Unused));
    vocab.extend(made.map(|(id, token, _)| (token.to_owned(), id)));
    Ok(vocab)
}

fn build_merges(gguf: &Gguf, vocab: &Vocab) -> Result<Vec<(String, String)>> {
    let lines: Vec<&str> = gguf.get(MERGES)?;
    let mut seen = HashSet::new();
    let bytes = lines.len().saturating_mul(size_of::<(&str, &str)>());
    reserved(seen.try_reserve(lines.len()), "the vocabulary", bytes)?;
    let mut merges = Vec::new();
    reserve(&mut merges, lines.len(), "merges")?;
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

fn token_bytes(common: &Common) -> Result<TokenBytes> {
    let map = ByteMap::new();
    let mut bytes = TokenBytes::new(common.tokens.len())?;
    for (_, token, ty) in common.entries() {
        match (ty, map.bytes(token)) {
            (TokenType::Control | TokenType::Unused, _) => bytes.push_silent(token.as_bytes())?,
            (TokenType::Normal, Some(text)) => bytes.push(&text)?,
            _ => bytes.push(token.as_bytes())?,
        }
    }
    Ok(bytes)
}
