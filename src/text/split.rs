//! The rules that cut text into words before byte-pair merging: `tokenizer.ggml.pre`.

use crate::base::{Error, Result};
use crate::formats::Gguf;

/// The split rules this build knows. Each pattern covers every character, so that words join to the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitRule {
    Gpt2,
    LlamaBpe,
    Qwen2,
}

pub(super) const PRE_KEY: &str = "tokenizer.ggml.pre";

/// Llama 3's vocabulary begins here; nothing smaller is cut by its rule.
const LLAMA3_VOCAB: usize = 128_000;

impl SplitRule {
    /// The pattern as the models' own `tokenizer.json` gives it.
    pub fn pattern(self) -> &'static str {
        match self {
            SplitRule::Gpt2 => r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            SplitRule::LlamaBpe => concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
                r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            SplitRule::Qwen2 => concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
                r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        }
    }

    /// Llama 3 takes a word that is a token as that token, whatever the merges would make of it.
    pub fn ignores_merges(self) -> bool {
        self == SplitRule::LlamaBpe
    }

    /// Whether a BOS comes first where `add_bos_token` is absent: Llama 3 files leave it out and mean yes
    /// (llama.cpp's rule).
    pub fn adds_bos(self) -> bool {
        self == SplitRule::LlamaBpe
    }

    /// The rule that the file names, or what its architecture and vocabulary tell where it names none.
    pub fn of(gguf: &Gguf, vocab_size: usize, log: &dyn Fn(&str)) -> Result<Self> {
        match gguf.find::<&str>(PRE_KEY)? {
            None | Some("default") => Self::guess(gguf, vocab_size, log),
            Some("gpt-2") => Ok(SplitRule::Gpt2),
            Some("llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon_e") => Ok(SplitRule::LlamaBpe),
            Some("qwen2") => Ok(SplitRule::Qwen2),
            Some(other) => Err(Error::unsupported(format!(
                "{}: metadata key '{PRE_KEY}' names the split rule '{}'; known are gpt-2, llama-bpe and qwen2",
                gguf.what(),
                other.escape_debug()
            ))),
        }
    }

    /// Converters for BitNet leave the rule out; a wrong guess would tokenize everything wrong in silence.
    fn guess(gguf: &Gguf, vocab_size: usize, log: &dyn Fn(&str)) -> Result<Self> {
        let architecture = gguf.find::<&str>("general.architecture")?.unwrap_or("");
        let (rule, name) = match architecture {
            "bitnet" | "bitnet-25" | "bitnet-b1.58" | "llama" if vocab_size >= LLAMA3_VOCAB => {
                (SplitRule::LlamaBpe, "llama-bpe")
            }
            "qwen2" | "qwen3" => (SplitRule::Qwen2, "qwen2"),
            "gpt2" => (SplitRule::Gpt2, "gpt-2"),
            _ => {
                return Err(Error::unsupported(format!(
                    "{}: metadata key '{PRE_KEY}' names no split rule, and architecture '{}' with a vocabulary of \
                     {vocab_size} tells none; set it to gpt-2, llama-bpe or qwen2",
                    gguf.what(),
                    architecture.escape_debug()
                )));
            }
        };
        log(&format!(
            "{}: metadata key '{PRE_KEY}' names no split rule; taking {name} from architecture '{architecture}' \
             and a vocabulary of {vocab_size}",
            gguf.what()
        ));
        Ok(rule)
    }
}
