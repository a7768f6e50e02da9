//! What a decoder needs to see pictures.

use super::options::LoadOptions;
use super::tower::Tower;
use super::{Facts, Source, load_tower};
use crate::base::log::WARN;
use crate::base::{Error, Result, Status};
use crate::kernels::Pool;
use crate::picture::Family;
use crate::text::Tokenizer;
use std::path::Path;

/// The tower of a decoder, and how it stands in prompts.
pub struct Sight {
    pub tower: Tower,
    /// The token that stands for a picture in prompts.
    pub placeholder: u32,
    /// Rows of pictures are rotated by their lines and columns (M-RoPE).
    pub by_grid: bool,
}

/// Loads the tower of a model with these facts, if it has one. A tower of its own file has to fit; a folder's that is not
/// read is named in the log.
pub(super) fn load(
    source: &Source,
    options: &LoadOptions,
    facts: &Facts,
    tokenizer: Option<&Tokenizer>,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Option<Sight>> {
    let folder = matches!(source, Source::File(path) if Path::new(path).is_dir());
    let mut open = |source: &Source| {
        let tower = load_tower(source, options.max_weight_bytes, pool, log, progress)?;
        tower.map(|tower| Sight::new(tower, facts, tokenizer)).transpose()
    };
    match &options.pictures {
        Some(_) if folder => {
            Err(Error::invalid("pictures_path is set, and a folder has its tower among its own files"))
        }
        Some(path) => open(&Source::File(path.clone()))
            .map_err(|error| Error::new(error.status, format!("pictures_path: {}", error.message))),
        None if folder && !facts.encodes => open(source).or_else(|error| match error.status {
            Status::Unsupported => {
                log(WARN, &format!("pictures are refused: {error}"));
                Ok(None)
            }
            _ => Err(error),
        }),
        None => Ok(None),
    }
}

impl Sight {
    fn new(tower: Tower, facts: &Facts, tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let by_grid = match tower.processor().family {
            Family::Qwen { .. } => true,
            Family::Idefics3 { .. } | Family::Pixtral { .. } | Family::Lfm2(_) => false,
            // Their pictures' rows see each other in both directions.
            Family::Gemma3 { .. } | Family::Gemma4 { .. } => {
                return Err(Error::unsupported(
                    "the model has a tower, and pictures of Gemma are not taken yet",
                ));
            }
        };
        if tower.width() != facts.hidden_size {
            let (width, hidden) = (tower.width(), facts.hidden_size);
            return Err(Error::bad_model(format!(
                "a tower that makes vectors of {width}, where the model has a hidden size of {hidden}"
            )));
        }
        if by_grid && !facts.axes {
            return Err(Error::unsupported(
                "the model has a tower, and does not rotate by lines and columns",
            ));
        }
        let text = tower.processor().placeholder();
        let token = tower.token().or_else(|| tokenizer?.control_token(text));
        let token = token.filter(|token| (*token as usize) < facts.vocab_size);
        let placeholder = token.ok_or_else(|| {
            Error::unsupported(format!("the tokenizer has no token {text}, which stands for pictures"))
        })?;
        Ok(Self { tower, placeholder, by_grid })
    }
}
