//! Rotations that the weights of a GGUF file are folded with: the keys `prism.hadamard.*` of Bonsai 2 (PrismML's
//! llama.cpp, pull requests 120 and 121).

use super::names::Names;
use crate::base::{Error, Result};
use crate::formats::gguf::{FromMetadata, Gguf, expert};
use crate::ops::{DeltaShape, Fold, Regrouped};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The beginning of all keys.
pub(super) const PREFIX: &str = "prism.hadamard";

const KEYS: [&str; 11] = [
    "version",
    "block_size",
    "transform",
    "axis",
    "sign_mode",
    "sign_widths",
    "sign_values",
    "weight_names",
    "inverse_weight_names",
    "gdn_v_grouped",
    "tied_output",
];

/// The products whose weights may be folded, by the last part of their names.
const PRODUCTS: [&str; 17] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "ssm_out",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "output",
];
/// The table whose rows are looked up.
const EMBEDDING: &str = "token_embd.weight";
/// The product after the recurrence.
const AFTER_DELTA: &str = ".ssm_out.weight";

/// The signs of inputs of a width.
type Signs = (usize, Arc<[f32]>);

#[derive(Clone, Debug)]
pub struct Rotations {
    block: usize,
    /// By the width of inputs; `None`: no rotation has signs.
    signs: Option<Vec<Signs>>,
    weights: BTreeSet<String>,
    /// The rows of the embedding are rotated.
    pub embedding: bool,
    /// Columns of the product after the recurrence have the order of Hugging Face's files.
    grouped: bool,
}

impl Rotations {
    /// The rotations that a file names, if any. `Unsupported` for rotations of another kind, `BadModel` for keys that
    /// contradict each other or the tensors.
    pub fn read(gguf: &Gguf) -> Result<Option<Self>> {
        let prefix = format!("{PREFIX}.");
        let mut keys = gguf.keys().filter_map(|key| key.strip_prefix(&prefix)).peekable();
        if keys.peek().is_none() {
            return Ok(None);
        }
        let file = File { gguf, names: &Names { what: gguf.what(), key: &|key| format!("{prefix}{key}") } };
        if let Some(key) = keys.find(|key| !KEYS.contains(key)) {
            return Err(file.names.unsupported(key, "not known, and may change what is computed"));
        }
        file.rotations().map(Some)
    }

    /// The rotation of the inputs, `cols` wide, of all of some products; `None` if they have none. `Unsupported` if
    /// only some have one, `BadModel` if it does not fit them.
    pub fn of<'a>(
        &self,
        tensors: impl Iterator<Item = &'a str>,
        cols: usize,
        delta: Option<&DeltaShape>,
        what: &str,
    ) -> Result<Option<Fold>> {
        let folded = |name: &str| {
            let stacked = expert(name).map(|(all, _)| all);
            self.weights.contains(stacked.as_deref().unwrap_or(name))
        };
        let (mut first, mut fold) = (None, None);
        for name in tensors {
            let rotated = folded(name);
            if *first.get_or_insert(rotated) != rotated {
                let why = "is folded with a rotation, and others of the same inputs are not, or the reverse";
                return Err(Error::unsupported(format!("{what}: tensor '{name}' {why}")));
            }
            if rotated && fold.is_none() {
                fold = Some(self.fold(name, cols, delta, what)?);
            }
        }
        Ok(fold)
    }

    /// The rotation of a tensor's rows.
    pub fn fold(&self, name: &str, cols: usize, delta: Option<&DeltaShape>, what: &str) -> Result<Fold> {
        let signs = match &self.signs {
            None => None,
            Some(all) => match all.iter().find(|(width, _)| *width == cols) {
                Some((_, signs)) => Some(signs.clone()),
                None => {
                    let why = format!("'{PREFIX}.sign_widths' has no width of {cols}");
                    return Err(Error::bad_model(format!("{what}: tensor '{name}': {why}")));
                }
            },
        };
        let regrouped = delta.filter(|_| self.grouped && name.ends_with(AFTER_DELTA));
        let heads = regrouped.and_then(|d| Regrouped::of(d.key_heads, d.value_heads, d.order));
        if !cols.is_multiple_of(self.block) {
            let why = format!("its {cols} columns are no whole blocks of {}", self.block);
            return Err(Error::bad_model(format!("{what}: tensor '{name}': {why}")));
        }
        Ok(Fold { block: self.block, signs, heads })
    }
}

struct File<'a> {
    gguf: &'a Gguf,
    names: &'a Names<'a>,
}

impl<'a> File<'a> {
    fn get<T: FromMetadata<'a>>(&self, key: &str) -> Result<T> {
        self.gguf.get(&(self.names.key)(key))
    }

    fn find<T: FromMetadata<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.gguf.find(&(self.names.key)(key))
    }

    fn rotations(&self) -> Result<Rotations> {
        let version = self.get::<u32>("version")?;
        let tied = self.find::<bool>("tied_output")?.unwrap_or(false);
        if !matches!((version, tied), (1, false) | (2, true)) {
            return Err(self.names.unsupported("version", version));
        }
        for (key, known) in
            [("transform", "normalized-sylvester-walsh-hadamard"), ("axis", "input-last-dimension")]
        {
            let value: &str = self.get(key)?;
            if value != known {
                return Err(self.names.unsupported(key, format_args!("'{value}'")));
            }
        }
        let block = self.get::<u32>("block_size")? as usize;
        if !block.is_power_of_two() || !(2..=1 << 15).contains(&block) {
            return Err(self.names.bad("block_size", block, "it must be a power of two, 2 to 32768"));
        }
        let inverse: Vec<&str> = self.find("inverse_weight_names")?.unwrap_or_default();
        if let Some(other) = inverse.iter().find(|name| **name != EMBEDDING) {
            return Err(self.names.unsupported("inverse_weight_names", format_args!("'{other}'")));
        }
        let (embedding, mut weights) = (!inverse.is_empty(), self.weights()?);
        if embedding && self.gguf.tensor("output.weight").is_none() {
            // The head is the table, whose rows are rotated.
            weights.insert(EMBEDDING.to_owned());
        }
        let grouped = self.find("gdn_v_grouped")?.unwrap_or(false);
        Ok(Rotations { block, signs: self.signs()?, weights, embedding, grouped })
    }

    fn weights(&self) -> Result<BTreeSet<String>> {
        let names: Vec<&str> = self.get("weight_names")?;
        let missing = |name: &&&str| self.gguf.tensor(name).is_none_or(|tensor| tensor.dims[1] <= 1);
        if let Some(name) = names.iter().find(missing) {
            return Err(self.names.bad(
                "weight_names",
                format_args!("'{name}'"),
                "the file has no such matrix",
            ));
        }
        let product = |name: &str| {
            let part = name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
            part.is_some_and(|part| PRODUCTS.contains(&part))
        };
        // Others are read without a rotation.
        if let Some(name) = names.iter().find(|name| !product(name)) {
            return Err(self.names.unsupported("weight_names", format_args!("'{name}'")));
        }
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn signs(&self) -> Result<Option<Vec<Signs>>> {
        match self.get::<&str>("sign_mode")? {
            "identity" => return Ok(None),
            "explicit" => {}
            other => return Err(self.names.unsupported("sign_mode", format_args!("'{other}'"))),
        }
        let (widths, values): (Vec<u32>, Vec<i32>) = (self.get("sign_widths")?, self.get("sign_values")?);
        let all = widths.iter().try_fold(0usize, |all, width| all.checked_add(*width as usize));
        if all != Some(values.len()) {
            let why = format!("'{PREFIX}.sign_values' has {}", values.len());
            return Err(self.names.bad("sign_widths", format_args!("a list of {}", widths.len()), &why));
        }
        if let Some(value) = values.iter().find(|value| ![1, -1].contains(*value)) {
            return Err(self.names.bad("sign_values", value, "signs are 1 and -1"));
        }
        let mut rest = &values[..];
        let of_width = |width: &u32| {
            let (own, others) = rest.split_at(*width as usize);
            rest = others;
            (own.len(), own.iter().map(|sign| *sign as f32).collect())
        };
        Ok(Some(widths.iter().map(of_width).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::HeadOrder;

    fn rotations(names: &[&str]) -> Rotations {
        let signs = Some(vec![(64, vec![1.0; 64].into())]);
        let weights = names.iter().map(|name| name.to_string()).collect();
        Rotations { block: 32, signs, weights, embedding: false, grouped: true }
    }

    #[test]
    fn products_of_the_same_inputs_are_folded_alike() {
        let of = rotations(&["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.1.ffn_up_exps.weight"]);
        let fold = |names: &[&str]| of.of(names.iter().copied(), 64, None, "file");
        assert!(fold(&["blk.0.attn_q.weight", "blk.0.attn_k.weight"]).unwrap().is_some());
        assert!(fold(&["blk.0.attn_v.weight"]).unwrap().is_none());
        assert!(fold(&["blk.1.ffn_up_exps.3.weight"]).unwrap().is_some());
        let error = fold(&["blk.0.attn_q.weight", "blk.0.attn_v.weight"]).unwrap_err();
        assert!(error.message.contains("blk.0.attn_v.weight"), "{error}");
    }

    #[test]
    fn a_width_needs_its_signs_and_whole_blocks() {
        let of = rotations(&[]);
        let message = |cols| of.fold("x", cols, None, "file").unwrap_err().message;
        assert!(message(96).contains("no width of 96"), "{}", message(96));
        let of = Rotations { block: 48, ..of };
        assert!(of.fold("x", 64, None, "file").unwrap_err().message.contains("blocks of 48"));
        let delta = DeltaShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 16,
            value_dim: 16,
            kernel: 4,
            order: HeadOrder::Tiled,
        };
        let of = rotations(&[]);
        let heads = |name| of.fold(name, 64, Some(&delta), "file").unwrap().heads;
        assert_eq!(heads("blk.0.ssm_out.weight"), Some(Regrouped { key_heads: 2, value_heads: 4 }));
        assert_eq!(heads("blk.0.ffn_down.weight"), None);
    }
}
