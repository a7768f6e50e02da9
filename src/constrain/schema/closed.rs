//! Closes objects: callers of tools expect only the arguments that a schema declares, while JSON Schema allows any
//! other key. An object is closed only if a single schema declares its keys; otherwise each closed schema would refuse
//! the keys of the others.

use super::normal::Fields;
use serde_json::Value;

/// Keywords whose schemas apply to the same object as the schema around them.
const IN_PLACE: [&str; 9] =
    ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"];
/// Keywords of `IN_PLACE` whose schemas are conditions instead of descriptions.
const CONDITIONS: [&str; 4] = ["not", "if", "dependentSchemas", "dependencies"];
/// Keywords by which a schema says which other keys are allowed.
const OTHERS: [&str; 4] =
    ["additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties"];
/// Keywords whose values are schemas of other values, alone, in a list or by name.
const INNER: [&str; 9] = [
    "properties",
    "$defs",
    "definitions",
    "patternProperties",
    "items",
    "prefixItems",
    "additionalProperties",
    "anyOf",
    "oneOf",
];

/// Keywords whose values are schemas by name.
const NAMED: [&str; 4] = ["properties", "$defs", "definitions", "patternProperties"];

/// Closes the objects of a schema. An object whose schema is combined from several stays open.
pub(super) fn closed(mut schema: Value) -> Value {
    if !is_put_together(&schema) {
        close(&mut schema);
    }
    schema
}

/// Null is "not set", as in `normal`.
fn is_set(fields: &Fields, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !value.is_null())
}

fn is_put_together(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let several = fields.get("allOf").and_then(Value::as_array).is_some_and(|parts| parts.len() > 1);
            let has = |names: &[&str]| names.iter().filter(|name| is_set(fields, name)).count();
            let beside = has(&IN_PLACE) > 0 && has(&["properties", "required", "patternProperties"]) > 0;
            // Closing a schema to which a condition refers would change the meaning of the condition.
            several
                || beside
                || has(&IN_PLACE) > 1
                || has(&CONDITIONS) > 0
                || fields.iter().any(|(name, of)| match of {
                    // Keys here are names of properties, not keywords.
                    Value::Object(named) if NAMED.contains(&name.as_str()) => {
                        named.values().any(is_put_together)
                    }
                    _ => is_put_together(of),
                })
        }
        Value::Array(items) => items.iter().any(is_put_together),
        _ => false,
    }
}

fn close(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    if declares_all(fields) {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    for name in INNER {
        match fields.get_mut(name) {
            Some(Value::Array(items)) => items.iter_mut().for_each(close),
            Some(Value::Object(named)) if NAMED.contains(&name) => {
                named.values_mut().for_each(close);
            }
            Some(inner) => close(inner),
            None => {}
        }
    }
}

fn declares_all(fields: &Fields) -> bool {
    let Some(Value::Object(declared)) = fields.get("properties") else { return false };
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let known = required.filter_map(Value::as_str).all(|name| declared.contains_key(name));
    known && !OTHERS.iter().any(|name| is_set(fields, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_that_declare_their_keys_are_closed() {
        let object = json!({"properties": {"a": {"properties": {"b": {}}}}, "$defs": {"c": {"items": {"properties": {}}}}});
        let wanted = json!({
            "properties": {"a": {"properties": {"b": {}}, "additionalProperties": false}},
            "$defs": {"c": {"items": {"properties": {}, "additionalProperties": false}}},
            "additionalProperties": false
        });
        assert_eq!(closed(object), wanted);
        // Properties with such names are not keywords.
        let object = json!({"properties": {"if": {}, "dependencies": {}, "$ref": {}, "required": {}}});
        assert_eq!(closed(object)["additionalProperties"], json!(false));
    }

    #[test]
    fn others_stay_as_they_are() {
        for schema in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"$ref": "#/$defs/a", "anyOf": [{"properties": {"x": {}}}], "$defs": {"a": {"properties": {}}}}),
            json!({"required": ["b"], "anyOf": [{"properties": {"a": {}}}]}),
            json!({"items": {"not": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"properties": {}}}}),
            json!(true),
        ] {
            assert_eq!(closed(schema.clone()), schema);
        }
    }
}
