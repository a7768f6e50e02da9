//! Rules for arguments that are written parameter by parameter: text as it is, everything else as JSON.
//!
//! Parameters come in the order of the schema. Only those that it declares can come, which keeps any
//! `additionalProperties`. What cannot be kept is an error with the place in the schema.

use super::{escaped, literal, spaced};
use crate::text::chat::Json;
use crate::text::json::Fields;
use crate::text::reply::Kind;
use crate::text::reply::format::FUNCTION_END;
use crate::text::reply::known::{MAX_DEPTH, MAX_FIELDS, NULL, Schemas, TEXT};
use std::cell::Cell;
use std::fmt::Write;

/// Maximum length of a parameter's name in bytes, as the parser has it.
const MAX_NAME: usize = 128;

/// Assertions about a whole object that are not kept.
const OF_OBJECTS: [&str; 14] = [
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "const",
    "enum",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
];
/// Assertions about a text that are not kept.
const OF_TEXTS: [&str; 6] = ["pattern", "format", "oneOf", "allOf", "not", "if"];
/// Assertions about a text of which one is kept.
const CHOICES: [&str; 4] = ["$ref", "anyOf", "enum", "const"];

/// The error is what cannot be kept.
type Kept<T> = Result<T, String>;

/// The three parts around a parameter's name and value.
type Around = [&'static str; 3];

/// Appends the rules for the parameters of tool `i`, which keep `schema`. Returns a sequence of them, with a space at
/// its end.
pub fn rules(i: usize, schema: Option<&Json>, around: &Around, out: &mut String) -> Kept<String> {
    let left = Cell::new(MAX_FIELDS);
    let schemas = Schemas { root: schema, left: &left };
    let Some(object) = schemas.object() else { return Ok(any_rule(i, around, out)) };
    none_of(&OF_OBJECTS, object, "parameters")?;
    let required: Vec<&str> = match object.get("required") {
        Some(Json::List(names)) => names.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    };
    let declared = schemas.properties();
    let undeclared = required.iter().filter(|name| declared.iter().all(|(known, _)| known != *name));
    let any = Json::Map(Vec::new());
    let all = declared.iter().map(|(name, schema)| (&**name, schema));
    let mut sequence = String::new();
    for (j, (name, schema)) in all.chain(undeclared.map(|name| (*name, &any))).enumerate() {
        let at = format!("parameters.{name}");
        let must = required.contains(&name);
        if *schema == Json::Bool(false) {
            if must {
                return Err(at);
            }
            continue;
        }
        let writable = |c: char| !c.is_control() && c != '<' && c != '>';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(writable) {
            return Err(format!("the name of {at}"));
        }
        let _ = write!(out, "parameter_{i}_{j}: ");
        literal(&format!("{}{name}{}", around[0], around[1]), out);
        Value { schemas: &schemas, around, at: &at }.rules(&format!("{i}_{j}"), schema, out)?;
        let _ = write!(sequence, "parameter_{i}_{j}{} ", if must { "" } else { "?" });
    }
    Ok(sequence)
}

/// Appends the rule for a parameter of any name and value.
fn any_rule(i: usize, [open, middle, close]: &Around, out: &mut String) -> String {
    let _ = write!(out, "PARAMETER_{i}: ");
    literal(open, out);
    let _ = write!(out, "/[a-zA-Z0-9_.-]{{1,{MAX_NAME}}}/ ");
    literal(middle, out);
    let _ = writeln!(out, "{}", text("(?s:.*)", &[open, middle, close]));
    format!("PARAMETER_{i}* ")
}

/// A parameter's value.
struct Value<'a> {
    schemas: &'a Schemas<'a>,
    around: &'a Around,
    /// Its place in messages.
    at: &'a str,
}

impl Value<'_> {
    /// Ends the parameter's rule with the value and the closing tag, and appends the rule of the value.
    fn rules(&self, id: &str, schema: &Json, out: &mut String) -> Kept<()> {
        let kind = self.schemas.kind(schema);
        if kind != Kind::Any {
            let mut choices = Vec::new();
            self.texts(schema, kind == Kind::Nullable, MAX_DEPTH, &mut choices)?;
            if choices.is_empty() {
                return Err(self.at.to_owned());
            }
            let _ = writeln!(out, "TEXT_{id}\nTEXT_{id}: {}", choices.join(" | "));
            return Ok(());
        }
        let mut fields = match schema {
            Json::Map(fields) => fields.clone(),
            _ => Fields::new(),
        };
        for name in ["$defs", "definitions"] {
            let definitions = self.schemas.root.and_then(|root| root.get(name));
            fields.extend(definitions.map(|definitions| (name.to_owned(), definitions.clone())));
        }
        if let Some(path) = fields.iter().find_map(|(name, value)| other_reference(name, value)) {
            return Err(format!("{}: $ref to {path}", self.at));
        }
        let _ = write!(out, "value_{id} ");
        literal(self.around[2], out);
        let _ = writeln!(out, "\nvalue_{id}: %json {}", spaced(fields));
        Ok(())
    }

    /// Appends what a text may be: terminals that include the closing tag. `null` is allowed if the value is
    /// `nullable`.
    fn texts(&self, schema: &Json, nullable: bool, depth: u32, choices: &mut Vec<String>) -> Kept<()> {
        let Self { schemas, around, at } = self;
        let types = schemas.types(schema, depth);
        if types & TEXT == 0 {
            return if nullable && types & NULL != 0 { self.exactly("null", choices) } else { Ok(()) };
        }
        none_of(&OF_TEXTS, schema, at)?;
        let (least, most) = (schema.get("minLength"), schema.get("maxLength"));
        let mut among = CHOICES.iter().filter_map(|name| Some((*name, schema.get(name)?)));
        let Some((name, choice)) = among.next() else {
            let bound = |length: Option<&Json>| length.map(Json::to_string);
            let (least, most) = (bound(least).unwrap_or("0".into()), bound(most).unwrap_or_default());
            choices.push(text(&format!("(?s:.{{{least},{most}}})"), around));
            return Ok(());
        };
        if among.next().is_some() || least.is_some() || most.is_some() {
            return Err(format!("{at}: {name} beside other assertions"));
        }
        match (choice, depth.checked_sub(1)) {
            (Json::Text(text), _) if name == "const" => self.exactly(text, choices),
            (Json::List(values), _) if name == "enum" => values.iter().try_for_each(|value| match value {
                Json::Text(text) => self.exactly(text, choices),
                Json::Null if nullable => self.exactly("null", choices),
                _ => Ok(()),
            }),
            (Json::List(schemas), Some(depth)) if name == "anyOf" => {
                schemas.iter().try_for_each(|schema| self.texts(schema, nullable, depth, choices))
            }
            (Json::Text(path), Some(depth)) if name == "$ref" => match schemas.find(path) {
                Some(schema) => self.texts(schema, nullable, depth, choices),
                None => Err(format!("{at}: $ref to {path}")),
            },
            _ => Err(format!("{at}: {name}")),
        }
    }

    fn exactly(&self, text: &str, choices: &mut Vec<String>) -> Kept<()> {
        let [open, _, close] = self.around;
        if [close.trim(), &format!("\n{open}"), &format!("\n{FUNCTION_END}")]
            .iter()
            .any(|tag| text.contains(tag))
        {
            return Err(format!("{}: a text with tags", self.at));
        }
        let mut whole = String::new();
        literal(&format!("{text}{close}"), &mut whole);
        choices.push(whole);
        Ok(())
    }
}

/// A terminal for the texts of a regular expression and the closing tag, without those in which the parser might see
/// a tag.
fn text(any: &str, [open, _, close]: &Around) -> String {
    let (open, tag, end) = (escaped(open), escaped(close.trim()), escaped(FUNCTION_END));
    let mut behind = String::new();
    literal(close, &mut behind);
    format!("(/{any}/ & ~/(?s:.*){tag}(?s:.*)/ & ~/(?s:.*)\\n({open}|{end})(?s:.*)/) {behind}")
}

/// A reference in field `name` that leads elsewhere than to the definitions, which are all that its grammar has.
fn other_reference<'a>(name: &str, value: &'a Json) -> Option<&'a str> {
    let leads = |path: &str| path.starts_with("#/$defs/") || path.starts_with("#/definitions/");
    match value {
        Json::Text(path) if name == "$ref" && !leads(path) => Some(path),
        Json::Map(fields) => fields.iter().find_map(|(name, value)| other_reference(name, value)),
        Json::List(items) => items.iter().find_map(|item| other_reference("", item)),
        _ => None,
    }
}

fn none_of(names: &[&str], schema: &Json, at: &str) -> Kept<()> {
    match names.iter().find(|name| schema.get(name).is_some()) {
        Some(name) => Err(format!("{at}: {name}")),
        None => Ok(()),
    }
}
