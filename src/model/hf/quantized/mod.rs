//! Weights that other tools have quantized: compressed-tensors, FP8, GPTQ and AWQ. A product is several tensors of the
//! files: its weights, their scales, and more. They become a matrix in one of our types (`pack::codes`).

mod config;
mod packed;
mod scaled;
#[cfg(test)]
mod tests;

pub(super) use config::read as read_config;

use super::place::{Place, floats};
use crate::base::{Bytes, Error, Result};
use crate::formats::hf::Tensors;
use crate::formats::safetensors::{ElementType, TensorInfo};
use crate::kernels::pack::codes::Groups;
use crate::kernels::{Matrix, Pool};
use crate::model::config::Parts;

/// A tool's form of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    /// compressed-tensors and FP8: bytes or packed integers, with a scale for each tensor, row, group or block.
    Scaled {
        /// Rows and columns of a block, if the file names them.
        block: Option<[usize; 2]>,
        /// All of the model's integers have zeros.
        zeros: bool,
    },
    /// Integers of 4 or 8 bits, packed along the columns. `more` is added to the codes of zeros.
    Gptq { more: i32 },
    /// Integers of 4 bits, packed along the rows in an order of their own.
    Awq,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quantized {
    pub method: Method,
    /// The files have ranges of activations or of cached keys and values, which nothing here uses.
    pub ranges: bool,
}

const WEIGHT: &str = ".weight";
const SCALES: [&str; 2] = ["weight_scale", "weight_scale_inv"];
/// Other tensors that compressed-tensors and FP8 store beside weights. Without weights they have no meaning.
const BESIDE: &[&str] = &[
    "weight_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "input_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "activation_scale",
];
/// Ranges of cached keys and values, beside the products of attention.
const CACHED: &[&str] = &["self_attn.q_scale", "self_attn.k_scale", "self_attn.v_scale"];

/// The name that a tensor's product would have without the tool, and whether the tensor is its weights.
pub(super) fn product(method: Method, name: &str) -> Option<(String, bool)> {
    if let Some(layer) = CACHED.iter().find_map(|part| name.strip_suffix(part)) {
        return Some((format!("{layer}self_attn.k_proj.weight"), false));
    }
    let (module, part) = name.rsplit_once('.')?;
    let weights = match method {
        Method::Scaled { .. } => part == "weight_packed",
        Method::Gptq { .. } | Method::Awq => part == "qweight",
    };
    let beside = match method {
        Method::Scaled { .. } => BESIDE.contains(&part),
        Method::Gptq { .. } | Method::Awq => ["qzeros", "scales", "g_idx"].contains(&part),
    };
    (weights || beside).then(|| (format!("{module}{WEIGHT}"), weights))
}

/// Whether a tensor is a bias that the model has not: some tools write one of zeros for each product.
pub(super) fn is_idle_bias(method: Method, gguf: &str, parts: &Parts, data: &[u8]) -> bool {
    let product = gguf.strip_suffix(".bias").and_then(|name| name.rsplit('.').next());
    let has = match product {
        Some("attn_q" | "attn_k" | "attn_v" | "attn_qkv") => parts.qkv_bias,
        Some("attn_output") => parts.output_bias,
        Some("ffn_gate" | "ffn_up" | "ffn_down") => parts.ffn_bias,
        _ => return false,
    };
    !has && matches!(method, Method::Gptq { .. } | Method::Awq) && data.iter().all(|byte| *byte == 0)
}

/// A product of the files.
struct Product<'a> {
    tensors: &'a Tensors,
    /// Its name without `.weight`.
    module: &'a str,
    /// Its weights.
    weights: Tensor<'a>,
    rows: usize,
    cols: usize,
}

struct Tensor<'a> {
    data: Bytes,
    info: &'a TensorInfo,
    at: Place<'a>,
}

/// The product whose weights are the tensor `info`. `None` if no tool has quantized it.
pub(super) fn read(
    method: Method,
    pool: &Pool,
    tensors: &Tensors,
    info: &TensorInfo,
    [rows, cols]: [usize; 2],
) -> Result<Option<Matrix>> {
    let Some(weights) = find(tensors, &info.name)? else {
        return Err(Error::internal(format!("tensor '{}' is gone", info.name)));
    };
    let Some((module, part)) = info.name.rsplit_once('.') else { return Ok(None) };
    let product = Product { tensors, module, weights, rows, cols };
    let made = match (method, part, info.ty) {
        (Method::Scaled { zeros, .. }, "weight_packed", _) => scaled::packed(pool, &product, zeros),
        (Method::Scaled { block, .. }, _, ElementType::F8E4M3) => scaled::floats(pool, &product, block),
        (Method::Scaled { block, zeros }, _, ElementType::I8) => scaled::bytes(pool, &product, block, zeros),
        (Method::Scaled { .. }, ..) => {
            return match product.first(&SCALES)? {
                None => Ok(None),
                Some(scale) => {
                    let why = format!("is of weights that are {}, and such have no scale", info.type_name);
                    Err(scale.at.unsupported(&why))
                }
            };
        }
        (Method::Gptq { more }, "qweight", _) => packed::gptq(pool, &product, more),
        (Method::Awq, "qweight", _) => packed::awq(pool, &product),
        _ => return Ok(None),
    };
    let made = made?;
    product.weights.data.release_pages();
    Ok(Some(made))
}

fn find<'a>(tensors: &'a Tensors, name: &str) -> Result<Option<Tensor<'a>>> {
    let Some((file, info)) = tensors.find(name) else { return Ok(None) };
    let at = Place { file: file.what(), tensor: &info.name };
    Ok(Some(Tensor { data: file.data(info)?, info, at }))
}

impl<'a> Product<'a> {
    /// A tensor beside the weights.
    fn get(&self, part: &str) -> Result<Option<Tensor<'a>>> {
        find(self.tensors, &format!("{}.{part}", self.module))
    }

    fn need(&self, part: &str) -> Result<Tensor<'a>> {
        self.get(part)?.ok_or_else(|| self.without(part))
    }

    fn without(&self, part: &str) -> Error {
        self.weights.at.bad(&format!("has no '{}.{part}' beside it", self.module))
    }

    /// The first of several tensors that the files have.
    fn first(&self, parts: &[&str]) -> Result<Option<Tensor<'a>>> {
        for part in parts {
            if let Some(tensor) = self.get(part)? {
                return Ok(Some(tensor));
            }
        }
        Ok(None)
    }

    /// The groups of columns, of which a row has `count`: by `list`, a group for each column, or of the same size.
    fn groups(&self, list: Option<&Tensor>, count: usize) -> Result<Groups> {
        let cols = self.cols;
        let Some(list) = list else {
            return match count > 0 && cols.is_multiple_of(count) {
                true => Ok(Groups::Of(cols / count)),
                false => {
                    let why = format!("has {cols} columns, which are not {count} groups of the same size");
                    Err(self.weights.at.bad(&why))
                }
            };
        };
        list.words(&[cols])?;
        let mut groups = Vec::new();
        crate::base::reserve(&mut groups, cols, "groups of columns")?;
        groups.extend((0..cols).map(|col| list.word(col)));
        // compressed-tensors leaves -1 in lists that it has not filled.
        if groups.contains(&u32::MAX) {
            return self.groups(None, count);
        }
        if let Some(odd) = groups.iter().find(|group| **group as usize >= count) {
            return Err(list.at.bad(&format!("names the group {odd} of {count}")));
        }
        let size = groups.iter().position(|group| *group != 0).unwrap_or(cols);
        let in_order =
            size > 0 && groups.iter().enumerate().all(|(col, group)| *group as usize == col / size);
        match in_order && cols.div_ceil(size) == count {
            true => Ok(Groups::Of(size)),
            false => Ok(Groups::Listed(groups)),
        }
    }
}

/// The bits of each of `count` integers that fill `words` words of 32 bits, if these are 4 or 8.
fn bits(count: usize, words: usize) -> Option<usize> {
    [4, 8].into_iter().find(|bits| count.is_multiple_of(32 / bits) && count / (32 / bits) == words)
}

impl Tensor<'_> {
    /// Refuses a tensor that does not consist of words of 32 bits in this shape.
    fn words(&self, shape: &[usize]) -> Result<()> {
        if self.info.ty != ElementType::I32 {
            return Err(self.at.unsupported(&format!("is {}; I32 is read here", self.info.type_name)));
        }
        self.at.shape(self.info, shape)
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = &self.data[4 * at..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Its elements as f32.
    fn floats(&self) -> Result<Vec<f32>> {
        floats(&self.data, self.info.ty, self.info.elements()).ok_or_else(|| self.at.not_float(self.info))
    }
}
