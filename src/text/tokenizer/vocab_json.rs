//! GGUF's tokenizers of encoders, `bert` (WordPiece) and `t5` (Unigram): converts them back to the `tokenizer.json`
//! that they were made from, which is then read.

use super::Tokenizer;
use super::bytes::shown;
use super::json::{self, JsonFiles};
use super::vocab::{CHARSMAP, SCORES, TokenType, asked, bad, special_id, token_types};
use crate::base::{Error, Result};
use crate::formats::Gguf;
use serde_json::{Value, json};

const TOKENS: &str = "tokenizer.ggml.tokens";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const CLS: &str = "tokenizer.ggml.cls_token_id";
/// The spelling of llama.cpp's files.
const SEP: &str = "tokenizer.ggml.seperator_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// Stands before the words in GGUF, where the parts of words have no prefix.
const SPACE: char = '\u{2581}';

/// The metadata that both kinds have.
struct Source<'a> {
    gguf: &'a Gguf,
    tokens: Vec<&'a str>,
    types: Vec<TokenType>,
}

impl<'a> Source<'a> {
    fn read(gguf: &'a Gguf, log: &dyn Fn(&str)) -> Result<Self> {
        let tokens: Vec<&str> = gguf.get(TOKENS)?;
        if tokens.is_empty() || tokens.len() > i32::MAX as usize {
            return Err(bad(gguf, TOKENS, format_args!("{} tokens", tokens.len())));
        }
        let types = token_types(gguf, tokens.len(), None, &[], log)?;
        Ok(Self { gguf, tokens, types })
    }

    /// The first of the tokens that these keys name.
    fn named(&self, keys: &[&str]) -> Result<Option<u32>> {
        for key in keys {
            if let Some(id) = special_id(self.gguf, key, self.tokens.len())? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    fn need(&self, keys: &[&str]) -> Result<u32> {
        let id = self.named(keys)?;
        id.ok_or_else(|| bad(self.gguf, keys[0], "it is missing, and the tokenizer needs such a token"))
    }

    fn added(&self) -> Vec<Value> {
        let kinds = self.types.iter().zip(&self.tokens).enumerate();
        let added = kinds.filter(|(_, (kind, _))| {
            matches!(kind, TokenType::Control | TokenType::Unknown | TokenType::UserDefined)
        });
        let entry = |(id, (kind, text)): (usize, (&TokenType, &&str))| {
            json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind != TokenType::UserDefined,
            })
        };
        added.map(entry).collect()
    }

    /// A post-processor that puts `before` in front of texts, `behind` after them, and `between` two of them. The
    /// second one has the type `second`.
    fn template(&self, before: &[u32], between: &[u32], behind: &[u32], second: u32) -> Value {
        let name = |id: &u32| self.tokens[*id as usize];
        let special = |id: &u32, kind: u32| json!({"SpecialToken": {"id": name(id), "type_id": kind}});
        let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
        let all = |ids: &[u32], kind: u32| ids.iter().map(|id| special(id, kind)).collect::<Vec<_>>();
        let single = [all(before, 0), vec![text("A", 0)], all(behind, 0)].concat();
        let first = [all(before, 0), vec![text("A", 0)], all(between, 0)].concat();
        let pair = [first, vec![text("B", second)], all(behind, second)].concat();
        let ids = before.iter().chain(between).chain(behind);
        let tokens: serde_json::Map<_, _> = ids
            .map(|id| (name(id).to_owned(), json!({"id": name(id), "ids": [id], "tokens": [name(id)]})))
            .collect();
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
    }

    fn load(&self, file: Value, eos: u32, log: &dyn Fn(&str)) -> Result<Tokenizer> {
        let made =
            serde_json::to_vec(&file).map_err(|e| Error::internal(format!("a tokenizer.json: {e}")))?;
        drop(file);
        let config = json!({"eos_token": self.tokens[eos as usize]}).to_string();
        let files = JsonFiles { tokenizer: &made, config: Some(config.as_bytes()), generation: None };
        json::load(&files, self.gguf.what(), log)
    }
}

/// WordPiece of a text in lower case without accents, because the files do not say whether a model
/// distinguishes these.
pub(super) fn word_piece(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Tokenizer> {
    let source = Source::read(gguf, log)?;
    let (cls, sep) = (source.need(&[CLS, BOS])?, source.need(&[SEP, EOS])?);
    let unknown = source.need(&[UNKNOWN])?;
    let mut vocab = serde_json::Map::new();
    for (id, (text, kind)) in source.tokens.iter().zip(&source.types).enumerate() {
        let written = match (kind, text.strip_prefix(SPACE)) {
            (TokenType::Control | TokenType::Unknown | TokenType::UserDefined, _) => (*text).to_owned(),
            (_, Some(word)) => word.to_owned(),
            (_, None) => format!("##{text}"),
        };
        if let Some(other) = vocab.insert(written, id.into()) {
            let why = format_args!("tokens {other} and {id}, '{}', are the same", shown(text));
            return Err(bad(gguf, TOKENS, why));
        }
    }
    let file = json!({
        "added_tokens": source.added(),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": source.template(&[cls], &[sep], &[sep], 1),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
        "model": {
            "type": "WordPiece", "unk_token": source.tokens[unknown as usize], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    });
    source.load(file, sep, log)
}

/// Unigram, as in XLM-RoBERTa.
pub(super) fn unigram(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Tokenizer> {
    let source = Source::read(gguf, log)?;
    let (n, scores) = (source.tokens.len(), gguf.get::<Vec<f32>>(SCORES)?);
    if scores.len() != n {
        return Err(bad(gguf, SCORES, format_args!("{} entries, but '{TOKENS}' has {n}", scores.len())));
    }
    let bos = source.need(&[BOS])?;
    let eos = source.need(&[EOS])?;
    let before = asked(gguf, "tokenizer.ggml.add_bos_token", (BOS, Some(bos)), true)?;
    let behind = asked(gguf, "tokenizer.ggml.add_eos_token", (EOS, Some(eos)), true)?;
    let vocab: Vec<_> = source.tokens.iter().zip(&scores).map(|(text, score)| json!([text, score])).collect();
    // An array of bytes, with or without a sign.
    let normalizer = match gguf.find::<Vec<i32>>(CHARSMAP)? {
        Some(map) if !map.is_empty() => {
            let map: Vec<u8> = map.iter().map(|byte| *byte as u8).collect();
            json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(&map)})
        }
        _ => Value::Null,
    };
    let metaspace =
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    let file = json!({
        "added_tokens": source.added(),
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": source.template(&before, &[eos, eos], &behind, 0),
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": source.named(&[UNKNOWN])?, "vocab": vocab, "byte_fallback": false},
    });
    source.load(file, eos, log)
}
