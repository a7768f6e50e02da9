//! Tools and choices of the Responses API.
use crate::failure::Result;
use crate::request::tools::{OPENAI, Tools, name_of};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Functions in namespaces. The model sees their plain names, unless another function has the same one.
#[derive(Debug, Default)]
pub struct Namespaces {
    functions: Vec<Spaced>,
}

#[derive(Debug)]
struct Spaced {
    space: String,
    name: String,
    /// The name that the model sees.
    shown: String,
}

impl Namespaces {
    /// The name that the model sees.
    pub fn shown<'a>(&'a self, space: Option<&str>, name: &'a str) -> &'a str {
        let own = |function: &&Spaced| Some(function.space.as_str()) == space && function.name == name;
        self.functions.iter().find(own).map_or(name, |function| &function.shown)
    }

    fn has(&self, space: &str, name: &str) -> bool {
        self.functions.iter().any(|function| function.space == space && function.name == name)
    }

    /// A tool choice with the name that the model sees.
    pub fn choice(&self, mut choice: Value) -> Value {
        let shown = |name: &str| choice[name].as_str().unwrap_or_default();
        let shown = self.shown(Some(shown("namespace")), shown("name")).to_owned();
        if !shown.is_empty() {
            choice["name"] = shown.into();
        }
        choice
    }

    /// The namespace and the name of the function that the model calls by this name.
    pub fn find(&self, shown: &str) -> Option<(&str, &str)> {
        let function = self.functions.iter().find(|function| function.shown == shown)?;
        Some((&function.space, &function.name))
    }
}

/// Reads `tools`: functions, also those in namespaces.
pub fn read(given: &[Object]) -> Result<(Tools, Namespaces)> {
    let (mut tools, mut namespaces) = (Tools::read(given, OPENAI)?, Namespaces::default());
    for (i, tool) in given.iter().enumerate() {
        if tool.get("type").is_some_and(|kind| kind == "namespace") {
            add_namespace(&mut tools, &mut namespaces, tool, &format!("tools[{i}]"))?;
        }
    }
    Ok((tools, namespaces))
}

/// Adds the functions of items: tools for the rest of a conversation, or functions that a search found, which may be
/// known already.
pub fn add_of_items(tools: &mut Tools, namespaces: &mut Namespaces, items: &Value, at: &str) -> Result<()> {
    const KINDS: [&str; 2] = ["additional_tools", "tool_search_output"];
    for (i, item) in items.as_array().into_iter().flatten().enumerate() {
        let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
        let given = item.get("tools").and_then(Value::as_array).filter(|_| KINDS.contains(&kind));
        for (j, tool) in given.into_iter().flatten().filter_map(Value::as_object).enumerate() {
            let at = format!("{at}[{i}].tools[{j}]");
            match tool.get("type").and_then(Value::as_str) {
                Some("namespace") => add_namespace(tools, namespaces, tool, &at)?,
                Some("function") => {
                    let name = name_of(tool, &at)?;
                    if !tools.has(name) {
                        tools.add(tool, name, OPENAI, &at)?;
                    }
                }
                _ => tools.leave_out(tool),
            }
        }
    }
    Ok(())
}

fn add_namespace(to: &mut Tools, namespaces: &mut Namespaces, space: &Object, at: &str) -> Result<()> {
    let prefix = space.get("name").and_then(Value::as_str).unwrap_or_default();
    let inner = space.get("tools").and_then(Value::as_array);
    for (i, tool) in inner.into_iter().flatten().enumerate() {
        let Some(tool) = tool.as_object() else { continue };
        if tool.get("type").and_then(Value::as_str) != Some("function") {
            to.leave_out(tool);
            continue;
        }
        let at = format!("{at}.tools[{i}]");
        let name = name_of(tool, &at)?;
        if namespaces.has(prefix, name) {
            continue; // as when a search finds it
        }
        let shown = if to.has(name) { format!("{prefix}__{name}") } else { name.to_owned() };
        to.add(tool, &shown, OPENAI, &at)?;
        namespaces.functions.push(Spaced { space: prefix.to_owned(), name: name.to_owned(), shown });
    }
    Ok(())
}
