//! Reads the `quantization_config` of other tools. Sizes of groups are read from the tensors, and modules that are left
//! as they are are known by theirs.

use super::super::fields::Fields;
use super::{Method, Quantized};
use crate::base::Result;

/// The form of weights. `None` if the method is none of these.
pub(crate) fn read(method: &str, q: &Fields) -> Result<Option<Quantized>> {
    match method {
        "compressed-tensors" => compressed(q).map(Some),
        "fp8" => fp8(q).map(Some),
        "gptq" => gptq(q).map(Some),
        "awq" => awq(q).map(Some),
        _ => Ok(None),
    }
}

/// Formats of compressed-tensors. Those of 4 bits as floats, and sparse ones, are others.
const FORMATS: &[&str] =
    &["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"];

fn compressed(q: &Fields) -> Result<Quantized> {
    format(q)?;
    if let Some(sparse) = q.object("sparsity_config")?
        && sparse.text("format")?.is_some_and(|format| format != "dense")
    {
        return Err(sparse.unsupported("format", "sparse weights are not read"));
    }
    if q.object("transform_config")?.is_some_and(|transform| transform.keys().next().is_some()) {
        return Err(q.unsupported("transform_config", "rotations of this kind are not known"));
    }
    let Some(groups) = q.object("config_groups")? else {
        return Err(q.bad("config_groups", "it must describe the weights"));
    };
    let (mut block, mut zeros) = (None, true);
    let mut ranges = q.is_set("kv_cache_scheme");
    for name in groups.keys() {
        let Some(group) = groups.object(name)? else { continue };
        format(&group)?;
        for activations in ["input_activations", "output_activations"] {
            let activations = group.object(activations)?;
            ranges |= match activations {
                Some(activations) => !activations.flag("dynamic")?.unwrap_or(false),
                None => false,
            };
        }
        let Some(weights) = group.object("weights")? else { continue };
        known(&weights)?;
        zeros &= !weights.flag("symmetric")?.unwrap_or(true);
        if weights.text("strategy")? == Some("block") {
            block = self::block(&weights, "block_structure")?;
        }
    }
    Ok(Quantized { method: Method::Scaled { block, zeros }, ranges })
}

fn format(of: &Fields) -> Result<()> {
    match of.text("format")? {
        Some(format) if !FORMATS.contains(&format) => Err(of.unsupported(
            "format",
            format_args!("of compressed-tensors these are read: {}", FORMATS.join(", ")),
        )),
        _ => Ok(()),
    }
}

/// Refuses weights of compressed-tensors that have no type of ours.
fn known(weights: &Fields) -> Result<()> {
    let widths: &[usize] = match weights.text("type")?.unwrap_or("int") {
        "int" => &[4, 8],
        "float" => &[8],
        _ => return Err(weights.unsupported("type", "it is int or float")),
    };
    if !weights.size("num_bits")?.is_some_and(|bits| widths.contains(&bits)) {
        let why = "integers of 4 and 8 bits and floats of 8 are read";
        return Err(weights.unsupported("num_bits", why));
    }
    let strategy = weights.text("strategy")?;
    if strategy.is_some_and(|strategy| !["tensor", "channel", "group", "block"].contains(&strategy)) {
        return Err(weights.unsupported("strategy", "it is tensor, channel, group or block"));
    }
    Ok(())
}

fn block(of: &Fields, key: &str) -> Result<Option<[usize; 2]>> {
    match of.sizes(key)?.as_deref() {
        None => Ok(None),
        Some(&[rows, cols]) if rows > 0 && cols > 0 => Ok(Some([rows, cols])),
        Some(_) => Err(of.bad(key, "it must be the rows and columns of a block")),
    }
}

fn fp8(q: &Fields) -> Result<Quantized> {
    if q.text("fmt")?.is_some_and(|format| !["e4m3", "float8_e4m3fn"].contains(&format)) {
        return Err(q.unsupported("fmt", "of floats in eight bits e4m3 is read"));
    }
    let method = Method::Scaled { block: block(q, "weight_block_size")?, zeros: false };
    Ok(Quantized { method, ranges: q.text("activation_scheme")? == Some("static") })
}

fn gptq(q: &Fields) -> Result<Quantized> {
    if !matches!(q.need("bits")?, 4 | 8) {
        return Err(q.unsupported("bits", "of GPTQ 4 and 8 are read"));
    }
    let key = if q.is_set("checkpoint_format") { "checkpoint_format" } else { "format" };
    // The first form of files stores zeros less one.
    let more = match q.text(key)? {
        None | Some("gptq") => 1,
        Some("gptq_v2") => 0,
        Some(_) => return Err(q.unsupported(key, "it is gptq or gptq_v2")),
    };
    for key in ["is_marlin_format", "rotation"] {
        if q.is_set(key) && !matches!(q.flag(key), Ok(Some(false))) {
            return Err(q.unsupported(key, "weights stored in this way are not read"));
        }
    }
    Ok(Quantized { method: Method::Gptq { more }, ranges: false })
}

fn awq(q: &Fields) -> Result<Quantized> {
    if q.need("bits")? != 4 {
        return Err(q.unsupported("bits", "of AWQ 4 is read"));
    }
    for key in ["version", "checkpoint_format", "format"] {
        if q.text(key)?.is_some_and(|version| !version.eq_ignore_ascii_case("gemm")) {
            return Err(q.unsupported(key, "of AWQ the form gemm is read"));
        }
    }
    Ok(Quantized { method: Method::Awq, ranges: false })
}
