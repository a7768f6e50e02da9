//! What a decoder needs to see pictures.

use super::facts::Facts;
use super::tower::Tower;
use crate::base::{Error, Result};
use crate::picture::Family;
use crate::text::Tokenizer;

/// The tower of a decoder, and how it stands in prompts.
pub struct Sight {
    pub tower: Tower,
    pub tokens: PictureTokens,
    /// Rows of pictures are rotated by their lines and columns (M-RoPE).
    pub by_grid: bool,
    /// Rows of a picture see each other in both directions.
    pub mutual: bool,
}

/// The tokens that stand for pictures.
#[derive(Clone, Copy, Debug)]
pub struct PictureTokens {
    /// For a picture in a prompt.
    pub placeholder: u32,
    /// For `Piece::Vectors`, where the texts around them are in the prompt.
    pub soft: u32,
    /// For each vector in a step, for inputs of single layers and for drafts.
    pub row: u32,
}

impl Sight {
    pub(super) fn new(tower: Tower, facts: &Facts, tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let processor = tower.processor();
        let by_grid = matches!(processor.family, Family::Qwen { .. });
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
        let token = |text: &str, own: Option<u32>| {
            let token = own.or_else(|| tokenizer?.control_token(text));
            token.filter(|token| (*token as usize) < facts.vocab_size).ok_or_else(|| {
                Error::unsupported(format!("the tokenizer has no token {text}, which stands for pictures"))
            })
        };
        let soft = token(processor.soft_token(), tower.token())?;
        let placeholder = match processor.placeholder() == processor.soft_token() {
            true => soft,
            false => token(processor.placeholder(), None)?,
        };
        // The padding token's, as in transformers and llama.cpp.
        let row = if matches!(processor.family, Family::Gemma4 { .. }) { 0 } else { soft };
        Ok(Self { tower, tokens: PictureTokens { placeholder, soft, row }, by_grid, mutual: facts.mutual })
    }
}
