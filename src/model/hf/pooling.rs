//! The way in which an embedding model's folder makes one vector of hidden states: `modules.json`, as
//! sentence-transformers writes it, and the file of its pooling module.

use super::config::parse;
use super::fields::Fields;
use crate::base::{Error, Result};
use crate::formats::hf::Folder;
use crate::model::Pooling;
use crate::model::encoder::HeadActivation;
use serde_json::Value;

const MODULES: &str = "modules.json";
const MAX_BYTES: u64 = 1 << 16;

/// The way from hidden states to an embedding.
#[derive(Default)]
pub(super) struct Modules {
    pub pooling: Option<Pooling>,
    /// There are modules, and none divides embeddings by their length.
    pub raw: bool,
    /// Products of the pooled state.
    pub dense: Vec<DenseModule>,
    /// The tokens whose logits make a score: that for relevance, and the other one.
    pub tokens: Option<(usize, Option<usize>)>,
}

/// A product with its own folder.
pub(super) struct DenseModule {
    pub path: String,
    pub from: usize,
    pub to: usize,
    pub activation: HeadActivation,
}

/// Reads a decoder's pooling. Without a file, it is the last token's hidden state: for text generators, and for
/// BitNet's embedding models.
pub(super) fn of_decoder(folder: &Folder, modules: &Modules) -> Result<Pooling> {
    match modules.dense.first() {
        None => Ok(modules.pooling.unwrap_or(Pooling::Last)),
        Some(dense) => Err(Error::unsupported(format!(
            "{}: the module {} is a product after pooling, which is computed for encoders",
            folder.path_of(MODULES),
            dense.path
        ))),
    }
}

pub(super) fn modules(folder: &Folder) -> Result<Modules> {
    let mut found = Modules::default();
    let Some(json) = folder.read(MODULES, MAX_BYTES)? else { return Ok(found) };
    let what = folder.path_of(MODULES);
    let json = parse(&json, &what)?;
    let Some(modules) = json.as_array() else {
        return Err(Error::bad_model(format!("{what}: it is not a JSON array")));
    };
    found.raw = true;
    for module in modules {
        let module = Fields::new(module, &what)?;
        let kind = module.text("type")?.and_then(|kind| kind.rsplit('.').next());
        match kind {
            Some("Transformer") => {}
            Some("Normalize") => found.raw = false,
            Some("Pooling") => found.pooling = Some(of_module(folder, &module)?),
            Some("Dense") => found.dense.push(dense(folder, &module)?),
            Some("LogitScore" | "CausalScoreHead") => found.tokens = Some(tokens(folder, &module)?),
            _ => {
                let why = "of modules only Transformer, Pooling, Dense, Normalize and LogitScore are known";
                return Err(module.unsupported("type", why));
            }
        }
    }
    Ok(found)
}

/// The path of a module's folder, its configuration, and the name of that in errors.
fn config_of(folder: &Folder, module: &Fields) -> Result<(String, Value, String)> {
    let path = module.text("path")?.unwrap_or_default();
    if path.is_empty() || path.contains(['/', '\\', '\0']) || path.starts_with('.') {
        return Err(module.bad("path", "it must be the plain name of a folder in the folder"));
    }
    let name = format!("{path}/config.json");
    let what = folder.path_of(&name);
    let Some(json) = folder.read(&name, MAX_BYTES)? else {
        return Err(module.bad("path", format_args!("there is no {name}")));
    };
    Ok((path.to_owned(), parse(&json, &what)?, what))
}

fn of_module(folder: &Folder, module: &Fields) -> Result<Pooling> {
    let (_, json, what) = config_of(folder, module)?;
    mode(&json, &what)
}

fn tokens(folder: &Folder, module: &Fields) -> Result<(usize, Option<usize>)> {
    let (_, json, what) = config_of(folder, module)?;
    let config = Fields::new(&json, &what)?;
    Ok((config.need("true_token_id")?, config.size("false_token_id")?))
}

fn dense(folder: &Folder, module: &Fields) -> Result<DenseModule> {
    let (path, json, what) = config_of(folder, module)?;
    let config = Fields::new(&json, &what)?;
    let function = config.text("activation_function")?.unwrap_or("torch.nn.modules.activation.Tanh");
    let activation = match function.rsplit('.').next() {
        Some("Identity") => HeadActivation::None,
        Some("Tanh") => HeadActivation::Tanh,
        Some("GELU") => HeadActivation::Gelu,
        _ => return Err(config.unsupported("activation_function", "known are Identity, Tanh and GELU")),
    };
    Ok(DenseModule { path, from: config.need("in_features")?, to: config.need("out_features")?, activation })
}

/// Exactly one mode, given by its own key or, in newer files, by name.
fn mode(json: &Value, what: &str) -> Result<Pooling> {
    let config = Fields::new(json, what)?;
    let known = [("cls_token", Pooling::First), ("mean_tokens", Pooling::Mean), ("lasttoken", Pooling::Last)];
    let mut found = Vec::new();
    for (key, pooling) in known {
        if config.flag(&format!("pooling_mode_{key}"))?.unwrap_or(false) {
            found.push(pooling);
        }
    }
    for key in ["max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens"] {
        let key = format!("pooling_mode_{key}");
        if config.flag(&key)?.unwrap_or(false) {
            return Err(
                config.unsupported(&key, "pooled are the first token's state, the last's, or the mean")
            );
        }
    }
    if let Some(name) = config.text("pooling_mode")? {
        found.push(match name {
            "cls" => Pooling::First,
            "mean" => Pooling::Mean,
            "lasttoken" => Pooling::Last,
            _ => return Err(config.unsupported("pooling_mode", "known are cls, mean and lasttoken")),
        });
    }
    match found[..] {
        [pooling] => Ok(pooling),
        _ => {
            Err(Error::unsupported(format!("{what}: it has {} pooling modes; one is computed", found.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_mode_by_either_spelling() {
        for (key, name, pooling) in [
            ("cls_token", "cls", Pooling::First),
            ("mean_tokens", "mean", Pooling::Mean),
            ("lasttoken", "lasttoken", Pooling::Last),
        ] {
            let key = format!("pooling_mode_{key}");
            assert_eq!(mode(&json!({ "word_embedding_dimension": 8, key: true }), "x").unwrap(), pooling);
            assert_eq!(mode(&json!({ "pooling_mode": name }), "x").unwrap(), pooling);
        }
        for (bad, part) in [
            (json!({}), "0 pooling modes"),
            (json!({"pooling_mode_cls_token": true, "pooling_mode_lasttoken": true}), "2 pooling modes"),
            (json!({"pooling_mode_max_tokens": true}), "pooling_mode_max_tokens"),
            (json!({"pooling_mode": "max"}), "'pooling_mode' is 'max'"),
            (json!({"pooling_mode": 1}), "string"),
            (json!([]), "object"),
        ] {
            let error = mode(&bad, "x").err().unwrap();
            assert!(error.message.contains(part), "{bad}: {error}");
        }
    }
}
