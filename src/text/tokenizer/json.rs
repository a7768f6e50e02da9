//! `tokenizer.json` of a Hugging Face folder: runs the parts of the `tokenizers` package by the file's rules.
//!
//! The package's `Tokenizer` is not used as a whole: its BPE model caches words in thread locals that outlive it,
//! and its `Encoding` keeps offsets of everything. The parts are the same, in the same order: added tokens are
//! extracted, and the text between them is normalized, split into words and merged.

use super::bytes::{TokenBytes, shown};
use super::decoder::Spelling;
use super::json_model::{KINDS, ModelEntry, WORD_PIECE, model};
use super::json_names::Names;
use super::json_text::Json;
use super::part::{bad, fields_of, guarded, tree};
use super::pipeline::{Normalizers, Normalizing, PreTokenizers};
use super::special::Specials;
use super::vocab::ends_by_name;
use super::{Kind, Pair, Tokenizer};
use crate::base::{Error, Result, panics, reserved};
use fancy_regex::RegexBuilder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{AddedToken, AddedVocabulary, Encoding, PostProcessor, PostProcessorWrapper, Token};

/// Maximum size of a file; a vocabulary of a quarter million tokens has 35 MiB.
const MAX_FILE_BYTES: usize = 256 << 20;
pub(super) const MAX_TOKENS: usize = 1 << 22;
/// Maximum number of tokens that a post-processor may put around a text.
const MAX_AROUND: usize = 16;

/// Maximum number of parts of normalizer and pre-tokenizer, and maximum factor by which they may lengthen a text
/// together.
const MAX_PARTS: usize = 64;
const MAX_GROWTH: usize = 64;

/// The fields that are read from `tokenizer_config.json` and from `generation_config.json`.
const TOKEN_KEYS: [&str; 4] = ["bos_token", "eos_token", "add_bos_token", "add_eos_token"];
const ID_KEYS: [&str; 2] = ["bos_token_id", "eos_token_id"];

/// Maximum number of bytes of all added tokens, since the finder takes a hundred times as many; real ones have up
/// to 80 KiB.
const MAX_ADDED_BYTES: usize = 512 << 10;
/// Maximum number of bytes that a piece of a pattern may be compiled to.
pub(super) const MAX_PROGRAM_BYTES: usize = 1 << 20;
/// Maximum number of bytes of all patterns, since each byte may compile to thousands, and of counts like `{1,3}` in
/// them, since each count may compile to `MAX_PROGRAM_BYTES`.
pub(super) const MAX_PATTERN_BYTES: usize = 8 << 10;
pub(super) const MAX_PATTERN_COUNTS: usize = 32;

/// The tokenizer files of a folder, each as bytes.
pub struct JsonFiles<'a> {
    /// `tokenizer.json`
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`
    pub config: Option<&'a [u8]>,
    /// `generation_config.json`
    pub generation: Option<&'a [u8]>,
}

/// The error for a folder that has SentencePiece's `tokenizer.model` and no `tokenizer.json`.
pub fn only_sentencepiece(folder: &str) -> Error {
    Error::unsupported(format!(
        "{folder}: it has a tokenizer.model but no tokenizer.json, which is what is read; make one with Python: \
         transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    ))
}

#[derive(Deserialize)]
struct Probe {
    model: ProbeModel,
}

#[derive(Deserialize)]
struct ProbeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub added_tokens: Vec<AddedEntry>,
    #[serde(default, deserialize_with = "tree")]
    pub normalizer: Option<Value>,
    #[serde(default, deserialize_with = "tree")]
    pub pre_tokenizer: Option<Value>,
    #[serde(default, deserialize_with = "tree")]
    post_processor: Option<Value>,
    #[serde(default, deserialize_with = "tree")]
    decoder: Option<Value>,
    pub model: ModelEntry,
}

#[derive(Deserialize)]
pub(super) struct AddedEntry {
    pub id: u32,
    #[serde(flatten)]
    pub token: AddedToken,
}

/// See [`Tokenizer::from_json`].
pub(super) fn load(files: &JsonFiles, what: &str, log: &dyn Fn(&str)) -> Result<Tokenizer> {
    let file = parse(files.tokenizer, what)?;
    let config = side_file(files.config, &TOKEN_KEYS, what, "tokenizer_config.json")?;
    let generation = side_file(files.generation, &ID_KEYS, what, "generation_config.json")?;
    let added = added(&file, what)?;
    let words = Words::of(&file, what)?;
    let normalizers = Normalizers::new(&file.normalizer, what)?;
    let pre_tokenizers = PreTokenizers::new(&file.pre_tokenizer, what)?;
    let post: Option<PostProcessorWrapper> = part(what, "post_processor", &file.post_processor)?;
    let spelling = Spelling::of(file.decoder.as_ref(), what, log)?;
    let table = table(&file, &spelling, what)?;
    // Other models make one token of any unknown run.
    let merged = file.model.other_kind().is_none();
    let bounded = merged && words.bounded && spelling.spells_all(&file.model.vocab, file.model.byte_fallback);
    let ids = added_ids(&file, what)?;
    let merges = file.model.merges.len();
    let model = model(file.model, &added, what)?;
    let special = guarded(what, "added_tokens", || vocabulary(&added, &ids, &normalizers))?;
    let mut plain = special.clone();
    plain.set_encode_special_tokens(true);
    let id_of = |token: &str| special.token_to_id(token, &model);
    let names = Names { what, config: &config, generation: &generation, id_of: &id_of, n: table.len() };
    let bos = names.bos()?;
    let mut ends = names.ends()?;
    let controls = || added.iter().filter(|t| t.special);
    let by_name = ends_by_name(&|name| controls().any(|t| t.content == name));
    ends.extend(controls().filter(|t| by_name(&t.content)).filter_map(|t| id_of(&t.content)));
    ends.sort_unstable();
    ends.dedup();
    let mut special_ids: Vec<u32> = controls().filter_map(|t| id_of(&t.content)).collect();
    special_ids.sort_unstable();
    let [before, behind] = around(post.as_ref(), table.len(), what)?;
    let (eos, end) = (names.token("eos_token")?, behind.len());
    let (first, last) = (names.with("bos", before, bos, 0)?, names.with("eos", behind, eos, end)?);
    let forms = added.iter().filter_map(|t| Some((t.content.clone().into_bytes(), id_of(&t.content)?)));
    let specials = Specials::new(forms)?;
    let longest = table.longest().max(specials.longest()).max(1);
    let pair = post.as_ref().map_or(Ok(None), |post| Pair::of(post, table.len(), what))?;
    Ok(Tokenizer {
        pair,
        longest,
        // Composing text, and U+2581 for a space, turn three bytes into one.
        text_of_a_token: if bounded { longest.saturating_mul(3) } else { usize::MAX },
        space_prefix: spelling.strips_space,
        // About 260 bytes per merge measured, besides the texts.
        table_bytes: 300 * table.len().max(merges) + files.tokenizer.len() + (1 << 20),
        bytes: table,
        specials,
        always: Specials::new(std::iter::empty())?,
        bos: bos.or(first.first().copied()),
        first,
        last,
        ends,
        beyond: Vec::new(),
        kind: Kind::Json(Box::new(Json {
            normalizers,
            pre_tokenizers,
            special,
            plain,
            special_ids,
            model,
            cuts: words.cuts,
        })),
    })
}

/// The added tokens, which are found in text as the normalizers leave it.
fn vocabulary(
    added: &[AddedToken],
    ids: &WordLevel,
    normalizers: &Normalizers,
) -> tokenizers::Result<AddedVocabulary> {
    let mut vocabulary = AddedVocabulary::new();
    let normalizing = Normalizing::new(normalizers);
    vocabulary.add_tokens(added.iter().cloned(), ids, Some(&normalizing))?;
    normalizing.done()?;
    Ok(vocabulary)
}

pub(super) fn parse(bytes: &[u8], what: &str) -> Result<File> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(Error::bad_model(format!(
            "{what}: it has {} bytes; at most {MAX_FILE_BYTES} are read",
            bytes.len()
        )));
    }
    let wrong =
        |e: serde_json::Error| Error::bad_model(format!("{what}: it is not a valid tokenizer.json: {e}"));
    let file = serde_json::from_slice::<File>(bytes);
    // A model of another type may have a vocabulary of another form.
    let kind = match &file {
        Ok(file) => file.model.kind.clone(),
        Err(_) => serde_json::from_slice::<Probe>(bytes).ok().and_then(|probe| probe.model.kind),
    };
    // Files from before the package's version 0.9 leave the type out; only their merges identify them.
    if let Some(kind) = kind.filter(|kind| !KINDS.contains(&&**kind)) {
        return Err(Error::unsupported(format!(
            "{what}: 'model.type' is '{}'; {} are read, so this model takes and gives token ids only",
            shown(&kind),
            KINDS.join(", ")
        )));
    }
    let file = file.map_err(wrong)?;
    if file.model.kind.as_deref() == Some(WORD_PIECE) {
        return Ok(file);
    }
    let affixes = [
        ("model.continuing_subword_prefix", &file.model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &file.model.end_of_word_suffix),
    ];
    for (field, affix) in affixes {
        if affix.as_ref().is_some_and(|affix| !affix.is_empty()) {
            return Err(Error::unsupported(format!(
                "{what}: '{field}' marks word parts, which is not read; the model takes and gives token ids only"
            )));
        }
    }
    Ok(file)
}

/// The fields `keys` of a file; null if the folder has no such file.
pub(super) fn side_file(bytes: Option<&[u8]>, keys: &[&str], what: &str, name: &str) -> Result<Value> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    if bytes.len() > MAX_FILE_BYTES {
        return Err(Error::bad_model(format!("{name} beside {what}: it has {} bytes", bytes.len())));
    }
    fields_of(bytes, keys).map_err(|e| Error::bad_model(format!("{name} beside {what}: {e}")))
}

fn part<T: DeserializeOwned>(what: &str, field: &str, value: &Option<Value>) -> Result<Option<T>> {
    let Some(value) = value else { return Ok(None) };
    guarded(what, field, || T::deserialize(value).map(Some))
}

/// The added tokens. `BadModel` if they are too long in total.
fn added(file: &File, what: &str) -> Result<Vec<AddedToken>> {
    let bytes: usize = file.added_tokens.iter().map(|entry| entry.token.content.len()).sum();
    match bytes > MAX_ADDED_BYTES {
        true => {
            let why = format_args!("they have {bytes} bytes in all; at most {MAX_ADDED_BYTES} are read");
            Err(bad(what, "added_tokens", why))
        }
        false => Ok(file.added_tokens.iter().map(|entry| entry.token.clone()).collect()),
    }
}

/// The ids of the added tokens: those of the model's vocabulary, or the next ones after it. `BadModel` if the file
/// says other ids.
fn added_ids(file: &File, what: &str) -> Result<WordLevel> {
    let mut ids = Vocab::new();
    let mut next = file.model.vocab.len() as u32;
    for AddedEntry { id, token } in file.added_tokens.iter().filter(|entry| !entry.token.content.is_empty()) {
        let known = ids.get(&token.content).or_else(|| file.model.vocab.get(&token.content));
        let place = known.copied().unwrap_or(next);
        if place != *id {
            let token = shown(&token.content);
            let why = format_args!("'{token}' says id {id}, but by its place it has {place}");
            return Err(bad(what, "added_tokens", why));
        }
        next += u32::from(known.is_none());
        ids.insert(token.content.clone(), place);
    }
    guarded(what, "added_tokens", || WordLevel::builder().vocab(ids).build())
}

/// The table of the bytes that each id stands for.
fn table(file: &File, spelling: &Spelling, what: &str) -> Result<TokenBytes> {
    let added =
        file.added_tokens.iter().map(|entry| (entry.token.content.as_str(), entry.id, Some(&entry.token)));
    let model = file.model.vocab.iter().map(|(token, &id)| (token.as_str(), id, None));
    let n = model.clone().chain(added.clone()).map(|(_, id, _)| id as usize + 1).max().unwrap_or(0);
    // Unused ids stand for nothing, but a few tokens must not ask for a huge table.
    let most = (4 * (file.model.vocab.len() + file.added_tokens.len()) + 65_536).min(MAX_TOKENS);
    if n == 0 || n > most {
        return Err(bad(what, "model.vocab", format_args!("ids up to {n}; 1 to {most} are read")));
    }
    let mut texts: Vec<Option<(&str, Option<&AddedToken>)>> = Vec::new();
    reserved(texts.try_reserve_exact(n), "the vocabulary", n * 24)?;
    texts.resize(n, None);
    // Added tokens come last: they often occur in the model's vocabulary too, where they are plain text.
    for (text, id, token) in model.chain(added) {
        if let Some((other, _)) = texts[id as usize].filter(|(other, _)| *other != text) {
            let why = format_args!("'{}' and '{}' both have id {id}", shown(other), shown(text));
            return Err(bad(what, "model.vocab", why));
        }
        texts[id as usize] = Some((text, token));
    }
    let mut table = TokenBytes::new(n)?;
    for entry in texts {
        match entry {
            None => table.push(b"")?,
            Some((text, Some(token))) if token.special => table.push_silent(text.as_bytes())?,
            Some((text, token)) => table.push(&spelling.bytes(text, token.is_some()))?,
        }
    }
    Ok(table)
}

/// Effects of the normalizer and the pre-tokenizer on a text's length and cuts.
struct Words {
    /// A pattern splits text into words.
    cuts: bool,
    /// No text of unbounded length can vanish, so the number of tokens grows with the length of a text.
    bounded: bool,
    /// Factor by which a text may become longer.
    growth: usize,
    /// Number of bytes of its patterns, and of counts in them.
    patterns: (usize, usize),
}

impl Words {
    /// `Unsupported` for parts that make texts longer than any language needs.
    fn of(file: &File, what: &str) -> Result<Self> {
        let mut words = Self { cuts: false, bounded: true, growth: 1, patterns: (0, 0) };
        let mut todo: Vec<&Value> = [&file.normalizer, &file.pre_tokenizer].into_iter().flatten().collect();
        let mut seen = 0;
        while let Some(value) = todo.pop() {
            seen += 1;
            if value.get("type").and_then(Value::as_str) == Some("Sequence") {
                let parts = value.get("normalizers").or(value.get("pretokenizers"));
                todo.extend(parts.and_then(Value::as_array).into_iter().flatten());
            } else {
                words.add(value);
                words.pattern(value, what)?;
                charsmap(value, what)?;
            }
            if seen > MAX_PARTS || words.growth > MAX_GROWTH {
                return Err(Error::unsupported(format!(
                    "{what}: 'normalizer' and 'pre_tokenizer' have more than {MAX_PARTS} parts or make a text more \
                     than {MAX_GROWTH} times as long"
                )));
            }
        }
        let eats_space = |entry: &AddedEntry| entry.token.lstrip || entry.token.rstrip;
        words.bounded &= !file.added_tokens.iter().any(eats_space);
        Ok(words)
    }

    fn add(&mut self, part: &Value) {
        let text = |key: &str| part.get(key).and_then(Value::as_str);
        let pattern = |kind: &str| part.get("pattern").and_then(|p| p.get(kind)).and_then(Value::as_str);
        let growth = match text("type") {
            Some("NFC") => 3,
            Some("Metaspace") => 3,
            Some("Digits") => 1,
            // The text is put before each piece, which may be only one byte long.
            Some("Prepend") => 1 + text("prepend").map_or(0, str::len),
            Some("Replace") => {
                let content = text("content").unwrap_or("");
                self.bounded &= pattern("String") == Some(" ") && content == "\u{2581}";
                content.len().div_ceil(pattern("String").map_or(1, str::len).max(1)).max(1)
            }
            Some("ByteLevel") => {
                self.cuts |= part.get("use_regex") != Some(&Value::Bool(false));
                2
            }
            Some("Split") => {
                self.cuts |= pattern("Regex").is_some();
                self.bounded &= text("behavior") != Some("Removed");
                1
            }
            Some("Punctuation") => {
                self.bounded &= text("behavior") != Some("Removed");
                1
            }
            // These cut the text and drop spaces.
            Some("WhitespaceSplit" | "BertPreTokenizer") => {
                self.bounded = false;
                1
            }
            kind => {
                self.bounded = false;
                // The longest compatibility decompositions; all other parts cut, strip or lower case.
                if matches!(kind, Some("NFKC" | "NFKD" | "Nmt" | "Precompiled")) { 11 } else { 3 }
            }
        };
        self.growth = self.growth.saturating_mul(growth);
    }

    /// `Unsupported` for patterns that compile to large programs: the package would build them at any size.
    fn pattern(&mut self, part: &Value, what: &str) -> Result<()> {
        let pattern = part.get("pattern").and_then(|p| p.get("Regex")).and_then(Value::as_str);
        let Some(pattern) = pattern else { return Ok(()) };
        let counts = pattern.as_bytes().windows(2).filter(|w| w[0] == b'{' && w[1].is_ascii_digit()).count();
        self.patterns = (self.patterns.0 + pattern.len(), self.patterns.1 + counts);
        let why = if self.patterns.0 > MAX_PATTERN_BYTES || self.patterns.1 > MAX_PATTERN_COUNTS {
            format!("all have more than {MAX_PATTERN_BYTES} bytes or {MAX_PATTERN_COUNTS} counts")
        } else {
            match panics::catch(|| RegexBuilder::new(pattern).delegate_size_limit(MAX_PROGRAM_BYTES).build())
            {
                // The package reports invalid patterns.
                Ok(Ok(_) | Err(fancy_regex::Error::ParseError(..))) => return Ok(()),
                Ok(Err(e)) => e.to_string(),
                Err(panic) => panic,
            }
        };
        let what = format_args!("{what}: the pattern '{}' is not read", shown(pattern));
        Err(Error::unsupported(format!("{what}: {}", shown(&why))))
    }
}

/// The package reserves as much as a character map says that its table has: the number that it begins with.
fn charsmap(part: &Value, what: &str) -> Result<()> {
    let map = part.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or("");
    // Eight digits are six bytes. The package reports invalid base64.
    let first = map.get(..8).and_then(|digits| base64::decode(digits).ok());
    let table = first.and_then(|bytes| bytes.first_chunk().map(|size| u32::from_le_bytes(*size) as usize));
    let table = table.unwrap_or(0);
    match table > map.len() {
        true => {
            Err(bad(what, "precompiled_charsmap", format_args!("a table of {table} bytes in {}", map.len())))
        }
        false => Ok(()),
    }
}

impl Pair {
    /// `None` if the post-processor leaves a pair as it is, or one of its texts out.
    fn of(post: &PostProcessorWrapper, n: usize, what: &str) -> Result<Option<Self>> {
        const TEXTS: [u32; 2] = [u32::MAX, u32::MAX - 1];
        let text = |id, kind| Encoding::from_tokens(vec![Token::new(id, "text".into(), (0, 4))], kind);
        let (ids, types) = guarded(what, "post_processor", || {
            let both = post.process(text(TEXTS[0], 0), Some(text(TEXTS[1], 1)), true)?;
            Ok::<_, tokenizers::Error>((both.get_ids().to_vec(), both.get_type_ids().to_vec()))
        })?;
        let places = TEXTS.map(|text| ids.iter().position(|id| *id == text));
        let [Some(first), Some(second)] = places else { return Ok(None) };
        if first >= second || ids.len() == 2 || ids.len() - 2 > MAX_AROUND {
            return Ok(None);
        }
        let (before, between, behind) = (&ids[..first], &ids[first + 1..second], &ids[second + 1..]);
        if let Some(id) = before.iter().chain(between).chain(behind).find(|id| **id as usize >= n) {
            return Err(bad(what, "post_processor", format_args!("id {id} is out of range, there are {n}")));
        }
        let typed = types[first + 1..].iter().position(|kind| *kind != 0).filter(|at| *at <= between.len());
        Ok(Some(Self { before: before.to_vec(), between: between.to_vec(), behind: behind.to_vec(), typed }))
    }
}

/// The tokens that the post-processor puts before a text, and after it.
fn around(post: Option<&PostProcessorWrapper>, n: usize, what: &str) -> Result<[Vec<u32>; 2]> {
    let Some(post) = post else { return Ok([Vec::new(), Vec::new()]) };
    const TEXT: u32 = u32::MAX;
    let ids = guarded(what, "post_processor", || {
        let text = Encoding::from_tokens(vec![Token::new(TEXT, "text".into(), (0, 4))], 0);
        Ok::<_, tokenizers::Error>(post.process(text, None, true)?.get_ids().to_vec())
    })?;
    let at = ids.iter().position(|&id| id == TEXT);
    let at = at.ok_or_else(|| bad(what, "post_processor", "it leaves the text out"))?;
    let (before, behind) = (&ids[..at], &ids[at + 1..]);
    if let Some(id) = before.iter().chain(behind).find(|&&id| id as usize >= n) {
        return Err(bad(what, "post_processor", format_args!("id {id} is out of range, there are {n}")));
    }
    if ids.len() - 1 > MAX_AROUND {
        return Err(bad(what, "post_processor", format_args!("{} tokens around a text", ids.len() - 1)));
    }
    Ok([before.to_vec(), behind.to_vec()])
}
