//! Runs each fuzz target on its input: everything that a host could make the library do with such a file. The
//! replay of the corpora in `cargo test` runs these too.

use bn_engine::base::{Bytes, Error, Result, Status};
use bn_engine::formats::Gguf;
use bn_engine::formats::hf::index;
use bn_engine::formats::safetensors::SafeTensors;
use bn_engine::kernels::pack::tl::Tilings;
use bn_engine::kernels::{DType, Pool};
use bn_engine::model::{Source, check_config, load_checkpoint, load_tower};
use bn_engine::ops::CpuOps;
use bn_engine::picture::{self, Limits, Pixels};
use bn_engine::text::chat::template_of_json;
use bn_engine::text::{ChatTemplate, JsonFiles, Message, Tokenizer};

/// Name of the input in errors.
pub const WHAT: &str = "the input";

/// A name and its function. An error is a valid end; a panic, a hang or a large allocation is not.
pub type Target = (&'static str, fn(&[u8]) -> Result<()>);

pub const TARGETS: [Target; 11] = [
    ("gguf", gguf),
    ("tokenizer_gguf", tokenizer_gguf),
    ("tokenizer_json", tokenizer_json),
    ("safetensors", safetensors),
    ("index", shard_index),
    ("config", config),
    ("tokenizer_side_files", tokenizer_side_files),
    ("kernel_config", kernel_config),
    ("template", template),
    ("picture", picture),
    ("mmproj", mmproj),
];

/// A whole model file: header, metadata, tokenizer, every tensor.
pub fn gguf(bytes: &[u8]) -> Result<()> {
    let gguf = Gguf::from_bytes(Bytes::new(bytes.to_vec()), WHAT)?;
    let pool = Pool::new(1)?;
    load_checkpoint(&gguf, &pool, &|_, _| (), &mut |_, _| false).map(|_| ())
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

/// Encodes and decodes text of several scripts.
fn use_tokenizer(tokenizer: &Tokenizer) -> Result<()> {
    const TEXT: &str = "Hello, world! 12345  \n\tGrüße — 你好 🙂 it's <|begin_of_text|><s> a\u{300}";
    for (add_special, parse_special) in [(true, true), (false, false)] {
        // The tokenizer refuses text that the vocabulary cannot spell.
        if let Ok(ids) = tokenizer.encode(TEXT, add_special, parse_special) {
            let outside = ids.iter().find(|id| **id as usize >= tokenizer.vocab_size());
            assert_eq!(outside, None, "an id outside of the vocabulary");
            tokenizer.decode(&ids)?;
        }
    }
    Ok(())
}

/// Splits long texts by a pattern.
#[allow(dead_code)] // Only made by grammar.
pub fn pattern(bytes: &[u8]) -> Result<()> {
    let pattern = std::str::from_utf8(bytes).map_err(|_| Error::bad_model(format!("{WHAT} is not UTF-8")))?;
    let file = serde_json::json!({
        "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}});
    let bytes = file.to_string().into_bytes();
    let files = JsonFiles { tokenizer: &bytes, config: None, generation: None };
    let tokenizer = Tokenizer::from_json(&files, WHAT, &|_| ())?;
    for text in ["a".repeat(8 << 10), "ab 12\n \u{e9}".repeat(800)] {
        match tokenizer.encode(&text, true, true) {
            Err(error) if error.status != Status::TooLong => return Err(error),
            _ => {}
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
    check_config(bytes, WHAT)
}

/// The files next to a `tokenizer.json`: `tokenizer_config.json`, `generation_config.json`,
/// `chat_template.json`.
pub fn tokenizer_side_files(bytes: &[u8]) -> Result<()> {
    const TOKENIZER: &[u8] = br#"{
        "added_tokens": [{"id": 3, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}"#;
    let as_config = JsonFiles { tokenizer: TOKENIZER, config: Some(bytes), generation: None };
    let as_generation = JsonFiles { tokenizer: TOKENIZER, config: None, generation: Some(bytes) };
    let config = Tokenizer::from_json(&as_config, WHAT, &|_| ());
    let generation = Tokenizer::from_json(&as_generation, WHAT, &|_| ());
    use_tokenizer(&config?)?;
    use_tokenizer(&generation?)?;
    let json = serde_json::from_slice(bytes).map_err(|e| Error::bad_model(format!("{WHAT}: {e}")))?;
    if let Some(source) = template_of_json(&json)? {
        template(source.as_bytes())?;
    }
    Ok(())
}

pub fn kernel_config(bytes: &[u8]) -> Result<()> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::bad_model(format!("{WHAT} is not UTF-8")))?;
    let tilings = Tilings::parse(text, WHAT)?;
    for (rows, cols) in [(256, 256), (1536, 4096), (0, 0), (usize::MAX, usize::MAX)] {
        for dtype in [DType::TL1, DType::TL2] {
            if let Ok(tiling) = tilings.find(dtype, rows, cols) {
                assert_eq!((tiling.rows, tiling.cols), (rows, cols));
            }
        }
    }
    Ok(())
}

/// Compiles a chat template, and renders it for conversations of several shapes.
pub fn template(bytes: &[u8]) -> Result<()> {
    let source = std::str::from_utf8(bytes).map_err(|_| Error::bad_model(format!("{WHAT} is not UTF-8")))?;
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let template = ChatTemplate::new(source, tokens.into())?;
    let message = |role, content| Message { role, content };
    let talk = [
        message("system", "Be kind."),
        message("user", " Grüße, 你好 🙂\n"),
        message("assistant", "<think>\n1\n</think>\n\n2."),
        message("user", ""),
    ];
    template.render(&talk[1..2], true)?;
    template.render(&[], false)?;
    template.render(&talk, true).map(|_| ())
}

/// An encoded picture, within limits that keep its memory small.
pub fn picture(bytes: &[u8]) -> Result<()> {
    let limits = Limits { bytes: 1 << 20, side: 2000, pixels: 1 << 16 };
    let pixels = picture::decode(bytes, &limits)?;
    assert_eq!(picture::size(bytes, &limits)?, (pixels.width, pixels.height), "the header has another size");
    assert_eq!(pixels.rgb.len(), pixels.width as usize * pixels.height as usize * 3);
    Ok(())
}

/// A whole file of a vision tower, which then sees a small picture.
pub fn mmproj(bytes: &[u8]) -> Result<()> {
    let source = Source::Memory { bytes: Bytes::new(bytes.to_vec()), what: WHAT.into() };
    let pool = Pool::new(1)?;
    let Some(tower) = load_tower(&source, 0, &pool, &|_, _| (), &mut |_, _| false)? else { return Ok(()) };
    let (pixels, processor) = (Pixels::new(9, 7, vec![99; 9 * 7 * 3])?, tower.processor());
    // What a processor makes of so small a picture may be large, or nothing.
    let Ok(plan) = processor.plan(9, 7) else { return Ok(()) };
    if plan.patches() <= 1024 {
        let (mut rows, mut vectors) = (Vec::new(), Vec::new());
        processor.prepare(&pixels, &plan, &mut rows)?;
        let seen = tower.forward(&CpuOps::new(pool), &[(&rows, &plan.grids)], &mut || false, &mut vectors);
        match seen {
            Err(error) if error.status != Status::InvalidArgument => return Err(error),
            Err(_) => {}
            Ok(()) => assert_eq!(vectors.len(), plan.vectors() * tower.width(), "as many as the plan says"),
        }
    }
    Ok(())
}
