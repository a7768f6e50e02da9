//! Rules for arguments that are written parameter by parameter: text as it is, everything else as JSON.
//!
//! Parameters come in the order of the schema. Only those that it declares can come, which keeps any
//! `additionalProperties`. A keyword that cannot be kept is an error that names its place in the schema.

use super::{escaped, literal, spaced};
use crate::text::chat::Json;
use crate::text::json::Fields;
use crate::text::reply::Kind;
use crate::text::reply::format::FUNCTION_END;
use crate::text::reply::known::{MAX_DEPTH, MAX_FIELDS, NULL, Schemas, TEXT, properties};
use crate::text::{formats, patterns};
use std::collections::HashSet;
use std::fmt::Write;

/// Maximum length of a parameter's name in bytes, as the parser has it.
const MAX_NAME: usize = 128;

/// Maximum length of a grammar in bytes: references may multiply texts and definitions.
const MAX_BYTES: usize = 16 << 20;

/// Keywords that may stand beside the reference of a tool's schema, because they assert nothing.
const BESIDE: [&str; 6] = ["$ref", "$defs", "definitions", "title", "description", "$schema"];
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
const OF_TEXTS: [&str; 2] = ["not", "if"];
/// Assertions about a text of which one is kept.
const CHOICES: [&str; 6] = ["$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
/// Assertions about a text that are kept together.
const FORMS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];

/// The error names the keyword that cannot be kept.
type Kept<T> = Result<T, String>;

/// The three parts around a parameter's name and value.
type Around = [&'static str; 3];

/// Appends the rules for the parameters of tool `i`, which keep the root of `schemas`. Returns a sequence of them, with
/// a space at its end.
pub(super) fn rules(i: usize, schemas: &Schemas, around: &Around, out: &mut String) -> Kept<String> {
    let Some(root) = schemas.root else { return Ok(any_rule(i, around, out)) };
    let object = object(root, schemas)?;
    none_of(&OF_OBJECTS, object, "parameters")?;
    let required = match object.get("required") {
        Some(Json::List(names)) => &**names,
        _ => &[],
    };
    let declared = properties(object);
    let mut names: HashSet<&str> = declared.iter().map(|(name, _)| *name).collect();
    let any = Json::Map(Vec::new());
    let required = required.iter().filter_map(Json::as_str);
    let undeclared: Vec<_> =
        required.clone().filter(|name| names.insert(name)).map(|name| (name, &any)).collect();
    let required: HashSet<&str> = required.collect();
    let mut sequence = String::new();
    for (j, (name, schema)) in declared.into_iter().chain(undeclared).enumerate() {
        let at = format!("parameters.{name}");
        let must = required.contains(name);
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
        Value { schemas, around, at: &at }.rules(&format!("{i}_{j}"), schema, out)?;
        if schemas.left.get() == 0 {
            return Err(too_many(&at));
        }
        within(out, &at)?;
        let _ = write!(sequence, "parameter_{i}_{j}{} ", if must { "" } else { "?" });
    }
    Ok(sequence)
}

/// The schema of the whole object, after the references from `root`.
fn object<'a>(root: &'a Json, schemas: &Schemas<'a>) -> Kept<&'a Json> {
    let mut object = root;
    for _ in 0..MAX_DEPTH {
        let (Json::Map(fields), Some(path)) = (object, object.get("$ref")) else { return Ok(object) };
        let asserts = |(name, value): &&(String, Json)| *value != Json::Null && !BESIDE.contains(&&**name);
        if let Some((name, _)) = fields.iter().find(asserts) {
            return Err(format!("parameters: {name} beside $ref"));
        }
        let found = path.as_str().and_then(|path| schemas.find(path));
        object = found.ok_or_else(|| format!("parameters: $ref to {}", path.as_str().unwrap_or_default()))?;
    }
    Err("parameters: $ref to itself".to_owned())
}

/// Appends the rule for a parameter of any name and value.
pub(super) fn any_rule(i: usize, [open, middle, close]: &Around, out: &mut String) -> String {
    let _ = write!(out, "PARAMETER_{i}: ");
    literal(open, out);
    let _ = write!(out, "/[a-zA-Z0-9_.-]{{1,{MAX_NAME}}}/ ");
    literal(middle, out);
    let _ = writeln!(out, "{}", text("/(?s:.*)/", &[open, middle, close]));
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
            let mut choices = String::new();
            self.texts(schema, kind == Kind::Nullable, MAX_DEPTH, &mut choices)?;
            if choices.is_empty() {
                return Err(self.at.to_owned());
            }
            let _ = writeln!(out, "TEXT_{id}\nTEXT_{id}: {choices}");
            return Ok(());
        }
        let mut fields = match schema {
            Json::Map(fields) => fields.clone(),
            _ => Fields::new(),
        };
        if reference(&fields, &|_| true).is_some() {
            for name in ["$defs", "definitions"] {
                let definitions = self.schemas.root.and_then(|root| root.get(name));
                fields.extend(definitions.map(|definitions| (name.to_owned(), definitions.clone())));
            }
        }
        // The grammar of the value has only the definitions.
        let leads = |path: &str| path.starts_with("#/$defs/") || path.starts_with("#/definitions/");
        if let Some(path) = reference(&fields, &|path| !leads(path)) {
            return Err(format!("{}: $ref to {path}", self.at));
        }
        let _ = write!(out, "value_{id} ");
        literal(self.around[2], out);
        let _ = writeln!(out, "\nvalue_{id}: %json {}", spaced(fields));
        Ok(())
    }

    /// Appends the possible forms of a text: terminals that include the closing tag, with `|` between. `null` is
    /// allowed if the value is `nullable`.
    fn texts(&self, schema: &Json, nullable: bool, depth: u32, choices: &mut String) -> Kept<()> {
        let Self { schemas, around, at } = self;
        let spend = |items: usize| schemas.spend(items).ok_or_else(|| too_many(at));
        spend(1)?;
        let types = schemas.types(schema, depth);
        if types & TEXT == 0 {
            return if nullable && types & NULL != 0 { self.exactly("null", choices) } else { Ok(()) };
        }
        none_of(&OF_TEXTS, schema, at)?;
        let mut among = CHOICES.iter().filter_map(|name| Some((*name, schema.get(name)?)));
        let Some((name, choice)) = among.next() else {
            return self.choice(&text(&self.forms(schema)?, around), choices);
        };
        if among.next().is_some() || FORMS.iter().any(|name| schema.get(name).is_some()) {
            return Err(format!("{at}: {name} beside other assertions"));
        }
        if let Json::List(items) = choice {
            spend(items.len())?;
        }
        match (choice, depth.checked_sub(1)) {
            (Json::Text(text), _) if name == "const" => self.exactly(text, choices),
            (Json::List(values), _) if name == "enum" => values.iter().try_for_each(|value| match value {
                Json::Text(text) => self.exactly(text, choices),
                Json::Null if nullable => self.exactly("null", choices),
                _ => Ok(()),
            }),
            (Json::List(all), Some(depth))
                if name == "anyOf"
                    || name == "allOf" && all.len() == 1
                    || name == "oneOf" && self.exclude(all, depth) =>
            {
                all.iter().try_for_each(|schema| self.texts(schema, nullable, depth, choices))
            }
            (Json::Text(path), Some(depth)) if name == "$ref" => match schemas.find(path) {
                Some(schema) => self.texts(schema, nullable, depth, choices),
                None => Err(format!("{at}: $ref to {path}")),
            },
            _ => Err(format!("{at}: {name}")),
        }
    }

    /// Regular expressions between slashes for the texts of a pattern, a format and lengths.
    fn forms(&self, schema: &Json) -> Kept<String> {
        let bound = |name: &str| schema.get(name).map(Json::to_string);
        let (least, most) =
            (bound("minLength").unwrap_or("0".into()), bound("maxLength").unwrap_or_default());
        let mut all = format!("/(?s:.{{{least},{most}}})/");
        let pattern = match schema.get("pattern") {
            Some(Json::Text(pattern)) => Some(&**pattern),
            None => None,
            Some(_) => return Err(format!("{}: pattern", self.at)),
        };
        // An unknown format is ignored.
        let format = schema.get("format").and_then(Json::as_str).and_then(formats::find);
        for pattern in pattern.into_iter().chain(format.map(|format| &*format.pattern)) {
            let pattern = patterns::rust(pattern).map_err(|why| format!("{}: {why}", self.at))?;
            let pattern = patterns::whole(&pattern).replace('/', r"\x2F").replace('\n', r"\n");
            let _ = write!(all, " & /{pattern}/");
        }
        if let Some(longest) = format.and_then(|format| format.longest) {
            let _ = write!(all, " & /(?s:.{{0,{longest}}})/");
        }
        Ok(all)
    }

    /// Whether no text is valid under two of these schemas: at most one of them allows texts, or all that do
    /// list theirs.
    fn exclude(&self, all: &[Json], depth: u32) -> bool {
        let texts: Vec<_> =
            all.iter().filter(|schema| self.schemas.types(schema, depth) & TEXT != 0).collect();
        let mut known = HashSet::new();
        let lists = |schema: &&Json| match (schema.get("const"), schema.get("enum")) {
            (Some(Json::Text(text)), None) => known.insert(text.clone()),
            (None, Some(Json::List(values))) => {
                // A text that occurs twice in a list counts once.
                let own: HashSet<_> = values.iter().filter_map(Json::as_str).collect();
                own.into_iter().all(|text| known.insert(text.to_owned()))
            }
            _ => false,
        };
        texts.len() == 1 || texts.iter().all(lists)
    }

    fn exactly(&self, text: &str, choices: &mut String) -> Kept<()> {
        let [open, _, close] = self.around;
        if [close.trim(), &format!("\n{open}"), &format!("\n{FUNCTION_END}")]
            .iter()
            .any(|tag| text.contains(tag))
        {
            return Err(format!("{}: a text with tags", self.at));
        }
        let mut whole = String::new();
        literal(&format!("{text}{close}"), &mut whole);
        self.choice(&whole, choices)
    }

    fn choice(&self, terminals: &str, choices: &mut String) -> Kept<()> {
        choices.push_str(if choices.is_empty() { "" } else { " | " });
        choices.push_str(terminals);
        within(choices, self.at)
    }
}

/// A terminal for the texts of regular expressions and the closing tag, without those in which the parser might see
/// a tag.
fn text(any: &str, [open, _, close]: &Around) -> String {
    let (open, tag, end) = (escaped(open), escaped(close.trim()), escaped(FUNCTION_END));
    let mut behind = String::new();
    literal(close, &mut behind);
    format!("({any} & ~/(?s:.*){tag}(?s:.*)/ & ~/(?s:.*)\\n({open}|{end})(?s:.*)/) {behind}")
}

/// A reference anywhere in a schema that is `wanted`.
fn reference<'a>(schema: &'a [(String, Json)], wanted: &dyn Fn(&str) -> bool) -> Option<&'a str> {
    fn inside<'a>(value: &'a Json, wanted: &dyn Fn(&str) -> bool) -> Option<&'a str> {
        match value {
            Json::Map(fields) => reference(fields, wanted),
            Json::List(items) => items.iter().find_map(|item| inside(item, wanted)),
            _ => None,
        }
    }
    schema.iter().find_map(|(name, value)| match value {
        Json::Text(path) if name == "$ref" && wanted(path) => Some(&**path),
        value => inside(value, wanted),
    })
}

fn too_many(at: &str) -> String {
    format!("{at}: more than {MAX_FIELDS} fields")
}

/// Checks the length of a grammar, or of a part of it.
fn within(grammar: &str, at: &str) -> Kept<()> {
    match grammar.len() <= MAX_BYTES {
        true => Ok(()),
        false => Err(format!("{at}: a grammar of more than {MAX_BYTES} bytes")),
    }
}

fn none_of(names: &[&str], schema: &Json, at: &str) -> Kept<()> {
    match names.iter().find(|name| schema.get(name).is_some()) {
        Some(name) => Err(format!("{at}: {name}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The rules and the sequence for a schema of which `left` fields may be looked at.
    fn made(root: &str, left: usize) -> Kept<(String, String)> {
        let (root, left, mut out) = (Json::parse(root).unwrap().0, Cell::new(left), String::new());
        let around = ["<parameter=", ">\n", "\n</parameter>\n"];
        let sequence = rules(0, &Schemas { root: Some(&root), left: &left }, &around, &mut out)?;
        Ok((out, sequence))
    }

    fn refused(root: &str, left: usize) -> String {
        made(root, left).unwrap_err()
    }

    /// A parameter that may be any of the same definition `n` times.
    fn repeated(n: usize, definition: &str) -> String {
        let refs = vec![r##"{"$ref": "#/$defs/E"}"##; n].join(",");
        format!(r#"{{"properties": {{"a": {{"anyOf": [{refs}]}}}}, "$defs": {{"E": {definition}}}}}"#)
    }

    #[test]
    fn references_multiply_texts_only_so_far() {
        let all = made(&repeated(2, r#"{"enum": ["b", "c"]}"#), 1000).unwrap().0;
        assert_eq!(all.matches(" | ").count(), 3, "{all}");
        let texts = repeated(100, r#"{"enum": ["b", "c"]}"#);
        for left in [0, 10, 100, 1000, 1500] {
            assert_eq!(refused(&texts, left), "parameters.a: more than 1048576 fields");
        }
        let long = repeated(300, &format!(r#"{{"const": "{}"}}"#, "b".repeat(1 << 16)));
        assert_eq!(refused(&long, MAX_FIELDS), "parameters.a: a grammar of more than 16777216 bytes");
    }

    #[test]
    fn definitions_are_copied_only_for_references() {
        let with = |schema: &str| {
            let many: Vec<_> = (0..300).map(|j| format!(r#""p{j}": {schema}"#)).collect();
            let long = "d".repeat(1 << 16);
            let defs = format!(r#"{{"I": {{"type": "integer", "description": "{long}"}}}}"#);
            made(&format!(r#"{{"properties": {{{}}}, "$defs": {defs}}}"#, many.join(",")), MAX_FIELDS)
        };
        let (rules, _) = with(r#"{"items": {"description": "$ref"}}"#).unwrap();
        assert!(!rules.contains("$defs") && rules.len() < 1 << 17, "{}", rules.len());
        let error = with(r##"{"items": {"anyOf": [{"$ref": "#/$defs/I"}]}}"##).unwrap_err();
        assert!(error.ends_with(": a grammar of more than 16777216 bytes"), "{error}");
    }

    #[test]
    fn each_name_comes_once() {
        let root = r#"{"properties": {"a": {"type": "string"}, "b": {}, "a": {"const": "x"}},
            "required": ["a", "c", "a", "c"]}"#;
        let (rules, sequence) = made(root, 1000).unwrap();
        assert_eq!(sequence, "parameter_0_0? parameter_0_1 parameter_0_2 ");
        assert!(rules.contains(r#"TEXT_0_1: "x\n</parameter>\n""#), "{rules}");
        let names: Vec<String> = (0..20_000).map(|j| format!("\"p{j}\"")).collect();
        let (declared, required) = (names.join(": {\"const\": \"x\"},"), names.join(","));
        let root = format!(r#"{{"properties": {{{declared}: {{}}}}, "required": [{required}]}}"#);
        assert_eq!(made(&root, MAX_FIELDS).unwrap().1.matches(' ').count(), 20_000);
    }

    #[test]
    fn references_of_the_root_are_kept_or_refused() {
        let defs = r##""$defs": {"A": {"properties": {"a": {}}}, "B": {"$ref": "#/$defs/A", "title": "B"},
            "C": {"$ref": "#/$defs/C"}, "D": {"$ref": "#/$defs/A", "minProperties": 1}}"##;
        let with = |fields: &str| made(&format!("{{{fields}, {defs}}}"), 1000).map(|(_, sequence)| sequence);
        for path in ["A", "B"] {
            let root = format!(r##""$ref": "#/$defs/{path}", "description": "d", "required": null"##);
            assert_eq!(with(&root).unwrap(), "parameter_0_0? ");
        }
        for (fields, what) in [
            (r#""$ref": "https://example.com/a""#, "parameters: $ref to https://example.com/a"),
            (r##""$ref": "#/$defs/N""##, "parameters: $ref to #/$defs/N"),
            (r#""$ref": 1"#, "parameters: $ref to "),
            (r##""$ref": "#/$defs/C""##, "parameters: $ref to itself"),
            (r##""$ref": "#/$defs/D""##, "parameters: minProperties beside $ref"),
            (r##""$ref": "#/$defs/A", "required": ["x"]"##, "parameters: required beside $ref"),
            (r##""anyOf": [{}], "$ref": "#/$defs/A""##, "parameters: anyOf beside $ref"),
        ] {
            assert_eq!(with(fields).unwrap_err(), what);
        }
        let few = made(&format!(r##"{{"$ref": "#/$defs/A", {defs}}}"##), 3);
        assert_eq!(few.unwrap_err(), "parameters: $ref to #/$defs/A");
    }
}
