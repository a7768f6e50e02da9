//! Bounds on the work that a grammar makes for llguidance, counted in its source before llguidance sees it.
//!
//! `text::watch` stops a compilation when it next makes a hash table. Some steps make none, however long they
//! take. This module bounds the causes of such steps: copies of schemas where `allOf`, unions, references and
//! `additionalProperties` meet, names of one object, tests of names against patterns, alternatives of
//! `oneOf`, character classes, and literals.

use super::products;
use super::source::refused;
use crate::base::Result;
use crate::text::watch;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Schemas after unions are multiplied out and references with sibling keywords are resolved: each is a copy
/// of some 300 bytes.
const MOST_SCHEMAS: usize = 200_000;
/// Names in one object's `properties` and `required`: time grows with their square, 0.7 s at this limit.
const MOST_NAMES: usize = 3_000;
/// Optional properties of an object that requires at least one of them: rules grow with their square.
const MOST_CHOICES: usize = 100;
/// Patterns of one object: all pairs are intersected, in 0.6 s at this limit.
const MOST_PATTERNS: usize = 200;
/// Names of an object times its patterns: each pair is a search, 1.8 s for 500,000.
const MOST_TESTS: usize = 200_000;
/// Alternatives of `oneOf` times their bytes: all pairs are compared.
const MOST_COMPARED: usize = 150_000_000;
/// Nesting of references that have sibling keywords.
const MOST_DEPTH: usize = 400;
/// Classes like `\w` and `\p{L}` in a text: a regular expression holds a list of ranges for each, some 6 KiB.
const MOST_CLASSES: usize = 10_000;
/// Quotes in a Lark grammar, two for each literal: all pairs of literals are compared.
const MOST_QUOTES: usize = 80_000;

/// Keywords that restrict nothing: a reference beside them counts as standing alone.
const BESIDE: [&str; 12] = [
    "$defs",
    "definitions",
    "x-guidance",
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
];

fn applies(name: &str) -> bool {
    ["allOf", "anyOf", "oneOf", "enum", "$ref"].contains(&name)
}

fn restricts(name: &str) -> bool {
    !BESIDE.contains(&name) && !applies(name)
}

/// One constraint that an output must match at a given position.
#[derive(Clone, Copy)]
enum Assertion<'a> {
    Schema(&'a Value),
    /// A schema without unions, references and `allOf`.
    Plain(&'a Map<String, Value>),
    Union(&'a [Value]),
    /// The values of an `enum`.
    Values(&'a [Value]),
}

/// Object schemas that apply at one position, without unions.
type Plain<'a> = Vec<&'a Map<String, Value>>;

struct Walk<'a> {
    root: &'a Value,
    left: usize,
    /// References without sibling keywords: llguidance compiles their targets once.
    named: HashSet<&'a str>,
    pending: Vec<&'a Value>,
    /// Twice the number of pattern pairs within an object.
    patterns: usize,
    /// Patterns of texts that have been checked together, and whether with a length.
    met: HashSet<(Vec<&'a str>, bool)>,
}

/// Counts the steps that a schema costs llguidance, some 2 us each. Fails with `InvalidArgument` if there are
/// too many.
pub(super) fn schema(root: &Value) -> Result<u64> {
    let left = MOST_SCHEMAS;
    let (named, met) = (HashSet::new(), HashSet::new());
    let mut walk = Walk { root, left, named, pending: vec![root], patterns: 0, met };
    while let Some(schema) = walk.pending.pop() {
        walk.place(vec![Assertion::Schema(schema)], 0)?;
    }
    Ok((MOST_SCHEMAS - walk.left + walk.patterns * 5) as u64)
}

/// Counts the steps of a regular expression, or of a grammar with embedded schemas, as `schema` does.
pub(super) fn text(text: &str) -> Result<u64> {
    let mut classes = 0usize;
    let mut escaped = false;
    for byte in text.bytes() {
        classes += usize::from(escaped && b"pPwWdDsS".contains(&byte));
        escaped = byte == b'\\' && !escaped;
    }
    at_most(classes, MOST_CLASSES, "classes of characters")?;
    at_most(text.bytes().filter(|&byte| byte == b'"').count(), MOST_QUOTES, "quotes")?;
    let mut steps = 0;
    for (at, mark) in text.match_indices("%json") {
        let rest = &text[at + mark.len()..];
        // llguidance reports the error if the schema is not JSON.
        if let Some(Ok(inner)) = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next() {
            steps += schema(&inner)?;
        }
    }
    Ok(steps + text.len() as u64)
}

fn at_most(count: usize, most: usize, of: &str) -> Result<()> {
    if count <= most { Ok(()) } else { Err(refused(format!("it has {count} {of}, more than {most}"))) }
}

impl<'a> Walk<'a> {
    fn spend(&mut self, schemas: usize) -> Result<()> {
        if watch::is_over() {
            return Err(refused("counting its schemas takes too long"));
        }
        match self.left.checked_sub(schemas) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(refused(format!(
                "with its unions and references multiplied out it has more than {MOST_SCHEMAS} schemas"
            ))),
        }
    }

    /// Walks `parts`, which must all match at one position.
    fn place(&mut self, mut parts: Vec<Assertion<'a>>, depth: usize) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        self.spend(parts.len())?;
        if depth > MOST_DEPTH {
            return Err(refused(format!("its references lead more than {MOST_DEPTH} levels deep")));
        }
        let (mut plain, mut unions): (Plain, Vec<Assertion>) = (Vec::new(), Vec::new());
        while let Some(part) = parts.pop() {
            let fields = match part {
                Assertion::Schema(Value::Object(fields)) => fields,
                Assertion::Schema(_) => continue,
                Assertion::Plain(fields) => {
                    plain.push(fields);
                    continue;
                }
                Assertion::Union(_) | Assertion::Values(_) => {
                    unions.push(part);
                    continue;
                }
            };
            self.spend(1)?;
            let alone = parts.is_empty() && plain.is_empty() && unions.is_empty();
            let single =
                alone && fields.keys().all(|name| name == "$ref" || !restricts(name) && !applies(name));
            self.applied(fields, single, &mut parts, &mut unions)?;
            if fields.keys().any(|name| restricts(name)) {
                plain.push(fields);
            }
        }
        let Some(union) = unions.pop() else {
            self.texts(&plain)?;
            return self.objects(&plain, depth);
        };
        let rest: Vec<Assertion> = plain.into_iter().map(Assertion::Plain).chain(unions).collect();
        match union {
            Assertion::Values(values) if rest.len() <= 1 => self.spend(values.len() * rest.len().max(1)),
            Assertion::Values(values) => {
                (0..values.len()).try_for_each(|_| self.place(rest.clone(), depth + 1))
            }
            Assertion::Union(options) => options.iter().try_for_each(|option| {
                let own = rest.iter().copied().chain([Assertion::Schema(option)]);
                self.place(own.collect(), depth + 1)
            }),
            Assertion::Schema(_) | Assertion::Plain(_) => Ok(()),
        }
    }

    /// The keywords of `fields` that apply schemas at its own position; `single` if nothing stands beside a
    /// reference.
    fn applied(
        &mut self,
        fields: &'a Map<String, Value>,
        single: bool,
        parts: &mut Vec<Assertion<'a>>,
        unions: &mut Vec<Assertion<'a>>,
    ) -> Result<()> {
        for (name, of) in fields {
            match (name.as_str(), of) {
                ("allOf", Value::Array(all)) => parts.extend(all.iter().map(Assertion::Schema)),
                ("anyOf", Value::Array(all)) => unions.push(Assertion::Union(all)),
                ("oneOf", Value::Array(all)) => {
                    if all.len().saturating_mul(of.to_string().len()) > MOST_COMPARED {
                        return Err(refused("the alternatives of a oneOf are too large together"));
                    }
                    unions.push(Assertion::Union(all));
                }
                ("enum", Value::Array(all)) => unions.push(Assertion::Values(all)),
                ("$ref", Value::String(to)) => {
                    let Some(target) = self.resolve(to) else { continue };
                    if !single {
                        parts.push(Assertion::Schema(target));
                    } else if self.named.insert(to) {
                        self.pending.push(target);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn resolve(&self, reference: &str) -> Option<&'a Value> {
        let path = reference.strip_prefix('#')?;
        if path.is_empty() || path == "/" {
            return Some(self.root);
        }
        let mut at = self.root;
        for segment in path.strip_prefix('/')?.split('/') {
            at = match at {
                Value::Array(all) => all.get(segment.parse::<usize>().ok()?)?,
                other => other.get(segment)?,
            };
        }
        Some(at)
    }

    /// Bounds the patterns that one text must match.
    fn texts(&mut self, all: &Plain<'a>) -> Result<()> {
        let mut patterns: Vec<&str> = all.iter().filter_map(|one| one.get("pattern")?.as_str()).collect();
        patterns.sort_unstable();
        patterns.dedup();
        let long = all.iter().any(|one| one.contains_key("minLength") || one.contains_key("maxLength"));
        if patterns.is_empty() || patterns.len() == 1 && !long {
            return Ok(());
        }
        self.spend(patterns.len())?;
        match self.met.insert((patterns.clone(), long)) {
            true => products::check_patterns(&patterns, long),
            false => Ok(()),
        }
    }

    /// Walks the schemas nested in objects and arrays that must all match.
    fn objects(&mut self, all: &Plain<'a>, depth: usize) -> Result<()> {
        let maps = |name: &'static str| all.iter().filter_map(move |one| one.get(name)?.as_object());
        let mut names: HashSet<&str> =
            maps("properties").flat_map(|map| map.keys().map(String::as_str)).collect();
        let given = names.len();
        let required = all.iter().filter_map(|one| one.get("required")?.as_array());
        let required: HashSet<&str> = required.flatten().filter_map(Value::as_str).collect();
        names.extend(&required);
        at_most(names.len(), MOST_NAMES, "properties in an object")?;
        let patterns: usize = maps("patternProperties").map(Map::len).sum();
        at_most(patterns, MOST_PATTERNS, "patternProperties in an object")?;
        self.patterns += patterns * patterns;
        at_most(names.len() * patterns, MOST_TESTS, "properties times patterns in an object")?;
        let count = |name: &str| all.iter().filter_map(|one| one.get(name)?.as_u64()).max();
        if count("minProperties") == Some(1) && count("maxProperties").is_none() {
            let optional = given - required.len().min(given);
            at_most(
                optional,
                MOST_CHOICES,
                "optional properties in an object that needs one (minProperties)",
            )?;
        }
        for name in names {
            self.spend(0)?;
            let inner = all.iter().filter_map(|one| property(one, name)).map(Assertion::Schema).collect();
            self.place(inner, depth + 1)?;
        }
        for one in all {
            let Some(Value::Object(patterns)) = one.get("patternProperties") else { continue };
            for of in patterns.values() {
                let others = all.iter().filter(|other| !std::ptr::eq(**other, *one));
                let others = others.filter_map(|other| other.get("additionalProperties"));
                self.place(others.chain([of]).map(Assertion::Schema).collect(), depth + 1)?;
            }
        }
        let additional = all.iter().filter_map(|one| one.get("additionalProperties"));
        self.place(additional.map(Assertion::Schema).collect(), depth + 1)?;
        self.arrays(all, depth)
    }

    fn arrays(&mut self, all: &Plain<'a>, depth: usize) -> Result<()> {
        let longest = all.iter().filter_map(|one| prefix(one)).map(<[Value]>::len).max();
        for n in 0..longest.unwrap_or(0) {
            let own = all.iter().filter_map(|one| prefix(one).and_then(|p| p.get(n)).or_else(|| items(one)));
            self.place(own.map(Assertion::Schema).collect(), depth + 1)?;
        }
        self.place(all.iter().filter_map(|one| items(one)).map(Assertion::Schema).collect(), depth + 1)
    }
}

/// The schema that applies to a property. If only patterns can match its name, this is the largest of their
/// schemas, since the matching one is not determined.
fn property<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let known = object.get("properties").and_then(|all| all.get(name));
    let patterns = object.get("patternProperties").and_then(Value::as_object);
    let pattern = || patterns.and_then(|all| all.values().max_by_key(|of| fields(of)));
    known.or_else(pattern).or_else(|| object.get("additionalProperties"))
}

fn fields(of: &Value) -> usize {
    of.as_object().map_or(0, Map::len)
}

fn prefix(array: &Map<String, Value>) -> Option<&[Value]> {
    let of = array.get("prefixItems").or_else(|| array.get("items"));
    of.and_then(Value::as_array).map(Vec::as_slice)
}

fn items(array: &Map<String, Value>) -> Option<&Value> {
    match array.get("items") {
        Some(Value::Array(_)) | None => array.get("additionalItems"),
        single => single,
    }
}
