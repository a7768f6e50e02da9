//! Layers whose past is a state of fixed size. Each kind is a file beside this one, which has its tensors' names, reads
//! its sizes from both formats, and pushes its operations.

use super::source::Source;
use super::tensors::Add;
use super::{Mixed, Residual};
use crate::base::Result;
use crate::formats::gguf::Gguf;
use crate::formats::gguf::writer::Meta;
use crate::model::config::{Block, DecoderConfig};
use crate::model::family::{Family, Joined, Named};
use crate::model::gguf::Metadata;
use crate::model::hf::Fields;
use crate::model::names::Names;
use crate::ops::Slot;
use crate::ops::pass::Pass;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A kind of recurrent layers, with the defaults of a family.
pub(crate) trait Recurrent: Any + Debug + Sync {
    /// The types that `layer_types` of a `config.json` has for these layers and for those of attention. Files use one
    /// of the pairs.
    fn types(&self) -> &'static [[&'static str; 2]];

    /// Names of Hugging Face and of GGUF in a layer: whole names.
    fn tensors(&self) -> &'static [&'static [Named]];

    /// Tensors of Hugging Face's files that have several of GGUF's.
    fn joined(&self) -> &'static [Joined] {
        &[]
    }

    /// Ends of names of small matrices, by GGUF's names, which keep their type at load.
    fn small(&self) -> &'static [&'static str];

    /// Keys of GGUF's files that are read.
    fn gguf_keys(&self) -> &'static [&'static str];

    /// Keys of a `config.json` that do not affect the arithmetic.
    fn ignored_keys(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether packed ternary weights of such models are read.
    fn takes_ternary(&self) -> bool {
        false
    }

    /// The width of feed-forwards in a `config.json` of these models, if they have a rule of their own.
    fn ffn(&self, _config: &Fields) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Whether GGUF files may give these layers 0 KV heads.
    fn lacks_heads(&self) -> bool {
        true
    }

    /// Reads a `config.json`, and marks these layers in `blocks`. `None`: there are none.
    fn read_folder(
        &self,
        config: &Fields,
        family: &Family,
        hidden: usize,
        blocks: &mut [Block],
    ) -> Result<Option<Arc<dyn Mixer>>>;

    /// Reads a GGUF file, and marks these layers in `blocks`. `None`: there are none.
    fn read_gguf(&self, of: &Metadata, hidden: usize, blocks: &mut [Block])
    -> Result<Option<Arc<dyn Mixer>>>;

    /// The key of a `config.json` for one of GGUF's.
    fn key(&self, gguf: &str) -> Option<&'static str>;

    /// The keys of a GGUF file of the family whose layers are all of attention.
    fn keys_without(&self) -> Vec<(&'static str, Meta)> {
        Vec::new()
    }

    /// The usual name of a tensor in a GGUF file.
    fn usual_name(&self, name: &str) -> String {
        name.to_owned()
    }

    /// The vector of a GGUF file that has this usual name.
    fn vector(&self, gguf: &Gguf, name: &str, len: usize) -> Result<Arc<[f32]>> {
        gguf.vector_f32(name, len)
    }
}

/// The recurrent layers of a model.
pub(crate) trait Mixer: Any + Debug + Send + Sync {
    /// `BadModel` for an impossible size.
    fn check(&self, names: &Names) -> Result<()>;

    /// Reads a layer's tensors and pushes its operations. `slot`: that of its inputs.
    fn push(&self, from: &mut dyn Source, pass: &mut Pass, slot: Slot, of: &Residual) -> Result<Mixed>;

    /// Refuses an adapter's update of the product `name`, by GGUF's name, whose rows or factors are in another form
    /// than the model's. `peft`: the update is of PEFT, for folders; otherwise of a GGUF file.
    fn check_update(
        &self,
        _c: &DecoderConfig,
        _name: &str,
        _peft: bool,
    ) -> std::result::Result<(), &'static str> {
        Ok(())
    }

    /// The name of these layers if `export` does not write them.
    fn unwritten(&self) -> Option<&'static str> {
        None
    }

    /// Adds the tensors of a layer in files of `family`.
    fn write_tensors(&self, _c: &DecoderConfig, _family: &Family, _add: &mut Add) {}

    /// The keys of files of `family`. `Unsupported` for what no key can say.
    fn write_keys(&self, _c: &DecoderConfig, _family: &Family) -> Result<Vec<(&'static str, Meta)>> {
        Ok(Vec::new())
    }

    /// All that the keys of a file have to keep.
    fn kept(&self) -> String {
        format!("{self:?}")
    }
}

/// Marks recurrent layers by the list of all layers' types.
pub(super) fn mark(
    config: &Fields,
    types: &[&str],
    blocks: &mut [Block],
    [recurrent, attention]: [&str; 2],
) -> Result<()> {
    if types.len() != blocks.len() {
        return Err(config.bad("layer_types", format_args!("num_hidden_layers is {}", blocks.len())));
    }
    for (block, kind) in blocks.iter_mut().zip(types) {
        block.recurrent = match *kind {
            kind if kind == recurrent => true,
            kind if kind == attention => false,
            other => {
                let other: String = other.chars().take(60).collect();
                let why = format!("'{other}' in it is not {recurrent} or {attention}");
                return Err(config.unsupported("layer_types", why));
            }
        };
    }
    Ok(())
}

/// Marks the layers that have no KV heads in a GGUF file with a number for each layer.
pub(super) fn mark_without_heads(of: &Metadata, blocks: &mut [Block]) -> Result<()> {
    if let Some(by_layer) = of.kv_heads(blocks.len(), true)? {
        blocks.iter_mut().zip(by_layer).for_each(|(block, heads)| block.recurrent = heads == 0);
    }
    Ok(())
}
