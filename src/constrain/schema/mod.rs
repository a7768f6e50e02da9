//! Rewrites JSON schemas for llguidance, which supports a part of JSON Schema. The rest is rewritten into
//! that part so that the same values stay valid, or refused by name. So every accepted output is valid.

mod budget;
mod check;
mod closed;
mod finite;
mod keywords;
mod lark;
mod multiples;
mod negate;
mod normal;
mod numbers;
mod prove;
mod ranges;
mod refer;
mod rewrite;
mod rules;
mod spelling;

pub(super) use lark::lark;
pub use spelling::{JsonOptions, WhiteSpace};

use budget::Budget;
use normal::Fields;
use ranges::Ranges;
use rewrite::Rewriter;
use serde_json::{Map, Value};
use spelling::Guidance;

/// The reason why a schema is refused.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal(String);

impl Refusal {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

type Rule = fn(&mut Rewriter, &mut Fields) -> Result<(), Refusal>;

/// Step limit of all rewrites of a schema: llguidance takes 50,000 schemas.
const STEPS: u32 = 400_000;

/// The schema in `text`, rewritten for llguidance.
pub(super) fn prepare(text: &str, options: JsonOptions) -> Result<Value, String> {
    let schema: Value = serde_json::from_str(text).map_err(|e| format!("not a JSON schema: {e}"))?;
    prepared(&schema, options).map_err(|refusal| refusal.0)
}

fn prepared(schema: &Value, options: JsonOptions) -> Result<Value, Refusal> {
    let closed = options.closed.then(|| closed::closed(schema.clone()));
    let schema = closed.as_ref().unwrap_or(schema);
    let guidance = Guidance::of(schema.get("x-guidance"), options)?;
    let mut budget = Budget::new(STEPS);
    let normal = normal::normal(schema, &mut budget)?;
    let mut rewriter = Rewriter {
        definitions: &normal.definitions,
        budget: &mut budget,
        depth: 0,
        known_formats: guidance.known_formats,
        coerce: guidance.coerce,
        lenient: guidance.lenient,
        free_keys: false,
        controls: false,
        ranges: Ranges::default(),
    };
    let mut root = rewriter.schema(normal.root)?;
    let each = normal.definitions.iter().enumerate();
    let definitions = each.map(|(n, of)| Ok((n.to_string(), rewriter.schema(of.clone())?)));
    let mut definitions = definitions.collect::<Result<Map<_, _>, Refusal>>()?;
    definitions.values_mut().chain([&mut root]).try_for_each(|schema| rewriter.ranges.close(schema))?;
    multiples::meet(&root, definitions.values())?;
    let spelling = guidance.spelling(rewriter.free_keys, rewriter.controls)?;
    let mut fields = match root {
        Value::Object(fields) => fields,
        Value::Bool(true) => Map::new(),
        _ => return Err(Refusal::new("nothing is valid")),
    };
    if !definitions.is_empty() {
        fields.insert("$defs".to_owned(), Value::Object(definitions));
    }
    fields.insert("x-guidance".to_owned(), Value::Object(spelling));
    Ok(Value::Object(fields))
}
