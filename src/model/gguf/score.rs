//! GGUF files of decoders that score pairs of texts: `pooling_type` 4, with the rows of the score in `cls.output`.

use super::Keys;
use crate::base::Result;
use crate::formats::gguf::Gguf;
use crate::model::score::{ScoreRows, names_qwen3_reranker};
use crate::text::ChatTemplate;
use crate::text::chat::pair;

/// The pooling of a file that ranks, in llama.cpp's numbers.
pub(super) const RANK: u32 = 4;

const ROWS: &str = "cls.output.weight";

impl Keys<'_> {
    /// The rows of the score, if the file has any.
    pub(super) fn score(&self) -> Result<Option<ScoreRows>> {
        const LABELS: &str = "classifier.output_labels";
        let ranks = self.find::<u32>("pooling_type")? == Some(RANK);
        let Some(tensor) = self.gguf.tensor(ROWS).filter(|_| ranks) else {
            // Without such rows it would be no more than a generator.
            if ranks {
                return Err(self.names.unsupported("pooling_type", format_args!("{RANK} without {ROWS}")));
            }
            return Ok(is_qwen3_reranker(self.gguf)?.then_some(ScoreRows::Words));
        };
        let labels = self.find::<Vec<&str>>(LABELS)?.unwrap_or_default();
        // The order of llama.cpp's converter, which names them.
        let labels = match (labels.is_empty(), tensor.dims[1]) {
            (true, 1) => vec!["yes"],
            (true, 2) => vec!["yes", "no"],
            _ => labels,
        };
        let rows = ScoreRows::of_labels(&labels).filter(|_| labels.len() == tensor.dims[1]);
        let which = || format!("a list of {} for {} rows", labels.join(", "), tensor.dims[1]);
        rows.map(Some).ok_or_else(|| self.names.unsupported(LABELS, which()))
    }
}

/// Whether a file without such rows, as older converters wrote them, is a Qwen3-Reranker by its name.
fn is_qwen3_reranker(gguf: &Gguf) -> Result<bool> {
    let name = gguf.find::<&str>("general.name")?.unwrap_or_default();
    let own = gguf.find::<&str>("general.architecture")? == Some("qwen3");
    Ok(own && names_qwen3_reranker(name))
}

/// The prompt of a pair.
pub(super) fn template(gguf: &Gguf) -> Result<Option<ChatTemplate>> {
    match pair::from_gguf(gguf)? {
        None if is_qwen3_reranker(gguf)? => pair::of_text(pair::QWEN3_RERANKER).map(Some),
        found => Ok(found),
    }
}
