//! Value heads of Gated DeltaNet that GGUF files have in another order than the checkpoint.

use crate::base::{Bytes, Error, Result, reserve};
use crate::kernels::{DType, Matrix};
use crate::ops::{DeltaShape, HeadOrder};

/// Value heads to write in another order.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    /// The checkpoint's shape, with its order.
    pub shape: DeltaShape,
    /// The file's order.
    pub order: HeadOrder,
}

/// The parts of a layer whose rows, columns or elements belong to value heads.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// `keys` rows of no value head, then `each` rows of each.
    Rows {
        keys: usize,
        each: usize,
    },
    /// A row of each value head, in the type that the checkpoint has.
    Gate,
    /// The gates of rates and decays in one matrix, by key heads.
    Gates,
    /// The columns belong to value heads.
    Columns,
    /// An element of each value head.
    Vector,
    Convolution,
}

impl Heads {
    /// Whether any head gets another place.
    fn move_heads(&self) -> bool {
        let DeltaShape { key_heads, value_heads, order, .. } = self.shape;
        order != self.order && key_heads > 1 && value_heads > key_heads
    }

    /// The checkpoint's index of an element whose index in the file is `at`. Each value head has `each` elements, which
    /// begin at `first`.
    fn source(&self, at: usize, first: usize, each: usize) -> usize {
        let Some(at) = at.checked_sub(first).filter(|_| self.move_heads()) else { return at };
        let (head, within) = (at / each, at % each);
        let DeltaShape { key_heads, value_heads, .. } = self.shape;
        let head = match self.order {
            HeadOrder::Tiled => head % key_heads * (value_heads / key_heads) + head / key_heads,
            HeadOrder::Grouped => {
                head % (value_heads / key_heads) * key_heads + head / (value_heads / key_heads)
            }
        };
        first + head * each + within
    }

    /// Dimensions in ggml's order, for a model of this width.
    pub(crate) fn dims(&self, part: Part, hidden: usize) -> Vec<u64> {
        let DeltaShape { value_heads, kernel, .. } = self.shape;
        let dims = match part {
            Part::Rows { keys, each } => vec![hidden, keys + value_heads * each],
            Part::Gate => vec![hidden, value_heads],
            Part::Gates => vec![hidden, 2 * value_heads],
            Part::Columns => vec![self.shape.values(), hidden],
            Part::Vector => vec![value_heads],
            Part::Convolution => vec![kernel, self.shape.channels()],
        };
        dims.into_iter().map(|dim| dim as u64).collect()
    }

    /// `m` with its rows, or its columns, in the file's order. `Unsupported` for blocks.
    pub(crate) fn reordered(&self, part: Part, m: Matrix) -> Result<Matrix> {
        if !self.move_heads() {
            return Ok(m);
        }
        let size = float_size(&m)?;
        let columns = matches!(part, Part::Columns);
        // Pieces that stay whole: elements of a row, or rows.
        let (piece, count) = if columns { (size, m.cols) } else { (size * m.cols, m.rows) };
        let (keys, each) = match part {
            Part::Rows { keys, each } => (keys, each),
            Part::Columns => (0, self.shape.value_dim),
            Part::Convolution => (2 * self.shape.keys(), self.shape.value_dim),
            Part::Gate | Part::Gates | Part::Vector => (0, 1),
        };
        let mut data: Vec<u8> = Vec::new();
        reserve(&mut data, m.data.len(), "a matrix")?;
        for line in m.data.chunks_exact(piece * count) {
            for at in 0..count {
                data.extend_from_slice(&line[self.source(at, keys, each) * piece..][..piece]);
            }
        }
        Matrix::new(Bytes::new(data), m.dtype, m.rows, m.cols)
    }

    /// The values of a vector in the file's order.
    pub(crate) fn vector(&self, values: &[f32]) -> impl Iterator<Item = f32> {
        (0..values.len()).map(|at| values[self.source(at, 0, 1)])
    }

    /// The gates of rates and decays as one matrix. `Unsupported` for blocks, and for two types.
    pub(crate) fn gates(&self, rates: &Matrix, decays: &Matrix) -> Result<Matrix> {
        if rates.dtype != decays.dtype {
            return Err(Error::unsupported("the gates of rates and decays have different types"));
        }
        let each = self.shape.value_heads / self.shape.key_heads;
        let bytes = each * float_size(rates)? * rates.cols;
        let mut data: Vec<u8> = Vec::new();
        reserve(&mut data, 2 * rates.data.len(), "a matrix")?;
        for (rates, decays) in rates.data.chunks_exact(bytes).zip(decays.data.chunks_exact(bytes)) {
            data.extend_from_slice(rates);
            data.extend_from_slice(decays);
        }
        Matrix::new(Bytes::new(data), rates.dtype, 2 * rates.rows, rates.cols)
    }
}

/// Bytes of an element. `Unsupported` for blocks.
fn float_size(m: &Matrix) -> Result<usize> {
    match m.dtype {
        DType::F32 => Ok(4),
        DType::F16 | DType::BF16 => Ok(2),
        other => Err(Error::unsupported(format!("heads of {other:?} weights cannot be reordered"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(order: HeadOrder, to: HeadOrder) -> Heads {
        let shape = DeltaShape { key_heads: 3, value_heads: 6, key_dim: 2, value_dim: 2, kernel: 2, order };
        Heads { shape, order: to }
    }

    #[test]
    fn heads_change_places_and_return() {
        use HeadOrder::{Grouped, Tiled};
        let tiled = heads(Grouped, Tiled);
        let order: Vec<usize> = (0..6).map(|at| tiled.source(at, 0, 1)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
        let back = heads(Tiled, Grouped);
        assert!((0..6).all(|at| order[back.source(at, 0, 1)] == at));
        assert_eq!((0..7).map(|at| tiled.source(at, 3, 2)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 7, 8]);
        assert!(!heads(Grouped, Grouped).move_heads());
    }

    #[test]
    fn rows_and_columns_follow_their_heads() {
        let heads = heads(HeadOrder::Grouped, HeadOrder::Tiled);
        let matrix = |rows: usize, cols: usize| {
            let values: Vec<u8> = (0..rows * cols).flat_map(|i| (i as f32).to_le_bytes()).collect();
            Matrix::new(Bytes::new(values), DType::F32, rows, cols).unwrap()
        };
        let first =
            |m: &Matrix, at: usize| f32::from_le_bytes(m.data[4 * at..4 * at + 4].try_into().unwrap());
        let rows = heads.reordered(Part::Rows { keys: 1, each: 1 }, matrix(7, 2)).unwrap();
        assert_eq!([0, 1, 2, 3].map(|row| first(&rows, row * 2)), [0.0, 2.0, 6.0, 10.0]);
        let columns = heads.reordered(Part::Columns, matrix(2, 12)).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 14].map(|at| first(&columns, at)), [0.0, 1.0, 4.0, 5.0, 8.0, 16.0]);
        let blocks = Matrix::new(Bytes::new(vec![0; 34 * 6]), DType::Q8_0, 6, 32).unwrap();
        assert!(heads.reordered(Part::Gate, blocks).err().unwrap().message.contains("Q8_0"));
    }
}
