//! Reads rotations and windows from a `config.json`, in the old and the new spelling.
//!
//! Old: `rope_theta` and `rope_scaling`. New (transformers 5): `rope_parameters`, which has both, in Gemma once per
//! kind of layer. If a file has both spellings, transformers uses `rope_scaling`.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::{Block, RopeConfig, RopeScaling};
use crate::model::family::{Family, Rotation, Windows};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Keys of `rope_scaling` that are read, or that have no meaning for the supported kinds.
/// The sections of a rotation by time, height and width are equal for text.
const IGNORED: &[&str] = &[
    "finetuned",
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
];

/// Checked sizes that rotations and windows depend on.
pub struct Sizes {
    pub layers: usize,
    pub head_dim: usize,
    /// Elements of a head that are rotated.
    pub rotated: usize,
    pub context: usize,
}

impl Sizes {
    /// This part of a head's elements, rounded as transformers does.
    fn part(&self, factor: f32) -> usize {
        (self.head_dim as f64 * f64::from(factor)) as usize
    }
}

/// The elements of a head that are rotated.
fn rotated(config: &Fields, family: &Family, sizes: &Sizes) -> Result<usize> {
    const KEY: &str = "partial_rotary_factor";
    let parameters = config.object("rope_parameters")?;
    let inner = parameters.map_or(Ok(None), |parameters| parameters.float(KEY))?;
    let given = inner.or(config.float(KEY)?);
    let Some(default) = family.rotated else {
        return match given.is_none_or(|factor| factor == 1.0) {
            true => Ok(sizes.head_dim),
            false => Err(config.unsupported(KEY, format!("{} rotates whole heads", family.name()))),
        };
    };
    Ok(sizes.part(given.unwrap_or(default)))
}

/// The rotations, and the block of each layer.
pub fn read(config: &Fields, family: &Family, sizes: &Sizes) -> Result<(Vec<RopeConfig>, Vec<Block>)> {
    let windows = windows(config, family, sizes.layers)?;
    let sizes = &Sizes { rotated: rotated(config, family, sizes)?, ..*sizes };
    let Windows::AllBut { rotation, .. } = family.windows else {
        let blocks = windows.into_iter().map(|window| Block { window, ..Block::default() }).collect();
        return Ok((vec![one(config, family, sizes)?], blocks));
    };
    let ropes = match rotation {
        Rotation::Local { base } => by_layer_type(config, family, base, sizes)?,
        Rotation::WindowedOnly => windowed_only(config, family, sizes)?,
    };
    let span =
        |window: Option<usize>| Block { window, rope: usize::from(window.is_some()), ..Block::default() };
    Ok((ropes, windows.into_iter().map(span).collect()))
}

/// No rotation for layers that see everything, then that of windowed ones.
fn windowed_only(config: &Fields, family: &Family, sizes: &Sizes) -> Result<Vec<RopeConfig>> {
    const KEY: &str = "nope_on_global_attention";
    if config.flag(KEY)? == Some(false) {
        return Err(config.unsupported(KEY, format!("{} rotates in windowed layers only", family.name())));
    }
    let local = one(config, family, sizes)?;
    Ok(vec![RopeConfig { base: local.base, dims: 0, scaling: RopeScaling::None }, local])
}

/// One rotation for all layers.
fn one(config: &Fields, family: &Family, sizes: &Sizes) -> Result<RopeConfig> {
    let theta = config.float("rope_theta")?.unwrap_or(family.defaults.rope_theta);
    let new = config.object("rope_parameters")?;
    let Some(parameters) = config.object("rope_scaling")?.or(new) else {
        return Ok(RopeConfig { base: theta, dims: sizes.rotated, scaling: RopeScaling::None });
    };
    for kind in [FULL, SLIDING] {
        if parameters.contains(kind) {
            let why = format!("{} has one rotation for all layers", family.name());
            return Err(parameters.unsupported(kind, why));
        }
    }
    rope(config, &parameters, theta, sizes)
}

/// Gemma's two rotations: that of layers that see everything, then that of windowed ones.
fn by_layer_type(
    config: &Fields,
    family: &Family,
    local_base: f32,
    sizes: &Sizes,
) -> Result<Vec<RopeConfig>> {
    let global = config.float("rope_theta")?.unwrap_or(family.defaults.rope_theta);
    let local = config.float("rope_local_base_freq")?.unwrap_or(local_base);
    let plain = |base| RopeConfig { base, dims: sizes.rotated, scaling: RopeScaling::None };
    let parameters = config.object("rope_parameters")?;
    let of = |kind: &str, theta: f32| -> Result<RopeConfig> {
        let Some(parameters) = &parameters else { return Ok(plain(theta)) };
        match parameters.object(kind)? {
            Some(own) => rope(config, &own, theta, sizes),
            None => Ok(plain(theta)),
        }
    };
    let mut ropes = vec![of(FULL, global)?, of(SLIDING, local)?];
    if let Some(key) = parameters.and_then(|p| p.unknown(&[]).into_iter().next()) {
        let why = format!("'{key}' in it is not {FULL} or {SLIDING}");
        return Err(config.unsupported("rope_parameters", why));
    }
    if let Some(scaling) = config.object("rope_scaling")? {
        ropes[0] = rope(config, &scaling, ropes[0].base, sizes)?;
    }
    Ok(ropes)
}

/// The rotation of `parameters`, with `theta` if they do not give it.
fn rope(config: &Fields, parameters: &Fields, theta: f32, sizes: &Sizes) -> Result<RopeConfig> {
    let base = parameters.float("rope_theta")?.unwrap_or(theta);
    if parameters.float("partial_rotary_factor")?.is_some_and(|factor| sizes.part(factor) != sizes.rotated) {
        let why = format!("{} elements of a head are rotated here", sizes.rotated);
        return Err(parameters.unsupported("partial_rotary_factor", why));
    }
    let kind = match parameters.text("rope_type")? {
        Some(kind) => Some(kind),
        None => parameters.text("type")?,
    };
    let needed = |key: &str| parameters.float(key)?.ok_or_else(|| parameters.bad(key, "it must be a number"));
    let inner = parameters.size("original_max_position_embeddings")?;
    // Files that also have it outside mean that value.
    let original_context =
        config.size("original_max_position_embeddings")?.or(inner).unwrap_or(sizes.context);
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: needed("factor")? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_context,
        },
        Some("yarn") => yarn(parameters, original_context, sizes.context)?,
        Some("longrope") => long(parameters, original_context, sizes.context)?,
        Some(_) => {
            let key = if parameters.contains("rope_type") { "rope_type" } else { "type" };
            return Err(parameters.unsupported(key, "default, linear, llama3, longrope and yarn are known"));
        }
    };
    // Keys of other kinds than the file's own have no effect, as in transformers.
    for key in ["low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale"]
        .into_iter()
        .chain(["mscale_all_dim", "truncate", "short_factor", "long_factor"])
    {
        parameters.contains(key);
    }
    if let Some(key) = parameters.unknown(IGNORED).first() {
        let key = key.rsplit('.').next().unwrap_or(key);
        return Err(parameters.unsupported(key, "it is not known and may change the rotation"));
    }
    Ok(RopeConfig { base, dims: sizes.rotated, scaling })
}

fn long(parameters: &Fields, original_context: usize, context: usize) -> Result<RopeScaling> {
    let factors = |key| {
        parameters.floats(key)?.ok_or_else(|| parameters.bad(key, "longrope needs a divisor for each pair"))
    };
    Ok(RopeScaling::Long {
        short: factors("short_factor")?,
        long: factors("long_factor")?,
        original_context,
        attention_factor: match parameters.float("attention_factor")? {
            Some(given) => given,
            None => RopeScaling::long_attention(context, original_context),
        },
    })
}

fn yarn(parameters: &Fields, original_context: usize, context: usize) -> Result<RopeScaling> {
    let factor = match parameters.float("factor")? {
        Some(factor) => factor,
        None => context as f32 / original_context.max(1) as f32,
    };
    let own_or = |key: &str, default: f32| {
        parameters.float(key).map(|value| value.filter(|v| *v != 0.0).unwrap_or(default))
    };
    let (mscale, all_dim) = (own_or("mscale", 0.0)?, own_or("mscale_all_dim", 0.0)?);
    let stretched = |by: f32| match factor > 1.0 {
        true => 0.1 * by as f64 * (factor as f64).ln() + 1.0,
        false => 1.0,
    };
    let attention_factor = match parameters.float("attention_factor")? {
        Some(given) => given,
        None if mscale != 0.0 && all_dim != 0.0 => (stretched(mscale) / stretched(all_dim)) as f32,
        None => RopeScaling::yarn_attention(factor),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: own_or("beta_fast", 32.0)?,
        beta_slow: own_or("beta_slow", 1.0)?,
        attention_factor,
        truncate: parameters.flag("truncate")?.unwrap_or(true),
    })
}

/// The window of each layer, `None` if it sees everything.
fn windows(config: &Fields, family: &Family, layers: usize) -> Result<Vec<Option<usize>>> {
    match family.windows {
        Windows::Never | Windows::AllInGguf => Ok(vec![None; layers]),
        Windows::All { default } => {
            let window = match config.contains("sliding_window") {
                true => config.size("sliding_window")?,
                false => Some(default),
            };
            Ok(vec![window; layers])
        }
        Windows::Upper => {
            let window = config.size("sliding_window")?;
            let used = config.flag("use_sliding_window")?.unwrap_or(false);
            let window = window.filter(|_| used);
            let first = config.size("max_window_layers")?;
            match layer_types(config, layers)? {
                Some(slides) => sliding(config, &slides, window),
                None if window.is_none() => Ok(vec![None; layers]),
                None => {
                    let first = first.ok_or_else(|| {
                        config.bad("max_window_layers", "with use_sliding_window it must be a number")
                    })?;
                    Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
                }
            }
        }
        Windows::AllBut { every, default, own_beside, .. } => {
            let window = match config.contains("sliding_window") {
                true => config.size("sliding_window")?,
                false => Some(default),
            };
            let every = config.size("sliding_window_pattern")?.unwrap_or(every);
            let slides = match layer_types(config, layers)? {
                Some(slides) => slides,
                None if every == 0 => {
                    return Err(config.bad("sliding_window_pattern", "it must be 1 or more"));
                }
                None => (0..layers).map(|layer| (layer + 1) % every != 0).collect(),
            };
            let window = window.map(|window| window.saturating_add(own_beside.into()));
            sliding(config, &slides, window)
        }
    }
}

fn sliding(config: &Fields, slides: &[bool], window: Option<usize>) -> Result<Vec<Option<usize>>> {
    if window.is_none() && slides.contains(&true) {
        return Err(config.bad("sliding_window", "layer_types has layers that need one (and use it)"));
    }
    Ok(slides.iter().map(|slides| window.filter(|_| *slides)).collect())
}

/// Whether each layer has a sliding window.
fn layer_types(config: &Fields, layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(types) = config.texts("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        return Err(config.bad("layer_types", format_args!("num_hidden_layers is {layers}")));
    }
    let slides = |kind: &&str| match *kind {
        FULL => Ok(false),
        SLIDING => Ok(true),
        other => {
            let why =
                format!("'{}' in it is not {FULL} or {SLIDING}", other.chars().take(60).collect::<String>());
            Err(config.unsupported("layer_types", why))
        }
    };
    types.iter().map(slides).collect::<Result<_>>().map(Some)
}
