//! Maps Hugging Face's tensor names to GGUF's.

use crate::formats::gguf::expert;
use crate::model::family::{Family, Joined, Named, SharedExpert};
use crate::model::layers::{attention, experts, gated, mtp};

/// Meaning of a tensor's name.
#[derive(Debug, PartialEq)]
pub(crate) enum Name {
    /// A tensor of the model, by GGUF's name.
    Tensor(String),
    /// Several tensors of the model in one, by their GGUF names.
    Parts(Vec<String>),
    /// The scale of a packed projection, by the GGUF name of its weights.
    Scale(String),
    /// A buffer of old files that follows from the configuration.
    Buffer,
    Unknown,
}

/// The end of a name of scales, where that of their weights has the other.
pub(crate) const SCALES: Named = ("_scales", "_blocks");

/// Maps a name. Names of a whole model begin with `model.`; those of a model without a head may lack it.
pub(crate) fn canonical(family: &Family, name: &str) -> Name {
    // The towers of images are not read.
    let visual = !family.hf_whole.is_empty() && family.towers.iter().any(|tower| name.starts_with(tower));
    let name = text(family, name);
    if name == "lm_head.weight" {
        return Name::Tensor("output.weight".into());
    }
    if visual {
        return Name::Buffer;
    }
    let name = text(family, name.strip_prefix("model.").unwrap_or(name));
    match name {
        "embed_tokens.weight" => return Name::Tensor("token_embd.weight".into()),
        "rotary_emb.inv_freq" => return Name::Buffer,
        _ => {}
    }
    if let Some((_, gguf)) = family.tensors.iter().find(|(hf, _)| *hf == name) {
        return Name::Tensor((*gguf).into());
    }
    let (norm, gguf) = family.final_norm;
    match name.strip_prefix(norm) {
        Some(".weight") => return Name::Tensor(format!("{gguf}.weight")),
        Some(".bias") if family.layer_norms => return Name::Tensor(format!("{gguf}.bias")),
        _ => {}
    }
    let Some((layer, part)) = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) else {
        return Name::Unknown;
    };
    if !canonical_number(layer) {
        return Name::Unknown;
    }
    if part == "self_attn.rotary_emb.inv_freq" {
        return Name::Buffer;
    }
    in_layer(family, layer, part)
}

/// Maps the name of a tensor of multi-token prediction, whose blocks follow the `layers` in GGUF. `None` if it is
/// another tensor's name.
pub(crate) fn further(family: &Family, layers: usize, name: &str) -> Option<Name> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    if family.latent {
        // Their blocks, which are not read, are numbered as layers are.
        let (n, part) = name.strip_prefix("layers.")?.split_once('.')?;
        let behind = canonical_number(n) && n.parse::<usize>().is_ok_and(|n| n >= layers);
        return behind.then(|| Name::Tensor(format!("blk.{n}.unread.{part}")));
    }
    let part = name.strip_prefix("mtp.").filter(|_| family.mtp)?;
    let layer = part.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let layer = layer.filter(|(n, _)| canonical_number(n));
    let layer = layer.and_then(|(n, part)| Some((layers + usize::from(n.parse::<u16>().ok()?), part)));
    let known = layer.map_or(Name::Unknown, |(n, part)| in_layer(family, &n.to_string(), part));
    let own = mtp::PARTS.iter().find(|(hf, _)| part.strip_suffix(".weight") == Some(hf));
    Some(match (known, own) {
        (Name::Unknown, Some((_, gguf))) => Name::Tensor(format!("blk.{layers}.nextn.{gguf}.weight")),
        (Name::Unknown, None) => Name::Tensor(format!("blk.{layers}.nextn.{part}")),
        (known, _) => known,
    })
}

/// The name in the text's model, which may stand in one of several kinds of input.
fn text<'a>(family: &Family, name: &'a str) -> &'a str {
    let inner = ["language_model.", "text_model."].iter().find_map(|part| name.strip_prefix(part));
    inner.filter(|_| !family.hf_whole.is_empty()).unwrap_or(name)
}

fn in_layer(family: &Family, layer: &str, part: &str) -> Name {
    for (hf, gguf) in projections(family) {
        let Some(tensor) = part.strip_prefix(hf).and_then(|rest| rest.strip_prefix('.')) else { continue };
        return match tensor {
            "weight" | "bias" => Name::Tensor(format!("blk.{layer}.{gguf}.{tensor}")),
            // transformers' name, and that of BitNet's embedding models.
            "rms_norm.weight" | "norm.weight" => Name::Tensor(format!("blk.{layer}.{gguf}_norm_in.weight")),
            "weight_scale" => Name::Scale(format!("blk.{layer}.{gguf}.weight")),
            _ => Name::Unknown,
        };
    }
    let is = |(hf, _): &&Named| *hf == part;
    if let Some((_, gguf)) = recurrent(family).chain(family.tensors).find(is) {
        return Name::Tensor(format!("blk.{layer}.{gguf}"));
    }
    if family.sinks && part == attention::SINKS.0 {
        return Name::Tensor(format!("blk.{layer}.{}", attention::SINKS.1));
    }
    let experts = in_experts(family, part);
    let all = interleaved(family);
    let weights =
        experts.and_then(|part| part.strip_suffix(SCALES.0)).map(|part| format!("{part}{}", SCALES.1));
    if let Some((_, parts)) = weights.and_then(|weights| all.iter().find(|(hf, _)| *hf == weights)) {
        return Name::Scale(format!("blk.{layer}.{}", parts[0]));
    }
    let in_turns = experts.and_then(|part| all.iter().find(|(hf, _)| *hf == part)).map(|(_, parts)| *parts);
    let joined = pairs(family).find(|(hf, _)| *hf == part).map(|(_, parts)| *parts);
    if let Some(parts) = in_turns.or(stacked(family, part)).or(joined) {
        return Name::Parts(parts.iter().map(|gguf| format!("blk.{layer}.{gguf}")).collect());
    }
    if family.experts.is_some_and(|experts| experts.bias == Some(part)) {
        return Name::Tensor(format!("blk.{layer}.{}", experts::BIAS));
    }
    if family.experts.is_some_and(|experts| experts.biases)
        && part.strip_suffix(".bias") == router(family).as_deref()
    {
        return Name::Tensor(format!("blk.{layer}.{}.bias", experts::ROUTER));
    }
    let bias = part.strip_suffix(".bias").filter(|_| family.layer_norms);
    if let Some((_, gguf)) = family.norms.iter().find(|(hf, _)| Some(*hf) == bias) {
        return Name::Tensor(format!("blk.{layer}.{gguf}.bias"));
    }
    let Some(part) = part.strip_suffix(".weight") else { return Name::Unknown };
    let is = |(hf, _): &&Named| *hf == part;
    let shared = shared(family).find(is).map(|(_, gguf)| *gguf);
    if let Some(gguf) = shared.or_else(|| (router(family)? == part).then_some(experts::ROUTER)) {
        return Name::Tensor(format!("blk.{layer}.{gguf}.weight"));
    }
    if let Some((expert, part)) = in_experts(family, part).and_then(|rest| rest.split_once('.')) {
        let parts = family.experts.map_or([""; 3], |experts| experts.parts);
        let known = parts.iter().position(|hf| *hf == part).filter(|_| canonical_number(expert));
        return known.map_or(Name::Unknown, |at| {
            Name::Tensor(format!("blk.{layer}.{}.{expert}.weight", experts::PARTS[at]))
        });
    }
    let gguf = family.norms.iter().find(|(hf, _)| *hf == part);
    gguf.map_or(Name::Unknown, |(_, gguf)| Name::Tensor(format!("blk.{layer}.{gguf}.weight")))
}

/// The names of the products of attention and dense feed-forwards in most families.
fn dense() -> impl Iterator<Item = &'static Named> {
    attention::PRODUCTS.iter().chain(gated::PRODUCTS)
}

/// The names of the family's products, those of fused ones before others of the same name in GGUF.
fn projections(family: &Family) -> impl Iterator<Item = &'static Named> {
    let qkv = family.fused.qkv.then_some(&attention::FUSED);
    let gate_up = family.fused.gate_up.then_some(&gated::FUSED);
    qkv.into_iter().chain(gate_up).chain(family.products).chain(dense())
}

/// The names of the family in a recurrent layer.
fn recurrent(family: &Family) -> impl Iterator<Item = &'static Named> + Clone {
    family.recurrent.into_iter().flat_map(|kind| kind.tensors().iter().copied().flatten())
}

fn pairs(family: &Family) -> impl Iterator<Item = &'static Joined> {
    family.recurrent.into_iter().flat_map(|kind| kind.joined()).chain(family.joined)
}

/// The contents of a tensor of all experts.
fn stacked(family: &Family, part: &str) -> Option<&'static [&'static str]> {
    let experts = family.experts?;
    let part = part.strip_prefix(experts.inside)?.strip_prefix('.')?;
    experts.stacked.iter().position(|hf| *hf == part).map(|at| experts::STACKED[at])
}

/// The part of a name after that of a layer's experts.
fn in_experts<'a>(family: &Family, part: &'a str) -> Option<&'a str> {
    part.strip_prefix(family.experts?.inside)?.strip_prefix(".experts.")
}

/// The name of the router in a layer.
fn router(family: &Family) -> Option<String> {
    family.experts.map(|experts| format!("{}.{}", experts.inside, experts.router))
}

/// The names of tensors that have all experts of a layer, if gate and up are in turns.
fn interleaved(family: &Family) -> &'static [Joined] {
    if family.experts.is_some_and(|experts| experts.interleaved) { experts::INTERLEAVED } else { &[] }
}

/// The names of the family in an expert that every row passes through.
fn shared(family: &Family) -> impl Iterator<Item = &'static Named> {
    family
        .experts
        .filter(|experts| experts.shared == SharedExpert::Weighed)
        .map(|_| experts::SHARED)
        .into_iter()
        .flatten()
}

/// GGUF's names, without `.weight`, of the products that a PEFT module of the family is.
pub(crate) fn products(family: &Family, module: &str) -> Vec<String> {
    let parts = match canonical(family, &format!("{module}.weight")) {
        Name::Tensor(name) => vec![name],
        Name::Parts(parts) => parts,
        Name::Scale(_) | Name::Buffer | Name::Unknown => Vec::new(),
    };
    parts.into_iter().filter_map(|name| name.strip_suffix(".weight").map(str::to_owned)).collect()
}

/// Whether the number is in its only accepted form: "+1" and "01" are other names.
fn canonical_number(layer: &str) -> bool {
    layer.parse::<u16>().is_ok_and(|n| n.to_string() == layer)
}

/// The reverse mapping, for errors: the name of the tensor `gguf` in the folder of a model with `layers` layers.
pub(crate) fn own(family: &Family, layers: usize, gguf: &str) -> Option<String> {
    let block = gguf.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    if let Some((_, part)) = block.filter(|(n, _)| family.mtp && n.parse() == Ok(layers)) {
        let own = part.strip_prefix("nextn.").and_then(|part| part.strip_suffix(".weight"));
        return match mtp::PARTS.iter().find(|(_, gguf)| own == Some(gguf)) {
            Some((hf, _)) => Some(format!("mtp.{hf}.weight")),
            None => own_of(family, &format!("blk.0.{part}")).map(|hf| hf.replacen("model.", "mtp.", 1)),
        };
    }
    own_of(family, gguf)
}

fn own_of(family: &Family, gguf: &str) -> Option<String> {
    match gguf {
        "token_embd.weight" => return Some("model.embed_tokens.weight".into()),
        "output.weight" => return Some("lm_head.weight".into()),
        "cls.output.weight" => return Some("score.weight".into()),
        _ => {}
    }
    if let Some((hf, _)) = family.tensors.iter().find(|(_, name)| *name == gguf) {
        return Some(format!("model.{hf}"));
    }
    let (norm, final_norm) = family.final_norm;
    if let Some(tensor) = gguf.strip_prefix(final_norm) {
        return Some(format!("model.{norm}{tensor}"));
    }
    let (layer, part) = gguf.strip_prefix("blk.")?.split_once('.')?;
    let whole = expert(gguf).and_then(|(all, _)| Some(all.split_once('.')?.1.split_once('.')?.1.to_owned()));
    let whole = whole.as_deref().unwrap_or(part);
    let known = recurrent(family).chain(family.tensors);
    let single = known.clone().find(|(_, gguf)| *gguf == part || *gguf == whole).map(|(hf, _)| hf);
    if let Some(hf) = single.or(pairs(family).find(|(_, pair)| pair.contains(&part)).map(|(hf, _)| hf)) {
        return Some(format!("model.layers.{layer}.{hf}"));
    }
    if part == experts::BIAS {
        return family.experts?.bias.map(|hf| format!("model.layers.{layer}.{hf}"));
    }
    if family.sinks && part == attention::SINKS.1 {
        return Some(format!("model.layers.{layer}.{}", attention::SINKS.0));
    }
    let (part, tensor) = part.rsplit_once('.')?;
    if let Some(experts) = family.experts.filter(|experts| experts.interleaved) {
        let all = format!("{}.{tensor}", part.split_once('.').map_or(part, |(all, _)| all));
        if let Some((hf, _)) = experts::INTERLEAVED.iter().find(|(_, parts)| parts.contains(&&*all)) {
            return Some(format!("model.layers.{layer}.{}.experts.{hf}", experts.inside));
        }
    }
    if let Some((part, expert)) = part.split_once('.') {
        let (at, experts) = (experts::PARTS.iter().position(|gguf| *gguf == part)?, family.experts?);
        let (inside, hf) = (experts.inside, experts.parts[at]);
        return Some(format!("model.layers.{layer}.{inside}.experts.{expert}.{hf}.{tensor}"));
    }
    if part == experts::ROUTER {
        return router(family).map(|hf| format!("model.layers.{layer}.{hf}.{tensor}"));
    }
    let (part, tensor) = match part.strip_suffix("_norm_in") {
        Some(part) => (part, "rms_norm.weight"),
        None => (part, tensor),
    };
    let mut parts = projections(family).chain(family.norms).chain(shared(family));
    parts.find(|(_, gguf)| *gguf == part).map(|(hf, _)| format!("model.layers.{layer}.{hf}.{tensor}"))
}

/// Whether this is the norm of a projection, under a name that only BitNet's embedding models use.
pub(crate) fn is_embedding_norm(name: &str) -> bool {
    name.ends_with("_proj.norm.weight")
}

/// Whether this is a projection of a layer. These are ternary in a ternary model.
pub(crate) fn is_projection(gguf: &str) -> bool {
    let part = gguf.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(_, part)| part);
    let part = part.and_then(|part| part.strip_suffix(".weight"));
    part.is_some_and(|part| dense().any(|(_, name)| *name == part))
}
