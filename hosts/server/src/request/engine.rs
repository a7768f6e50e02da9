//! The engine's own fields, by the header's names, on every route.
use crate::failure::Result;
use crate::fields::{EXACT, Fields, U32, Whole, Word};
use crate::models::Held;
use crate::request::sampling::{Habit, Sampling, defaults};
use crate::run::Call;
use serde::Deserialize;

/// Fields of requests that run in the engine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Running {
    priority: Option<Whole<0, 255>>,
    cache_salt: Option<Whole<0, EXACT>>,
    timeout_ms: Option<Whole<1, { U32 - 1 }>>,
    queue_timeout_ms: Option<Whole<1, { U32 - 1 }>>,
    no_cache: Option<bool>,
    drop_late: Option<bool>,
}

impl Running {
    pub fn apply(&self, to: &mut bn::Request) {
        if let Some(priority) = self.priority {
            to.priority = priority.u32();
        }
        to.cache_salt = self.cache_salt.map_or(0, Whole::u64);
        to.timeout_ms = self.timeout_ms.map_or(0, Whole::u32);
        to.queue_timeout_ms = self.queue_timeout_ms.map_or(0, Whole::u32);
        to.no_cache = self.no_cache.unwrap_or(false);
        to.drop_late = self.drop_late.unwrap_or(false);
    }
}

/// Fields of requests that generate.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Generating {
    ignore_eos: Option<bool>,
    session: Option<String>,
    speculation: Option<Word<Speculation>>,
    draft_tokens: Option<Whole<0, 15>>,
    min_tokens: Option<Whole<0, U32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation(pub bn::Speculation);

impl TryFrom<String> for Speculation {
    type Error = &'static str;

    fn try_from(word: String) -> std::result::Result<Self, Self::Error> {
        match word.as_str() {
            "off" => Ok(Self(bn::Speculation::Off)),
            "lookup" => Ok(Self(bn::Speculation::Lookup)),
            "draft" => Ok(Self(bn::Speculation::Draft)),
            _ => Err("must be 'off', 'lookup' or 'draft'"),
        }
    }
}

impl Generating {
    pub fn apply(self, to: &mut bn::Request) -> Result<()> {
        to.ignore_eos = self.ignore_eos.unwrap_or(false);
        to.session = self.session;
        if let Some(Word(speculation)) = self.speculation {
            to.speculation = speculation.0;
        }
        to.draft_tokens = self.draft_tokens.map_or(0, Whole::u32);
        to.min_new_tokens = self.min_tokens.map_or(0, Whole::u32);
        Ok(())
    }
}

/// A request that generates, without its prompt: sampling, and the fields above.
pub fn generating(call: &Call, held: &Held, fields: &mut Fields, habit: Habit) -> Result<bn::Request> {
    let mut request = bn::Request { sampling: defaults(held, habit), ..bn::Request::default() };
    request.sampling.seed = call.seed();
    fields.take::<Sampling>()?.apply(&mut request.sampling)?;
    fields.take::<Running>()?.apply(&mut request);
    fields.take::<Generating>()?.apply(&mut request)?;
    Ok(request)
}
