//! What each fuzz target does with its input: all that a host could make the library do with such a file.
//! The replay of the corpora in `cargo test` runs these too.

use bn_engine::base::{Bytes, Error, Result};
use bn_engine::formats::Gguf;
use bn_engine::formats::hf::index;
use bn_engine::formats::safetensors::SafeTensors;
use bn_engine::kernels::Pool;
use bn_engine::model::{HfFolder, load_checkpoint};
use bn_engine::ops::FusedOps;
use bn_engine::text::{JsonFiles, Tokenizer};
use std::sync::Arc;

/// How errors are to call the input.
pub const WHAT: &str = "the input";

/// Name, and what is run. An error is a fine end; a panic, a hang or a large allocation is not.
pub type Target = (&'static str, fn(&[u8]) -> Result<()>);

pub const TARGETS: [Target; 6] = [
    ("gguf", gguf),
    ("tokenizer_gguf", tokenizer_gguf),
    ("tokenizer_json", tokenizer_json),
    ("safetensors", safetensors),
    ("index", shard_index),
    ("config", config),
];

/// A whole model file: header, metadata, tokenizer, every tensor.
pub fn gguf(bytes: &[u8]) -> Result<()> {
    let gguf = Gguf::from_bytes(Bytes::new(bytes.to_vec()), WHAT)?;
    let pool = Pool::new(1)?;
    let ops = Arc::new(FusedOps::new(pool.clone()));
    load_checkpoint(&gguf, &pool, ops, &|_, _| (), &mut |_, _| false).map(|_| ())
}

pub fn tokenizer_gguf(bytes: &[u8]) -> Result<()> {
    let gguf = Gguf::from_bytes(Bytes::new(bytes.to_vec()), WHAT)?;
    match Tokenizer::from_gguf(&gguf, &|_| ())? {
        Some(tokenizer) => use_tokenizer(&tokenizer),
        None => Ok(()),
    }
}

pub fn tokenizer_json(bytes: &[u8]) -> Result<()> {
    let files = JsonFiles { tokenizer: bytes, config: None, generation: None };
    use_tokenizer(&Tokenizer::from_json(&files, WHAT, &|_| ())?)
}

/// Text of several scripts and signs there and back.
fn use_tokenizer(tokenizer: &Tokenizer) -> Result<()> {
    const TEXT: &str = "Hello, world! 12345  \n\tGrüße — 你好 🙂 it's <|begin_of_text|><s> a\u{300}";
    for (add_special, parse_special) in [(true, true), (false, false)] {
        // What the vocabulary cannot spell is refused.
        if let Ok(ids) = tokenizer.encode(TEXT, add_special, parse_special) {
            let outside = ids.iter().find(|id| **id as usize >= tokenizer.vocab_size());
            assert_eq!(outside, None, "an id outside of the vocabulary");
            tokenizer.decode(&ids)?;
        }
    }
    Ok(())
}

pub fn safetensors(bytes: &[u8]) -> Result<()> {
    let file = SafeTensors::from_bytes(Bytes::new(bytes.to_vec()), WHAT)?;
    for tensor in file.tensors() {
        if file.data(tensor)?.len() != tensor.byte_len() {
            return Err(Error::internal("a tensor's data have another length than it says"));
        }
    }
    Ok(())
}

pub fn shard_index(bytes: &[u8]) -> Result<()> {
    let index = index::parse(bytes, WHAT)?;
    for file in &index.files {
        assert!(!file.contains(['/', '\\', '\0']) && file != "..", "'{file}' could leave the folder");
    }
    Ok(())
}

pub fn config(bytes: &[u8]) -> Result<()> {
    HfFolder::read_config(bytes, WHAT).map(|_| ())
}
