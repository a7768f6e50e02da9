//! The rules that split text into words before byte-pair merging: `tokenizer.ggml.pre`.
//!
//! Names, merging flags and BOS defaults are llama.cpp's (src/llama-vocab.cpp). The cuts are those of the models'
//! own `tokenizer.json`; llama.cpp rewrites them for its regex engine and sometimes only approximates them.

use super::bytes::shown;
use crate::base::{Error, Result, Status};
use crate::formats::Gguf;
use fancy_regex::Regex;
use serde_json::Value;
use unicode_categories::UnicodeCategories;

/// One pass over each piece of the passes before: its matches and the parts between them become pieces
/// ("isolated", in the `tokenizers` package's words).
enum Pass {
    Pattern(&'static str),
    /// Runs of punctuation, by the package's own table (of an older Unicode version than the regex engine's).
    Punctuation,
}

/// A split rule that this build knows.
pub(super) struct Rule {
    /// Values of `tokenizer.ggml.pre`, the usual name first.
    names: &'static [&'static str],
    passes: &'static [Pass],
    /// Falcon looks for digits once more, among the stand-ins of bytes. See [`byte_digits`].
    pub byte_digits: bool,
    /// The text is normalized to Unicode's composed form (NFC) first.
    pub nfc: bool,
    /// A word that is a token becomes that token, even if the merges would split it.
    pub ignore_merges: bool,
    /// A BOS comes first if `add_bos_token` is absent.
    pub adds_bos: bool,
}

/// Maximum length of a word. Merging takes n log n time and about 130 bytes of scratch per byte of the word. A run
/// of a quarter million letters or spaces without a cut is not natural language.
pub(super) const MAX_WORD_BYTES: usize = 256 * 1024;

const PRE_KEY: &str = "tokenizer.ggml.pre";

/// Size from which a vocabulary may be Llama 3's; no smaller one is split by its rule.
const LLAMA3_VOCAB: usize = 128_000;
/// Aquila's, whose files call themselves `llama`: 100,000 tokens like GPT-2's, and eight that were added.
const AQUILA_VOCAB: usize = 100_008;

const GPT2: Pass =
    Pass::Pattern(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+");
/// Each digit alone.
const DIGIT: Pass = Pass::Pattern(r"\p{N}");
const LINE_BREAK: Pass = Pass::Pattern(r"[\r\n]");
/// As DeepSeek writes it: the ideographs up to U+9FA5, and two ranges that were meant to be something else.
const DEEPSEEK_CJK: Pass = Pass::Pattern(r"[一-龥ࠀ-一가-퟿]+");

macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

macro_rules! tail {
    () => {
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// GPT-4's pattern. Its successors differ in the number of digits per word.
macro_rules! gpt4 {
    ($digits:literal) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
            tail!()
        )
    };
}

/// Words are cut where capitals follow small letters.
macro_rules! gpt4o {
    ($contractions:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $contractions,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $contractions,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*",
            tail!()
        )
    };
}

const PLAIN: Rule =
    Rule { names: &[], passes: &[], byte_digits: false, nfc: false, ignore_merges: false, adds_bos: false };

/// In the order in which an error lists them.
static RULES: [Rule; 16] = [
    Rule { names: &["gpt-2", "phi-2", "exaone4"], passes: &[GPT2], ..PLAIN },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon_e", "lfm2"],
        passes: &[Pass::Pattern(gpt4!(r"\p{N}{1,3}"))],
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    Rule {
        names: &["qwen2", "deepseek-r1-qwen", "hunyuan"],
        passes: &[Pass::Pattern(gpt4!(r"\p{N}"))],
        nfc: true,
        ..PLAIN
    },
    Rule {
        names: &["qwen35"],
        passes: &[Pass::Pattern(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            tail!()
        ))],
        nfc: true,
        ..PLAIN
    },
    Rule { names: &["glm4"], passes: &[Pass::Pattern(gpt4!(r"\p{N}{1,3}"))], ignore_merges: true, ..PLAIN },
    Rule {
        names: &["seed-coder"],
        passes: &[Pass::Pattern(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+",
            tail!()
        ))],
        ..PLAIN
    },
    // llama.cpp does not cut at digits among stand-ins. With a vocabulary trained on these cuts, the difference
    // hardly shows.
    Rule { names: &["falcon"], passes: &[Pass::Punctuation, GPT2], byte_digits: true, ..PLAIN },
    Rule { names: &["smollm", "starcoder", "refact"], passes: &[DIGIT, GPT2], ..PLAIN },
    // llama.cpp takes a run of digits as one word; the vocabulary was trained on single digits.
    Rule {
        names: &["deepseek-llm"],
        passes: &[
            LINE_BREAK,
            Pass::Pattern(concat!(
                r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ",
                r"Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\x{1F5F}-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌ\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ",
                r"Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
            )),
            Pass::Pattern(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Pass::Pattern(r"\s+$"),
            DEEPSEEK_CJK,
            DIGIT,
        ],
        ..PLAIN
    },
    Rule {
        names: &["deepseek-coder"],
        passes: &[LINE_BREAK, Pass::Pattern(r"\s?\p{L}+"), Pass::Pattern(r"\s?\p{P}+"), DEEPSEEK_CJK, DIGIT],
        ..PLAIN
    },
    Rule {
        names: &["deepseek-v3", "hunyuan-dense"],
        passes: &[
            Pass::Pattern(r"\p{N}{1,3}"),
            Pass::Pattern(r"[一-龥぀-ゟ゠-ヿ]+"),
            Pass::Pattern(concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
                r"| ?[\p{P}\p{S}]+[\r\n]*",
                tail!()
            )),
        ],
        ..PLAIN
    },
    // GPT-NeoX's rule: GPT-2's with composed text.
    Rule { names: &["mpt", "olmo"], passes: &[GPT2], nfc: true, ..PLAIN },
    Rule { names: &["command-r"], passes: &[DIGIT, GPT2], nfc: true, ..PLAIN },
    Rule { names: &["dbrx", "smaug-bpe"], passes: &[Pass::Pattern(gpt4!(r"\p{N}{1,3}"))], ..PLAIN },
    Rule {
        names: &["gpt-4o", "llama4"],
        passes: &[Pass::Pattern(gpt4o!(concat!(contractions!(), "?"), r"\p{N}{1,3}"))],
        ..PLAIN
    },
    Rule {
        names: &["tekken"],
        passes: &[Pass::Pattern(gpt4o!("", r"\p{N}"))],
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
];

impl Rule {
    /// The rule that the file names, or else the one that its architecture and vocabulary imply.
    pub(super) fn of(gguf: &Gguf, vocab_size: usize, log: &dyn Fn(&str)) -> Result<&'static Self> {
        let name = match gguf.find::<&str>(PRE_KEY)? {
            None | Some("default") => return Self::guess(gguf, vocab_size, log),
            Some(name) => name,
        };
        Self::named(name).ok_or_else(|| {
            let known: Vec<&str> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
            Error::unsupported(format!(
                "{}: metadata key '{PRE_KEY}' names the split rule '{}'; known are {}",
                gguf.what(),
                shown(name),
                known.join(", ")
            ))
        })
    }

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        RULES.iter().find(|rule| rule.names.contains(&name))
    }

    /// The name in `tokenizer.ggml.pre`.
    pub(super) fn name(&self) -> &'static str {
        self.names[0]
    }

    /// The rule that matches a `tokenizer.json`. The error names the field that no rule matches, and why.
    pub(super) fn of_json(
        pre_tokenizer: &Option<Value>,
        normalizer: &Option<Value>,
        ignore_merges: bool,
    ) -> std::result::Result<&'static Self, String> {
        let mut passes = Vec::new();
        let known = pre_tokenizer.as_ref().and_then(|part| passes_of(part, &mut passes));
        let spelled = |pass: &Pass| match pass {
            Pass::Pattern(pattern) => *pattern,
            Pass::Punctuation => PUNCTUATION,
        };
        let same =
            |rule: &&'static Self| rule.passes.iter().map(spelled).eq(passes.iter().map(String::as_str));
        let found: Vec<_> = RULES.iter().filter(same).collect();
        let Some(first) = found.first().filter(|_| known.is_some()) else {
            return Err("'pre_tokenizer' is a rule that has no name in GGUF".into());
        };
        let normalizer = normalizer.as_ref().map(|n| n.get("type").and_then(Value::as_str));
        let nfc = normalizer == Some(Some("NFC"));
        let Some(composed) = found.iter().find(|rule| rule.nfc == nfc) else {
            let (is, rule) =
                (normalizer.map_or("missing", |ty| ty.unwrap_or("without a type")), first.name());
            return Err(match nfc {
                true => format!(
                    "'normalizer' is NFC, which GGUF's rule '{rule}' for this 'pre_tokenizer' does not do"
                ),
                false => format!(
                    "'normalizer' is {is}, and GGUF's rule '{rule}' for this 'pre_tokenizer' does NFC"
                ),
            });
        };
        let same = |rule: &&&'static Self| rule.nfc == nfc && rule.ignore_merges == ignore_merges;
        found.iter().find(same).copied().ok_or_else(|| {
            format!(
                "'ignore_merges' is {ignore_merges}, unlike in GGUF's rule '{}' for this 'pre_tokenizer'",
                composed.name()
            )
        })
    }

    /// Converters for BitNet leave the rule out. A wrong guess would silently tokenize everything wrong.
    fn guess(gguf: &Gguf, vocab_size: usize, log: &dyn Fn(&str)) -> Result<&'static Self> {
        let architecture = gguf.find::<&str>("general.architecture")?.unwrap_or("");
        let rule = match architecture {
            "bitnet" | "bitnet-25" | "bitnet-b1.58" | "llama" if vocab_size >= LLAMA3_VOCAB => "llama-bpe",
            "qwen2" | "qwen3" => "qwen2",
            "gpt2" => "gpt-2",
            "llama" if vocab_size == AQUILA_VOCAB => "gpt-2",
            "gptneox" => "mpt",
            _ => "",
        };
        let rule = Self::named(rule).ok_or_else(|| {
                Error::unsupported(format!(
                    "{}: metadata key '{PRE_KEY}' names no split rule, and architecture '{}' with a vocabulary of \
                     {vocab_size} tells none; set it to the model's (gpt-2, llama-bpe, qwen2, ...)",
                    gguf.what(),
                    shown(architecture)
                ))
        })?;
        log(&format!(
            "{}: metadata key '{PRE_KEY}' names no split rule; taking {} from architecture '{architecture}' \
             and a vocabulary of {vocab_size}",
            gguf.what(),
            rule.names[0]
        ));
        Ok(rule)
    }

    pub(super) fn splitter(&self) -> Result<Splitter> {
        let compiled = |pass: &Pass| match pass {
            Pass::Punctuation => Ok(Cutter::Punctuation),
            Pass::Pattern(pattern) => Regex::new(pattern)
                .map(Cutter::Regex)
                .map_err(|e| Error::internal(format!("a split pattern could not be built: {e}"))),
        };
        Ok(Splitter { passes: self.passes.iter().map(compiled).collect::<Result<_>>()? })
    }
}

/// Returns whether a known rule has this pattern. The known patterns search no further than they match.
pub(super) fn is_known(pattern: &str) -> bool {
    let is = |pass: &Pass| matches!(pass, Pass::Pattern(known) if *known == pattern);
    RULES.iter().flat_map(|rule| rule.passes).any(is)
}

/// The patterns of all rules.
#[cfg(test)]
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|rule| rule.passes).filter_map(|pass| match pass {
        Pass::Pattern(pattern) => Some(*pattern),
        Pass::Punctuation => None,
    })
}

/// Placeholder for `Pass::Punctuation` among patterns.
const PUNCTUATION: &str = "<punctuation>";

/// The patterns of a `pre_tokenizer`, in order; None if a part occurs in no rule.
fn passes_of(part: &Value, passes: &mut Vec<String>) -> Option<()> {
    let flag = |key: &str| part.get(key).and_then(Value::as_bool);
    match part.get("type")?.as_str()? {
        "Sequence" => {
            for part in part.get("pretokenizers")?.as_array()? {
                passes_of(part, passes)?;
            }
        }
        "Split" => {
            let isolated = part.get("behavior")?.as_str()? == "Isolated" && flag("invert") != Some(true);
            isolated
                .then(|| part.get("pattern")?.get("Regex")?.as_str().map(|p| passes.push(p.into())))??;
        }
        "Digits" if flag("individual_digits") == Some(true) => passes.push(r"\p{N}".into()),
        "Punctuation" if part.get("behavior").is_none_or(|b| b == "Contiguous") => {
            passes.push(PUNCTUATION.into())
        }
        "ByteLevel" if flag("add_prefix_space") != Some(true) => {
            if flag("use_regex") != Some(false)
                && let Pass::Pattern(pattern) = GPT2
            {
                passes.push(pattern.into());
            }
        }
        _ => return None,
    }
    Some(())
}

pub(super) fn too_long(bytes: usize) -> Error {
    Error::new(
        Status::TooLong,
        format!(
            "the text holds a run of up to {bytes} bytes of one kind (letters, spaces or signs) without a break; \
             at most {MAX_WORD_BYTES} are tokenized"
        ),
    )
}

enum Cutter {
    Regex(Regex),
    Punctuation,
}

/// A rule's passes, ready to cut.
pub(super) struct Splitter {
    passes: Vec<Cutter>,
}

impl Splitter {
    /// Calls `each` with every word of `text`, in order; the words joined are the text. `TooLong` if a run without
    /// a break exhausts the regex engine.
    pub(super) fn words(&self, text: &str, each: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        cut(&self.passes, text, each)
    }
}

fn cut(passes: &[Cutter], text: &str, each: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((pass, rest)) = passes.split_first() else { return each(text) };
    match pass {
        Cutter::Regex(regex) => {
            let mut done = 0;
            for found in regex.find_iter(text) {
                let found = found.map_err(|_| too_long(text.len() - done))?;
                cut(rest, &text[done..found.start()], each)?;
                cut(rest, found.as_str(), each)?;
                done = found.end();
            }
            cut(rest, &text[done..], each)
        }
        Cutter::Punctuation => {
            let is = |c: char| c.is_ascii_punctuation() || c.is_punctuation();
            let mut left = text;
            while let Some(first) = left.chars().next() {
                let end = left.find(|c| is(c) != is(first)).unwrap_or(left.len());
                cut(rest, &left[..end], each)?;
                left = &left[end..];
            }
            Ok(())
        }
    }
}

/// Cuts `word` like Falcon's last two passes: around runs of digits, and each run into groups of three from the
/// left. They run on stand-in characters, six of which (those of 0xb2, 0xb3, 0xb9, 0xbc, 0xbd, 0xbe: `²³¹¼½¾`)
/// count as digits although they are only bytes inside other characters.
pub(super) fn byte_digits(word: &[u8], each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let is = |b: u8| b.is_ascii_digit() || matches!(b, 0xb2 | 0xb3 | 0xb9 | 0xbc | 0xbd | 0xbe);
    for run in word.chunk_by(|&a, &b| is(a) == is(b)) {
        // Groups of three ASCII digits. The parts between and after them are pieces of their own.
        let (mut start, mut at) = (0, 0);
        while at + 3 <= run.len() {
            if !run[at..at + 3].iter().all(u8::is_ascii_digit) {
                at += 1;
                continue;
            }
            if start < at {
                each(&run[start..at])?;
            }
            each(&run[at..at + 3])?;
            at += 3;
            start = at;
        }
        if start < run.len() {
            each(&run[start..])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::json::{MAX_PATTERN_BYTES, MAX_PATTERN_COUNTS, MAX_PROGRAM_BYTES};
    use super::*;

    /// The rules are those of published files, so they show how much a `tokenizer.json` must be allowed.
    #[test]
    fn known_patterns_are_far_within_what_a_json_file_may_have() {
        for rule in &RULES {
            let patterns = rule.passes.iter().filter_map(|pass| match pass {
                Pass::Pattern(pattern) => Some(*pattern),
                Pass::Punctuation => None,
            });
            let all: String = patterns.clone().collect();
            assert!(4 * all.len() < MAX_PATTERN_BYTES, "{}: {}", rule.name(), all.len());
            assert!(4 * all.matches("{1,").count() < MAX_PATTERN_COUNTS, "{}", rule.name());
            for pattern in patterns {
                let built = fancy_regex::RegexBuilder::new(pattern)
                    .delegate_size_limit(MAX_PROGRAM_BYTES / 2)
                    .build();
                assert!(built.is_ok(), "{}: {pattern}", rule.name());
            }
        }
    }
}
