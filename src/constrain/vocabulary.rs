//! A model's tokens as llguidance wants them: a trie of their bytes, made once for a loaded model.

use super::compile::STACK;
use crate::base::{Error, Result, panics, threads};
use crate::text::Tokenizer;
use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use once_cell::race::OnceBox;
use std::sync::Arc;

/// Longer tokens are never allowed: the trie's depth is bounded.
const LONGEST: usize = 1000;

/// Steps of a lexer and a parser, each per mask, and how large they may become. A mask that needs more fails its request.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

struct Tokens {
    trie: TokTrie,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    /// So every way to spell a text in tokens is allowed, and no token is forced.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// What grammars of a model share.
pub struct Vocabulary {
    pub(super) factory: ParserFactory,
}

impl Vocabulary {
    /// `vocab_size` is the model's; `ends` are the tokens that end an output. `Unsupported` where there are none, or
    /// where the tokens do not fit in a trie.
    fn new(tokenizer: &Tokenizer, vocab_size: usize, ends: &[u32]) -> Result<Self> {
        let ends: Vec<u32> = ends.iter().copied().filter(|&end| (end as usize) < vocab_size).collect();
        let Some(&first) = ends.first() else {
            return Err(Error::unsupported("constraint: the model has no end token"));
        };
        let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(|id| word(tokenizer, id)).collect();
        let info = TokRxInfo::new(vocab_size as u32, first);
        let made = threads::run_on_stack("bn-grammar", STACK, || {
            panics::catch(|| {
                let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
                let tokens: TokEnv = Arc::new(Tokens { trie });
                let slices = SlicedBiasComputer::general_slices();
                ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices)
            })
        })?;
        let unusable = |why: String| Error::unsupported(format!("constraint: the model's vocabulary: {why}"));
        let mut factory = made.map_err(unusable)?.map_err(|e| unusable(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory })
    }
}

/// A token's bytes. Behind a marker that no text has, the name of a control token: grammars name it `<name>`.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let text = tokenizer.token_bytes(id).unwrap_or_default();
    let name = if text.is_empty() { tokenizer.token_piece(id).unwrap_or_default() } else { b"" };
    let (marker, bytes) = match (text, name) {
        (b"", b"") => (None, &b""[..]),
        (b"", name) => (Some(TokTrie::SPECIAL_TOKEN_MARKER), name),
        (text, _) => (None, text),
    };
    let all = marker.into_iter().chain(bytes.iter().copied());
    if bytes.len() < LONGEST { all.collect() } else { Vec::new() }
}

/// A model's vocabulary, from the first request that needs it. Threads that come at once may make it twice, and no fork
/// finds it locked.
#[derive(Default)]
pub struct LazyVocabulary(OnceBox<Vocabulary>);

impl LazyVocabulary {
    pub const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// As `Vocabulary::new`; the arguments are those of the model that this belongs to.
    pub fn get(&self, tokenizer: Option<&Tokenizer>, vocab_size: usize, ends: &[u32]) -> Result<&Vocabulary> {
        let Some(tokenizer) = tokenizer else {
            return Err(Error::unsupported("constraint: the model has no tokenizer"));
        };
        self.0.get_or_try_init(|| Vocabulary::new(tokenizer, vocab_size, ends).map(Box::new))
    }
}
