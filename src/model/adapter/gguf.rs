//! Adapters in llama.cpp's format (`convert_lora_to_gguf.py`).

use super::{AdapterFile, Part};
use crate::base::{Error, Result, reserve};
use crate::formats::gguf::Gguf;
use crate::model::family::Family;
use crate::model::namespaces;

/// Keys that `read` uses, and keys that do not affect an adapter's products.
const KEYS: &[&str] =
    &["adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix"];

pub(super) fn read(gguf: &Gguf) -> Result<AdapterFile> {
    let (what, architecture) = (gguf.what(), gguf.get::<&str>("general.architecture")?);
    for (key, wanted) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        match gguf.find::<&str>(key)? {
            Some(found) if found == wanted => {}
            Some(found) => {
                return Err(Error::unsupported(format!("{what}: {key} is '{found}', not '{wanted}'")));
            }
            None => {
                return Err(Error::unsupported(format!("{what}: there is no {key}: it is no LoRA adapter")));
            }
        }
    }
    if gguf.contains("adapter.alora.invocation_tokens") {
        return Err(Error::unsupported(format!("{what}: an activated LoRA (aLoRA) is not supported")));
    }
    namespaces::check(gguf, &[KEYS, &[architecture]].concat(), &|_| ())?;
    let family = Family::of_gguf(architecture).ok_or_else(|| {
        Error::unsupported(format!("{what}: an adapter for '{architecture}', which is not supported"))
    })?;
    let alpha = gguf.get::<f32>("adapter.lora.alpha")?;
    let mut parts = Vec::new();
    for tensor in gguf.tensors() {
        let name = tensor.name.as_str();
        let Some(base) = name.strip_suffix(".weight.lora_a") else {
            let other = name.strip_suffix(".weight.lora_b").map(|base| format!("{base}.weight.lora_a"));
            match other.filter(|other| gguf.tensor(other).is_some()) {
                Some(_) => continue,
                None => {
                    return Err(Error::unsupported(format!(
                        "{what}: tensor '{name}' is no pair of a LoRA's"
                    )));
                }
            }
        };
        let up = format!("{base}.weight.lora_b");
        let [cols, rank, ..] = tensor.dims;
        let rows = gguf.tensor(&up).map_or(0, |tensor| tensor.dims[1]);
        let (a, b) = (gguf.matrix(name, rank, cols)?, gguf.matrix(&up, rows, rank)?);
        // As in llama.cpp, an alpha of 0 counts as missing.
        let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
        reserve(&mut parts, 1, "an adapter's tensors")?;
        parts.push(Part { name: base.to_owned(), a, b, scale });
    }
    let architecture = Some(architecture.to_owned());
    Ok(AdapterFile { what: what.to_owned(), architecture, rope: Some(family.gguf_rope), parts })
}
