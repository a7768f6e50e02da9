//! Decides which unknown metadata keys of GGUF files may be ignored.
//!
//! A key needs no prefix of its architecture to change the computation: `prism.hadamard.block_size` says that
//! weights are rotated, `xielu.alpha_p` belongs to an activation, `diffusion.shift_logits` moves rows of
//! logits. Uploaders' stamps (`mradermacher.quantized_by`) differ only in their values: all known ones are
//! single strings, and arithmetic needs a number, a flag or a list. So an unknown namespace may hold strings,
//! with a warning, and nothing else. A stamp with numbers needs a line in [`KNOWN`].

use crate::base::{Error, Result};
use crate::formats::gguf::{Gguf, ValueType};
use std::collections::BTreeSet;

/// Namespaces that any file may have. Their keys are read elsewhere, or say how the file was made.
const KNOWN: &[&str] = &["general", "tokenizer", "split", "quantize", "imatrix", "mradermacher", "duynt"];

/// The newest `general.quantization_version`: another one has other blocks under the same types' numbers.
const QUANTIZATION_VERSION: u64 = 2;

/// Fails with `Unsupported`, naming the key, if a key may change the arithmetic. `own` are further
/// namespaces, or whole keys, that the caller knows.
pub fn check(gguf: &Gguf, own: &[&str], warn: &dyn Fn(&str)) -> Result<()> {
    // Sorted, so that every load reports the same key.
    let keys: BTreeSet<&str> = gguf.keys().collect();
    let refuse = |key: &str, why: &str| {
        Err(Error::unsupported(format!("{}: metadata key '{key}': {why}", gguf.what())))
    };
    if let Some(version) = gguf.find::<u64>("general.quantization_version")?
        && version > QUANTIZATION_VERSION
    {
        let why = format!("it is {version}, and this build reads up to {QUANTIZATION_VERSION}");
        return refuse("general.quantization_version", &why);
    }
    let mut stamps = BTreeSet::new();
    for key in keys {
        // An architecture's name may have dots of its own.
        let within = |name: &&str| {
            key.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if KNOWN.iter().chain(own).any(within) {
            continue;
        }
        let namespace = key.split('.').next().unwrap_or(key);
        match gguf.value_type(key) {
            Some(ValueType::String) => stamps.insert(namespace),
            _ => {
                return refuse(
                    key,
                    &format!(
                        "'{namespace}' is no namespace that this build knows, and may change what is computed"
                    ),
                );
            }
        };
    }
    for namespace in stamps {
        warn(&format!("{}: metadata keys '{namespace}.*' are not known and not used", gguf.what()));
    }
    Ok(())
}
