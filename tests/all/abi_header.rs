//! `include/bn_engine.h` is what `src/ffi` generates, and has every function that the library exports.

const GENERATED: &str = include_str!(concat!(env!("OUT_DIR"), "/bn_engine.h"));
const COMMITTED: &str = include_str!("../../include/bn_engine.h");

#[test]
fn committed_header_is_the_generated_one() {
    let differing =
        GENERATED.lines().zip(COMMITTED.lines()).position(|(generated, committed)| generated != committed);
    assert!(
        GENERATED == COMMITTED,
        "include/bn_engine.h differs from what src/ffi generates, first at line {:?}: run `make header`",
        differing.map(|line| line + 1)
    );
}

/// Names that stand before a parenthesis at the start of a declaration.
fn functions() -> Vec<&'static str> {
    let declaration = |line: &'static str| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        let declares = !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef");
        (declares && name.starts_with("bn_")).then_some(name)
    };
    COMMITTED.lines().filter_map(declaration).collect()
}

/// Names of `src/ffi`'s `extern "C"` functions that the linker sees.
fn exports() -> Vec<String> {
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ffi")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for (_, after) in text.split("no_mangle").skip(1).filter_map(|after| after.split_once(" fn ")) {
                found.push(after.split('(').next().unwrap().to_string());
            }
        }
    }
    found
}

#[test]
fn functions_are_the_exports() {
    let (mut declared, mut exported) = (functions(), exports());
    declared.sort_unstable();
    exported.sort_unstable();
    assert_eq!(declared, exported, "the header's functions against those of src/ffi: build.rs's SOURCES?");
}

#[test]
fn every_item_is_documented() {
    let mut previous = "";
    for (at, line) in COMMITTED.lines().enumerate() {
        let function = functions().iter().any(|name| line.contains(&format!("{name}(")));
        let item = line.starts_with("#define BN_")
            || line.starts_with("typedef ")
            || (function && !line.starts_with(['/', ' ']));
        let field = line.starts_with("    ") && line.ends_with(';') && !line.contains(')');
        // Macros with parameters are documented before their `#ifdef`.
        let other =
            line == "#define BN_ENGINE_H" || line.split(' ').nth(1).is_some_and(|name| name.contains('('));
        assert!(
            !(item || field) || other || previous.ends_with("*/"),
            "include/bn_engine.h:{}: `{line}` has no comment",
            at + 1
        );
        previous = line;
    }
}

#[test]
fn every_function_names_its_threads() {
    let lines: Vec<&str> = COMMITTED.lines().collect();
    for name in functions() {
        let at = lines
            .iter()
            .position(|line| line.contains(&format!("{name}(")) && !line.starts_with([' ', '/']))
            .unwrap();
        let mut comment = lines[..at].iter().rev().take_while(|line| line.starts_with(" *"));
        let tagged = comment.any(|l| *l == " * [any thread]" || *l == " * [not from a callback]");
        assert!(tagged, "{name} has no thread tag");
    }
}

#[test]
fn version_macros_are_the_packages() {
    use bn_engine::ffi::types::{BN_VERSION_MAJOR, BN_VERSION_MINOR, BN_VERSION_PATCH};
    let macros = format!("{BN_VERSION_MAJOR}.{BN_VERSION_MINOR}.{BN_VERSION_PATCH}");
    assert_eq!(macros, env!("CARGO_PKG_VERSION"));
}
