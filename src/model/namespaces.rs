//! Decides which metadata keys of GGUF files outside of the architecture's namespace may be ignored.
//!
//! Such a key may change the computation: `prism.hadamard.block_size` says that weights are rotated, `xielu.alpha_p`
//! belongs to an activation, `diffusion.shift_logits` moves rows of logits. Most are stamps of those who trained,
//! converted or uploaded the file (`mradermacher.quantized_by`, `training.loss`). So the namespaces of arithmetic, and
//! those of other architectures, are refused by name, and unknown ones are reported.

use super::encoder::family::EncoderFamily;
use super::family::Family;
use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use std::collections::BTreeSet;

/// Namespaces that any file may have. Their keys are read elsewhere, or say how the file was made.
const KNOWN: &[&str] = &["general", "tokenizer", "split", "quantize", "imatrix", "mradermacher", "duynt"];

/// Namespaces of arithmetic, beside those of architectures.
const ARITHMETIC: &[&str] = &["adapter", "diffusion", "prism", "xielu"];

/// How the keys of models begin, after the architecture, that were trained to answer typed questions. Some have further
/// layers; others answer by the letters of a prompt of their own, with temperatures.
const DECISION: &str = ".decision.";

/// The newest `general.quantization_version`: another one has other blocks under the same types' numbers.
const QUANTIZATION_VERSION: u64 = 2;

/// Fails with `Unsupported`, naming the key, if a key may change the arithmetic. `own` are further
/// namespaces, or whole keys, that the caller knows.
pub(super) fn check(gguf: &Gguf, own: &[&str], warn: &dyn Fn(&str)) -> Result<()> {
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
    let mut strange = BTreeSet::new();
    for key in keys {
        // An architecture's name may have dots of its own.
        let within = |name: &&str| {
            key.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let decides = |name: &&str| key.strip_prefix(*name).is_some_and(|rest| rest.starts_with(DECISION));
        if own.iter().any(decides) {
            return refuse(
                key,
                "the model answers typed questions by a head or a prompt of its own, which this build does not run",
            );
        }
        if KNOWN.iter().chain(own).any(within) {
            continue;
        }
        let namespace = key.split('.').next().unwrap_or(key);
        let architecture =
            Family::of_gguf(namespace).is_some() || EncoderFamily::of_gguf(namespace).is_some();
        if architecture || ARITHMETIC.contains(&namespace) {
            let why =
                format!("'{namespace}' is a namespace of arithmetic, and this build does not read the key");
            return refuse(key, &why);
        }
        strange.insert(namespace);
    }
    for namespace in strange {
        warn(&format!("{}: metadata keys '{namespace}.*' are not known and not used", gguf.what()));
    }
    Ok(())
}
