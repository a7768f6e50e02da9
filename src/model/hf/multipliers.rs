//! Falcon-H1's factors on parts of a layer.

use super::fields::Fields;
use crate::base::Result;
use crate::ops::Activation;

/// Factors on parts of a layer. The residual is kept divided by that of attention's output, so that its updates need
/// none.
pub(crate) struct Multipliers {
    /// On attention's output.
    pub attention: f32,
    /// On attention's scores.
    pub(super) scores: f32,
    /// On the gate, and on the output of the feed-forward.
    feed_forward: [f32; 2],
    /// On the gate, x, B, C and the steps of Mamba-2.
    pub inputs: [f32; 5],
    /// On Mamba-2's output.
    pub output: f32,
}

impl Multipliers {
    /// `given`: the file may have them. Otherwise all are 1.
    pub(crate) fn read(config: &Fields, given: bool) -> Result<Self> {
        if !given {
            return Ok(Self {
                attention: 1.0,
                scores: 1.0,
                feed_forward: [1.0; 2],
                inputs: [1.0; 5],
                output: 1.0,
            });
        }
        let one = |key| Ok::<_, crate::base::Error>(config.float(key)?.unwrap_or(1.0));
        let input = one("attention_in_multiplier")?;
        let before = one("ssm_in_multiplier")?;
        let attention = input * one("attention_out_multiplier")?;
        let feed_forward: [f32; 2] = several(config, "mlp_multipliers")?;
        // These factors are computed behind products, or before them, as if there were no bias.
        for (key, none) in [("attention_bias", input == 1.0), ("mlp_bias", feed_forward[1] == attention)] {
            if !none && config.flag(key)?.unwrap_or(false) {
                let why = "biases beside attention_in_multiplier and the second of mlp_multipliers are not computed";
                return Err(config.unsupported(key, why));
            }
        }
        Ok(Self {
            attention,
            scores: input * input * one("key_multiplier")?,
            feed_forward,
            inputs: several(config, "ssm_multipliers")?.map(|factor: f32| factor * before),
            output: one("ssm_out_multiplier")?,
        })
    }

    /// The activation with the factors of the feed-forward.
    pub(super) fn activation(&self, config: &Fields, activation: Activation) -> Result<Activation> {
        let [by, output] = [self.feed_forward[0], self.feed_forward[1] / self.attention];
        match activation {
            activation if [by, output] == [1.0; 2] => Ok(activation),
            Activation::SwiGlu => Ok(Activation::ScaledSwiGlu { by, output }),
            _ => Err(config.unsupported("mlp_multipliers", "they are read beside silu only")),
        }
    }
}

/// So many factors, each 1 without the key.
fn several<const N: usize>(config: &Fields, key: &str) -> Result<[f32; N]> {
    let Some(list) = config.floats(key)? else { return Ok([1.0; N]) };
    list.try_into().map_err(|_| config.bad(key, format_args!("it must have {N} numbers")))
}
