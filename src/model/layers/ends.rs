//! The ends of a decoder: the embedding of tokens, and the norm and the product that make logits.

use crate::base::{Error, Result};
use crate::kernels::Matrix;
use crate::model::config::DecoderConfig;
use crate::model::reader::Reader;
use crate::ops::pass::{Ids, Op, Pass, Product, Reg};
use crate::ops::{Fold, Norm, Projections, Site};
use std::sync::Arc;

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

#[derive(Clone)]
pub(crate) struct Ends {
    table: Matrix,
    /// The rotation that the table's rows are folded with.
    unfold: Option<Arc<Fold>>,
    /// The factor on the table's rows.
    scale: f32,
    /// That on embeddings that a request gives. `None`: they have another width, and those of tokens stay in place.
    given: Option<f32>,
    pub norm: Norm,
    pub head: Arc<Product>,
    /// The head is the embedding's own table.
    tied: bool,
}

/// Tensors that a block of multi-token prediction may have in place of the model's: the embedding, the norm without
/// `.weight`, and the head.
pub(crate) struct Own<'a> {
    pub table: &'a str,
    pub norm: &'a str,
    pub head: &'a str,
}

impl Ends {
    pub(crate) fn read(reader: &mut Reader, c: &DecoderConfig) -> Result<Self> {
        let table = reader.dense(EMBEDDING, c.vocab_size, c.hidden)?;
        let tied = !reader.has(HEAD);
        let matrix = if tied { table.clone() } else { reader.dense(HEAD, c.vocab_size, c.hidden)? };
        let norm = reader.norm(c.family.final_norm.1, c.hidden, c)?;
        let head = head(reader, c, matrix, if tied { EMBEDDING } else { HEAD })?;
        let unfold = unfold(reader, c)?;
        let (scale, given) = (c.embedding_scale / c.residual_scale, Some(1.0 / c.residual_scale));
        Ok(Self { table, unfold, scale, given, norm, head, tied })
    }

    /// The ends of a drafter in files of its own, of which it may lack any: it has the model's then.
    pub(crate) fn of_drafter(&self, reader: &mut Reader, c: &DecoderConfig) -> Result<Self> {
        let names = Own { table: EMBEDDING, norm: c.family.final_norm.1, head: HEAD };
        let mut ends = self.or_own(reader, c, &names)?;
        if reader.has(EMBEDDING) {
            ends.unfold = unfold(reader, c)?;
            if self.tied && !reader.has(HEAD) {
                ends.head = head(reader, c, ends.table.clone(), EMBEDDING)?;
            }
        }
        Ok(ends)
    }

    /// The ends of a head for drafts in files of its own, whose configuration is `c`, with logits of `tokens` tokens.
    /// It may lack the embedding and the product that makes logits: it has the model's then. `InvalidArgument` if they
    /// have other sizes.
    pub(crate) fn of_head(&self, reader: &mut Reader, c: &DecoderConfig, tokens: usize) -> Result<Self> {
        let (mut ends, width, vocab) = (self.clone(), self.table.cols, self.table.rows);
        let refuse =
            |reader: &Reader, why| Err(Error::invalid(format!("drafter_path: {}: {why}", reader.what())));
        ends.norm = reader.norm(c.family.final_norm.1, c.hidden, c)?;
        // Heads are trained with rows as they are in the table.
        ends.scale = 1.0;
        if reader.has(EMBEDDING) {
            if c.vocab_size < vocab {
                let why = format!("its {EMBEDDING} has {} tokens, and the model's {vocab}", c.vocab_size);
                return refuse(reader, why);
            }
            ends.table = reader.dense(EMBEDDING, c.vocab_size, c.hidden)?;
            (ends.unfold, ends.given) = (None, Some(1.0).filter(|_| c.hidden == width));
        } else if c.hidden != width {
            let why = format!(
                "it has no {EMBEDDING}, and the model's has rows of {width} where it takes {}",
                c.hidden
            );
            return refuse(reader, why);
        }
        if reader.has(HEAD) {
            let matrix = reader.dense(HEAD, tokens, c.hidden)?;
            ends.head = head(reader, c, matrix, HEAD)?;
        } else if [tokens, c.hidden] != [vocab, width] {
            let why =
                format!("it has no {HEAD}, and the model's makes logits of {vocab} tokens from {width}");
            return refuse(reader, why);
        }
        Ok(ends)
    }

    /// These, but for those that the files have under the names of `own`.
    pub(crate) fn or_own(&self, reader: &mut Reader, c: &DecoderConfig, own: &Own) -> Result<Self> {
        let mut ends = self.clone();
        if reader.has(own.table) {
            ends.table = reader.dense(own.table, c.vocab_size, c.hidden)?;
            ends.unfold = None;
        }
        if reader.has(&format!("{}.weight", own.norm)) {
            ends.norm = reader.norm(own.norm, c.hidden, c)?;
        }
        if reader.has(own.head) {
            let matrix = reader.dense(own.head, c.vocab_size, c.hidden)?;
            ends.head = head(reader, c, matrix, own.head)?;
        }
        Ok(ends)
    }

    /// The matrix of the head.
    pub(crate) fn rows(&self) -> &Matrix {
        &self.head.weights.matrices[0]
    }

    /// Pushes the embeddings of a step's tokens.
    pub(crate) fn embed(&self, pass: &mut Pass) -> Reg {
        let (scale, table) = (self.scale, self.table.clone());
        let x = pass.make(|to| Op::Embed { ids: Ids::Tokens, table, scale, to });
        self.unfold.iter().for_each(|fold| pass.push(Op::Unfold { x, fold: fold.clone() }));
        self.given.iter().for_each(|scale| pass.push(Op::Replace { x, scale: *scale }));
        x
    }
}

/// The product with `matrix`, the tensor `name`.
fn head(reader: &Reader, c: &DecoderConfig, matrix: Matrix, name: &str) -> Result<Arc<Product>> {
    let fold = match &c.rotations {
        Some(rotations) => rotations.of([name].into_iter(), c.hidden, None, reader.what())?,
        None => None,
    };
    Ok(Arc::new(Product {
        weights: Projections { fold: fold.map(Arc::new), ..[matrix].into() },
        site: Some(Site::Head),
        names: vec!["output".into()],
    }))
}

fn unfold(reader: &Reader, c: &DecoderConfig) -> Result<Option<Arc<Fold>>> {
    let rotations = c.rotations.as_ref().filter(|rotations| rotations.embedding);
    let fold = rotations.map(|rotations| rotations.fold(EMBEDDING, c.hidden, None, reader.what()));
    Ok(fold.transpose()?.map(Arc::new))
}
