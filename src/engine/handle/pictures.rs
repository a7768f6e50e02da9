//! Takes the pictures of requests, on the thread of the host that submits.

use super::Engine;
use super::limits::RequestLimits;
use crate::base::{Error, Result, reserve};
use crate::engine::api::{Picture, RequestParams};
use crate::engine::request::eyes::Eyes;
use crate::engine::request::pictures::{self, Pictures};
use crate::picture::{self, Limits, Pixels, Plan};
use crate::text::chat::PictureSource;
use std::borrow::Cow;
use std::sync::Arc;

/// Bounds on pictures from outside. The bytes of a file are bounded by its pixels.
const LIMITS: Limits = Limits { bytes: 256 << 20, side: 1 << 16, pixels: 1 << 26 };

impl Eyes {
    fn plan(&self, picture: &Picture) -> Result<Plan> {
        let (width, height) = match picture {
            Picture::Encoded(bytes) => picture::size(bytes, &LIMITS)?,
            Picture::Pixels { width, height, .. } => (*width, *height),
        };
        self.processor.plan(width, height)
    }

    /// Number of positions that it takes in a prompt.
    pub(super) fn positions(&self, picture: &Picture, tokens: &dyn Fn(&str) -> Result<Vec<u32>>) -> Result<usize> {
        pictures::positions(&self.plan(picture)?, tokens)
    }

    /// The picture of a living request, or a new one.
    fn take(&self, picture: &Picture) -> Result<Arc<pictures::Picture>> {
        let hash = self.known.hash(picture);
        if let Some(known) = self.known.find(hash) {
            return Ok(known);
        }
        let plan = self.plan(picture)?;
        let pixels = match picture {
            Picture::Encoded(bytes) => picture::decode(bytes, &LIMITS)?,
            Picture::Pixels { width, height, rgb } => {
                let mut copy = Vec::new();
                reserve(&mut copy, rgb.len(), "a picture")?;
                copy.extend_from_slice(rgb);
                Pixels { width: *width, height: *height, rgb: copy }
            }
        };
        let made = Arc::new(pictures::Picture::new(hash, plan, pixels));
        self.known.add(hash, &made);
        Ok(made)
    }
}

impl RequestLimits<'_> {
    /// Puts the request's pictures into its prompt. `sources`: those of a conversation. `Unsupported` for a model that sees
    /// none.
    pub(super) fn with_pictures(
        &self,
        ids: Vec<u32>,
        params: &RequestParams,
        sources: Option<&[PictureSource]>,
    ) -> Result<(Vec<u32>, Option<Pictures>)> {
        let inline = sources.map_or(0, <[_]>::len);
        if params.pictures.is_empty() && inline == 0 {
            return Ok((ids, None));
        }
        let eyes = self.eyes.ok_or_else(blind)?;
        let given = given(params, sources)?;
        let tokens = |text: &str| self.tokenizer()?.encode(text, false, true);
        let named = |at: usize, mut error: Error| {
            error.message = format!("picture {at}: {}", error.message);
            error
        };
        let mut all = ids.len();
        for (at, picture) in given.iter().enumerate() {
            all += eyes.positions(picture, &tokens).map_err(|error| named(at, error))?;
        }
        self.fits(all, all, "tokens with its pictures")?;
        let mut taken = Vec::new();
        reserve(&mut taken, given.len(), "pictures")?;
        for (at, picture) in given.iter().enumerate() {
            taken.push(eyes.take(picture).map_err(|error| named(at, error))?);
        }
        let (ids, pictures) = Pictures::place(&ids, eyes.sight.placeholder, taken, &tokens)?;
        Ok((ids, Some(pictures)))
    }
}

/// The pictures in the order of their places.
fn given<'a>(
    params: &'a RequestParams,
    sources: Option<&'a [PictureSource]>,
) -> Result<Vec<Cow<'a, Picture<'a>>>> {
    let mut given = Vec::new();
    let Some(sources) = sources else {
        reserve(&mut given, params.pictures.len(), "pictures")?;
        given.extend(params.pictures.iter().map(Cow::Borrowed));
        return Ok(given);
    };
    reserve(&mut given, sources.len(), "pictures")?;
    let mut own = params.pictures.iter();
    for source in sources {
        given.extend(match source {
            PictureSource::Request => own.next().map(Cow::Borrowed),
            PictureSource::Inline(bytes) => Some(Cow::Owned(Picture::Encoded(Cow::Borrowed(&bytes[..])))),
        });
    }
    let (places, pictures) = (sources.iter().filter(|source| **source == PictureSource::Request).count(), params.pictures.len());
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

fn blind() -> Error {
    Error::unsupported("pictures are given, and this model sees none: its files have no tower that is read, it runs on a device, or picture_tokens is 0")
}
