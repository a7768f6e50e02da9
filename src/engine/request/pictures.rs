//! The pictures of a request's prompt: where their vectors stand, and the vectors.

use crate::base::sync::Mutex;
use crate::base::{Error, Result, reserve};
use crate::cache::{ContentId, Digest, PictureSpan};
use crate::model::PictureTokens;
use crate::ops::RaggedBatch;
use crate::picture::{Piece, Plan};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A picture, which several requests may share.
pub(crate) struct Picture {
    digest: Digest,
    /// A keyed hash of the digest.
    key: u64,
    pub plan: Plan,
    /// What the tower reads, until it does.
    patches: Mutex<Vec<f32>>,
    /// What the tower makes of it, `[positions, hidden]`.
    vectors: OnceLock<Vec<f32>>,
}

impl Picture {
    pub(crate) fn new(digest: Digest, key: u64, plan: Plan, patches: Vec<f32>) -> Self {
        Self { digest, key, plan, patches: Mutex::new(patches), vectors: OnceLock::new() }
    }

    /// Calls the function with the patches. `None` if the vectors are there.
    pub(crate) fn with_patches<T>(&self, each: impl FnOnce(&[f32]) -> T) -> Option<T> {
        let patches = self.patches.lock();
        self.vectors.get().is_none().then(|| each(&patches))
    }

    pub(crate) fn see(&self, vectors: Vec<f32>) {
        let _ = self.vectors.set(vectors);
        *self.patches.lock() = Vec::new();
    }
}

/// Bytes of a picture's patches and vectors.
pub(crate) fn bytes(plan: &Plan, patch_len: usize, hidden: usize) -> u64 {
    let elements =
        plan.patches().saturating_mul(patch_len).saturating_add(plan.vectors().saturating_mul(hidden));
    (size_of::<Picture>() as u64).saturating_add((elements as u64).saturating_mul(size_of::<f32>() as u64))
}

/// Tokenizes a text between vectors.
pub(crate) type Tokens<'a> = &'a dyn Fn(&str) -> Result<Vec<u32>>;

pub(crate) fn misplaced(places: usize, pictures: usize) -> Error {
    Error::invalid(format!("the prompt has {places} places for pictures where {pictures} belong"))
}

/// Number of positions of a plan's pieces.
pub(crate) fn positions(plan: &Plan, tokens: Tokens) -> Result<usize> {
    plan.pieces.iter().try_fold(plan.vectors(), |sum, piece| match piece {
        Piece::Text(text) => Ok(sum + tokens(text)?.len()),
        Piece::Vectors { .. } => Ok(sum),
    })
}

/// Positions that vectors `first ..` of a picture take, `rows` lines of `cols`.
#[derive(Clone, Copy, Debug)]
struct Span {
    at: u32,
    rows: u32,
    cols: u32,
    picture: usize,
    first: u32,
    /// How far positions lie behind the numbers that rows before it are rotated by.
    behind: u32,
}

impl Span {
    fn end(&self) -> u32 {
        self.at + self.rows * self.cols
    }

    /// A picture moves what follows it by its longer side, not by its positions (M-RoPE, Wang et al. 2024).
    fn behind_after(&self) -> u32 {
        self.behind + self.rows * self.cols - self.rows.max(self.cols)
    }
}

/// The pictures of a prompt.
pub(crate) struct Pictures {
    pictures: Vec<Arc<Picture>>,
    /// In ascending order.
    spans: Vec<Span>,
    /// Rows of a span see each other in both directions.
    mutual: bool,
}

impl Pictures {
    /// Gives vectors their positions: `ids` have `soft` for each piece of vectors, or with `spread`, which tokenizes
    /// texts, `placeholder` for each picture. `InvalidArgument` if there are fewer or more.
    pub(crate) fn place(
        ids: &[u32],
        tokens: PictureTokens,
        pictures: Vec<Arc<Picture>>,
        spread: Option<Tokens>,
    ) -> Result<(Vec<u32>, Self)> {
        let own = |picture: usize| pictures[picture].plan.pieces.iter().map(move |piece| (picture, piece));
        let mut pieces = (0..pictures.len()).flat_map(own).peekable();
        let more = pictures.iter().map(|picture| picture.plan.vectors()).sum::<usize>();
        let place = if spread.is_some() { tokens.placeholder } else { tokens.soft };
        let found = ids.iter().filter(|id| **id == place).count();
        let wanted = match spread {
            Some(_) => pictures.len(),
            None => pieces.clone().filter(|(_, piece)| matches!(piece, Piece::Vectors { .. })).count(),
        };
        if found != wanted {
            return Err(misplaced(found, wanted));
        }
        let (mut placed, mut spans, mut first) = (Vec::new(), Vec::<Span>::new(), 0);
        reserve(&mut placed, ids.len() + more, "a prompt")?;
        for id in ids {
            if *id != place {
                placed.push(*id);
                continue;
            }
            while let Some((picture, piece)) = pieces.next() {
                match (piece, spread) {
                    (Piece::Text(text), Some(spread)) => placed.extend(spread(text)?),
                    (Piece::Text(_), None) => continue,
                    (Piece::Vectors { rows, cols }, _) => {
                        let last = spans.last();
                        let (rows, cols, behind) = (*rows, *cols, last.map_or(0, Span::behind_after));
                        first = if last.is_some_and(|last| last.picture == picture) { first } else { 0 };
                        spans.push(Span { at: placed.len() as u32, rows, cols, picture, first, behind });
                        placed.resize(placed.len() + (rows * cols) as usize, tokens.row);
                        first += rows * cols;
                    }
                }
                let more = pieces.peek().is_some_and(|(next, _)| *next == picture);
                if spread.is_none() || !more {
                    break;
                }
            }
        }
        Ok((placed, Self { pictures, spans, mutual: false }))
    }

    /// The same, with rows that see each other in both directions or do not.
    pub(crate) fn mutual(self, mutual: bool) -> Self {
        Self { mutual, ..self }
    }

    /// The positions of a span that runs in one step, if `position` divides it.
    pub(crate) fn undivided(&self, position: u32) -> Option<Range<u32>> {
        let span = self.before(position).filter(|_| self.mutual)?;
        (span.at < position && position < span.end()).then(|| span.at..span.end())
    }

    /// Bytes of the pictures' patches, of `patch_len` elements, and of their vectors, `hidden` wide.
    pub(crate) fn bytes(&self, patch_len: usize, hidden: usize) -> u64 {
        let spans = size_of_val(&self.spans[..]) as u64;
        spans + self.pictures.iter().map(|picture| bytes(&picture.plan, patch_len, hidden)).sum::<u64>()
    }

    /// The position after the last vector.
    pub(crate) fn end(&self) -> u32 {
        self.spans.last().map_or(0, Span::end)
    }

    /// Checks that a step has the rows of logits of what runs in one: at most `most`, where rows from position `from`
    /// on give logits.
    pub(crate) fn check_logits(&self, from: u32, most: usize) -> Result<()> {
        let wanted = |span: &Span| span.end().saturating_sub(span.at.max(from)) as usize;
        let wanted = self.spans.iter().map(wanted).max().unwrap_or(0);
        if !self.mutual || wanted <= most {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "log probabilities of a picture's {wanted} positions, which run in one step: beside max_batch_size it has {most} \
             rows of logits; ask for those behind the picture"
        )))
    }

    /// The span before or around a position.
    fn before(&self, position: u32) -> Option<&Span> {
        self.spans[..self.spans.partition_point(|span| span.at <= position)].last()
    }

    /// The spans that overlap a range of positions.
    fn within(&self, range: &Range<u32>) -> &[Span] {
        let from = self.spans.partition_point(|span| span.end() <= range.start);
        let to = self.spans.partition_point(|span| span.at < range.end);
        &self.spans[from..to.max(from)]
    }

    /// What the position has in place of a token, if it is a picture's.
    pub(crate) fn content(&self, position: u32) -> Option<ContentId> {
        let span = self.before(position).filter(|span| position < span.end())?;
        Some(ContentId::of_vector(self.pictures[span.picture].key, span.first + position - span.at))
    }

    /// The pictures of the first `positions` positions, for a session.
    pub(crate) fn spans(&self, positions: u32) -> Result<Vec<PictureSpan>> {
        let own = self.within(&(0..positions));
        let mut spans = Vec::new();
        reserve(&mut spans, own.len(), "a session's pictures")?;
        spans.extend(own.iter().map(|span| PictureSpan {
            at: span.at,
            count: span.end().min(positions) - span.at,
            first: span.first,
            digest: self.pictures[span.picture].digest,
        }));
        Ok(spans)
    }

    /// The numbers that a position is rotated by, for the axes of time, height and width.
    pub(crate) fn rotation(&self, position: u32) -> [u32; 3] {
        match self.before(position) {
            None => [position; 3],
            Some(span) if position < span.end() => {
                let (at, n) = (span.at - span.behind, position - span.at);
                [at, at + n / span.cols, at + n % span.cols]
            }
            Some(span) => [position - span.behind_after(); 3],
        }
    }

    pub(crate) fn has(&self, picture: &Arc<Picture>) -> bool {
        self.pictures.iter().any(|own| Arc::ptr_eq(own, picture))
    }

    /// The first picture without vectors whose positions overlap the range.
    pub(crate) fn unseen(&self, range: Range<u32>) -> Option<&Arc<Picture>> {
        let pictures = self.within(&range).iter().map(|span| &self.pictures[span.picture]);
        pictures.into_iter().find(|picture| picture.vectors.get().is_none())
    }

    /// Adds the vectors of the positions in `range` to `batch`, in which row `row` is the first of them.
    pub(crate) fn fill(&self, range: Range<u32>, row: u32, batch: &mut RaggedBatch) -> Result<()> {
        for span in self.within(&range) {
            let (from, to) = (span.at.max(range.start), span.end().min(range.end));
            let picture = &self.pictures[span.picture];
            let Some(vectors) = picture.vectors.get() else {
                return Err(Error::internal("rows of a picture before the tower has seen it"));
            };
            let hidden = vectors.len() / picture.plan.vectors().max(1);
            let first = (span.first + from - span.at) as usize;
            let taken = &vectors[first * hidden..(first + (to - from) as usize) * hidden];
            reserve(&mut batch.vectors, taken.len(), "a step's pictures")?;
            reserve(&mut batch.vector_rows, (to - from) as usize, "a step's pictures")?;
            batch.vectors.extend_from_slice(taken);
            let rows = row + from - range.start..row + to - range.start;
            batch.vector_rows.extend(rows.clone());
            if self.mutual {
                reserve(&mut batch.mutual, 1, "a step's pictures")?;
                batch.mutual.push(rows);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(key: u64, pieces: Vec<Piece>) -> Arc<Picture> {
        let mut plan = Plan::default();
        plan.pieces = pieces;
        Arc::new(Picture::new([key as u8; 32], key, plan, Vec::new()))
    }

    const ONE: PictureTokens = PictureTokens { placeholder: 9, soft: 9, row: 9 };

    fn vectors(rows: u32, cols: u32) -> Piece {
        Piece::Vectors { rows, cols }
    }

    fn placed() -> (Vec<u32>, Pictures) {
        let tiles = vec![Piece::Text("x".into()), vectors(1, 2), Piece::Text("y".into()), vectors(2, 1)];
        let pictures = vec![picture(1, vec![vectors(2, 3)]), picture(2, tiles)];
        let tokens = |text: &str| Ok(vec![u32::from(text.as_bytes()[0])]);
        Pictures::place(&[5, 9, 6, 9, 7], ONE, pictures, Some(&tokens)).unwrap()
    }

    #[test]
    fn pieces_take_the_place_of_placeholders() {
        let (ids, own) = placed();
        // The same if the texts are there already.
        let marks = [5, 9, 6, 120, 9, 121, 9, 7];
        let (again, other) = Pictures::place(&marks, ONE, own.pictures.clone(), None).unwrap();
        assert_eq!(again, ids);
        let spans = |pictures: &Pictures| format!("{:?}", pictures.spans);
        assert_eq!(spans(&own), spans(&other));
        assert_eq!(ids, [5, 9, 9, 9, 9, 9, 9, 6, 120, 9, 9, 121, 9, 9, 7]);
        for (ids, found) in [(&[9, 9][..], 2), (&[1], 0)] {
            let one = vec![picture(1, vec![vectors(1, 1)])];
            let error = Pictures::place(ids, ONE, one, Some(&|_| Ok(Vec::new()))).err().unwrap();
            assert!(error.message.contains(&format!("{found} places for pictures")), "{error}");
        }
    }

    #[test]
    fn a_model_may_have_three_tokens_for_pictures() {
        let tokens = PictureTokens { placeholder: 9, soft: 8, row: 0 };
        let pieces = vec![Piece::Text("x".into()), vectors(1, 2), Piece::Text("y".into())];
        let one = || vec![picture(1, pieces.clone())];
        // The text of the picture has its placeholder again.
        let text = |text: &str| Ok(vec![u32::from(text.as_bytes()[0]), 9]);
        let (ids, _) = Pictures::place(&[5, 9, 6], tokens, one(), Some(&text)).unwrap();
        assert_eq!(ids, [5, 120, 9, 0, 0, 121, 9, 6]);
        let (again, _) = Pictures::place(&[5, 120, 9, 8, 121, 9, 6], tokens, one(), None).unwrap();
        assert_eq!(again, ids);
    }

    #[test]
    fn rows_that_see_each_other_run_in_one_step() {
        let (_, pictures) = placed();
        assert!((0..20).all(|at| pictures.undivided(at).is_none()));
        let pictures = pictures.mutual(true);
        for (at, want) in
            [(0, None), (1, None), (2, Some(1..7)), (6, Some(1..7)), (7, None), (13, Some(12..14))]
        {
            assert_eq!(pictures.undivided(at), want, "{at}");
        }
        pictures.pictures.iter().for_each(|own| own.see(vec![0.0; 2 * own.plan.vectors()]));
        let mut batch = RaggedBatch::default();
        pictures.fill(0..9, 5, &mut batch).unwrap();
        pictures.fill(12..15, 30, &mut batch).unwrap();
        assert_eq!(batch.mutual, [6..12, 30..32]);
    }

    #[test]
    fn rotations_follow_lines_and_columns() {
        let (ids, pictures) = placed();
        let all: Vec<_> = (0..ids.len() as u32).map(|at| pictures.rotation(at)).collect();
        let text = |at| [at; 3];
        let want = [
            text(0),
            [1, 1, 1],
            [1, 1, 2],
            [1, 1, 3],
            [1, 2, 1],
            [1, 2, 2],
            [1, 2, 3],
            text(4),
            text(5),
            [6, 6, 6],
            [6, 6, 7],
            text(8),
            [9, 9, 9],
            [9, 10, 9],
            text(11),
        ];
        assert_eq!(all, want);
    }

    #[test]
    fn positions_of_pictures_have_contents_and_vectors() {
        let (ids, pictures) = placed();
        let own: Vec<u32> = (0..ids.len() as u32).filter(|at| pictures.content(*at).is_some()).collect();
        assert_eq!(own, [1, 2, 3, 4, 5, 6, 9, 10, 12, 13]);
        assert_eq!(pictures.content(12), Some(ContentId::of_vector(2, 2)));
        let contents = |positions: u32| -> Vec<_> {
            let spans = pictures.spans(positions).unwrap();
            let each = |span: &PictureSpan| {
                (span.at..).zip(span.contents(span.digest[0].into())).collect::<Vec<_>>()
            };
            spans.iter().flat_map(each).collect()
        };
        for positions in 0..=15 {
            let within = own.iter().filter(|at| **at < positions);
            let want: Vec<_> = within.map(|at| (*at, pictures.content(*at).unwrap())).collect();
            assert_eq!(contents(positions), want, "of {positions} positions");
        }
        assert!(pictures.unseen(0..1).is_none() && pictures.unseen(7..9).is_none());
        assert_eq!(pictures.unseen(0..15).map(|picture| picture.key), Some(1));
        assert_eq!(pictures.unseen(7..10).map(|picture| picture.key), Some(2));
        let mut batch = RaggedBatch::default();
        assert!(pictures.fill(0..3, 0, &mut batch).is_err());
        for (n, picture) in pictures.pictures.iter().enumerate() {
            picture.see((0..picture.plan.vectors() * 2).map(|at| (100 * n + at) as f32).collect());
        }
        assert!(pictures.unseen(0..15).is_none());
        pictures.fill(2..4, 10, &mut batch).unwrap();
        pictures.fill(9..13, 20, &mut batch).unwrap();
        assert_eq!(batch.vector_rows, [10, 11, 20, 21, 23]);
        assert_eq!(batch.vectors, [2., 3., 4., 5., 100., 101., 102., 103., 104., 105.]);
    }
}
