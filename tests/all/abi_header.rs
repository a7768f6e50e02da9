//! `include/bn_engine.h` is what `src/ffi` generates, and every function of it is in the committed list.

const GENERATED: &str = include_str!(concat!(env!("OUT_DIR"), "/bn_engine.h"));
const COMMITTED: &str = include_str!("../../include/bn_engine.h");
const SYMBOLS: &str = include_str!("../abi/symbols.txt");

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

#[test]
fn functions_are_the_committed_symbols() {
    let mut declared = functions();
    declared.sort_unstable();
    let listed: Vec<&str> = SYMBOLS.lines().collect();
    assert_eq!(declared, listed, "the header's functions against tests/abi/symbols.txt, which is sorted");
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
        let guard = line == "#define BN_ENGINE_H";
        assert!(
            !(item || field) || guard || previous.trim_start().starts_with("//"),
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
            .position(|line| line.contains(&format!("{name}(")) && !line.starts_with("//"))
            .unwrap();
        let comment: Vec<&str> =
            lines[..at].iter().rev().take_while(|line| line.starts_with("//")).copied().collect();
        let tagged = comment.iter().any(|l| *l == "// [any thread]" || *l == "// [not from a callback]");
        assert!(tagged, "{name} has no thread tag");
    }
}

#[test]
fn version_macros_are_the_packages() {
    use bn_engine::ffi::types::{BN_VERSION_MAJOR, BN_VERSION_MINOR, BN_VERSION_PATCH};
    let macros = format!("{BN_VERSION_MAJOR}.{BN_VERSION_MINOR}.{BN_VERSION_PATCH}");
    assert_eq!(macros, env!("CARGO_PKG_VERSION"));
}
