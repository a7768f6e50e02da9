//! Constraints, which outputs must match.
use crate::{sys, text};

/// The language of a constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum ConstraintKind {
    /// No constraint. Its [`JsonFlags`] still say how the arguments of tools are written.
    #[default]
    None = sys::BN_CONSTRAINT_NONE,
    /// A JSON schema: the output is JSON that is valid under it, with properties in its order.
    JsonSchema = sys::BN_CONSTRAINT_JSON_SCHEMA,
    /// The output is a JSON object.
    JsonObject = sys::BN_CONSTRAINT_JSON_OBJECT,
    /// A regular expression in Rust's syntax that the whole output matches.
    Regex = sys::BN_CONSTRAINT_REGEX,
    /// A grammar in llguidance's dialect of Lark; the output matches its rule `start`.
    Lark = sys::BN_CONSTRAINT_LARK,
    /// A grammar in llama.cpp's GBNF; the output matches its rule `root`.
    Gbnf = sys::BN_CONSTRAINT_GBNF,
}

/// The style of JSON in constraints and calls of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JsonFlags {
    /// No white space between JSON's tokens.
    pub compact: bool,
    /// Up to 32 characters of white space between JSON's tokens.
    pub flexible: bool,
    /// An unknown `format` in a schema is refused.
    pub known_formats: bool,
    /// An object has only the keys of its `properties`, unless the schema says that there may be more.
    pub closed: bool,
}

impl JsonFlags {
    fn raw(self) -> u32 {
        let flags = [
            (self.compact, sys::BN_JSON_COMPACT),
            (self.flexible, sys::BN_JSON_FLEXIBLE),
            (self.known_formats, sys::BN_JSON_KNOWN_FORMATS),
            (self.closed, sys::BN_JSON_CLOSED),
        ];
        flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
    }
}

/// The grammar that an output matches, which takes precedence over other options. It is compiled when a request
/// is submitted, and by [`Engine::check_constraint`](crate::Engine::check_constraint); the latest ones stay
/// compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Constraint {
    /// The language of `text`.
    pub kind: ConstraintKind,
    /// How JSON is written.
    pub json: JsonFlags,
    /// The schema, expression or grammar. Empty for kinds that need none.
    pub text: String,
}

impl Constraint {
    fn new(kind: ConstraintKind, text: impl Into<String>) -> Self {
        Self { kind, json: JsonFlags::default(), text: text.into() }
    }

    /// JSON that is valid under a schema, itself JSON.
    pub fn json_schema(schema: impl Into<String>) -> Self {
        Self::new(ConstraintKind::JsonSchema, schema)
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::new(ConstraintKind::JsonObject, "")
    }

    /// A regular expression in Rust's syntax.
    pub fn regex(expression: impl Into<String>) -> Self {
        Self::new(ConstraintKind::Regex, expression)
    }

    /// A grammar in llguidance's dialect of Lark.
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self::new(ConstraintKind::Lark, grammar)
    }

    /// A grammar in llama.cpp's GBNF.
    pub fn gbnf(grammar: impl Into<String>) -> Self {
        Self::new(ConstraintKind::Gbnf, grammar)
    }

    /// The same constraint, with JSON written in another way.
    pub fn with_json(self, json: JsonFlags) -> Self {
        Self { json, ..self }
    }

    /// Valid while this is.
    pub(crate) fn raw(&self) -> sys::bn_constraint {
        let text = if self.text.is_empty() { text::NONE } else { text::view(&self.text) };
        sys::bn_constraint { kind: self.kind as u32, json_flags: self.json.raw(), text, reserved: [0; 2] }
    }
}
