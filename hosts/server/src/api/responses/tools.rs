//! Tools and choices of the Responses API.
use crate::failure::Result;
use crate::request::tools::{OPENAI, Tools, name_of};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Functions that stand in a namespace. The model sees their names alone, where no other function has them.
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

    /// A choice of a function under the name that the model sees.
    pub fn choice(&self, mut choice: Value) -> Value {
        let shown = |name: &str| choice[name].as_str().unwrap_or_default();
        let shown = self.shown(Some(shown("namespace")), shown("name")).to_owned();
        if !shown.is_empty() {
            choice["name"] = shown.into();
        }
        choice
    }

    /// The namespace and the name in it of the function that the model calls so.
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
        let shown = if to.has(name) { format!("{prefix}__{name}") } else { name.to_owned() };
        to.add(tool, &shown, OPENAI, &at)?;
        namespaces.functions.push(Spaced { space: prefix.to_owned(), name: name.to_owned(), shown });
    }
    Ok(())
}
