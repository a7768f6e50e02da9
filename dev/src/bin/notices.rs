//! Writes the licenses of everything that the library is built from, or with `hosts` the programs.
//!
//!   cargo dev notices > packaging/THIRD-PARTY
//!   cargo dev notices -- hosts > hosts/THIRD-PARTY
//!
//! Texts are those in the packages, each once. A package that may be used under MIT is used under MIT.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Package {
    id: String,
    name: String,
    version: String,
    license: String,
    repository: String,
    folder: PathBuf,
}

/// A workspace of this repository, and its introduction in the notices.
struct Subject {
    folder: &'static str,
    contains: &'static str,
    linked: &'static str,
}

const LIBRARY: Subject = Subject {
    folder: "..",
    contains: "bn_engine is under MIT or Apache-2.0 (LICENSE-MIT, LICENSE-APACHE). It contains parts of what follows.\n\
               Written by `cargo dev notices`.",
    linked: "In the library, on one system or another:",
};
const PROGRAMS: Subject = Subject {
    folder: "../hosts",
    contains: "bn-chat and bn-server are under MIT or Apache-2.0 (LICENSE-MIT, LICENSE-APACHE). They contain parts of what\n\
               follows; the library that they use has a list of its own.\nWritten by `cargo dev notices -- hosts`.",
    linked: "In the programs, on one system or another:",
};

fn main() -> Result<(), Box<dyn Error>> {
    let subject = match std::env::args().nth(1).as_deref() {
        None => LIBRARY,
        Some("hosts") => PROGRAMS,
        Some(other) => return Err(format!("nothing is called '{other}': hosts").into()),
    };
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(subject.folder);
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let output = Command::new(cargo).args(arguments).current_dir(folder).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages: Vec<Package> =
        list(&metadata["packages"]).filter(|p| !p["source"].is_null()).map(package).collect();
    let linked = linked(&metadata);
    let (inside, tools): (Vec<_>, Vec<_>) = packages.iter().partition(|p| linked.contains(&p.id));

    println!(
        "{} The texts are those that the packages bring; a package without one is under the",
        subject.contains
    );
    println!("license that its line names.\n");
    println!("{}\n", subject.linked);
    inside.iter().for_each(|p| println!("  {} {}  {}  {}", p.name, p.version, p.license, p.repository));
    println!("\nOnly to build and test it:\n");
    tools.iter().for_each(|p| println!("  {} {}  {}", p.name, p.version, p.license));
    for text in texts(&inside)? {
        println!("\n{}\n{}\n\n{}", "=".repeat(80), text.users.join(", "), text.text);
    }
    Ok(())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn package(value: &Value) -> Package {
    let manifest = text(&value["manifest_path"]);
    Package {
        id: text(&value["id"]),
        name: text(&value["name"]),
        version: text(&value["version"]),
        license: text(&value["license"]),
        repository: text(&value["repository"]),
        folder: Path::new(&manifest).parent().map(PathBuf::from).unwrap_or_default(),
    }
}

/// Ids of the dependencies of the workspace's package, or of all its members, except those for building and testing, on
/// all systems.
fn linked(metadata: &Value) -> BTreeSet<String> {
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let mut waiting: Vec<&str> = match metadata["resolve"]["root"].as_str() {
        Some(root) => vec![root],
        None => list(&metadata["workspace_members"]).filter_map(Value::as_str).collect(),
    };
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !found.insert(id.to_string()) {
            continue;
        }
        let normal = |dep: &&Value| list(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null());
        waiting.extend(list(&nodes[id]["deps"]).filter(normal).filter_map(|dep| dep["pkg"].as_str()));
    }
    found
}

/// A license text, and the packages that include it.
struct Text {
    text: String,
    users: Vec<String>,
}

/// Each text once, by its first user.
fn texts(packages: &[&Package]) -> Result<Vec<Text>, Box<dyn Error>> {
    let mut texts: BTreeMap<String, Text> = BTreeMap::new();
    for package in packages {
        let name = format!("{} {}", package.name, package.version);
        for file in license_files(package)? {
            let text = String::from_utf8_lossy(&fs::read(file)?).replace("\r\n", "\n").trim_end().to_string();
            // Texts that differ only in line breaks are the same.
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            texts.entry(words).or_insert(Text { text, users: Vec::new() }).users.push(name.clone());
        }
    }
    let mut texts: Vec<Text> = texts.into_values().collect();
    texts.sort_by(|a, b| a.users.cmp(&b.users));
    Ok(texts)
}

fn license_files(package: &Package) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(&package.folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file()
            && ["LICEN", "COPYING", "NOTICE", "UNLICENSE"].iter().any(|start| name.starts_with(start))
        {
            files.push(path);
        }
    }
    files.sort_unstable();
    let about = |file: &PathBuf, word: &str| {
        file.file_name().is_some_and(|name| name.to_string_lossy().to_uppercase().contains(word))
    };
    let choice = package.license.contains(" OR ") || package.license.contains('/');
    if choice && package.license.contains("MIT") && files.iter().any(|file| about(file, "MIT")) {
        files.retain(|file| about(file, "MIT") || about(file, "NOTICE"));
    }
    Ok(files)
}
