//! `include/bn_engine.h` is up to date with `src/ffi`, and declares every function that the library exports.

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

#[test]
#[cfg(unix)] // runs awk, on the repository's files
fn what_go_and_swift_have_of_c_is_the_headers() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = [
        ("go/stats_fields.go", "go"),
        ("go/options_fields.go", "go"),
        ("go/header.go", "go_c"),
        ("go/calls_cgo.go", "go_c"),
        ("go/calls_purego.go", "go_c"),
        ("swift/Sources/BnEngine/Configuration.swift", "swift"),
    ];
    for (file, program) in files {
        let path = root.join("bindings").join(file);
        let part = format!("part={}", path.file_stem().unwrap().to_str().unwrap());
        let program = format!("tools/header/{program}.awk");
        let args = ["-v", &part, "-f", "tools/header/parse.awk", "-f", &program, "include/bn_engine.h"];
        let made = std::process::Command::new("awk").args(args).current_dir(root).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(committed == String::from_utf8(made.stdout).unwrap(), "{file} is stale: run `make header`");
    }
}

/// Names before a parenthesis at the start of a declaration.
fn functions() -> Vec<&'static str> {
    let declaration = |line: &'static str| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        let declares = !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef");
        (declares && name.starts_with("bn_")).then_some(name)
    };
    COMMITTED.lines().filter_map(declaration).collect()
}

/// Names of `src/ffi`'s `extern "C"` functions that are exported.
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
    assert_eq!(declared, exported, "the header's functions against those of src/ffi: build.rs's SECTIONS?");
}

/// Fields that the first comment explains for all structs.
fn is_plain(field: &str) -> bool {
    let name = field.trim_end_matches(';').rsplit([' ', '*']).next().unwrap_or_default();
    name == "struct_size" || name.ends_with("_count") || name.ends_with("_context")
}

#[test]
fn every_item_is_documented() {
    let mut previous = "";
    for (at, line) in COMMITTED.lines().enumerate() {
        let function = functions().iter().any(|name| line.contains(&format!("{name}(")));
        let forward = line.starts_with("typedef struct ") && !previous.ends_with("*/");
        let declared = line.split(' ').nth(2).map(|name| format!("struct {name} {{"));
        let item = line.starts_with("#define BN_")
            || line.starts_with("struct ")
            || (line.starts_with("typedef ")
                && !(forward && declared.is_some_and(|it| COMMITTED.contains(&it))))
            || (function && !line.starts_with(['/', ' ']));
        let code = line.strip_prefix("    ").is_some_and(|code| !code.starts_with(['/', ' ']));
        let field = code && line.ends_with(';') && !line.contains([')', '"']);
        // Macros with parameters are documented before their `#ifdef`.
        let other =
            line == "#define BN_ENGINE_H" || line.split(' ').nth(1).is_some_and(|name| name.contains('('));
        assert!(
            !(item || field && !is_plain(line)) || other || previous.ends_with("*/"),
            "include/bn_engine.h:{}: `{line}` has no comment",
            at + 1
        );
        previous = line;
    }
}

/// Calls that `check_call` refuses in a callback say so, and no others.
#[test]
fn calls_that_wait_are_marked() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ffi/exports");
    let mut marked = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in text.match_indices(" extern \"C\" fn ") {
            let comment = &text[text[..at].rfind("\n\n").unwrap()..at];
            let body = &text[at..at + text[at..].find("\n}\n").unwrap()];
            let waits = body.contains("registry::blocking(") || body.contains("registry::destroy(");
            let name = body.split(['(', ' ']).nth(4).unwrap();
            assert_eq!(comment.contains("/// [not from a callback]"), waits, "{name}");
            marked += usize::from(waits);
        }
    }
    assert_eq!(marked, COMMITTED.lines().filter(|line| line.contains("[not from a callback]")).count() - 1);
}

#[test]
fn version_macros_are_the_packages() {
    use bn_engine::ffi::version::{BN_VERSION_MAJOR, BN_VERSION_MINOR, BN_VERSION_PATCH};
    let macros = format!("{BN_VERSION_MAJOR}.{BN_VERSION_MINOR}.{BN_VERSION_PATCH}");
    assert_eq!(macros, env!("CARGO_PKG_VERSION"));
}
