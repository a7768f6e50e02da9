//! A model's tokens in llguidance's form: a trie of their bytes, made once per loaded model.

use crate::base::{Error, Result, Status, panics, threads};
use crate::text::Tokenizer;
use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use once_cell::race::OnceBox;
use std::sync::Arc;

/// Large enough for recursion over grammars within the bounds of `source`.
pub const STACK: usize = 256 << 20;

/// Longer tokens are never allowed, which bounds the trie's depth.
const LONGEST: usize = 1000;

/// Peak bytes per token while the trie is made; it keeps some 500.
const TOKEN_BYTES: u64 = 1500;

/// Limits on the steps of lexer and parser per mask, and on their sizes. A mask that exceeds one fails its
/// request.
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

    /// False allows every tokenization of a text and forces no token.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// State shared by all grammars of a model.
pub struct Vocabulary {
    pub(super) factory: ParserFactory,
}

impl Vocabulary {
    /// `vocab_size` is the model's; `ends` are the tokens that end an output. Fails with `Unsupported` if
    /// there are none, or if the tokens do not fit in a trie.
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

/// A token's bytes. For a control token, a marker that occurs in no text, then its name: grammars write it
/// `<name>`.
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

/// A model's vocabulary, made by the first request that needs it. Concurrent callers may make it twice; in
/// return, a fork never finds it locked.
#[derive(Default)]
pub struct LazyVocabulary(OnceBox<Arc<Vocabulary>>);

impl LazyVocabulary {
    pub const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// As `Vocabulary::new`; all calls must pass the same model's arguments. `room` returns how many bytes
    /// this process may still allocate, if known. Fails with `OutOfMemory` if making the vocabulary may take
    /// more.
    pub fn get(
        &self,
        tokenizer: Option<&Tokenizer>,
        vocab_size: usize,
        ends: &[u32],
        room: fn() -> Option<u64>,
    ) -> Result<&Arc<Vocabulary>> {
        let Some(tokenizer) = tokenizer else {
            return Err(Error::unsupported("constraint: the model has no tokenizer"));
        };
        self.0.get_or_try_init(|| {
            let bytes = vocab_size as u64 * TOKEN_BYTES;
            if room().is_some_and(|room| room < bytes) {
                let message = format!("constraint: a trie of {vocab_size} tokens may take {bytes} bytes");
                return Err(Error::new(Status::OutOfMemory, message));
            }
            Vocabulary::new(tokenizer, vocab_size, ends).map(Arc::new).map(Box::new)
        })
    }
}
