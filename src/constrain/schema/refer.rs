//! Resolves references: pointers, anchors and identifiers within one document.

use super::Refusal;
use super::budget::Budget;
use super::keywords::{Draft, Holds, holds, schemas};
use serde_json::Value;
use std::collections::HashMap;

/// A schema with an identifier, to which references below it are relative; an index of `ReferenceIndex::resources`.
pub(super) type Scope = usize;

struct Resource<'a> {
    schema: &'a Value,
    uri: String,
}

pub(super) struct ReferenceIndex<'a> {
    draft: Draft,
    resources: Vec<Resource<'a>>,
    /// Scopes by the schema's address.
    scopes: HashMap<*const Value, Scope>,
    /// Scopes by URI without a fragment.
    by_uri: HashMap<String, Scope>,
    anchors: HashMap<(Scope, String), &'a Value>,
}

impl<'a> ReferenceIndex<'a> {
    pub(super) fn of(root: &'a Value, draft: Draft, budget: &mut Budget) -> Result<Self, Refusal> {
        let (resources, anchors) = (Vec::new(), HashMap::new());
        let mut references =
            Self { draft, resources, scopes: HashMap::new(), by_uri: HashMap::new(), anchors };
        references.add(root, String::new());
        references.visit(root, 0, budget)?;
        Ok(references)
    }

    fn add(&mut self, schema: &'a Value, uri: String) -> Scope {
        let scope = self.resources.len();
        self.scopes.insert(&raw const *schema, scope);
        self.by_uri.entry(uri.clone()).or_insert(scope);
        self.resources.push(Resource { schema, uri });
        scope
    }

    pub(super) fn root(&self) -> Scope {
        0
    }

    /// The scope of a schema that has an identifier.
    pub(super) fn scope(&self, schema: &Value) -> Option<Scope> {
        self.scopes.get(&(&raw const *schema)).copied()
    }

    fn visit(&mut self, schema: &'a Value, scope: Scope, budget: &mut Budget) -> Result<(), Refusal> {
        budget.spend(1)?;
        let Value::Object(fields) = schema else { return Ok(()) };
        let text = |name: &str| fields.get(name).and_then(Value::as_str);
        let id = text(if self.draft == Draft::Four { "id" } else { "$id" });
        // Before 2019-09, a reference hides the identifier beside it.
        let id = id.filter(|_| self.draft > Draft::Seven || !fields.contains_key("$ref"));
        let (uri, fragment) = id.map_or(("", ""), |id| id.split_once('#').unwrap_or((id, "")));
        let scope = match uri {
            "" => scope,
            uri if scope == 0 && self.resources.len() == 1 && self.scope(schema) == Some(0) => {
                self.resources[0].uri = uri.to_owned();
                self.by_uri.insert(uri.to_owned(), 0);
                0
            }
            uri => self.add(schema, joined(&self.resources[scope].uri, uri)),
        };
        let old = Some(fragment).filter(|name| self.draft <= Draft::Seven && !name.is_empty());
        for anchor in [old, text("$anchor"), text("$dynamicAnchor")].into_iter().flatten() {
            self.anchors.entry((scope, anchor.to_owned())).or_insert(schema);
        }
        for (keyword, value) in fields {
            let named = matches!(keyword.as_str(), "$defs" | "definitions");
            let held = if named { Some(Holds::Named) } else { holds(keyword, self.draft) };
            schemas(held, value).into_iter().try_for_each(|one| self.visit(one, scope, budget))?;
        }
        Ok(())
    }

    /// The schema that `reference` in `scope` leads to, and its scope.
    pub(super) fn find(&self, reference: &str, scope: Scope) -> Result<(&'a Value, Scope), Refusal> {
        let nowhere = || Refusal::new(format!("the reference {reference} leads to nothing in this schema"));
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let scope = match uri {
            "" => scope,
            uri => {
                let uri = joined(&self.resources[scope].uri, uri);
                *self.by_uri.get(&uri).ok_or_else(nowhere)?
            }
        };
        let fragment = decoded(fragment).ok_or_else(nowhere)?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            let anchor = self.anchors.get(&(scope, fragment));
            return anchor.map(|schema| (*schema, scope)).ok_or_else(nowhere);
        }
        let (mut at, mut scope) = (self.resources[scope].schema, scope);
        // `#/` is commonly written for `#`, though strictly it names a property with an empty name.
        let fragment = if fragment == "/" && at.get("").is_none() { "" } else { &fragment };
        for part in fragment.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            at = match at {
                Value::Array(all) => part.parse::<usize>().ok().and_then(|n| all.get(n)),
                other => other.get(&part),
            }
            .ok_or_else(nowhere)?;
            scope = self.scope(at).unwrap_or(scope);
        }
        if at.is_object() || at.is_boolean() { Ok((at, scope)) } else { Err(nowhere()) }
    }
}

/// Resolves a relative URI against `base`.
fn joined(base: &str, uri: &str) -> String {
    let has_scheme = uri.split(['/', '?']).next().is_some_and(|head| head.contains(':'));
    let authority = base.find("://").map(|at| at + 3);
    match (has_scheme, authority) {
        (true, _) => uri.to_owned(),
        (false, Some(from)) => {
            let path = base[from..].find('/').map_or(base.len(), |at| from + at);
            let folder = base[path..].rfind('/').map_or(base.len(), |at| path + at + 1);
            let slash = if folder == base.len() && !base[from..].contains('/') { "/" } else { "" };
            match uri.strip_prefix('/') {
                Some(rest) => format!("{}/{rest}", &base[..path]),
                None => format!("{}{slash}{uri}", &base[..folder]),
            }
        }
        (false, None) => uri.to_owned(),
    }
}

/// Decodes percent-encoding.
fn decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
        match byte {
            b'%' => bytes.push((digit(rest.next())? * 16 + digit(rest.next())?) as u8),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}
