//! Closes objects: callers of tools expect no other arguments than those that a schema declares, while JSON Schema lets
//! any key come. Only objects whose keys one place declares are closed, since elsewhere a closed part refuses the keys
//! of the others.

use super::normal::Fields;
use serde_json::Value;

/// Keywords that hold a schema whose object is the same as that around it.
const IN_PLACE: [&str; 9] =
    ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"];
/// Those of them that decide something instead of describing the value.
const CONDITIONS: [&str; 4] = ["not", "if", "dependentSchemas", "dependencies"];
/// Keywords by which a schema says which other keys there may be.
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

/// The schema with its objects closed. It is unchanged if parts of an object's schema are put together.
pub fn closed(mut schema: Value) -> Value {
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
            // Where a condition refers to a schema, closing it would change what the condition means.
            several
                || beside
                || has(&IN_PLACE) > 1
                || has(&CONDITIONS) > 0
                || fields.iter().any(|(name, of)| match of {
                    // Names of properties are no keywords.
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
        // Properties of such names are no keywords.
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
