//! Schemas that are refused by name, because a keyword is unknown or cannot be kept.

use super::ConstraintKind::JsonSchema;
use super::tests::guide;

/// Null means "not set", except for a constant.
#[test]
fn keywords_of_null_say_nothing() {
    let empty = r#"{"type":"object","properties":null,"required":null,"additionalProperties":null,"pattern":null,
        "anyOf":null,"enum":null,"items":null,"minimum":null,"$ref":null}"#;
    for schema in [empty, r#"{"const":null,"type":null}"#] {
        guide(JsonSchema, schema).unwrap();
    }
    assert!(guide(JsonSchema, r#"{"const":null,"type":"string"}"#).is_err());
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    for (schema, why) in [
        (r#"{"type":"string","pattern":"^(\\u0000|[\\u0001-\\u001f])$"}"#, "the character U+0000"),
        (r#"{"type":"string","pattern":"^(\u0000|[\\u0001-\\u001f])$"}"#, "the character U+0000"),
        (r#"{"type":"string","pattern":"^(\\0|[\\x01-\\x1f])$"}"#, "the character U+0000"),
        (r#"{"type":"string","pattern":"^\\x00$"}"#, "the character U+0000"),
        (r#"{"patternProperties":{"^\\u{0}$":true}}"#, "the character U+0000"),
        (r##"{"enum":[null,true],"not":{"not":{"$dynamicRef":"#a"}}}"##, "$dynamicRef"),
        (
            r##"{"$schema":"https://json-schema.org/draft/2019-09/schema","enum":[null],"not":{"$recursiveRef":"#"}}"##,
            "not with a schema",
        ),
        (
            r#"{"type":"object","required":["a","a"],"minProperties":3}"#,
            "minProperties asks for more than one",
        ),
        (r#"{"enum":[1],"not":{"type":5}}"#, "type is 5, which names no type"),
        (r#"{"enum":[1],"not":{"type":[]}}"#, "type is [], which names no type"),
        (r#"{"enum":[1],"not":{"type":["float"]}}"#, r#"type is ["float"], which names no type"#),
        (r#"{"enum":[]}"#, "nothing is valid"),
        (r#"{"enum":[1],"not":{"const":1}}"#, "nothing is valid"),
        (r#"{"oneOf":[{"type":"any"},{"type":"null"}]}"#, r#"type is "any", which names no type"#),
    ] {
        let message = guide(JsonSchema, schema).map(drop).expect_err(schema).message;
        assert!(message.contains(why), "{schema}: {message}");
    }
    guide(JsonSchema, r#"{"type":"object","required":["a","a"],"minProperties":2}"#).unwrap();
}
