//! Folders of decoders that score pairs of texts: classifiers of one label or of yes and no, and those that
//! sentence-transformers' `LogitScore` or their own card makes of two tokens.

use super::chat;
use super::config::parse;
use super::fields::Fields;
use super::pooling::Modules;
use crate::base::Result;
use crate::formats::hf::Folder;
use crate::model::family::Family;
use crate::model::score::{self, ScoreRows};
use crate::text::ChatTemplate;
use crate::text::chat::pair;

const README: &str = "README.md";
const MAX_README_BYTES: u64 = 1 << 20;
const SENTENCES: &str = "config_sentence_transformers.json";
const MAX_BYTES: u64 = 1 << 16;

/// How the folder's model scores pairs, if it does.
pub(super) fn read(
    folder: &Folder,
    config: &Fields,
    family: &Family,
    modules: &Modules,
) -> Result<Option<ScoreRows>> {
    let classes = config.texts("architectures")?.unwrap_or_default();
    if classes.first().is_some_and(|class| class.ends_with("ForSequenceClassification")) {
        activation(folder)?;
        return labels(config).map(Some);
    }
    if let Some((yes, no)) = modules.tokens {
        activation(folder)?;
        return Ok(Some(ScoreRows::Tokens { yes, no }));
    }
    Ok(is_qwen3_reranker(folder, family)?.then_some(ScoreRows::Words))
}

/// The number of a classifier's labels, and the key that says it. `None`: no key does.
pub(super) fn label_count(config: &Fields) -> Result<Option<(usize, &'static str)>> {
    Ok(match config.object("id2label")? {
        Some(labels) => Some((labels.keys().count(), "id2label")),
        None => config.size("num_labels")?.map(|count| (count, "num_labels")),
    })
}

/// The labels of a classifier. Without names there are as many as transformers counts: two.
fn labels(config: &Fields) -> Result<ScoreRows> {
    let named = config.object("id2label")?;
    let count = label_count(config)?.map_or(2, |(count, _)| count);
    let label = |id: &str| named.as_ref().map_or(Ok(None), |labels| labels.text(id));
    match (count, label("0")?, label("1")?) {
        (1, ..) => Ok(ScoreRows::Labels { two: false, yes: 0 }),
        (2, Some(first), Some(second)) => {
            let yes = ScoreRows::of_labels(&[first, second]);
            yes.ok_or_else(|| config.unsupported("id2label", "of two labels one must be yes and one no"))
        }
        _ => Err(config.unsupported("id2label", "classifiers of one label, or of yes and no, are known")),
    }
}

/// The function of the score: a logistic one gives a number within 0 and 1, and so does this library where it is left
/// to the caller.
fn activation(folder: &Folder) -> Result<()> {
    let Some(json) = folder.read(SENTENCES, MAX_BYTES)? else { return Ok(()) };
    let what = folder.path_of(SENTENCES);
    let json = parse(&json, &what)?;
    let config = Fields::new(&json, &what)?;
    match config.text("activation_fn")?.and_then(|name| name.rsplit('.').next()) {
        None | Some("Sigmoid" | "Identity") => Ok(()),
        Some(_) => Err(config.unsupported("activation_fn", "known are Sigmoid and Identity")),
    }
}

/// Whether the folder is a Qwen3-Reranker by its name or its card: as it was published, nothing else says so.
fn is_qwen3_reranker(folder: &Folder, family: &Family) -> Result<bool> {
    if family.hf != Some("qwen3") {
        return Ok(false);
    }
    if score::names_qwen3_reranker(folder.name()) {
        return Ok(true);
    }
    // A card that cannot be read says nothing.
    let card = folder.read(README, MAX_README_BYTES).ok().flatten().unwrap_or_default();
    Ok(String::from_utf8_lossy(&card).to_ascii_lowercase().contains("# qwen3-reranker"))
}

/// The prompt of a pair: the folder's chat template if it knows the roles, or Qwen3-Reranker's own. `None`: the
/// tokenizer says how two texts are put together.
pub(super) fn template(folder: &Folder, family: &Family) -> Result<Option<ChatTemplate>> {
    if chat::source(folder)?.is_some_and(|source| pair::takes_pairs(&source.text)) {
        // The chat's template is the same text and has given its warnings.
        return chat::read(folder, &|_| ());
    }
    match is_qwen3_reranker(folder, family)? {
        true => pair::of_text(pair::QWEN3_RERANKER).map(Some),
        false => Ok(None),
    }
}
