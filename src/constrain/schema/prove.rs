//! Proves that no value is valid under several schemas at once. If the step limit ends a proof, nothing is
//! known.

use super::check::{Checker, equal, types};
use serde_json::Value;

/// Limits on an array's positions and an object's names that are examined.
const MOST_PLACES: u64 = 16;
const MOST_NAMES: usize = 64;

/// Schemas that one step covers when all that must be valid together are examined.
const AT_ONCE: usize = 8;

/// Each type with the `type` names that include it.
const TYPES: [(&str, &[&str]); 7] = [
    ("null", &["null"]),
    ("boolean", &["boolean"]),
    ("integer", &["integer", "number"]),
    ("fraction", &["number"]),
    ("string", &["string"]),
    ("array", &["array"]),
    ("object", &["object"]),
];

impl<'a> Checker<'a> {
    /// True if no value is valid under all of `schemas`.
    pub(super) fn empty<'s>(&mut self, schemas: &[&'s Value]) -> bool
    where
        'a: 's,
    {
        self.deeper(|checker| Some(checker.search(Vec::new(), Vec::new(), schemas.to_vec()))) == Some(true)
    }

    /// `atoms` and `new` are schemas that must hold together with one alternative of each of `splits`.
    fn search<'s>(
        &mut self,
        mut atoms: Vec<&'s Value>,
        mut splits: Vec<&'s Value>,
        mut new: Vec<&'s Value>,
    ) -> bool
    where
        'a: 's,
    {
        let mut referred: Vec<&Value> = Vec::new();
        while let Some(schema) = new.pop() {
            if self.step().is_none() {
                return false;
            }
            let fields = match schema {
                Value::Bool(true) => continue,
                Value::Object(fields) => fields,
                _ => return *schema == Value::Bool(false),
            };
            atoms.push(schema);
            if let Some(reference) = fields.get("$ref").filter(|one| !referred.contains(one)) {
                referred.push(reference);
                new.extend(self.definition(reference));
            }
            new.extend(fields.get("allOf").and_then(Value::as_array).into_iter().flatten());
            splits.extend(["anyOf", "oneOf"].iter().filter_map(|keyword| fields.get(*keyword)));
        }
        if self.contradict(&atoms) {
            return true;
        }
        let Some(alternatives) = splits.pop().and_then(Value::as_array) else { return false };
        alternatives.iter().all(|one| {
            let copied = self.look_at(atoms.len() + splits.len());
            let search = |checker: &mut Self| Some(checker.search(atoms.clone(), splits.clone(), vec![one]));
            copied.and_then(|()| self.deeper(search)) == Some(true)
        })
    }

    /// Spends the steps of examining `schemas` schemas, or of copying a list of them.
    fn look_at(&mut self, schemas: usize) -> Option<()> {
        self.steps_of(schemas / AT_ONCE)
    }

    fn contradict<'s>(&mut self, atoms: &[&'s Value]) -> bool
    where
        'a: 's,
    {
        if self.look_at(atoms.len()).is_none() {
            return false;
        }
        if let Some(values) = atoms.iter().find_map(|atom| listed(atom)) {
            return values.iter().all(|value| {
                self.step().is_some() && atoms.iter().any(|atom| self.valid(atom, value) == Some(false))
            });
        }
        let allowed = |names: &[&str]| {
            let of = |atom: &&Value| {
                atom.get("type").is_none_or(|of| types(of).iter().any(|name| names.contains(name)))
            };
            atoms.iter().all(of)
        };
        TYPES.iter().all(|(name, names)| !allowed(names) || self.contradict_in(name, atoms))
    }

    fn contradict_in<'s>(&mut self, name: &str, atoms: &[&'s Value]) -> bool
    where
        'a: 's,
    {
        match name {
            "integer" | "fraction" => no_number(atoms, name == "integer"),
            "string" => least(atoms, "minLength") > most(atoms, "maxLength"),
            "array" => {
                let count = least(atoms, "minItems");
                count > most(atoms, "maxItems")
                    || (0..count.min(MOST_PLACES) as usize)
                        .any(|at| self.look_at(atoms.len()).is_some() && self.empty(&places(atoms, at)))
            }
            "object" => {
                let mut names: Vec<&str> =
                    atoms.iter().flat_map(|atom| texts(atom.get("required"))).collect();
                if self.look_at(names.len()).is_none() {
                    return false;
                }
                names.sort_unstable();
                names.dedup();
                let fewest = least(atoms, "minProperties").max(names.len() as u64);
                fewest > most(atoms, "maxProperties")
                    || names
                        .iter()
                        .take(MOST_NAMES)
                        .any(|name| self.look_at(atoms.len()).is_some() && self.empty(&members(atoms, name)))
            }
            _ => false,
        }
    }
}

fn listed<'s>(atom: &&'s Value) -> Option<&'s [Value]> {
    match (atom.get("const"), atom.get("enum")) {
        (Some(one), _) => Some(std::slice::from_ref(one)),
        (None, values) => values.and_then(Value::as_array).map(Vec::as_slice),
    }
}

pub(super) fn texts(of: Option<&Value>) -> impl Iterator<Item = &str> {
    of.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn least(atoms: &[&Value], keyword: &str) -> u64 {
    atoms.iter().filter_map(|atom| atom.get(keyword)?.as_u64()).max().unwrap_or(0)
}

fn most(atoms: &[&Value], keyword: &str) -> u64 {
    atoms.iter().filter_map(|atom| atom.get(keyword)?.as_u64()).min().unwrap_or(u64::MAX)
}

fn no_number(atoms: &[&Value], whole: bool) -> bool {
    let bounds = |keyword: &'static str| atoms.iter().filter_map(move |atom| atom.get(keyword)?.as_f64());
    let low = bounds("minimum").chain(bounds("exclusiveMinimum")).fold(f64::NEG_INFINITY, f64::max);
    let high = bounds("maximum").chain(bounds("exclusiveMaximum")).fold(f64::INFINITY, f64::min);
    let open = bounds("exclusiveMinimum").any(|n| n == low) || bounds("exclusiveMaximum").any(|n| n == high);
    low > high || low == high && (open || !whole && low.fract() == 0.0) || whole && low.ceil() > high.floor()
}

/// The schemas that `atoms` apply to the array item at `at`.
fn places<'s>(atoms: &[&'s Value], at: usize) -> Vec<&'s Value> {
    let one = |atom: &&'s Value| match atom.get("prefixItems").and_then(|of| of.get(at)) {
        Some(schema) => Some(schema),
        None => atom.get("items"),
    };
    atoms.iter().filter_map(one).collect()
}

/// The schemas that `atoms` apply to an object's member, or fewer.
fn members<'s>(atoms: &[&'s Value], name: &str) -> Vec<&'s Value> {
    let one = |atom: &&'s Value| match atom.get("properties").and_then(|of| of.get(name)) {
        Some(schema) => Some(schema),
        None if atom.get("patternProperties").is_some() => None,
        None => atom.get("additionalProperties"),
    };
    atoms.iter().filter_map(one).collect()
}

/// Returns true if no two values are equal.
pub(super) fn are_distinct(values: &[Value]) -> bool {
    values.iter().enumerate().all(|(n, a)| values[..n].iter().all(|b| !equal(a, b)))
}
