//! Tools and choices of the Responses API.
use crate::api::openai::allow;
use crate::failure::{Failure, Result};
use crate::request::conversation::{Choice, Conversation};
use crate::request::tools::{Tools, name_of};
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

    /// The namespace and the name in it of the function that the model calls so.
    pub fn find(&self, shown: &str) -> Option<(&str, &str)> {
        let function = self.functions.iter().find(|function| function.shown == shown)?;
        Some((&function.space, &function.name))
    }
}

/// Reads `tools`: functions, also those in namespaces. All others run on OpenAI's servers, or are known to its models alone:
/// they are left out.
pub fn read(given: &[Object]) -> Result<(Tools, Namespaces)> {
    let mut tools = Tools::default();
    let (mut spaces, mut namespaces) = (Vec::new(), Namespaces::default());
    for (i, tool) in given.iter().enumerate() {
        let at = format!("tools[{i}]");
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {
                // As chats have it, it is an object of its own.
                let (inner, at) = match tool.get("function") {
                    Some(Value::Object(inner)) => (inner, format!("{at}.function")),
                    _ => (tool, at),
                };
                tools.add(inner, name_of(inner, &at)?, "parameters", &at)?;
            }
            Some("namespace") => spaces.push((at, tool)),
            Some(_) => tools.leave_out(tool),
            None => return Err(Failure::invalid(format!("'{at}.type' must be a text"))),
        }
    }
    for (at, space) in spaces {
        add_namespace(&mut tools, &mut namespaces, space, &at)?;
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
        to.add(tool, &shown, "parameters", &at)?;
        namespaces.functions.push(Spaced { space: prefix.to_owned(), name: name.to_owned(), shown });
    }
    Ok(())
}

/// Gives the tools to the conversation, with what `tool_choice` says of them.
pub fn choose(
    to: &mut Conversation,
    tools: Tools,
    namespaces: &Namespaces,
    choice: Option<&Value>,
) -> Result<()> {
    let wrong = || {
        let words = "'tool_choice' must be none, auto, required, a function or a list of allowed tools";
        Failure::invalid(words)
    };
    let text = |name: &str| choice.and_then(|choice| choice.get(name)).and_then(Value::as_str);
    let chosen = match (choice.and_then(Value::as_str), text("type")) {
        (Some("none"), _) => Choice::None,
        (Some("auto"), _) => Choice::Auto,
        (Some("required"), _) => Choice::Required,
        (None, Some("allowed_tools")) => {
            let allowed = choice.filter(|choice| choice["tools"].is_array()).ok_or_else(wrong)?;
            tools.give(to, Choice::Auto)?;
            return allow(to, allowed);
        }
        (None, Some("function")) => {
            let name = text("name").ok_or_else(|| Failure::invalid("'tool_choice.name' must be a text"))?;
            Choice::Function(namespaces.shown(text("namespace"), name).to_owned())
        }
        // A tool that was left out.
        (None, Some(_)) => Choice::Auto,
        _ if choice.is_none() => Choice::Unset,
        _ => return Err(wrong()),
    };
    tools.give(to, chosen)
}
