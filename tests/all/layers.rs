//! Structure rules: a layer imports only layers below it, and files and functions stay readable.

use std::fs;
use std::path::{Path, PathBuf};

/// Top to bottom.
const LAYERS: [&str; 14] = [
    "ffi",
    "engine",
    "schedule",
    "cache",
    "sample",
    "model",
    "constrain",
    "text",
    "picture",
    "formats",
    "ops",
    "kernels",
    "device",
    "base",
];

/// Maximum number of lines.
const FILE_LIMIT: usize = 600;
/// A model family is data.
const FAMILY_LIMIT: usize = 120;
const FUNCTION_LIMIT: usize = 70;

struct Source {
    path: PathBuf,
    layer: usize,
    text: String,
}

fn sources() -> Vec<Source> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for (layer, name) in LAYERS.iter().enumerate() {
        let mut folders = vec![src.join(name)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    found.push(Source { path, layer, text });
                }
            }
        }
    }
    assert!(found.len() > LAYERS.len(), "src/ was read");
    found
}

/// Test code is separate: files with test names, and everything after `mod tests {` in others.
fn is_test_file(path: &Path) -> bool {
    let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or("");
    let in_tests = path.components().any(|part| part.as_os_str() == "tests");
    name == "tests" || name.ends_with("_tests") || name.starts_with("tests_") || in_tests
}

fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |at| &text[..at])
}

fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

/// First segments of paths that start at the crate, including those in braces.
fn crate_paths(text: &str) -> Vec<(usize, String)> {
    let clean: String = text.lines().map(|line| format!("{}\n", code(line))).collect();
    let mut found = Vec::new();
    for (at, _) in clean.match_indices("crate::") {
        let line = clean[..at].matches('\n').count() + 1;
        let rest = &clean[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => top_level(list),
            None => vec![rest],
        };
        for name in names {
            let name: String =
                name.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push((line, name));
        }
    }
    found
}

/// The names at the first level of a `{a, b::{c, d}}` list, after its opening brace.
fn top_level(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&list[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}

#[test]
fn imports_go_down() {
    let mut upward = Vec::new();
    for source in sources() {
        for (line, name) in crate_paths(&source.text) {
            let imported = LAYERS.iter().position(|layer| *layer == name);
            if imported.is_some_and(|imported| imported < source.layer) {
                let (path, layer) = (source.path.display(), LAYERS[source.layer]);
                upward.push(format!("{path}:{line}: {layer} imports {name}, which lies above it"));
            }
        }
    }
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

#[test]
fn only_ffi_speaks_c() {
    for source in sources() {
        let exports = without_tests(&source.text).lines().any(|line| code(line).contains("no_mangle"));
        // It replaces a function of the C library.
        let stands_in = source.path.ends_with("os/windows/fma.rs");
        assert!(source.layer == 0 || stands_in || !exports, "{} exports a C symbol", source.path.display());
    }
}

#[test]
fn files_stay_short() {
    let mut long = Vec::new();
    for source in sources() {
        let lines = without_tests(&source.text).lines().count();
        let family = source.path.parent().is_some_and(|folder| folder.ends_with("model/family"))
            && source.path.file_name().is_some_and(|name| name != "mod.rs");
        let limit = if family { FAMILY_LIMIT } else { FILE_LIMIT };
        if lines > limit && !is_test_file(&source.path) {
            long.push(format!("{} has {lines} lines; the limit is {limit}", source.path.display()));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn functions_stay_short() {
    let mut long = Vec::new();
    for source in sources() {
        if is_test_file(&source.path) {
            continue;
        }
        for (line, length) in functions(without_tests(&source.text)) {
            if length > FUNCTION_LIMIT {
                let path = source.path.display();
                long.push(format!(
                    "{path}:{line}: a function of {length} lines; the limit is {FUNCTION_LIMIT}"
                ));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// (first line, lines) of each function, by rustfmt's indentation: it ends where its brace closes. Macros have functions of
/// the form `fn a() = b;`.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let starts = |line: &str| {
        let line = line.trim_start();
        // `pub(super)` has a parenthesis before that of the function.
        let line =
            line.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")).map_or(line, |(_, rest)| rest);
        let head = line.split('(').next().unwrap_or("");
        !line.starts_with("//") && line.contains('(') && head.split([' ', '<']).any(|word| word == "fn")
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| starts(line)) {
        let indent = &line[..line.len() - line.trim_start().len()];
        let close = format!("{indent}}}");
        let one_line = line.trim_end().ends_with(['}', ';', '=']);
        // A trait's method without a body.
        let declared = format!("{indent})");
        let ends =
            |l: &&str| l.trim_end_matches(';') == close || (l.starts_with(&declared) && l.ends_with(';'));
        let end = lines[at..].iter().position(ends).filter(|_| !one_line);
        if let Some(length) = end {
            found.push((at + 1, length + 1));
        }
    }
    found
}

#[test]
fn the_checks_see_what_they_look_for() {
    let text =
        "use crate::{base::Error, engine::{api, Engine}};\nlet x = crate::model::Facts; // crate::ffi\n";
    let names: Vec<String> = crate_paths(text).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["base", "engine", "model"]);
    for public in ["pub", "pub(super)", "pub(in crate::model)"] {
        let text = format!("    {public} fn a(\n        b: u32,\n    ) {{\n        b\n    }}\n");
        assert_eq!(functions(&text), [(1, 5)]);
    }
}

/// Each file next to the one program of integration tests links the whole library once more.
#[test]
fn tests_with_a_process_of_their_own_are_those_that_need_one() {
    let mut found: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".rs"))
        .collect();
    found.sort_unstable();
    let allocators_and_cpus = [
        "alloc_refused.rs",
        "engine_cpu.rs",
        "engine_resources.rs",
        "fuzz.rs",
        "grammar_intersections.rs",
        "grammar_memory.rs",
        "grammar_room.rs",
        "model_memory.rs",
        "picture_memory.rs",
        "text_chat_memory.rs",
    ];
    assert_eq!(found, allocators_and_cpus, "other tests are modules of tests/all/main.rs");
}
