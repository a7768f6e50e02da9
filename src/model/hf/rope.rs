//! Reads rotations and windows from a `config.json`, in the old and the new spelling.
//!
//! Old: `rope_theta` and `rope_scaling`. New (transformers 5): `rope_parameters`, which has both, in Gemma once per
//! kind of layer. If a file has both spellings, transformers uses `rope_scaling`.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::{Block, RopeConfig, RopeScaling};
use crate::model::family::{Family, Rotation, Windows};
use crate::model::layers::recurrent::Recurrent;
use crate::ops::{Axes, Temperature};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

const KINDS: &str = "default, dynamic, linear, llama3, longrope (su), proportional and yarn are known";
/// The kind that rotates some pairs of a head, at the frequencies of a whole one.
const PROPORTIONAL: &str = "proportional";
/// The growth of queries with their position, which stands among the rotation's keys.
const TEMPERATURE: &str = "llama_4_scaling_beta";

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
    "max_position_embeddings",
];

/// Checked sizes that rotations and windows depend on.
pub(super) struct Sizes {
    pub layers: usize,
    pub head_dim: usize,
    /// As `head_dim`, in layers without a window, if theirs differs.
    pub global_dim: Option<usize>,
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
pub(super) fn read(config: &Fields, family: &Family, sizes: &Sizes) -> Result<(Vec<RopeConfig>, Vec<Block>)> {
    let windows = windows(config, family, sizes.layers)?;
    let sizes = &Sizes { rotated: rotated(config, family, sizes)?, ..*sizes };
    let no_windows = config.contains("sliding_window") && !config.is_set("sliding_window");
    let ropes = match family.windows {
        Windows::AllBut { rotation: Rotation::Local { base }, .. } => {
            by_layer_type(config, family, base, sizes)?
        }
        Windows::AllBut { rotation: Rotation::WindowedOnly, .. } => windowed_only(config, family, sizes)?,
        Windows::AllBut { rotation: Rotation::WindowedIfAny, .. } if !no_windows => {
            windowed_only(config, family, sizes)?
        }
        _ => {
            let rotates = rotating(config, family, sizes.layers)?;
            let (ropes, mut blocks) = one(config, family, sizes)?.of_layers(&rotates);
            blocks.iter_mut().zip(windows).for_each(|(block, window)| block.window = window);
            return Ok((ropes, blocks));
        }
    };
    let span =
        |window: Option<usize>| Block { window, rope: usize::from(window.is_some()), ..Block::default() };
    Ok((ropes, windows.into_iter().map(span).collect()))
}

/// The axes of pairs, which only pictures tell apart.
pub(super) fn axes(config: &Fields, family: &Family) -> Result<Option<Axes>> {
    const KEY: &str = "mrope_section";
    let parameters = match config.object("rope_parameters")? {
        None => config.object("rope_scaling")?,
        parameters => parameters,
    };
    // Other rotations are not known, and pictures are refused then.
    let known = |own: &Fields| own.flag("mrope_interleaved").is_ok_and(|flag| flag != Some(false));
    let sections =
        parameters.filter(|own| family.rope_sections && known(own)).map_or(Ok(None), |own| own.sizes(KEY))?;
    Ok(sections.and_then(|sections| crate::model::rope::axes(&sections)))
}

/// No rotation for layers that see everything, then that of windowed ones.
fn windowed_only(config: &Fields, family: &Family, sizes: &Sizes) -> Result<Vec<RopeConfig>> {
    const KEY: &str = "nope_on_global_attention";
    if config.flag(KEY)? == Some(false) {
        return Err(config.unsupported(KEY, format!("{} rotates in windowed layers only", family.name())));
    }
    let local = one(config, family, sizes)?;
    Ok(vec![local.still(), local])
}

/// Whether each layer rotates.
fn rotating(config: &Fields, family: &Family, layers: usize) -> Result<Vec<bool>> {
    const LIST: &str = "no_rope_layers";
    const INTERVAL: &str = "no_rope_layer_interval";
    let said = family.may_stand_still && family.recurrent.is_some();
    if said && config.text("position_embedding_type")? != Some("rope") {
        return Ok(vec![false; layers]);
    }
    if family.still.is_none() {
        return Ok(family.rotating(layers));
    }
    let every = config.size(INTERVAL)?;
    match (config.sizes(LIST)?, every) {
        // Despite its name, the list has a 1 for each layer that rotates.
        (Some(list), _) if list.len() >= layers => Ok(list[..layers].iter().map(|n| *n != 0).collect()),
        (Some(_), _) => Err(config.bad(LIST, format_args!("there are {layers} layers"))),
        (None, Some(0)) => Err(config.bad(INTERVAL, "it must be 1 or more")),
        (None, every) => Ok(Family { still: every.or(family.still), ..*family }.rotating(layers)),
    }
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
    rope(config, family, &parameters, theta, sizes)
}

/// Two rotations: that of layers that see everything, then that of windowed ones.
fn by_layer_type(
    config: &Fields,
    family: &Family,
    local_base: Option<f32>,
    sizes: &Sizes,
) -> Result<Vec<RopeConfig>> {
    let global = config.float("rope_theta")?.unwrap_or(family.defaults.rope_theta);
    let local = match local_base {
        Some(base) => config.float("rope_local_base_freq")?.unwrap_or(base),
        None => global,
    };
    let plain = |base| RopeConfig { base, dims: sizes.rotated, scaling: RopeScaling::None };
    let parameters = config.object("rope_parameters")?;
    let of = |kind: &str, theta: f32, sizes: &Sizes| -> Result<RopeConfig> {
        let own = parameters.as_ref().map_or(Ok(None), |parameters| parameters.object(kind))?;
        match own {
            Some(own) => rope(config, family, &own, theta, sizes),
            None if family.head_gates || sizes.global_dim.is_some() => {
                Err(config.bad("rope_parameters", format_args!("it must give the rotation of {kind}")))
            }
            None => Ok(plain(theta)),
        }
    };
    let wide = sizes.global_dim.unwrap_or(sizes.head_dim);
    let wide = Sizes {
        head_dim: wide,
        rotated: if sizes.global_dim.is_some() { wide } else { sizes.rotated },
        ..*sizes
    };
    let mut ropes = vec![of(FULL, global, &wide)?, of(SLIDING, local, sizes)?];
    if let Some(key) = parameters.and_then(|p| p.unknown(&[]).into_iter().next()) {
        let why = format!("'{key}' in it is not {FULL} or {SLIDING}");
        return Err(config.unsupported("rope_parameters", why));
    }
    if let Some(scaling) = config.object("rope_scaling")? {
        ropes[0] = rope(config, family, &scaling, ropes[0].base, sizes)?;
    }
    Ok(ropes)
}

/// The rotation of `parameters`, with `theta` if they do not give it.
fn rope(
    config: &Fields,
    family: &Family,
    parameters: &Fields,
    theta: f32,
    sizes: &Sizes,
) -> Result<RopeConfig> {
    let mut base = parameters.float("rope_theta")?.unwrap_or(theta);
    let kind = match parameters.text("rope_type")? {
        Some(kind) => Some(kind),
        None => parameters.text("type")?,
    };
    let part = parameters.float("partial_rotary_factor")?;
    if kind != Some(PROPORTIONAL) && part.is_some_and(|factor| sizes.part(factor) != sizes.rotated) {
        let why = format!("{} elements of a head are rotated here", sizes.rotated);
        return Err(parameters.unsupported("partial_rotary_factor", why));
    }
    let needed = |key: &str| parameters.float(key)?.ok_or_else(|| parameters.bad(key, "it must be a number"));
    let inner = parameters.size("original_max_position_embeddings")?;
    // Files that also have it outside mean that value.
    let original_context =
        config.size("original_max_position_embeddings")?.or(inner).unwrap_or(sizes.context);
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: needed("factor")? },
        Some(PROPORTIONAL) if sizes.rotated != sizes.head_dim => {
            let why = format!("of this family the first {} elements of a head are rotated", sizes.rotated);
            return Err(parameters.unsupported("rope_type", why));
        }
        Some(PROPORTIONAL) => proportional(parameters, part.unwrap_or(1.0), sizes)?,
        Some("llama3") => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_context,
        },
        // Contexts are no longer than the model's, and up to that the base stays as it is.
        Some("dynamic") => {
            base = stretched(parameters, family, base, sizes.rotated)?;
            RopeScaling::None
        }
        // Phi-3's older names of it.
        Some("su") => long(parameters, original_context, sizes.context)?,
        Some("yarn") if parameters.contains("long_factor") => {
            long(parameters, original_context, sizes.context)?
        }
        Some("yarn") => yarn(parameters, original_context, sizes.context)?,
        Some("longrope") => long(parameters, original_context, sizes.context)?,
        Some(_) => {
            let key = if parameters.contains("rope_type") { "rope_type" } else { "type" };
            return Err(parameters.unsupported(key, KINDS));
        }
    };
    if family.temperature {
        parameters.contains(TEMPERATURE);
    }
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

/// The rotation of a part of a head's pairs.
fn proportional(parameters: &Fields, part: f32, sizes: &Sizes) -> Result<RopeScaling> {
    if !(0.0..=1.0).contains(&part) {
        return Err(parameters.bad("partial_rotary_factor", "it must lie within 0 and 1"));
    }
    let factor = parameters.float("factor")?.unwrap_or(1.0);
    Ok(RopeScaling::Proportional { pairs: sizes.part(part) / 2, factor })
}

/// The base that `alpha` stretches, if the family knows it and the file has it.
fn stretched(parameters: &Fields, family: &Family, base: f32, dims: usize) -> Result<f32> {
    let alpha = if family.rope_alpha { parameters.float("alpha")? } else { None };
    match alpha.filter(|alpha| *alpha != 0.0) {
        Some(_) if dims <= 2 => Err(parameters.unsupported("alpha", "heads of two elements cannot have it")),
        Some(alpha) => {
            Ok((f64::from(base) * f64::from(alpha).powf(dims as f64 / (dims as f64 - 2.0))) as f32)
        }
        None => Ok(base),
    }
}

/// The growth of queries, if the family and the file have it.
pub(super) fn temperature(config: &Fields, family: &Family) -> Result<Option<Temperature>> {
    if !family.temperature {
        return Ok(None);
    }
    let new = config.object("rope_parameters")?;
    let Some(parameters) = config.object("rope_scaling")?.or(new) else {
        return Err(config.bad("rope_parameters", "it must give the rotation and how queries grow"));
    };
    let Some(scale) = parameters.float(TEMPERATURE)?.filter(|scale| *scale != 0.0) else { return Ok(None) };
    Ok(Some(Temperature { scale, length: parameters.need("original_max_position_embeddings")? }))
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
            None => {
                let ratio = context as f64 / original_context.max(1) as f64;
                let times = parameters.float("factor")?.map_or(ratio, f64::from);
                RopeScaling::long_attention(times, original_context)
            }
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

/// The number of layers from one that sees everything to the next.
const PATTERN: &str = "sliding_window_pattern";

/// The window of each layer, `None` if it sees everything.
fn windows(config: &Fields, family: &Family, layers: usize) -> Result<Vec<Option<usize>>> {
    match family.windows {
        Windows::Never | Windows::AllInGguf => Ok(vec![None; layers]),
        Windows::All { default } => Ok(vec![window_or(config, default)?; layers]),
        Windows::AllIfUsed { default } => {
            let (window, used) = (window_or(config, Some(default))?, config.flag("use_sliding_window")?);
            Ok(vec![window.filter(|_| used == Some(true)); layers])
        }
        Windows::Upper | Windows::Listed => {
            let window = config.size("sliding_window")?;
            let used = config.flag("use_sliding_window")?.unwrap_or(false);
            let window = window.filter(|_| used);
            let first = config.size("max_window_layers")?;
            match slides(config, family.recurrent, layers)? {
                Some(slides) => sliding(config, &slides, window),
                None if window.is_none() => Ok(vec![None; layers]),
                None if family.windows == Windows::Listed => Err(config
                    .bad("layer_types", "with use_sliding_window it must list the layers that have one")),
                None => {
                    let first = first.ok_or_else(|| {
                        config.bad("max_window_layers", "with use_sliding_window it must be a number")
                    })?;
                    Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
                }
            }
        }
        Windows::AllBut { every, default, own_beside, rotation, .. } => {
            let window = window_or(config, Some(default))?;
            let slides = match slides(config, family.recurrent, layers)? {
                Some(slides) => {
                    config.contains(PATTERN);
                    slides
                }
                None if window.is_none() && rotation == Rotation::WindowedIfAny => vec![false; layers],
                None => match config.size(PATTERN)?.unwrap_or(every) {
                    0 => return Err(config.bad(PATTERN, "it must be 1 or more")),
                    every => (1..=layers).map(|layer| !layer.is_multiple_of(every)).collect(),
                },
            };
            let window = window.map(|window| window.saturating_add(own_beside.into()));
            sliding(config, &slides, window)
        }
    }
}

/// The file's window; `default` if the key is absent.
fn window_or(config: &Fields, default: Option<usize>) -> Result<Option<usize>> {
    match config.contains("sliding_window") {
        true => config.size("sliding_window"),
        false => Ok(default),
    }
}

fn sliding(config: &Fields, slides: &[bool], window: Option<usize>) -> Result<Vec<Option<usize>>> {
    if window.is_none() && slides.contains(&true) {
        return Err(config.bad("sliding_window", "layer_types has layers that need one (and use it)"));
    }
    Ok(slides.iter().map(|slides| window.filter(|_| *slides)).collect())
}

/// Whether each layer has a sliding window, if the file lists the layers' types. Recurrent layers have none.
pub(super) fn slides(
    config: &Fields,
    recurrent: Option<&dyn Recurrent>,
    layers: usize,
) -> Result<Option<Vec<bool>>> {
    let Some(types) = config.texts("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        return Err(config.bad("layer_types", format_args!("num_hidden_layers is {layers}")));
    }
    let of_recurrent = recurrent.map_or(&[] as &[_], |kind| kind.types());
    let recurrent = |kind: &str| of_recurrent.iter().any(|[own, _]| *own == kind);
    let slides = |kind: &&str| match *kind {
        FULL => Ok(false),
        SLIDING => Ok(true),
        kind if recurrent(kind) => Ok(false),
        other => {
            let why =
                format!("'{}' in it is not {FULL} or {SLIDING}", other.chars().take(60).collect::<String>());
            Err(config.unsupported("layer_types", why))
        }
    };
    types.iter().map(slides).collect::<Result<_>>().map(Some)
}
