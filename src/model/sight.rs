//! What a decoder needs to see pictures.

use super::facts::Facts;
use super::tower::Tower;
use crate::base::{Error, Result};
use crate::picture::Family;
use crate::text::Tokenizer;

/// The tower of a decoder, and how it stands in prompts.
pub struct Sight {
    pub tower: Tower,
    /// The token that stands for a picture in prompts.
    pub placeholder: u32,
    /// Rows of pictures are rotated by their lines and columns (M-RoPE).
    pub by_grid: bool,
}

impl Sight {
    pub(super) fn new(tower: Tower, facts: &Facts, tokenizer: Option<&Tokenizer>) -> Result<Self> {
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
