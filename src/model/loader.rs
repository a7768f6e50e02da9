//! Loads a model from a path.

use super::checkpoint::Checkpoint;
use super::decoder::Decoder;
use super::drafter::{self, Drafter};
use super::echo::Echo;
use super::encoder::EncoderConfig;
use super::gguf::tower::read as read_mmproj;
use super::hf;
use super::hf::tower::HfTower;
use super::options::LoadOptions;
use super::reader::{CANCELLED, Reader, join_of};
use super::requantized::Requantized;
use super::score::{self, ScoreRows};
use super::sight::Sight;
use super::tower::Tower;
use super::{DecoderConfig, Facts, Loaded, Model};
use crate::base::log::{INFO, WARN};
use crate::base::{Bytes, Error, Result, Status};
use crate::formats::gguf::{Gguf, map_file};
use crate::kernels::Pool;
use crate::text::{ChatTemplate, Tokenizer};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum of each of the echo model's options.
const MAX_ECHO: u32 = 1_000_000;

/// The source of a model.
#[derive(Clone, Debug)]
pub enum Source {
    /// The demo model inside the library.
    Embedded,
    Echo(EchoOptions),
    /// A GGUF file or a folder.
    File(String),
    /// A GGUF file in memory, at any alignment; nothing is copied. Errors call it `what`.
    Memory {
        bytes: Bytes,
        what: String,
    },
}

/// Simulated costs of the echo model, for tests of hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct EchoOptions {
    pub us_per_token: u32,
    /// Milliseconds that loading takes.
    pub load_ms: u32,
}

impl EchoOptions {
    /// Parses `us_per_token=N&load_ms=N`, in any order; each may be left out.
    fn parse(text: &str) -> Result<Self> {
        let (mut us_per_token, mut load_ms) = (None, None);
        for option in text.split('&') {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let field = match name {
                "us_per_token" => Some(&mut us_per_token),
                "load_ms" => Some(&mut load_ms),
                _ => None,
            };
            let field = field.filter(|field| field.is_none()); // given twice
            let value = value.parse().ok().filter(|value| *value <= MAX_ECHO);
            let (Some(field), Some(value)) = (field, value) else {
                return Err(Error::invalid(format!(
                    "model path option '{option}': builtin:echo takes us_per_token and load_ms once, 0 to {MAX_ECHO}"
                )));
            };
            *field = Some(value);
        }
        Ok(Self { us_per_token: us_per_token.unwrap_or(0), load_ms: load_ms.unwrap_or(0) })
    }

    /// Simulates loading.
    fn load(self, progress: &mut dyn FnMut(f32, &str) -> bool) -> Result<()> {
        const TICK_MS: u32 = 10;
        for done in (0..self.load_ms).step_by(TICK_MS as usize) {
            if progress(done as f32 / self.load_ms as f32, "nothing") {
                return Err(Error::new(Status::Cancelled, CANCELLED));
            }
            let left = (self.load_ms - done).min(TICK_MS);
            std::thread::sleep(Duration::from_millis(left.into()));
        }
        Ok(())
    }
}

impl Source {
    /// Parses a path. `None` is the embedded model. Otherwise it is `builtin:echo`, perhaps with `?` and
    /// `EchoOptions`, or the path of a file or folder.
    pub fn parse(path: Option<&str>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::Embedded) };
        if path.is_empty() {
            return Err(Error::invalid("model_path is empty; NULL means the embedded model"));
        }
        let Some(name) = path.strip_prefix("builtin:") else { return Ok(Self::File(path.into())) };
        let (name, option) = match name.split_once('?') {
            Some((name, option)) => (name, Some(option)),
            None => (name, None),
        };
        if name != "echo" {
            return Err(Error::invalid(format!("model path 'builtin:{name}': there is only builtin:echo")));
        }
        Ok(Self::Echo(option.map_or_else(|| Ok(EchoOptions::default()), EchoOptions::parse)?))
    }

    /// An open GGUF file, whose position does not matter and which errors call `what`. It is mapped here, so it may be
    /// closed afterwards, but its contents must not change. `Io` if it is not a regular file that can be read.
    pub fn open_file(file: &File, what: String) -> Result<Self> {
        Ok(Self::Memory { bytes: map_file(file, &what)?, what })
    }
}

/// Loads a model. `pool` packs weights, and is not kept. `progress` is called with (fraction, tensor), and cancels by
/// returning true.
pub fn load(
    source: &Source,
    options: &LoadOptions,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    check(source, options)?;
    let files: Box<dyn Checkpoint> = match source {
        Source::Echo(options) => {
            options.load(progress)?;
            let model = Arc::new(Echo::new(options.us_per_token));
            let tokenizer = Arc::new(Tokenizer::bytes()?);
            let end_tokens = tokenizer.end_tokens().to_vec();
            let chat = Some(Arc::new(Echo::chat_template()?));
            return Ok(Loaded { tokenizer: Some(tokenizer), end_tokens, chat, ..Loaded::of(model) });
        }
        Source::Embedded => Box::new(embedded()?),
        Source::File(path) if Path::new(path).is_dir() => hf::open(path)?,
        Source::File(path) => Box::new(gguf(path, options)?),
        Source::Memory { bytes, what } => {
            Box::new(Gguf::from_bytes_with(bytes.clone(), what, options.kernel_config.as_deref())?)
        }
    };
    let mut loaded = opened(&*files, options, pool, log, progress)?;
    let (facts, tokenizer) = (loaded.model.facts(), loaded.tokenizer.as_deref());
    let sight = sight(source, options, facts, tokenizer, pool, log, progress)?;
    loaded.sight = sight.map(Arc::new);
    Ok(loaded)
}

fn opened(
    files: &dyn Checkpoint,
    options: &LoadOptions,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    if let Some(config) = files.encoder(&|message| log(WARN, message))? {
        return encoder(files, config, options, pool, log, progress);
    }
    match options.requantizes() {
        false => decoder(files, options, pool, log, progress),
        true => {
            let family = files.config(&|_| ())?.family;
            decoder(&Requantized::new(files, family, options)?, options, pool, log, progress)
        }
    }
}

fn gguf(path: &str, options: &LoadOptions) -> Result<Gguf> {
    Gguf::open_with(path, options.kernel_config.as_deref()).map_err(|mut e| {
        if e.status == Status::BadModel && [".safetensors", ".json"].iter().any(|end| path.ends_with(end)) {
            e.message.push_str("; of a Hugging Face model give the folder's path");
        }
        e
    })
}

/// Refuses options that would have no effect.
fn check(source: &Source, options: &LoadOptions) -> Result<()> {
    options.check()?;
    if options.requantizes() && matches!(source, Source::Echo(_)) {
        return Err(Error::invalid(
            "weight_type, embedding_type or head_type is given, and builtin:echo has no weights",
        ));
    }
    if options.mtp && options.drafter.is_some() {
        return Err(Error::invalid(
            "mtp and drafter_path are set, and one thing drafts: mtp is for the block in the model's own files",
        ));
    }
    if options.mtp && matches!(source, Source::Echo(_)) {
        return Err(Error::unsupported(
            "mtp is set, and builtin:echo has no block of multi-token prediction",
        ));
    }
    if options.drafter.is_some() && matches!(source, Source::Echo(_)) {
        return Err(Error::unsupported("drafter_path is set, and builtin:echo has no hidden states"));
    }
    if options.pictures.is_some() && matches!(source, Source::Echo(_) | Source::Embedded) {
        return Err(Error::unsupported(
            "pictures_path is set, and the model inside the library sees nothing",
        ));
    }
    if options.skip_zeros && matches!(source, Source::Echo(_)) {
        return Err(Error::unsupported("skip_zeros is set, and builtin:echo has no weights"));
    }
    let gguf = match source {
        Source::File(path) => !Path::new(path).is_dir(),
        Source::Memory { .. } => true,
        Source::Embedded | Source::Echo(_) => false,
    };
    match options.kernel_config.is_some() && !gguf {
        true => Err(Error::invalid("kernel_config_path is given, and the model is no GGUF file of yours")),
        false => Ok(()),
    }
}

/// Loads the vision tower of a folder of a whole model, `None` if its `config.json` has no `vision_config`, or that of
/// an mmproj file. Options other than `max_weight_bytes` are not for towers. `Unsupported` for another file, or for a
/// tower that this build lacks. `pool` and `progress` as for `load`.
pub fn load_tower(
    source: &Source,
    max_weight_bytes: u64,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Option<Tower>> {
    let warn = |message: &str| log(WARN, message);
    let of_gguf = |gguf: Gguf, progress: &mut dyn FnMut(f32, &str) -> bool| {
        let (config, processor) = read_mmproj(&gguf, &warn)?;
        Reader::new(&gguf, max_weight_bytes, pool, progress).tower(config, processor)
    };
    let tower = match source {
        Source::Embedded | Source::Echo(_) => return Ok(None),
        Source::File(path) if Path::new(path).is_dir() => {
            let Some(files) = HfTower::open(path)? else { return Ok(None) };
            Reader::new(&files, max_weight_bytes, pool, progress)
                .tower(files.tower(&warn), files.processor()?)?
        }
        Source::File(path) => of_gguf(Gguf::open(path)?, progress)?,
        Source::Memory { bytes, what } => of_gguf(Gguf::from_bytes(bytes.clone(), what)?, progress)?,
    };
    let Facts { architecture, name, parameters, layers, hidden_size, .. } = tower.facts();
    let size = format!("{parameters} parameters, {layers} layers of {hidden_size}");
    log(INFO, &format!("loaded the vision tower of {name} ({architecture}), {size}"));
    Ok(Some(tower))
}

/// Loads the tower of a model with these facts, if it has one. A tower of its own file has to fit; a folder's that is
/// not read is named in the log. A folder that does not say how pictures are prepared sees none.
fn sight(
    source: &Source,
    options: &LoadOptions,
    facts: &Facts,
    tokenizer: Option<&Tokenizer>,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Option<Sight>> {
    let folder = matches!(source, Source::File(path) if Path::new(path).is_dir());
    let mut open = |source: &Source| {
        let tower = load_tower(source, options.max_weight_bytes, pool, log, progress)?;
        tower.map(|tower| Sight::new(tower, facts, tokenizer)).transpose()
    };
    match &options.pictures {
        Some(_) if folder => {
            Err(Error::invalid("pictures_path is set, and a folder has its tower among its own files"))
        }
        Some(path) => open(&Source::File(path.clone()))
            .and_then(|sight| {
                sight
                    .map(Some)
                    .ok_or_else(|| Error::unsupported(format!("{path} is a folder without a tower")))
            })
            .map_err(|error| Error::new(error.status, format!("pictures_path: {}", error.message))),
        None if folder && !facts.encodes && says_of_pictures(source) => {
            open(source).or_else(|error| match error.status {
                Status::Unsupported => {
                    log(WARN, &format!("pictures are refused: {error}"));
                    Ok(None)
                }
                _ => Err(error),
            })
        }
        None => Ok(None),
    }
}

/// Whether a folder has a file on how pictures are prepared.
fn says_of_pictures(source: &Source) -> bool {
    let Source::File(path) = source else { return false };
    ["preprocessor_config.json", "processor_config.json"]
        .iter()
        .any(|name| Path::new(path).join(name).exists())
}

/// Like `load`, for files that are already open.
pub fn load_checkpoint(
    files: &dyn Checkpoint,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    opened(files, &LoadOptions::default(), pool, log, progress)
}

fn encoder(
    files: &dyn Checkpoint,
    config: EncoderConfig,
    options: &LoadOptions,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    let given = [
        ("weight_type, embedding_type or head_type", options.requantizes()),
        ("mtp", options.mtp),
        ("drafter_path", options.drafter.is_some()),
        ("skip_zeros", options.skip_zeros),
    ];
    for (option, given) in given {
        if given {
            let what = files.what();
            return Err(Error::unsupported(format!("{what}: {option} is set, and an encoder runs as it is")));
        }
    }
    let vocab_size = config.vocab_size;
    let mut tokenizer = tokenizer(files, vocab_size, log)?;
    let model = Reader::new(files, options.max_weight_bytes, pool, progress).encoder(config)?;
    // As in `decoder`.
    tokenizer.as_mut().map_or(Ok(()), |tokenizer| tokenizer.pad_to(vocab_size))?;
    let end_tokens = tokenizer.as_ref().map_or_else(Vec::new, |tokenizer| tokenizer.end_tokens().to_vec());
    loaded(files, log, Arc::new(model), tokenizer, end_tokens, [None, None])
}

/// Reports the model.
fn loaded(
    files: &dyn Checkpoint,
    log: &dyn Fn(u32, &str),
    model: Arc<dyn Model>,
    tokenizer: Option<Tokenizer>,
    end_tokens: Vec<u32>,
    [chat, pair]: [Option<ChatTemplate>; 2],
) -> Result<Loaded> {
    let Facts { architecture, name, parameters, layers, hidden_size, context_length, .. } = model.facts();
    let size = format!("{parameters} parameters, {layers} layers of {hidden_size}, context {context_length}");
    log(INFO, &format!("loaded {}: {name} ({architecture}), {size}", files.what()));
    let (tokenizer, chat, pair) = (tokenizer.map(Arc::new), chat.map(Arc::new), pair.map(Arc::new));
    Ok(Loaded { tokenizer, end_tokens, chat, pair, ..Loaded::of(model) })
}

/// Finds the tokens of a score by words. Without them the model runs, and scores nothing.
fn find_words(
    config: &mut DecoderConfig,
    tokenizer: Option<&Tokenizer>,
    what: &str,
    log: &dyn Fn(u32, &str),
) -> Result<()> {
    if config.score != Some(ScoreRows::Words) {
        return Ok(());
    }
    let mut ids = Vec::new();
    for word in score::WORDS {
        ids.push(tokenizer.map_or(Ok(Vec::new()), |tokenizer| tokenizer.encode(word, false, false))?);
    }
    config.score = match (&ids[0][..], &ids[1][..]) {
        (&[yes], &[no]) => Some(ScoreRows::Tokens { yes: yes as usize, no: Some(no as usize) }),
        _ => {
            log(WARN, &format!("{what}: it would score pairs by its yes and no, which are no tokens of it"));
            None
        }
    };
    Ok(())
}

/// Loads a decoder from files that convert weights themselves.
fn decoder(
    files: &dyn Checkpoint,
    options: &LoadOptions,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    let mut config = files.config(&|message| log(WARN, message))?;
    let vocab_size = config.vocab_size;
    let mut tokenizer = tokenizer(files, vocab_size, log)?;
    find_words(&mut config, tokenizer.as_ref(), files.what(), log)?;
    let end_tokens = match &tokenizer {
        Some(tokenizer) => tokenizer.end_tokens().to_vec(),
        None => files.end_tokens(vocab_size)?,
    };
    if tokenizer.is_some() && end_tokens.is_empty() {
        let what = files.what();
        log(WARN, &format!("{what}: the files name no end token; generations end by their limits only"));
    }
    let chat = files.chat(&|message| log(WARN, message))?;
    let pair = config.score.map(|_| files.pair()).transpose()?.flatten();
    let drafter = drafter(files, &config, options, log)?;
    let reader = Reader::new(files, options.max_weight_bytes, pool, progress);
    let model = Decoder::read(reader, config, options, drafter.as_ref())?;
    // Not earlier: reading the embedding has shown that there are this many tokens.
    tokenizer.as_mut().map_or(Ok(()), |tokenizer| tokenizer.pad_to(vocab_size))?;
    loaded(files, log, Arc::new(model), tokenizer, end_tokens, [chat, pair])
}

/// Opens the file of a drafter, if one is wanted, and checks that the model has a block where that is wanted.
fn drafter(
    files: &dyn Checkpoint,
    config: &DecoderConfig,
    options: &LoadOptions,
    log: &dyn Fn(u32, &str),
) -> Result<Option<Drafter>> {
    let (what, path) = (files.what(), options.drafter.as_deref());
    if (options.mtp || path.is_some()) && config.latent.is_some() {
        let option = if options.mtp { "mtp" } else { "drafter_path" };
        let why = format!("{option} is set, and drafters of models with latent attention are not read");
        return Err(Error::unsupported(format!("{what}: {why}")));
    }
    let further = if files.has(&join_of(config)) { config.further } else { 0 };
    match (options.mtp, further) {
        (true, 1) | (false, 0 | 2..) => {}
        (false, 1) => {
            let why = match path {
                None => "with mtp it would draft",
                Some(_) => "that of drafter_path drafts",
            };
            log(INFO, &format!("{what}: its block of multi-token prediction is not read; {why}"));
        }
        (true, 0) => {
            let why = "mtp is set, and the files have no block of multi-token prediction";
            let how = "drafter_path reads one from a file of its own";
            return Err(Error::unsupported(format!("{what}: {why}; {how}")));
        }
        (true, count) => {
            return Err(Error::unsupported(format!("{what}: mtp is set, and {}", drafter::several(count))));
        }
    }
    path.map(|path| Drafter::open(path, what, config, &|message| log(WARN, message))).transpose()
}

#[cfg(feature = "demo-model")]
fn embedded() -> Result<Gguf> {
    /// Tensors in the file are aligned to 32 bytes from its start.
    #[repr(align(64))]
    struct Aligned<T: ?Sized>(T);
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../models/bn-demo.gguf"));
    Gguf::from_bytes(Bytes::new(&FILE.0), "the embedded model")
}

#[cfg(not(feature = "demo-model"))]
fn embedded() -> Result<Gguf> {
    Err(Error::unsupported(
        "no model_path, and this library was built without the feature demo-model: give a path",
    ))
}

/// Reads the tokenizer. A file without one that we know still runs, on token ids.
fn tokenizer(
    files: &dyn Checkpoint,
    vocab_size: usize,
    log: &dyn Fn(u32, &str),
) -> Result<Option<Tokenizer>> {
    match files.tokenizer(&|message| log(WARN, message)) {
        Ok(Some(mut tokenizer)) if tokenizer.vocab_size() > vocab_size => {
            let named = |e: Error| Error::new(e.status, format!("{}: {}", files.what(), e.message));
            let cut = tokenizer.cut_to(vocab_size).map_err(named)?.join(", ");
            let why = "of the tokenizer are not used: the model has";
            log(WARN, &format!("{}: tokens {cut} {why} {vocab_size} tokens", files.what()));
            Ok(Some(tokenizer))
        }
        Err(error) if error.status == Status::Unsupported => {
            log(WARN, &format!("prompts must be token ids: {error}"));
            Ok(None)
        }
        Ok(None) => {
            log(WARN, &format!("{}: there is no tokenizer in it; prompts must be token ids", files.what()));
            Ok(None)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_options_are_numbers_by_name() {
        let parsed = |text| {
            let EchoOptions { us_per_token, load_ms } = EchoOptions::parse(text).unwrap();
            (us_per_token, load_ms)
        };
        assert_eq!(parsed("us_per_token=7&load_ms=30"), (7, 30));
        assert_eq!(parsed("load_ms=30&us_per_token=7"), (7, 30));
        assert_eq!(parsed("load_ms=1000000"), (0, 1_000_000));
        assert_eq!(parsed("us_per_token=0"), (0, 0));
    }

    #[test]
    fn echo_options_that_mean_nothing_are_refused() {
        for text in [
            "",
            "&",
            "load_ms",
            "load_ms=",
            "load_ms=-1",
            "load_ms=1.5",
            "load_ms=1000001",
            "load_ms=99999999999",
            "load_ms= 1",
            "load_ms=1&",
            "Load_ms=1",
            "sleep=1",
            "load_ms=1&load_ms=2",
            "us_per_token=1&us_per_token=1",
        ] {
            let error = EchoOptions::parse(text).expect_err(text);
            assert_eq!(error.status, Status::InvalidArgument, "{text}");
            assert!(error.message.contains("us_per_token and load_ms"), "{error}");
        }
    }

    #[test]
    fn only_echo_has_options() {
        assert!(matches!(
            Source::parse(Some("builtin:echo")),
            Ok(Source::Echo(EchoOptions { us_per_token: 0, load_ms: 0 }))
        ));
        assert!(
            matches!(Source::parse(Some("a?load_ms=1")), Ok(Source::File(path)) if path == "a?load_ms=1")
        );
        assert!(Source::parse(Some("builtin:other?load_ms=1")).is_err());
        assert!(Source::parse(Some("builtin:echo?")).is_err());
    }
}
