//! Takes the pictures of requests. The thread of the host that submits waits until they are decoded.

use super::Engine;
use super::limits::RequestLimits;
use crate::base::{Error, Result, Status, reserve, threads};
use crate::engine::api::{Picture, Prompt, RequestParams};
use crate::engine::request::eyes::{Eyes, digest};
use crate::engine::request::pictures::{self, Pictures, Tokens, misplaced};
use crate::picture::{self, Limits, Piece, Pixels, Plan, Processor};
use crate::text::Rendered;
use crate::text::chat::PictureSource;
use std::borrow::Cow;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

/// Bounds on pictures from outside. The bytes of a file are bounded by its pixels, and what decoding takes, as
/// `docs/pictures.md` says, by `LIMITS.memory()`.
const LIMITS: Limits = Limits { bytes: 64 << 20, side: 1 << 14, pixels: 1 << 25 };

/// The most pictures of a request.
pub const MAX_PICTURES: usize = 1024;

impl Eyes {
    /// `InvalidArgument` for a picture beyond the bounds of pictures or of `picture_tokens`.
    fn plan(&self, picture: &Picture) -> Result<Plan> {
        let (width, height) = match picture {
            Picture::Encoded(bytes) => picture::size(bytes, &LIMITS)?,
            Picture::Pixels { width, height, .. } => {
                LIMITS.check(*width, *height)?;
                (*width, *height)
            }
        };
        let plan = self.processor.plan(width, height)?;
        let (vectors, patches) = (plan.vectors(), plan.patches());
        if let Some(most) = self.step_tokens.filter(|most| vectors > *most as usize) {
            return Err(Error::invalid(format!(
                "{width}x{height} pixels become {vectors} vectors, which see each other and run in one step; beside the other \
                 sequences, max_batch_tokens leaves {most}"
            )));
        }
        if vectors as u64 > self.most_tokens || patches > self.most_patches {
            let most = self.most_tokens;
            return Err(Error::invalid(format!(
                "{width}x{height} pixels become {vectors} vectors of {patches} patches; picture_tokens = {most}, and memory \
                 is set aside for {} patches",
                self.most_patches
            )));
        }
        Ok(plan)
    }

    /// Number of positions that it takes in a prompt.
    pub(super) fn positions(&self, picture: &Picture, tokens: Tokens) -> Result<usize> {
        pictures::positions(&self.plan(picture)?, tokens)
    }

    /// Decodes and prepares a picture.
    fn patches(&self, picture: &Picture, plan: &Plan) -> Result<Vec<f32>> {
        let pixels = match picture {
            Picture::Encoded(bytes) => picture::decode(bytes, &LIMITS)?,
            Picture::Pixels { width, height, rgb } => {
                let mut copy = Vec::new();
                reserve(&mut copy, rgb.len(), "a picture")?;
                copy.extend_from_slice(rgb);
                Pixels { width: *width, height: *height, rgb: copy }
            }
        };
        let mut patches = Vec::new();
        self.processor.prepare(&pixels, plan, &mut patches)?;
        Ok(patches)
    }

    /// The picture of a living request, or a new one. `TimedOut` if others are decoded until `until_ns`.
    fn take(&self, picture: &Picture, plan: Plan, until_ns: u64) -> Result<Arc<pictures::Picture>> {
        let digest = digest(picture);
        let hash = self.known.hash(&digest);
        if let Some(known) = self.known.find(hash) {
            return Ok(known);
        }
        let decoding = match picture {
            Picture::Encoded(bytes) => picture::memory(bytes, &LIMITS)?,
            Picture::Pixels { .. } => 0,
        };
        let _place = self.known.decoders.enter(decoding.max(plan.memory(self.processor.filter)), until_ns)?;
        // Another thread may have decoded it meanwhile.
        if let Some(known) = self.known.find(hash) {
            return Ok(known);
        }
        let patches = threads::run_in_background("bn-picture", || self.patches(picture, &plan)).flatten()?;
        Ok(self.known.add(hash, Arc::new(pictures::Picture::new(digest, hash, plan, patches))))
    }
}

impl RequestLimits<'_> {
    /// The request's pictures, decoded. `sources`: those of a conversation. `Unsupported` for a model that sees none.
    pub(super) fn seen(
        &self,
        params: &RequestParams,
        sources: &[PictureSource],
    ) -> Result<Vec<Arc<pictures::Picture>>> {
        if params.pictures.is_empty() && sources.is_empty() {
            return Ok(Vec::new());
        }
        let eyes = self.eyes.ok_or_else(blind)?;
        let given = given(params, sources)?;
        let named = |at: usize, mut error: Error| {
            error.message = format!("picture {at}: {}", error.message);
            error
        };
        let count = given.len();
        if count > MAX_PICTURES {
            return Err(Error::invalid(format!("{count} pictures; a request has at most {MAX_PICTURES}")));
        }
        let (mut plans, mut taken) = (Vec::new(), Vec::new());
        reserve(&mut plans, count, "pictures")?;
        reserve(&mut taken, count, "pictures")?;
        let (mut all, mut bytes, patch_len) = (0, 0_u64, eyes.processor.patch_len());
        for (at, picture) in given.iter().enumerate() {
            let plan = eyes.plan(picture).map_err(|error| named(at, error))?;
            all += plan.vectors();
            bytes = bytes.saturating_add(pictures::bytes(&plan, patch_len, self.hidden_size));
            plans.push(plan);
        }
        self.fits(all, all, "vectors of pictures")?;
        if bytes > self.room {
            let message =
                format!("{count} pictures take {bytes} bytes, and requests have {} together", self.room);
            return Err(Error::new(Status::MemoryLimit, message));
        }
        for (at, (picture, plan)) in given.iter().zip(plans).enumerate() {
            taken.push(eyes.take(picture, plan, self.until_ns).map_err(|error| named(at, error))?);
        }
        Ok(taken)
    }

    /// Puts the texts of pictures into a text, at the placeholders that are its own.
    pub(super) fn spread<'a>(
        &self,
        text: &'a Rendered,
        pictures: &[Arc<pictures::Picture>],
    ) -> Result<Cow<'a, Rendered>> {
        match self.eyes {
            Some(eyes) if !pictures.is_empty() => spread(text, &eyes.processor, pictures).map(Cow::Owned),
            _ => Ok(Cow::Borrowed(text)),
        }
    }

    /// The tokens of a text with pictures, and whether theirs are in it.
    pub(super) fn encode_seen(
        &self,
        text: &str,
        params: &RequestParams,
        pictures: &[Arc<pictures::Picture>],
    ) -> Result<(Vec<u32>, bool)> {
        let whole = params.embedding.is_some();
        if pictures.is_empty() || !params.parse_special {
            return self.encode(text, params.parse_special, whole).map(|ids| (ids, false));
        }
        let text = Rendered { text: text.to_owned(), untrusted: Vec::new() };
        let text = self.spread(&text, pictures)?;
        self.encode(&text.text, true, whole).map(|ids| (ids, true))
    }

    /// Gives pictures their positions in a prompt, of which `spread` made the text or did not.
    pub(super) fn placed(
        &self,
        ids: Vec<u32>,
        pictures: Vec<Arc<pictures::Picture>>,
        spread: bool,
    ) -> Result<(Vec<u32>, Option<Pictures>)> {
        let Some(eyes) = self.eyes.filter(|_| !pictures.is_empty()) else { return Ok((ids, None)) };
        let tokens = |text: &str| self.tokenizer()?.encode(text, false, true);
        let tokens = if spread { None } else { Some(&tokens as Tokens) };
        let (ids, pictures) = Pictures::place(&ids, eyes.sight.tokens, pictures, tokens)?;
        Ok((ids, Some(pictures.mutual(eyes.sight.mutual))))
    }
}

/// See `RequestLimits::spread`.
fn spread(text: &Rendered, processor: &Processor, pictures: &[Arc<pictures::Picture>]) -> Result<Rendered> {
    let (placeholder, soft) = (processor.placeholder(), processor.soft_token());
    let mut places = Vec::new();
    for (at, part) in text.own_parts()? {
        places.extend(part.match_indices(placeholder).map(|(within, _)| at + within));
    }
    if places.len() != pictures.len() {
        return Err(misplaced(places.len(), pictures.len()));
    }
    let (mut made, mut done, mut marks) = (Rendered::default(), 0, text.untrusted.iter().peekable());
    for (place, picture) in places.into_iter().zip(pictures) {
        copy(text, done..place, &mut made, &mut marks);
        for piece in &picture.plan.pieces {
            made.text.push_str(match piece {
                Piece::Text(text) => text,
                Piece::Vectors { .. } => soft,
            });
        }
        done = place + placeholder.len();
    }
    copy(text, done..text.text.len(), &mut made, &mut marks);
    Ok(made)
}

/// Appends a range of a text, with its marks.
fn copy<'a>(
    from: &Rendered,
    range: Range<usize>,
    to: &mut Rendered,
    marks: &mut Peekable<impl Iterator<Item = &'a Range<usize>>>,
) {
    let to_place = |at: usize, to: &Rendered| at - range.start + to.text.len();
    while let Some(mark) = marks.next_if(|mark| mark.start < range.end) {
        let mark = to_place(mark.start, to)..to_place(mark.end, to);
        to.untrusted.push(mark);
    }
    to.text.push_str(&from.text[range]);
}

/// The pictures in the order of their places.
fn given<'a>(params: &'a RequestParams, sources: &'a [PictureSource]) -> Result<Vec<Cow<'a, Picture<'a>>>> {
    let mut given = Vec::new();
    if !matches!(params.prompt, Prompt::ChatJson(_)) {
        reserve(&mut given, params.pictures.len(), "pictures")?;
        given.extend(params.pictures.iter().map(Cow::Borrowed));
        return Ok(given);
    }
    reserve(&mut given, sources.len(), "pictures")?;
    let mut own = params.pictures.iter();
    for source in sources {
        given.extend(match source {
            PictureSource::Request => own.next().map(Cow::Borrowed),
            PictureSource::Inline(bytes) => Some(Cow::Owned(Picture::Encoded(Cow::Borrowed(&bytes[..])))),
        });
    }
    let (places, pictures) =
        (sources.iter().filter(|source| **source == PictureSource::Request).count(), params.pictures.len());
    match places == pictures {
        true => Ok(given),
        false => Err(Error::invalid(format!(
            "the conversation has {places} parts of type image, and the request has {pictures} pictures"
        ))),
    }
}

impl Engine {
    /// Number of positions that a picture takes in a prompt. `Unsupported` for a model that sees none.
    pub fn picture_positions(&self, picture: &Picture) -> Result<usize> {
        let limits = self.limits(true);
        let eyes = limits.eyes.ok_or_else(blind)?;
        eyes.positions(picture, &|text| limits.tokenizer()?.encode(text, false, true))
    }
}

impl Engine {
    /// Bytes of a prompt's pictures.
    pub(super) fn picture_bytes(&self, pictures: Option<&Pictures>) -> u64 {
        let Some((pictures, eyes)) = pictures.zip(self.shared.eyes.as_ref()) else { return 0 };
        pictures.bytes(eyes.processor.patch_len(), self.facts().hidden_size)
    }
}

fn blind() -> Error {
    Error::unsupported(
        "pictures are given, and this model sees none: its files have no tower that is read, it runs on a device, or picture_tokens is 0",
    )
}
