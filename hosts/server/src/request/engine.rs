//! The engine's own fields, under the header's names, on every route.
use crate::failure::{Failure, Result};
use crate::fields::{EXACT, Fields, U32, Whole};
use crate::models::Held;
use crate::request::constraint::Format;
use crate::request::conversation::Conversation;
use crate::request::sampling::{self, defaults};
use crate::run::Call;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Fields of requests that run in the engine.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct Running {
    priority: Option<Whole<0, 255>>,
    cache_salt: Option<Salt>,
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
        to.cache_salt = self.cache_salt.map_or(0, |salt| salt.0);
        to.timeout_ms = self.timeout_ms.map_or(0, Whole::u32);
        to.queue_timeout_ms = self.queue_timeout_ms.map_or(0, Whole::u32);
        to.no_cache = self.no_cache.unwrap_or(false);
        to.drop_late = self.drop_late.unwrap_or(false);
    }
}

/// The engine's number, or vLLM's text, which is converted to a number.
#[derive(Clone, Copy, Debug)]
struct Salt(u64);

impl<'de> Deserialize<'de> for Salt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        match Value::deserialize(from)? {
            Value::String(text) if text.is_empty() => Ok(Self(0)), // none
            Value::String(text) => {
                let mut hasher = DefaultHasher::new();
                text.hash(&mut hasher);
                Ok(Self(hasher.finish().max(1)))
            }
            other => {
                let wrong =
                    |_| D::Error::custom(format!("must be a text or a whole number from 0 to {EXACT}"));
                Whole::<0, EXACT>::deserialize(other).map(|salt| Self(salt.u64())).map_err(wrong)
            }
        }
    }
}

/// Fields of requests that generate.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct Generating {
    ignore_eos: Option<bool>,
    session: Option<String>,
    id_slot: Option<Whole<-1, U32>>,
    speculation: Option<String>,
    draft_tokens: Option<Whole<0, 15>>,
    min_tokens: Option<Whole<0, U32>>,
}

impl Generating {
    pub fn apply(self, to: &mut bn::Request) -> Result<()> {
        to.ignore_eos = self.ignore_eos.unwrap_or(false);
        let slot = self.id_slot.and_then(|slot| u32::try_from(slot.0).ok());
        to.session = self.session.or(slot.map(session_of_slot));
        to.speculation = match self.speculation.as_deref() {
            None => to.speculation,
            Some("off") => bn::Speculation::Off,
            Some("lookup") => bn::Speculation::Lookup,
            Some("draft") => bn::Speculation::Draft,
            Some(_) => return Err(Failure::invalid("'speculation' must be 'off', 'lookup' or 'draft'")),
        };
        to.draft_tokens = self.draft_tokens.map_or(0, Whole::u32);
        to.min_new_tokens = self.min_tokens.map_or(0, Whole::u32);
        Ok(())
    }
}

/// The session of the requests with this `id_slot`, which llama.cpp's clients save by that.
pub fn session_of_slot(slot: u32) -> String {
    format!("slot-{slot}")
}

/// A bound on reasoning, also under vLLM's, DashScope's and llama.cpp's names; -1 means none.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Reasoning {
    #[serde(alias = "thinking_token_budget", alias = "thinking_budget", alias = "reasoning_budget")]
    max_reasoning_tokens: Option<Whole<-1, EXACT>>,
}

impl Reasoning {
    /// None: no bound.
    fn bound(&self, held: &Held) -> Option<u32> {
        match self.max_reasoning_tokens {
            Some(tokens) => u32::try_from(tokens.0).ok(),
            None => held.options.reasoning_budget.and_then(|tokens| u32::try_from(tokens).ok()),
        }
    }
}

/// A request that generates, without its prompt: an answer in a conversation, or the rest of a text.
pub fn generating(
    call: &Call,
    held: &Held,
    fields: &mut Fields,
    format: Format,
    chat: Option<&Conversation>,
) -> Result<bn::Request> {
    let mut request = bn::Request { sampling: defaults(held, chat.is_some()), ..bn::Request::default() };
    request.sampling.seed = call.seed();
    sampling::apply(fields, &mut request.sampling)?;
    fields.take::<Running>()?.apply(&mut request);
    fields.take::<Generating>()?.apply(&mut request)?;
    request.constraint = format.constraint(held, fields, chat)?;
    if chat.is_some() {
        request.max_reasoning_tokens = fields.take::<Reasoning>()?.bound(held);
        request.parse_output = true;
        request.max_new_tokens = 0; // as many as the context allows
    }
    Ok(request)
}
