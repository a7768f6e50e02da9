//! A `tokenizer.json` as GGUF metadata.

use super::bytes::byte_token;
use super::json::{self, File, JsonFiles};
use super::json_model::Merge;
use super::json_names::token_text;
use super::split::Rule;
use super::vocab::ends_by_name;
use super::{Kind, Tokenizer};
use crate::base::{Bytes, Error, Result};
use crate::formats::Gguf;
use crate::formats::gguf::writer::{self, Meta};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Debug;

/// Texts on which two tokenizers are compared: words, digits, contractions, signs, several scripts, spaces,
/// composed and decomposed accents, code.
const PROBES: &[&str] = &[
    "Hello, world! It's 1234567 o'clock; she'll say I'VE won.",
    "  leading,   several    and trailing spaces   \n\n\tnew\r\nlines \n",
    "Grüße, naïve café — cafe\u{301} Å\u{30a} ﬁ ½²³ ٣٤٥ १२३",
    "你好，世界。こんにちは 안녕하세요 Привет שלום مرحبا ไทย 🙂👍🏽 \u{1f468}\u{200d}\u{1f469}",
    "fn main() { let x = a[0] + 0x1F; /* C */ println!(\"{}\", x); } // $%^&*_+|~=`{}[]:;'<>?,./",
    "a",
    " ",
    "",
    "<s> </s> <|eot_id|>",
];

/// The sign that stands for a space in SentencePiece's tokens. It is rare in texts, and GGUF's tokenizers may cut it
/// differently, such as Gemma's, whose folders have runs of it as added tokens.
const SIGN: &str = "\u{2581}under ▁▁";

/// The `token_type` of control tokens.
const CONTROL: i32 = 3;

/// The equivalent `tokenizer.ggml.*` pairs, for a model of `vocab_size` tokens. `Unsupported` if there are none,
/// or if the tokenizer read back from the pairs has other tokens or cuts a text differently.
pub fn tokenizer_pairs(
    files: &JsonFiles,
    vocab_size: usize,
    what: &str,
    log: &dyn Fn(&str),
) -> Result<Vec<(String, Meta)>> {
    let mut original = Tokenizer::from_json(files, what, log)?;
    let file = json::parse(files.tokenizer, what)?;
    if original.vocab_size() > vocab_size {
        let cut = original
            .cut_to(vocab_size)
            .map_err(|e| Error::new(e.status, format!("{what}: {}", e.message)))?;
        log(&format!("{what}: tokens {} are left out: the model has {vocab_size} tokens", cut.join(", ")));
    }
    if let Some(kind) = file.model.other_kind() {
        return Err(Error::unsupported(format!(
            "{what}: a tokenizer of type {kind} is not written to GGUF files; the model takes token ids only there"
        )));
    }
    let spm = file.model.byte_fallback;
    let (tokens, types) = tokens(&file, spm, vocab_size);
    let mut pairs = match spm {
        true => spm_pairs(&file, &tokens, &original),
        false => bpe_pairs(&file, what)?,
    };
    let keys = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token"];
    let config = json::side_file(files.config, &keys, what, "tokenizer_config.json")?;
    let named = |key: &str| named(&config, key, &tokens);
    let controls = || tokens.iter().zip(&types).filter(|(_, ty)| **ty == CONTROL);
    let ends = ends_by_name(&|name| controls().any(|(token, _)| token == name));
    let by_name = |id: &u32| {
        let id = *id as usize;
        types[id] == CONTROL && ends(&tokens[id])
    };
    // GGUF can append its EOS to a text, and nothing else.
    let last = match original.last[..] {
        [] => None,
        [id] => Some(id),
        ref ids => {
            log(&format!("{what}: the {} tokens after a text that is embedded are left out", ids.len()));
            None
        }
    };
    // End tokens that are known by their names need no key. The token that templates call eos_token comes first.
    let eos = named("eos_token").or_else(|| original.ends.iter().copied().find(|id| !by_name(id)));
    let eos = last.or(eos).or(original.ends.first().copied());
    let unnamed: Vec<u32> = original.ends.iter().copied().filter(|id| !by_name(id)).collect();
    pairs.extend(end_token_pairs(&unnamed, eos, log));
    // A BOS that nothing uses is left out; with a key, the file's template would write it.
    let bos = original.bos.filter(|id| original.first.contains(id) || named("bos_token").is_some());
    pairs.extend(bos.map(|id| pair("bos_token_id", Meta::U32(id))));
    for (key, token) in [("unknown", "unk"), ("padding", "pad"), ("seperator", "sep")] {
        let key = format!("{key}_token_id");
        if !pairs.iter().any(|(there, _)| there.ends_with(&key)) {
            pairs.extend(named(&format!("{token}_token")).map(|id| pair(&key, Meta::U32(id))));
        }
    }
    pairs.push(pair("tokens", Meta::Strs(tokens)));
    pairs.push(pair("token_type", Meta::I32s(types)));
    pairs.push(pair("add_bos_token", Meta::Bool(!original.first.is_empty())));
    pairs.push(pair("add_eos_token", Meta::Bool(last.is_some())));
    compare(&original, &pairs, what, log)?;
    Ok(pairs)
}

/// The keys of end tokens: `first`, if any, and `ids`, as long as there are keys.
pub fn end_token_pairs(ids: &[u32], first: Option<u32>, log: &dyn Fn(&str)) -> Vec<(String, Meta)> {
    let ids = ids.iter().copied().filter(|id| Some(*id) != first);
    let mut ids = first.into_iter().chain(ids);
    let keys = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let pairs = keys.iter().map_while(|key| Some(pair(key, Meta::U32(ids.next()?)))).collect();
    let left: Vec<u32> = ids.collect();
    if !left.is_empty() {
        log(&format!("GGUF has keys for three end tokens; {left:?} will not end an output"));
    }
    pairs
}

/// The id of a token that `tokenizer_config.json` names.
fn named(config: &Value, key: &str, tokens: &[String]) -> Option<u32> {
    let text = token_text(config, key)?;
    tokens.iter().position(|token| token == text).map(|id| id as u32)
}

fn pair(key: &str, value: impl Into<Meta>) -> (String, Meta) {
    (format!("tokenizer.ggml.{key}"), value.into())
}

/// Texts and types by id; unused ids become padding.
fn tokens(file: &File, spm: bool, n: usize) -> (Vec<String>, Vec<i32>) {
    let [normal, unknown, control, user, unused, byte] = [1, 2, CONTROL, 4, 5, 6];
    let mut out: Vec<(String, i32)> = (0..n).map(|id| (format!("[PAD{id}]"), unused)).collect();
    for (text, &id) in file.model.vocab.iter() {
        let ty = match text {
            text if Some(text) == file.model.unk_token.as_ref() => unknown,
            text if spm && byte_token(text).is_some() => byte,
            _ => normal,
        };
        if let Some(slot) = out.get_mut(id as usize) {
            *slot = (text.clone(), ty);
        }
    }
    for added in &file.added_tokens {
        if let Some(slot) = out.get_mut(added.id as usize).filter(|slot| slot.1 != unknown) {
            *slot = (added.token.content.clone(), if added.token.special { control } else { user });
        }
    }
    out.into_iter().unzip()
}

fn bpe_pairs(file: &File, what: &str) -> Result<Vec<(String, Meta)>> {
    let rule = Rule::of_json(&file.pre_tokenizer, &file.normalizer, file.model.ignore_merges);
    let rule = rule.map_err(|why| Error::unsupported(format!("{what}: {why}")))?;
    let merges = file.model.merges.iter().filter_map(Merge::parts);
    let merges = merges.map(|(a, b)| format!("{a} {b}")).collect();
    Ok(vec![pair("model", "gpt2"), pair("pre", rule.name()), pair("merges", Meta::Strs(merges))])
}

/// SentencePiece merges the pair whose token has the best score: here, the one that comes first in the merges.
fn spm_pairs(file: &File, tokens: &[String], original: &Tokenizer) -> Vec<(String, Meta)> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, (a, b)) in file.model.merges.iter().filter_map(Merge::parts).enumerate() {
        ranks.entry(format!("{a}{b}")).or_insert(rank);
    }
    let score = |token: &String| ranks.get(token).map_or(0.0, |rank| -(*rank as f32) - 1.0);
    let mut pairs = vec![
        pair("model", "llama"),
        pair("scores", Meta::F32s(tokens.iter().map(score).collect())),
        pair("add_space_prefix", Meta::Bool(original.space_prefix)),
    ];
    let unknown = file.model.unk_token.as_ref().and_then(|token| file.model.vocab.get(token));
    pairs.extend(unknown.map(|id| pair("unknown_token_id", Meta::U32(*id))));
    pairs
}

/// Reads the pairs back and compares both tokenizers: their tokens, and their cuts of the probes.
fn compare(original: &Tokenizer, pairs: &[(String, Meta)], what: &str, log: &dyn Fn(&str)) -> Result<()> {
    let gguf = Gguf::from_bytes(Bytes::new(writer::metadata_only(pairs)), what)?;
    let copy =
        Tokenizer::from_gguf(&gguf, log)?.ok_or_else(|| Error::internal("no tokenizer was written"))?;
    debug_assert!(!matches!(copy.kind, Kind::Json(_)));
    compare_tokens(original, &copy, what)?;
    for text in PROBES.iter().chain([&SIGN]) {
        for special in [false, true] {
            let (a, b) = (original.encode(text, special, special), copy.encode(text, special, special));
            let same = matches!((&a, &b), (Ok(a), Ok(b)) if a == b) || (a.is_err() && b.is_err());
            if same {
                continue;
            }
            let message = format!(
                "{what}: GGUF's tokenizer cuts '{}' otherwise ({:?} for {:?})",
                text.escape_debug(),
                b.unwrap_or_default(),
                a.unwrap_or_default()
            );
            if *text != SIGN {
                return Err(Error::unsupported(message));
            }
            log(&message);
            break;
        }
    }
    Ok(())
}

/// Compares what the tokens of `original` stand for, and those that begin a text and end an output. End tokens beyond
/// GGUF's keys have been reported.
fn compare_tokens(original: &Tokenizer, written: &Tokenizer, what: &str) -> Result<()> {
    let differs = |field: &str, of: &dyn Debug, copy: &dyn Debug| {
        Err(Error::unsupported(format!(
            "{what}: in GGUF its {field} would be {copy:?}, and here it is {of:?}"
        )))
    };
    for id in 0..original.vocab_size() as u32 {
        let (of, copy) = (original.token_bytes(id), written.token_bytes(id));
        // The unknown token stands for no text in GGUF, but has the same written form.
        if of != copy && original.token_piece(id) != written.token_piece(id) {
            let text = |bytes: Option<&[u8]>| bytes.map(|b| String::from_utf8_lossy(b).into_owned());
            return differs(&format!("token {id}"), &text(of), &text(copy));
        }
    }
    if original.first != written.first {
        return differs("beginning of texts", &original.first, &written.first);
    }
    // A folder without end tokens gets those that GGUF's kind of tokenizer has by default.
    let known = |id: &u32| original.ends.contains(id);
    match original.ends.is_empty() || (!written.ends.is_empty() && written.ends.iter().all(known)) {
        true => Ok(()),
        false => differs("end tokens", &original.ends, &written.ends),
    }
}
