//! JSON Schema's validation keywords. All others are annotations.

use super::Refusal;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Four,
    Six,
    Seven,
    Of2019,
    Of2020,
}

use Draft::*;

impl Draft {
    /// The draft of a schema's `$schema`; the latest if it is missing or unknown.
    pub(super) fn of(uri: Option<&str>) -> Self {
        let parts = [("draft-04", Four), ("draft-06", Six), ("draft-07", Seven), ("draft/2019-09", Of2019)];
        let uri = uri.unwrap_or_default();
        parts.iter().find(|(part, _)| uri.contains(part)).map_or(Of2020, |(_, draft)| *draft)
    }
}

/// The kind of value that a keyword has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Schema,
    Schemas,
    /// Schemas by property name or pattern.
    Named,
    /// JSON that is not a schema, though it may look like one.
    Data,
    Reference,
    /// A count or length.
    Size,
    /// A number to compare with.
    Bound,
    /// One type name, or a list of them.
    Types,
    Plain,
}

use Holds::*;

/// Keywords with the first and the last draft that has them.
const KEYWORDS: &[(&str, Holds, Draft, Draft)] = &[
    ("$ref", Reference, Four, Of2020),
    ("$recursiveRef", Plain, Of2019, Of2019),
    ("$dynamicRef", Plain, Of2020, Of2020),
    ("type", Types, Four, Of2020),
    // Not in draft 4, but written in such schemas, and never with another meaning.
    ("const", Data, Four, Of2020),
    ("enum", Data, Four, Of2020),
    ("allOf", Schemas, Four, Of2020),
    ("anyOf", Schemas, Four, Of2020),
    ("oneOf", Schemas, Four, Of2020),
    ("not", Schema, Four, Of2020),
    ("if", Schema, Seven, Of2020),
    ("then", Schema, Seven, Of2020),
    ("else", Schema, Seven, Of2020),
    ("minimum", Bound, Four, Of2020),
    ("maximum", Bound, Four, Of2020),
    ("exclusiveMinimum", Bound, Four, Of2020),
    ("exclusiveMaximum", Bound, Four, Of2020),
    ("multipleOf", Plain, Four, Of2020),
    ("minLength", Size, Four, Of2020),
    ("maxLength", Size, Four, Of2020),
    ("pattern", Plain, Four, Of2020),
    ("format", Plain, Four, Of2020),
    ("prefixItems", Schemas, Of2020, Of2020),
    // A list of schemas in older drafts.
    ("items", Schema, Four, Of2020),
    // Not a keyword of 2020-12, but still written after an old-style list of `items`.
    ("additionalItems", Schema, Four, Of2020),
    ("unevaluatedItems", Schema, Of2019, Of2020),
    ("contains", Schema, Six, Of2020),
    ("minContains", Size, Of2019, Of2020),
    ("maxContains", Size, Of2019, Of2020),
    ("minItems", Size, Four, Of2020),
    ("maxItems", Size, Four, Of2020),
    ("uniqueItems", Plain, Four, Of2020),
    ("properties", Named, Four, Of2020),
    ("patternProperties", Named, Four, Of2020),
    ("additionalProperties", Schema, Four, Of2020),
    ("unevaluatedProperties", Schema, Of2019, Of2020),
    ("propertyNames", Schema, Six, Of2020),
    ("required", Plain, Four, Of2020),
    ("minProperties", Size, Four, Of2020),
    ("maxProperties", Size, Four, Of2020),
    // Dropped from later drafts, but still written there.
    ("dependencies", Named, Four, Of2020),
    ("dependentRequired", Plain, Of2019, Of2020),
    ("dependentSchemas", Named, Of2019, Of2020),
];

/// The kind of value of a keyword; None for annotations and for keywords that the draft lacks.
pub(super) fn holds(keyword: &str, draft: Draft) -> Option<Holds> {
    let known = |row: &&(&str, Holds, Draft, Draft)| row.0 == keyword && row.2 <= draft && draft <= row.3;
    KEYWORDS.iter().find(known).map(|row| row.1)
}

/// The schemas of a keyword that holds some.
pub(super) fn schemas(holds: Option<Holds>, of: &Value) -> Vec<&Value> {
    match (holds, of) {
        // `items` is a list in older drafts.
        (Some(Schema | Schemas), Value::Array(all)) => all.iter().collect(),
        (Some(Schema), one) => vec![one],
        (Some(Named), Value::Object(all)) => all.values().collect(),
        _ => Vec::new(),
    }
}

/// Applies `change` to the schemas directly within a normal schema.
pub(super) fn each_below(
    fields: &mut Map<String, Value>,
    change: &mut dyn FnMut(&mut Value) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    for (keyword, of) in fields {
        match (holds(keyword, Of2020), of) {
            (Some(Schemas), Value::Array(all)) => all.iter_mut().try_for_each(&mut *change)?,
            (Some(Schema), one) => change(one)?,
            (Some(Named), Value::Object(all)) => all.values_mut().try_for_each(&mut *change)?,
            _ => {}
        }
    }
    Ok(())
}

/// Keywords that apply other schemas to the same value.
pub(super) const IN_PLACE: [&str; 10] =
    ["$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "$dynamicRef"];
