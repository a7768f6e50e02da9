//! Rewrites of one schema. Each keeps the same values valid and removes a keyword that llguidance lacks.

use super::check::{Checker, is_of_type, types};
use super::finite;
use super::keywords::IN_PLACE;
use super::multiples;
use super::normal::Fields;
use super::prove::{are_distinct, texts};
use super::rewrite::Rewriter;
use super::{Refusal, Rule};
use crate::text::{formats, patterns, watch};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Applied in this order: a rule does not see the keywords added by later ones.
pub(super) const RULES: &[Rule] = &[
    dynamic,
    unevaluated,
    format,
    pattern,
    names,
    listed,
    dependent,
    unique,
    contains,
    conditional,
    not,
    one_of,
    least,
    multiples::one,
];

/// Limit on triggers of dependencies: each doubles the cases.
const MOST_TRIGGERS: usize = 6;
/// Limit on arrays of distinct values that are enumerated.
const MOST_ARRAYS: usize = 400;
/// Limits on the alternatives of `oneOf`, and on those separated by negating the others.
const MOST_ALTERNATIVES: usize = 64;
const MOST_OVERLAPS: usize = 8;
/// Limit on names of which at least one is required.
const MOST_NAMES: usize = 16;

/// Adds a schema that must hold as well.
fn also(fields: &mut Fields, schema: Value) {
    match fields.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(schema),
        _ => drop(fields.insert("allOf".to_owned(), json!([schema]))),
    }
}

fn size(fields: &Fields, keyword: &str) -> Option<u64> {
    fields.get(keyword)?.as_u64()
}

/// Returns true if `type` allows values of this type.
fn allows(fields: &Fields, name: &str) -> bool {
    fields.get("type").is_none_or(|of| types(of).contains(&name))
}

fn dynamic(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    for keyword in ["$dynamicRef", "$recursiveRef"] {
        if fields.shift_remove(keyword).is_some() {
            rewriter.refuse(format!("it has the keyword {keyword}"))?;
        }
    }
    Ok(())
}

/// If no other schema applies to the same value, unevaluated members are the additional ones.
fn unevaluated(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    for (keyword, rest, beside) in [
        ("unevaluatedProperties", "additionalProperties", "additionalProperties"),
        ("unevaluatedItems", "items", "contains"),
    ] {
        let Some(schema) = fields.shift_remove(keyword) else { continue };
        if schema == Value::Bool(true) || fields.contains_key(rest) {
            continue;
        }
        if fields.contains_key(beside) || IN_PLACE.iter().any(|keyword| fields.contains_key(*keyword)) {
            rewriter.refuse(format!("it has the keyword {keyword} beside others that apply schemas"))?;
        } else {
            fields.insert(rest.to_owned(), schema);
        }
    }
    Ok(())
}

fn format(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let Some(Value::String(name)) = fields.shift_remove("format") else { return Ok(()) };
    if !allows(fields, "string") {
        return Ok(());
    }
    let Some(format) = formats::find(&name) else {
        return if rewriter.known_formats {
            rewriter.refuse(format!("the format {name} is not known"))
        } else {
            Ok(())
        };
    };
    if let Some(longest) = format.longest {
        let most = size(fields, "maxLength").map_or(longest, |most| most.min(longest));
        fields.insert("maxLength".to_owned(), most.into());
    }
    match fields.contains_key("pattern") {
        true => also(fields, json!({"pattern": format.pattern})),
        false => drop(fields.insert("pattern".to_owned(), format.pattern.clone().into())),
    }
    Ok(())
}

fn pattern(_: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    if let Some(Value::String(pattern)) = fields.get_mut("pattern") {
        *pattern = patterns::rust(pattern).map_err(Refusal::new)?;
    }
    let Some(Value::Object(named)) = fields.get_mut("patternProperties") else { return Ok(()) };
    let mut out = Map::new();
    for (pattern, schema) in std::mem::take(named) {
        if out.insert(patterns::rust(&pattern).map_err(Refusal::new)?, schema).is_some() {
            return Err(Refusal::new(format!("the pattern {pattern:?} comes twice")));
        }
    }
    *named = out;
    Ok(())
}

/// Rewrites `propertyNames` as the properties that are allowed.
fn names(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let Some(mut schema) = fields.shift_remove("propertyNames") else { return Ok(()) };
    if let Some(reference) = schema.get("$ref").filter(|_| schema.as_object().is_some_and(|of| of.len() == 1))
    {
        let target = rewriter.check(|checker| checker.definition(reference))?;
        schema = target.cloned().unwrap_or(Value::Bool(true));
    }
    let Value::Object(of) = &schema else {
        if schema == Value::Bool(false) {
            also(fields, json!({"maxProperties": 0}));
        }
        return Ok(());
    };
    if !allows(of, "string") {
        also(fields, json!({"maxProperties": 0}));
        return Ok(());
    }
    let only =
        |known: &[&str]| of.keys().all(|keyword| keyword == "type" || known.contains(&keyword.as_str()));
    let text = |keyword: &str| of.get(keyword).and_then(Value::as_str);
    let names = match (of.get("const"), of.get("enum")) {
        (Some(one), None) => Some(vec![one.clone()]),
        (None, Some(Value::Array(all))) => Some(all.clone()),
        _ => None,
    };
    let pattern = match (text("pattern"), text("format").and_then(formats::find)) {
        _ if of.is_empty() || only(&[]) => return Ok(()),
        (Some(pattern), _) if only(&["pattern"]) => pattern.to_owned(),
        (_, Some(format)) if only(&["format"]) && format.longest.is_none() => format.pattern.clone(),
        _ if only(&["minLength", "maxLength"]) => {
            let most = size(of, "maxLength").map_or(String::new(), |most| most.to_string());
            format!("^[^]{{{},{most}}}$", size(of, "minLength").unwrap_or(0))
        }
        _ if names.is_some() && only(&["const", "enum"]) => {
            let names = names.iter().flatten().filter_map(Value::as_str);
            let named: Map<String, Value> = names.map(|name| (name.to_owned(), Value::Bool(true))).collect();
            also(fields, json!({"properties": named, "additionalProperties": false}));
            return Ok(());
        }
        _ => return rewriter.refuse("propertyNames has more than a pattern, a length, a format or a list"),
    };
    also(fields, json!({"patternProperties": {pattern: true}, "additionalProperties": false}));
    Ok(())
}

/// Patterns of few names become these names, and with patterns of all names there are no others: otherwise a comma
/// could come where no key can follow.
fn listed(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let Some(Value::Object(mut patterns)) = fields.shift_remove("patternProperties") else { return Ok(()) };
    // llguidance counts keys only if all listed ones are required.
    let counts = fields.contains_key("maxProperties") || size(fields, "minProperties") > Some(1);
    let mut named = match fields.shift_remove("properties") {
        Some(Value::Object(named)) => named,
        _ => Map::new(),
    };
    for pattern in patterns.keys().cloned().collect::<Vec<_>>() {
        rewriter.budget.spend(1)?;
        let required = texts(fields.get("required")).collect::<HashSet<_>>();
        let Some(names) = finite::texts(&pattern) else { continue };
        if counts && !names.iter().all(|name| required.contains(name.as_str())) {
            continue;
        }
        let schema = patterns.shift_remove(&pattern).unwrap_or(Value::Bool(true));
        for name in names {
            rewriter.budget.spend_on(&schema)?;
            match named.get_mut(&name) {
                Some(known) => *known = json!({"allOf": [known.take(), schema]}),
                None => drop(named.insert(name, schema.clone())),
            }
        }
    }
    let all: Vec<&str> = patterns.keys().map(String::as_str).collect();
    let names: Vec<&str> = named.keys().map(String::as_str).chain(texts(fields.get("required"))).collect();
    if !all.is_empty() && finite::are_all(&all, &names) {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    if !named.is_empty() {
        fields.insert("properties".to_owned(), Value::Object(named));
    }
    if !patterns.is_empty() {
        fields.insert("patternProperties".to_owned(), Value::Object(patterns));
    }
    Ok(())
}

/// Either a property is absent, or its dependency holds.
fn dependent(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let required = fields.shift_remove("dependentRequired");
    let schemas = fields.shift_remove("dependentSchemas");
    let all = |of: Option<Value>| match of {
        Some(Value::Object(all)) => all,
        _ => Map::new(),
    };
    let names = all(required).into_iter().map(|(name, of)| (name, json!({"required": of})));
    let holding: Vec<(String, Value)> = names.chain(all(schemas)).collect();
    let always: HashSet<String> = texts(fields.get("required")).map(str::to_owned).collect();
    let open = holding.iter().filter(|(name, _)| !always.contains(name)).count();
    if open > MOST_TRIGGERS {
        return rewriter
            .refuse(format!("more than {MOST_TRIGGERS} properties have others that depend on them"));
    }
    for (name, schema) in holding {
        let held = match always.contains(&name) {
            true => schema,
            false => json!({"anyOf": [
                {"properties": {&name: false}},
                {"allOf": [{"required": [&name]}, schema]},
            ]}),
        };
        also(fields, held);
    }
    Ok(())
}

/// If there are few values, all arrays of distinct ones are enumerated.
fn unique(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let most = size(fields, "maxItems");
    if fields.shift_remove("uniqueItems") != Some(Value::Bool(true))
        || most.is_some_and(|most| most < 2)
        || !allows(fields, "array")
    {
        return Ok(());
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        let items = |value: &Value| value.as_array().map_or(0, Vec::len);
        if values.iter().map(items).max() > Some(MOST_ARRAYS) {
            return rewriter.refuse("uniqueItems has an array of too many constants");
        }
        rewriter.budget.spend(values.len())?;
        values.retain(|value| !watch::is_over() && value.as_array().is_none_or(|items| are_distinct(items)));
        return rewriter.budget.spend(1);
    }
    let places: Vec<Value> = fields.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default();
    let closed = fields.get("items") == Some(&Value::Bool(false))
        || most.is_some_and(|most| most <= places.len() as u64);
    if closed && !places.is_empty() {
        let mut apart = true;
        for (n, place) in places.iter().enumerate() {
            for before in &places[..n] {
                apart = apart && rewriter.empty(&[before, place])?;
            }
        }
        if apart {
            return Ok(());
        }
    }
    let values = match fields.get("items").filter(|_| places.is_empty()) {
        Some(items) => rewriter.check(|checker| finite(checker, items))?,
        None => None,
    };
    let arrays = values.and_then(|values| arrangements(&values, size(fields, "minItems").unwrap_or(0), most));
    match arrays {
        Some(arrays) => {
            let cost = arrays.iter().map(|array| array.as_array().map_or(1, |items| items.len() + 1)).sum();
            rewriter.budget.spend(cost)?;
            also(
                fields,
                json!({"anyOf": [
                    {"type": ["null", "boolean", "number", "string", "object"]},
                    {"enum": arrays},
                ]}),
            );
            Ok(())
        }
        None => rewriter.refuse("uniqueItems has items that are not few values"),
    }
}

/// All valid values of a schema that has few.
fn finite(checker: &mut Checker, schema: &Value) -> Option<Vec<Value>> {
    if let Some(target) = schema.get("$ref").and_then(|reference| checker.definition(reference)) {
        checker.step()?;
        let alone = schema.as_object()?.len() == 1;
        return if alone { finite(checker, target) } else { None };
    }
    let fields = schema.as_object()?;
    let candidates = match (fields.get("const"), fields.get("enum"), fields.get("type")) {
        (Some(one), _, _) => vec![one.clone()],
        (None, Some(all), _) => all.as_array().filter(|all| all.len() <= MOST_ARRAYS)?.clone(),
        (None, None, Some(of)) if types(of).iter().all(|name| ["null", "boolean"].contains(name)) => {
            let all = [Value::Null, Value::Bool(false), Value::Bool(true)];
            all.into_iter().filter(|value| types(of).iter().any(|name| is_of_type(value, name))).collect()
        }
        _ => return None,
    };
    let mut values: Vec<Value> = Vec::new();
    for value in candidates {
        if checker.valid(schema, &value)? && !values.iter().any(|known| super::check::equal(known, &value)) {
            values.push(value);
        }
    }
    Some(values)
}

/// Arrays of distinct values; None if there are too many.
fn arrangements(values: &[Value], least: u64, most: Option<u64>) -> Option<Vec<Value>> {
    let longest = most.map_or(values.len(), |most| values.len().min(most as usize));
    let (mut all, mut last) = (Vec::new(), vec![Vec::<usize>::new()]);
    for length in 0..=longest {
        if length as u64 >= least {
            all.extend(
                last.iter().map(|chosen| chosen.iter().map(|&n| values[n].clone()).collect::<Value>()),
            );
        }
        if all.len() + last.len() > MOST_ARRAYS {
            return None;
        }
        let longer = last.iter().flat_map(|chosen| {
            let free = (0..values.len()).filter(|n| !chosen.contains(n));
            free.map(|n| chosen.iter().copied().chain([n]).collect())
        });
        last = longer.take(MOST_ARRAYS + 1).collect();
    }
    Some(all)
}

fn contains(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let (least, most) = (fields.shift_remove("minContains"), fields.shift_remove("maxContains"));
    let Some(schema) = fields.shift_remove("contains") else { return Ok(()) };
    let least = least.and_then(|least| least.as_u64()).unwrap_or(1);
    match (&schema, most.and_then(|most| most.as_u64())) {
        (_, None) if least == 0 => Ok(()),
        (Value::Bool(true), most) => {
            also(fields, json!({"minItems": least}));
            most.into_iter().for_each(|most| also(fields, json!({"maxItems": most})));
            Ok(())
        }
        (Value::Bool(false), _) if least > 0 => {
            also(fields, json!({"type": ["null", "boolean", "number", "string", "object"]}));
            Ok(())
        }
        _ => rewriter.refuse("it has the keyword contains"),
    }
}

fn conditional(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let then = fields.shift_remove("then");
    let otherwise = fields.shift_remove("else");
    let Some(condition) = fields.shift_remove("if") else { return Ok(()) };
    if then.is_none() && otherwise.is_none() {
        return Ok(());
    }
    let Some(negated) = rewriter.negated(&condition)? else {
        return rewriter.refuse("it has the keyword if with a condition that cannot be turned around");
    };
    let with = |condition: Value, then: Option<Value>| match then {
        Some(then) => json!({"allOf": [condition, then]}),
        None => condition,
    };
    also(fields, json!({"anyOf": [with(condition, then), with(negated, otherwise)]}));
    Ok(())
}

fn not(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let Some(schema) = fields.shift_remove("not") else { return Ok(()) };
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        let all = |checker: &mut Checker| values.iter().map(|value| checker.valid(&schema, value)).collect();
        let known: Option<Vec<bool>> = rewriter.check(all)?;
        if let Some(known) = known {
            let mut known = known.iter();
            values.retain(|_| known.next() == Some(&false));
            return Ok(());
        }
    }
    if let Some(negated) = rewriter.negated(&schema)? {
        also(fields, negated);
        return Ok(());
    }
    let rest = Value::Object(fields.clone());
    match rewriter.empty(&[&rest, &schema])? {
        true => Ok(()),
        false => rewriter.refuse("it has the keyword not with a schema that cannot be turned around"),
    }
}

/// Mutually exclusive alternatives become `anyOf`; others are separated by negating the rest.
fn one_of(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let Some(Value::Array(ways)) = fields.shift_remove("oneOf") else { return Ok(()) };
    if ways.len() > MOST_ALTERNATIVES {
        return rewriter.refuse(format!("oneOf has more than {MOST_ALTERNATIVES} alternatives"));
    }
    // Values that are not objects are valid under both.
    let objects = |checker: &mut Checker| ways.iter().filter(|way| checker.of_objects(way)).count();
    if rewriter.check(objects)? > 1 {
        also(fields, json!({"type": "object"}));
    }
    let rest = Value::Object(fields.clone());
    let mut overlaps = vec![Vec::new(); ways.len()];
    for (a, b) in (0..ways.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
        if !rewriter.coerce && !rewriter.empty(&[&rest, &ways[a], &ways[b]])? {
            overlaps[a].push(b);
            overlaps[b].push(a);
        }
    }
    let mut alternatives = Vec::new();
    for (way, others) in ways.iter().zip(&overlaps) {
        let mut parts = vec![way.clone()];
        for &other in others {
            let negated = if others.len() > MOST_OVERLAPS { None } else { rewriter.negated(&ways[other])? };
            let Some(negated) = negated else {
                also(fields, json!({"anyOf": ways}));
                return rewriter.refuse("oneOf has alternatives that do not provably exclude each other");
            };
            parts.push(negated);
        }
        rewriter.budget.spend_on(&Value::Array(parts.clone()))?;
        alternatives.push(if parts.len() == 1 { parts.remove(0) } else { json!({"allOf": parts}) });
    }
    match fields.contains_key("anyOf") {
        true => also(fields, json!({"anyOf": alternatives})),
        false => drop(fields.insert("anyOf".to_owned(), alternatives.into())),
    }
    Ok(())
}

/// llguidance counts keys as they are written, and an unlisted key may be written twice.
fn least(rewriter: &mut Rewriter, fields: &mut Fields) -> Result<(), Refusal> {
    let always: HashSet<&str> = texts(fields.get("required")).collect();
    let required = always.len() as u64;
    let missing = size(fields, "minProperties").unwrap_or(0).saturating_sub(required);
    let free = fields.get("additionalProperties") != Some(&Value::Bool(false))
        || fields.contains_key("patternProperties");
    if missing > 1 && free && allows(fields, "object") {
        fields.shift_remove("minProperties");
        return rewriter.refuse("minProperties asks for more than one property that is not required");
    }
    let named = fields.get("properties").and_then(Value::as_object);
    let there =
        |(name, of): &(&String, &Value)| !always.contains(name.as_str()) && **of != Value::Bool(false);
    let optional: Vec<&String> = named.into_iter().flatten().filter(there).map(|(name, _)| name).collect();
    if missing != 1
        || !free
        || optional.is_empty()
        || optional.len() > MOST_NAMES
        || fields.contains_key("maxProperties")
    {
        return Ok(());
    }
    let none: Map<String, Value> =
        optional.iter().map(|name| ((*name).clone(), Value::Bool(false))).collect();
    let mut ways: Vec<Value> = optional.iter().map(|name| json!({"required": [name]})).collect();
    ways.push(json!({"properties": none, "required": fields.get("required").cloned().unwrap_or(json!([])), "minProperties": required + 1}));
    fields.shift_remove("minProperties");
    also(fields, json!({"anyOf": ways}));
    Ok(())
}
