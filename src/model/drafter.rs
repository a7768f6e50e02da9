//! A drafter in a file of its own, which predicts tokens from hidden states of a model in other files. It takes from
//! that model what its file lacks.
//!
//! A block of multi-token prediction has the sizes of the model. llama.cpp's converters write those of Qwen3-Next and
//! Qwen 3.5 with the metadata of the whole model, in which the block stands behind the model's layers, and with copies
//! of embedding, final norm and head. An EAGLE-3 head has sizes of its own; only the hidden states that it takes must
//! have the model's.

use super::config::DecoderConfig;
use super::gguf::drafter::{self, Kind};
use super::gguf::eagle;
use super::layers::eagle::{Eagle, EagleConfig};
use super::layers::ends::Ends;
use super::layers::mtp::{self, Mtp};
use super::options::LoadOptions;
use super::reader::Reader;
use super::requantized::Requantized;
use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;

/// An opened file of a drafter.
pub(super) enum Drafter {
    Block(BlockFile),
    Head(HeadFile),
}

/// A block of multi-token prediction.
pub(super) struct BlockFile {
    gguf: Gguf,
    /// The model's, as this file has it, with the block's layer behind the others.
    config: Box<DecoderConfig>,
}

/// An EAGLE-3 head.
pub(super) struct HeadFile {
    gguf: Gguf,
    config: Box<EagleConfig>,
}

impl Drafter {
    /// Opens the file at `path` for the model in `what`, whose configuration is `target`. `Io` if it can't be read,
    /// `Unsupported` if it is no drafter that we know, `InvalidArgument` if it is one for another model.
    pub(crate) fn open(path: &str, what: &str, target: &DecoderConfig, warn: &dyn Fn(&str)) -> Result<Self> {
        let gguf =
            Gguf::open(path).map_err(|e| Error::new(e.status, format!("drafter_path: {}", e.message)))?;
        let refuse = |why: &str| Err(Error::unsupported(format!("drafter_path: {}: {why}", gguf.what())));
        match Kind::of(&gguf)? {
            Some(Kind::Block) => {
                let mut config = drafter::config(&gguf, target, warn)?;
                if config.further != 1 {
                    return refuse(&several(config.further));
                }
                if let Some(why) = difference(&config, target) {
                    return Err(unfit(gguf.what(), &why, what));
                }
                config.blocks.push(mtp::layer_of(&config));
                Ok(Self::Block(BlockFile { gguf, config: Box::new(config) }))
            }
            Some(Kind::Eagle) => {
                let config = Box::new(eagle::config(&gguf, warn)?);
                check_head(&config, gguf.what(), target, what)?;
                Ok(Self::Head(HeadFile { gguf, config }))
            }
            Some(kind) => refuse(&format!("it is {}, which is not read", kind.name())),
            None => refuse(
                "it is no drafter alone, that is a block of multi-token prediction or an EAGLE-3 head without its \
                 model; a small model that drafts is a draft_model",
            ),
        }
    }

    fn gguf(&self) -> &Gguf {
        match self {
            Self::Block(file) => &file.gguf,
            Self::Head(file) => &file.gguf,
        }
    }

    /// The layers of the model whose inputs an EAGLE-3 head continues from; those of a block are none.
    pub(crate) fn taps(&self) -> &[usize] {
        match self {
            Self::Block(_) => &[],
            Self::Head(file) => &file.config.taps,
        }
    }

    pub(crate) fn tensor_bytes(&self) -> u64 {
        self.gguf().tensor_bytes()
    }

    /// Bytes of the file that stay mapped but are not tensors.
    pub(crate) fn other_bytes(&self) -> u64 {
        (self.gguf().file_bytes() as u64).saturating_sub(self.tensor_bytes())
    }
}

impl HeadFile {
    /// Reads the head, for the model `m` with these `ends`. Its weights keep their types.
    pub(crate) fn read(&self, model: &mut Reader, m: &DecoderConfig, ends: &Ends) -> Result<Eagle> {
        let Self { gguf, config } = self;
        model.beside(gguf, |reader| {
            let head = Eagle::read(reader, config, m, ends)?;
            reader.nothing_left(&config.layer, true)?;
            Ok(head)
        })
    }
}

impl BlockFile {
    /// Reads the block, for a model with these `ends`.
    pub(crate) fn read(&self, model: &mut Reader, ends: &Ends, options: &LoadOptions) -> Result<Mtp> {
        let Self { gguf, config: c } = self;
        let read = |reader: &mut Reader| {
            let ends = ends.of_drafter(reader, c)?;
            let block = Mtp::read(reader, c, &ends, options)?;
            reader.nothing_left(c, true)?;
            Ok(block)
        };
        match options.requantizes() {
            false => model.beside(gguf, read),
            true => model.beside(&Requantized::new(gguf, c.family, options)?, read),
        }
    }
}

/// The drafter in the file `own` is for another model than that in `what`, for the reason `why`.
fn unfit(own: &str, why: &str, what: &str) -> Error {
    Error::invalid(format!("drafter_path: {own}: {why} in the model, {what}"))
}

/// Refuses the head `own` for a model that it does not draft for, or whose K and V cannot stand beside the head's.
fn check_head(head: &EagleConfig, own: &str, m: &DecoderConfig, what: &str) -> Result<()> {
    let invalid = |why: String| Err(unfit(own, &why, what));
    if head.width != m.hidden {
        return invalid(format!(
            "its target_hidden_size is {}, and hidden states have {}",
            head.width, m.hidden
        ));
    }
    let [low, middle, high] = head.taps;
    if low >= middle || middle >= high || high >= m.layers {
        let why = format!(
            "its target_layers are {:?}, which must ascend, and there are {} layers",
            head.taps, m.layers
        );
        return invalid(why);
    }
    match m.global {
        None => Ok(()),
        Some(_) => Err(Error::unsupported(format!(
            "drafter_path: {own}: EAGLE-3 heads of models with two shapes of attention are not read, as is {what}"
        ))),
    }
}

/// Says that there are `count` blocks.
pub(super) fn several(count: usize) -> String {
    format!(
        "it has {count} blocks of multi-token prediction, and one is read: drafts of several blocks in turn, each with \
         keys and values of its own, are not supported"
    )
}

/// A size's name and value.
type Size = (&'static str, fn(&DecoderConfig) -> usize);

/// The first thing in which a drafter's configuration is not its model's, as the beginning of a sentence.
fn difference(own: &DecoderConfig, model: &DecoderConfig) -> Option<String> {
    if own.family.gguf != model.family.gguf {
        return Some(format!("its architecture is {}, and {}", own.architecture, model.architecture));
    }
    let sizes: [Size; 7] = [
        ("number of layers before the block", |c| c.layers),
        ("embedding_length", |c| c.hidden),
        ("vocab_size", |c| c.vocab_size),
        ("attention.head_count", |c| c.attention.heads),
        ("attention.head_count_kv", |c| c.attention.kv_heads),
        ("attention.key_length", |c| c.attention.head_dim),
        ("rope.dimension_count", |c| c.described().dims),
    ];
    if let Some((name, of)) = sizes.iter().find(|(_, of)| of(own) != of(model)) {
        return Some(format!("its {name} is {}, and {}", of(own), of(model)));
    }
    if own.ropes != model.ropes || own.rope_style != model.rope_style {
        let rope = |c: &DecoderConfig| format!("{:?} in pairs of {:?}", c.ropes, c.rope_style);
        return Some(format!("it rotates by {}, and {}", rope(own), rope(model)));
    }
    let recurrent = |c: &DecoderConfig| c.blocks.iter().filter(|block| block.recurrent).count();
    if own.blocks != model.blocks {
        return Some(format!(
            "its layers are other ones, {} are recurrent, and {}",
            recurrent(own),
            recurrent(model)
        ));
    }
    None
}
