//! The tools that an answer may call, and which of their parameters are text.

use crate::text::chat::{Json, Tool};
use std::cell::Cell;
use std::collections::HashSet;

/// The possible types of a value: a bit mask of these.
pub(super) type Types = u8;
pub(super) const TEXT: Types = 1;
pub(super) const NULL: Types = 2;
const OTHER: Types = 4;
const ALL: Types = TEXT | NULL | OTHER;

/// Maximum nesting of a schema with its references.
pub(super) const MAX_DEPTH: u32 = 32;
/// Maximum number of fields and list items that are looked at for one chat: references may multiply them.
pub(super) const MAX_FIELDS: usize = 1 << 20;

/// The meaning of a value that is written without quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The value is a string.
    Text,
    /// The value is a string, or null.
    Nullable,
    /// The value is JSON, or else a string.
    #[default]
    Any,
}

/// A tool that may be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub name: String,
    pub parameters: Vec<(String, Kind)>,
}

impl Known {
    /// `left` is the number of fields that may still be looked at. After that, parameters count as
    /// [`Kind::Any`].
    pub fn of(tool: &Tool, left: &Cell<usize>) -> Self {
        let schemas = Schemas { root: tool.parameters, left };
        let declared = schemas.object().map(properties).unwrap_or_default();
        let parameters = declared.into_iter().map(|(name, schema)| (name.to_owned(), schemas.kind(schema)));
        Self { name: tool.name.to_owned(), parameters: parameters.collect() }
    }

    /// The kind of a parameter; None if the tool declares no such parameter.
    pub fn kind(&self, parameter: &str) -> Option<Kind> {
        self.parameters.iter().find(|(name, _)| name == parameter).map(|(_, kind)| *kind)
    }

    /// Heap bytes of the tool.
    pub fn bytes(&self) -> usize {
        let names = self.parameters.iter().map(|(name, _)| name.capacity());
        let list = self.parameters.capacity() * size_of::<(String, Kind)>();
        size_of::<Self>() + self.name.capacity() + list + names.sum::<usize>()
    }
}

/// The schema of a tool's arguments, with the schemas in it.
pub(super) struct Schemas<'a> {
    pub root: Option<&'a Json>,
    /// Number of fields and list items that may still be looked at; 0 also once there were more than that.
    pub left: &'a Cell<usize>,
}

impl<'a> Schemas<'a> {
    /// The schema itself, after its references. What stands beside a reference is ignored.
    pub(super) fn object(&self) -> Option<&'a Json> {
        let mut object = self.root?;
        for _ in 0..MAX_DEPTH {
            match object.get("$ref").and_then(Json::as_str) {
                Some(path) => object = self.find(path)?,
                None => break,
            }
        }
        Some(object)
    }

    /// The schema at a reference into this one, such as `#/$defs/City`.
    pub(super) fn find(&self, path: &str) -> Option<&'a Json> {
        let mut names = path.strip_prefix('#')?.split('/');
        names.next().filter(|first| first.is_empty())?;
        names.try_fold(self.root?, |schema, name| {
            let Json::Map(fields) = schema else { return None };
            // Long names take time too.
            self.spend(fields.len() + name.len() / 64)?;
            schema.get(&name.replace("~1", "/").replace("~0", "~"))
        })
    }

    pub(super) fn kind(&self, schema: &Json) -> Kind {
        match self.types(schema, MAX_DEPTH) {
            TEXT => Kind::Text,
            types if types == TEXT | NULL => Kind::Nullable,
            _ => Kind::Any,
        }
    }

    /// None if that is more than what is left, which is 0 from then on.
    pub(super) fn spend(&self, fields: usize) -> Option<()> {
        let left = self.left.get().checked_sub(fields);
        self.left.set(left.unwrap_or(0));
        left.map(drop)
    }

    /// The types that a value may have.
    pub(super) fn types(&self, schema: &Json, depth: u32) -> Types {
        let fields = match schema {
            Json::Map(fields) => &**fields,
            _ => &[],
        };
        if self.spend(1 + fields.len()).is_none() || depth == 0 {
            return ALL;
        }
        let of = |schema: &Json| self.types(schema, depth - 1);
        fields.iter().fold(ALL, |types, (name, value)| {
            types
                & match (&**name, value) {
                    ("type", Json::List(names)) => self.either(names, named),
                    ("type", name) => named(name),
                    ("enum", Json::List(values)) => self.either(values, type_of),
                    ("const", value) => type_of(value),
                    ("anyOf" | "oneOf", Json::List(schemas)) => {
                        schemas.iter().fold(0, |all, schema| all | of(schema))
                    }
                    ("allOf", Json::List(schemas)) => {
                        schemas.iter().fold(ALL, |all, schema| all & of(schema))
                    }
                    ("$ref", Json::Text(path)) => self.find(path).map_or(ALL, of),
                    _ => ALL,
                }
        })
    }

    fn either(&self, items: &[Json], of: fn(&Json) -> Types) -> Types {
        let types = || items.iter().fold(0, |all, item| all | of(item));
        self.spend(items.len()).map_or(ALL, |()| types())
    }
}

/// The properties that an object's schema declares, each name once.
pub(super) fn properties(object: &Json) -> Vec<(&str, &Json)> {
    let Some(Json::Map(fields)) = object.get("properties") else { return Vec::new() };
    let mut names = HashSet::new();
    let last = fields.iter().rev().filter(|(name, _)| names.insert(&**name));
    let mut all: Vec<_> = last.map(|(name, schema)| (&**name, schema)).collect();
    all.reverse();
    all
}

fn named(name: &Json) -> Types {
    match name.as_str() {
        Some("string") => TEXT,
        Some("null") => NULL,
        _ => OTHER,
    }
}

fn type_of(value: &Json) -> Types {
    match value {
        Json::Text(_) => TEXT,
        Json::Null => NULL,
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::chat::Chat;

    fn kinds(parameters: &str) -> Vec<(String, Kind)> {
        let function = format!(r#"{{"name": "f", "parameters": {parameters}}}"#);
        let chat =
            format!(r#"{{"messages": [], "tools": [{{"type": "function", "function": {function}}}]}}"#);
        let chat = Chat::parse(&chat).unwrap();
        let tool = chat.tools().next().unwrap();
        Known::of(&tool, &Cell::new(MAX_FIELDS)).parameters
    }

    #[test]
    fn schemas_tell_which_parameters_are_text() {
        for (schema, kind) in [
            (r#"{"type": "string"}"#, Kind::Text),
            (r#"{"type": ["string"], "minLength": 1}"#, Kind::Text),
            (r#"{"enum": ["a", "1"]}"#, Kind::Text),
            (r#"{"const": "a"}"#, Kind::Text),
            (r#"{"anyOf": [{"type": "string"}, {"enum": ["a"]}]}"#, Kind::Text),
            (r##"{"$ref": "#/$defs/City"}"##, Kind::Text),
            (r##"{"allOf": [{"$ref": "#/$defs/a~1b"}], "default": 1}"##, Kind::Text),
            (r#"{"type": ["string", "null"]}"#, Kind::Nullable),
            (r#"{"oneOf": [{"type": "null"}, {"type": "string"}]}"#, Kind::Nullable),
            (r#"{"enum": ["a", null]}"#, Kind::Nullable),
            (r#"{"enum": ["a", 1]}"#, Kind::Any),
            (r#"{"type": ["string", "integer"]}"#, Kind::Any),
            (r#"{"type": "null"}"#, Kind::Any),
            (r#"{"description": "a text"}"#, Kind::Any),
            (r##"{"$ref": "#/$defs/none"}"##, Kind::Any),
            (r##"{"$ref": "#/properties/p"}"##, Kind::Any),
            (r##"{"anyOf": [{"$ref": "#/properties/p"}, {"$ref": "#/properties/p"}]}"##, Kind::Any),
            ("true", Kind::Any),
        ] {
            let defs = r##"{"City": {"type": "string"}, "a/b": {"$ref": "#/$defs/City"}}"##;
            let root = format!(r#"{{"properties": {{"p": {schema}}}, "$defs": {defs}}}"#);
            assert_eq!(kinds(&root), [("p".to_owned(), kind)], "{schema}");
        }
        let root =
            r##"{"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"p": {"type": "string"}}}}}"##;
        assert_eq!(kinds(root), [("p".to_owned(), Kind::Text)]);
        assert_eq!(kinds(r##"{"$ref": "#", "properties": {"p": {}}}"##).len(), 1);
        assert!(kinds(r#"{"type": "object"}"#).is_empty());
    }

    #[test]
    fn of_equal_names_the_last_one_counts() {
        let root = r#"{"properties": {"p": {"type": "string"}, "q": {}, "p": {"type": "integer"}}}"#;
        assert_eq!(kinds(root), [("q".to_owned(), Kind::Any), ("p".to_owned(), Kind::Any)]);
    }

    #[test]
    fn lists_count_as_often_as_they_are_looked_at() {
        for list in [r#"{"enum": ["a", "b"]}"#, r#"{"type": ["string", "string"]}"#, r#"{"anyOf": [{}, {}]}"#]
        {
            let left = |n: usize| {
                let refs = vec![r##"{"$ref": "#/$defs/E"}"##; n].join(",");
                let root =
                    format!(r#"{{"properties": {{"p": {{"anyOf": [{refs}]}}}}, "$defs": {{"E": {list}}}}}"#);
                let (root, left) = (Json::parse(&root).unwrap().0, Cell::new(100));
                let schemas = Schemas { root: Some(&root), left: &left };
                properties(&root).into_iter().for_each(|(_, schema)| {
                    schemas.kind(schema);
                });
                left.get()
            };
            // Two for the reference, three for its path, and two each for the two list items.
            assert_eq!((left(1), left(1) - left(2)), (98 - 9, 9), "{list}");
            assert_eq!(left(1000), 0, "{list}");
        }
    }
}
