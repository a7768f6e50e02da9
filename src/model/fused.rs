//! Products of Gated DeltaNet that a file has in one matrix, with the rows of each key head side by side: of the inputs
//! [q, k, v, z], of the gates [rate, decay]. The decoder takes all of q, then all of k, and so on.

use super::config::DecoderConfig;
use super::layers::delta_net::{DeltaConfig, GATES};
use crate::base::{Bytes, Error, Result};
use crate::kernels::Matrix;
use crate::ops::DeltaShape;

/// The shape of the layers of Gated DeltaNet, if their files have products in pieces.
pub(super) fn shape(c: &DecoderConfig) -> Option<&DeltaShape> {
    c.recurrent_as::<DeltaConfig>().filter(|delta| delta.fused).map(|delta| &delta.shape)
}

/// Number of rows that each part has in a key head, and which parts a product takes.
struct Parts {
    rows: [usize; 4],
    taken: std::ops::Range<usize>,
}

/// The parts of the product with this GGUF name, without its layer. `None` if no file has it in pieces.
fn parts(part: &str, shape: &DeltaShape) -> Option<Parts> {
    let each = shape.value_heads / shape.key_heads;
    let inputs = [shape.key_dim, shape.key_dim, each * shape.value_dim, each * shape.value_dim];
    let (rows, taken) = match part {
        "attn_qkv.weight" => (inputs, 0..3),
        "attn_gate.weight" => (inputs, 3..4),
        "ssm_beta.weight" => ([each, each, 0, 0], 0..1),
        "ssm_alpha.weight" => ([each, each, 0, 0], 1..2),
        _ => return None,
    };
    Some(Parts { rows, taken })
}

/// GGUF's name, without the layer, of a matrix that has the inputs, in files of old converters.
const INPUTS: &str = "ssm_in.weight";

/// GGUF's name of the matrix that has the product `tensor` in pieces.
pub(super) fn whole_of(tensor: &str) -> Option<String> {
    let (layer, part) = tensor.strip_prefix("blk.")?.split_once('.')?;
    let whole = match part {
        "attn_qkv.weight" | "attn_gate.weight" => INPUTS,
        "ssm_beta.weight" | "ssm_alpha.weight" => GATES,
        _ => return None,
    };
    Some(format!("blk.{layer}.{whole}"))
}

/// The products in the matrix with this GGUF name.
pub(super) fn parts_of(whole: &str) -> Option<[String; 2]> {
    let (layer, part) = whole.strip_prefix("blk.")?.split_once('.')?;
    let parts = match part {
        INPUTS => ["attn_qkv", "attn_gate"],
        GATES => ["ssm_beta", "ssm_alpha"],
        _ => return None,
    };
    Some(parts.map(|part| format!("blk.{layer}.{part}.weight")))
}

/// Number of rows of the matrix that the file has.
pub(super) fn rows(tensor: &str, shape: &DeltaShape) -> Option<usize> {
    let (_, part) = tensor.strip_prefix("blk.")?.split_once('.')?;
    Some(shape.key_heads * parts(part, shape)?.rows.iter().sum::<usize>())
}

/// The rows of the product `tensor` in `whole`, copied. `Unsupported` for types whose rows are not apart.
pub(super) fn gather(tensor: &str, shape: &DeltaShape, whole: &Matrix) -> Result<Matrix> {
    let part = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(_, part)| part);
    let Some(Parts { rows, taken }) = part.and_then(|part| parts(part, shape)) else {
        return Err(Error::internal(format!("'{tensor}' is no product in pieces")));
    };
    let stride = whole.dtype.byte_len(1, whole.cols).filter(|n| n * whole.rows == whole.data.len());
    let Some(stride) = stride else {
        return Err(Error::unsupported(format!("{:?} rows cannot be reordered", whole.dtype)));
    };
    let (group, count) =
        (rows.iter().sum::<usize>(), shape.key_heads * rows[taken.clone()].iter().sum::<usize>());
    let mut data: Vec<u8> = Vec::new();
    data.try_reserve_exact(count * stride).map_err(|_| Error::out_of_memory(tensor, count * stride))?;
    for part in taken {
        let before: usize = rows[..part].iter().sum();
        for head in 0..shape.key_heads {
            let at = (head * group + before) * stride;
            data.extend_from_slice(&whole.data[at..at + rows[part] * stride]);
        }
    }
    Matrix::new(Bytes::new(data), whole.dtype, count, whole.cols)
}
