//! Files of a folder that import each other in a cycle can only be read together, so cycles are limited to a
//! few files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Maximum number of files in a cycle.
const MOST: usize = 5;
/// The checked folders of `src` and of the programs.
const ROOMS: [(&str, &str); 5] =
    [("src", "model"), ("src", "ops"), ("src", "engine"), ("hosts/server/src", ""), ("hosts/chat/src", "")];

/// The path of a module from the crate root.
type Module = Vec<String>;

/// The modules of a folder, and their code without tests.
fn modules(root: &Path, room: &str) -> BTreeMap<Module, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.join(room)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let inside = path.strip_prefix(root).unwrap().with_extension("");
            let mut module: Module = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            let name = module.last().unwrap();
            let is_test = module.iter().any(|part| part == "tests") || name.ends_with("_tests");
            if path.extension().is_none_or(|end| end != "rs") || is_test {
                continue;
            }
            if ["mod", "main", "lib"].contains(&name.as_str()) {
                module.pop();
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let code = text.lines().map(|line| line.split("//").next().unwrap());
            found.insert(module, code.collect::<Vec<_>>().join("\n"));
        }
    }
    assert!(found.len() > 5, "{room} was read");
    found
}

/// The paths in a text that begin with `crate` or `super`, and those that it uses, with those in braces one by one.
fn paths(code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::", "use "] {
        for (at, _) in code.match_indices(start) {
            let inside =
                code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "_:".contains(c));
            if !inside {
                let path = code[at..].strip_prefix("use ").unwrap_or(&code[at..]);
                expand(&mut Vec::new(), path, &mut found);
            }
        }
    }
    found
}

/// Adds the paths of `rest`, below `before`. Returns what follows them.
fn expand<'a>(before: &mut Module, rest: &'a str, found: &mut Vec<Module>) -> &'a str {
    let rest = rest.trim_start();
    if let Some(mut list) = rest.strip_prefix('{') {
        loop {
            list = expand(&mut before.clone(), list, found).trim_start();
            match list.strip_prefix(',') {
                Some(behind) if !behind.trim_start().starts_with('}') => list = behind,
                Some(behind) => return &behind.trim_start()[1..],
                None => return list.strip_prefix('}').unwrap_or(list),
            }
        }
    }
    let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (name, behind) = rest.split_at(len);
    if name.is_empty() {
        return behind.strip_prefix('*').unwrap_or(behind);
    }
    before.push(name.to_owned());
    if let Some(behind) = behind.strip_prefix("::").filter(|behind| !behind.starts_with('<')) {
        return expand(before, behind, found);
    }
    found.push(before.clone());
    // Skip `as` and a new name.
    let renamed = behind.trim_start().strip_prefix("as ");
    renamed.map_or(behind, |name| name.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Makes a path absolute from the crate root.
fn absolute(from: &Module, path: &Module) -> Module {
    let mut base = match path[0].as_str() {
        "crate" => Vec::new(),
        _ => from.clone(),
    };
    let mut rest = &path[..];
    while let [first, behind @ ..] = rest {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => drop(base.pop()),
            _ => break,
        }
        rest = behind;
    }
    base.extend_from_slice(rest);
    base
}

/// The file that a path leads to, through re-exports of modules.
fn file_of(all: &BTreeMap<Module, String>, path: &Module, depth: usize) -> Option<Module> {
    let at = (0..=path.len()).rev().find(|len| all.contains_key(&path[..*len]))?;
    let module = path[..at].to_vec();
    let Some(name) = path.get(at).filter(|_| depth < 5) else { return Some(module) };
    for line in all[&module].split(';') {
        let Some((_, used)) = line.split_once("pub use ").or_else(|| line.split_once(") use ")) else {
            continue;
        };
        let mut found = Vec::new();
        expand(&mut Vec::new(), used, &mut found);
        for of in found.into_iter().filter(|of| of.last() == Some(name)) {
            let local = !["crate", "super", "self"].contains(&of[0].as_str());
            let of = if local { [module.clone(), of].concat() } else { absolute(&module, &of) };
            if of != *path {
                return file_of(all, &of, depth + 1);
            }
        }
    }
    Some(module)
}

/// The modules that `from` reaches.
fn reached(edges: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(at) = next.pop() {
        for to in &edges[&at] {
            if found.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    found
}

#[test]
fn no_cycle_is_large() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, room) in ROOMS {
        let all = modules(&root.join(folder), room);
        let edges: BTreeMap<_, BTreeSet<_>> = all
            .iter()
            .map(|(module, code)| {
                let paths = paths(code);
                let files = paths.iter().filter_map(|path| file_of(&all, &absolute(module, path), 0));
                (module.clone(), files.filter(|file| file != module).collect())
            })
            .collect();
        let reach: BTreeMap<_, _> = edges.keys().map(|module| (module, reached(&edges, module))).collect();
        for module in edges.keys() {
            let cycle: Vec<_> = reach[module]
                .iter()
                .filter(|other| reach[other].contains(module))
                .map(|m| m.join("/"))
                .collect();
            assert!(cycle.len() <= MOST, "{} files in a cycle: {}", cycle.len(), cycle.join(" "));
        }
    }
}
