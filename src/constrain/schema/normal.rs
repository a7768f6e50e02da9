//! Converts a schema of any draft to 2020-12 without annotations, whose references are numbers of
//! definitions.

use super::Refusal;
use super::budget::Budget;
use super::keywords::{Draft, Holds, holds};
use super::numbers;
use super::refer::{ReferenceIndex, Scope};
use serde_json::{Map, Value};
use std::collections::HashMap;

pub(super) type Fields = Map<String, Value>;

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Prefix of a reference to a definition, before its number.
pub(super) const DEFINITION: &str = "#/$defs/";

/// A schema, and the targets of its references and of those in the definitions.
pub(super) struct Normal {
    pub root: Value,
    pub definitions: Vec<Value>,
}

pub(super) fn normal(schema: &Value, budget: &mut Budget) -> Result<Normal, Refusal> {
    let draft = Draft::of(schema.get("$schema").and_then(Value::as_str));
    let references = ReferenceIndex::of(schema, draft, budget)?;
    let mut reader =
        Reader { draft, references: &references, budget, found: Vec::new(), numbers: HashMap::new() };
    let root = reader.schema(schema, references.root())?;
    let mut definitions = Vec::new();
    while let Some(&(target, scope)) = reader.found.get(definitions.len()) {
        definitions.push(reader.schema(target, scope)?);
    }
    Ok(Normal { root, definitions })
}

struct Reader<'a, 'b> {
    draft: Draft,
    references: &'b ReferenceIndex<'a>,
    budget: &'b mut Budget,
    /// Targets of references, in the order of their numbers.
    found: Vec<(&'a Value, Scope)>,
    /// Numbers of the targets by address.
    numbers: HashMap<*const Value, usize>,
}

impl<'a> Reader<'a, '_> {
    fn schema(&mut self, schema: &'a Value, scope: Scope) -> Result<Value, Refusal> {
        self.budget.spend(1)?;
        let fields = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(fields) => fields,
            _ => return Err(Refusal::new("a schema is an object, true or false")),
        };
        let scope = self.references.scope(schema).unwrap_or(scope);
        // Before 2019-09, keywords beside a reference are ignored.
        let alone = self.draft <= Draft::Seven && fields.get("$ref").is_some_and(Value::is_string);
        let mut out = Map::new();
        // Some tools write null for keywords that are not set.
        let set = |keyword: &str, value: &Value| !value.is_null() || keyword == "const";
        let counts = |keyword: &str| !alone || keyword == "$ref";
        for (keyword, value) in
            fields.iter().filter(|(keyword, value)| counts(keyword) && set(keyword, value))
        {
            if let Some(holds) = holds(keyword, self.draft) {
                out.insert(keyword.clone(), self.value(keyword, holds, value, scope)?);
            }
        }
        exclusive(&mut out);
        listed(&mut out);
        depending(&mut out)?;
        Ok(Value::Object(out))
    }

    fn value(
        &mut self,
        keyword: &str,
        holds: Holds,
        value: &'a Value,
        scope: Scope,
    ) -> Result<Value, Refusal> {
        self.budget.spend(1)?;
        let wrong = |what: &str| Err(Refusal::new(format!("{keyword} is not {what}")));
        match (holds, value) {
            (Holds::Schema, Value::Array(all)) if keyword == "items" => self.schemas(all, scope),
            (Holds::Schema, _) => self.schema(value, scope),
            (Holds::Schemas, Value::Array(all)) => self.schemas(all, scope),
            (Holds::Schemas, _) => wrong("a list of schemas"),
            (Holds::Named, Value::Object(all)) => {
                let one = |(name, of): (&String, &'a Value)| {
                    let names = keyword == "dependencies" && of.is_array();
                    let of = if names { self.plain(of)? } else { self.schema(of, scope)? };
                    Ok((name.clone(), of))
                };
                Ok(Value::Object(all.iter().map(one).collect::<Result<_, Refusal>>()?))
            }
            (Holds::Named, _) => wrong("an object of schemas"),
            (Holds::Reference, Value::String(reference)) => {
                let number = self.number(reference, scope)?;
                Ok(Value::String(format!("{DEFINITION}{number}")))
            }
            (Holds::Reference, _) => wrong("a text"),
            (Holds::Data, _) => {
                numbers::exact(keyword, value)?;
                self.plain(value)
            }
            (Holds::Size, _) => numbers::size(keyword, value),
            (Holds::Bound, _) => numbers::bound(keyword, value),
            (Holds::Types, _) if !are_types(value) => {
                Err(Refusal::new(format!("type is {value}, which names no type")))
            }
            (Holds::Types | Holds::Plain, _) => self.plain(value),
        }
    }

    fn schemas(&mut self, all: &'a [Value], scope: Scope) -> Result<Value, Refusal> {
        all.iter().map(|one| self.schema(one, scope)).collect::<Result<_, _>>().map(Value::Array)
    }

    fn plain(&mut self, value: &Value) -> Result<Value, Refusal> {
        self.budget.spend_on(value)?;
        Ok(value.clone())
    }

    fn number(&mut self, reference: &str, scope: Scope) -> Result<usize, Refusal> {
        let (target, scope) = self.references.find(reference, scope)?;
        let next = self.found.len();
        let number = *self.numbers.entry(&raw const *target).or_insert(next);
        if number == next {
            self.found.push((target, scope));
        }
        Ok(number)
    }
}

fn are_types(value: &Value) -> bool {
    let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(all) => !all.is_empty() && all.iter().all(known),
        one => known(one),
    }
}

/// Converts draft 4's `exclusiveMinimum: true` to a number.
fn exclusive(fields: &mut Fields) {
    for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        let Some(&Value::Bool(is)) = fields.get(exclusive) else { continue };
        let number = if is { fields.shift_remove(bound) } else { None };
        match number {
            Some(number) => drop(fields.insert(exclusive.to_owned(), number)),
            None => drop(fields.shift_remove(exclusive)),
        }
    }
}

/// Converts lists of `items`, and the `additionalItems` after them, to `prefixItems` and `items`.
fn listed(fields: &mut Fields) {
    let rest = fields.shift_remove("additionalItems");
    if fields.get("items").is_some_and(Value::is_array) {
        let list = fields.shift_remove("items").unwrap_or_default();
        fields.insert("prefixItems".to_owned(), list);
        fields.extend(rest.map(|rest| ("items".to_owned(), rest)));
    }
}

/// Converts `dependencies` to `dependentRequired` and `dependentSchemas`.
fn depending(fields: &mut Fields) -> Result<(), Refusal> {
    let Some(Value::Object(all)) = fields.shift_remove("dependencies") else { return Ok(()) };
    for (name, of) in all {
        let keyword = if of.is_array() { "dependentRequired" } else { "dependentSchemas" };
        let known = fields.entry(keyword).or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(known) = known else {
            return Err(Refusal::new(format!("{keyword} is not an object")));
        };
        if known.insert(name, of).is_some() {
            return Err(Refusal::new(format!("dependencies and {keyword} name the same property")));
        }
    }
    Ok(())
}
