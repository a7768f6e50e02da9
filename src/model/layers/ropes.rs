//! The rotations of layers.

use crate::base::Result;
use crate::model::config::{DecoderConfig, RopeConfig};
use crate::model::reader::Reader;
use crate::ops::Rope;
use crate::ops::pass::Ropes;

/// Divisors of rope frequencies are at least 1 in real files. A tiny one would make angles infinite.
const MIN_FACTOR: f32 = 1e-3;

/// The configuration's frequencies, divided by the file's own factors if it has them (GGUF's form of Llama 3.1's
/// scaling). If there are two ropes, the first that rotates is scaled.
pub(crate) fn read(reader: &mut Reader, c: &DecoderConfig) -> Result<Vec<Ropes>> {
    const NAME: &str = "rope_freqs.weight";
    let mut ropes: Vec<_> = c.ropes.iter().map(|rope| (rope.inv_freq(), rope.attention_factor())).collect();
    if reader.has(NAME) {
        let scaled = ropes.iter().position(|(inv_freq, _)| !inv_freq.is_empty()).unwrap_or(0);
        let inv_freq = &mut ropes[scaled].0;
        let factors = reader.vector(NAME, inv_freq.len())?;
        for (freq, factor) in inv_freq.iter_mut().zip(factors.iter()) {
            if *factor < MIN_FACTOR {
                return Err(reader.bad(NAME, &format!("holds {factor}")));
            }
            *freq /= factor;
        }
    }
    let rope = |inv_freq: Vec<f32>, factor| {
        let axes = c.axes.clone().filter(|axes| axes.pairs() == inv_freq.len());
        Rope { inv_freq: inv_freq.into(), style: c.rope_style, factor, axes }
    };
    let both = |(of, (inv_freq, factor)): (&RopeConfig, _)| Ropes {
        rope: rope(inv_freq, factor),
        long: of
            .long()
            .filter(|(above, _)| c.context_length > *above)
            .map(|(above, inv_freq)| (above, rope(inv_freq, factor))),
    };
    Ok(c.ropes.iter().zip(ropes).map(both).collect())
}
