//! The C programs of the documents are compiled: README's is an example, and docs/api.md's snippets are one program.

use std::path::Path;
use std::process::Command;

#[test]
fn the_readme_shows_hello_c() {
    let (readme, hello) = (include_str!("../../README.md"), include_str!("../../examples-c/hello.c"));
    assert!(readme.contains(&format!("```c\n{hello}```")), "README.md differs from examples-c/hello.c");
}

/// The snippets of `text` in C, each at its line of the document.
fn snippets(text: &str) -> String {
    let mut in_snippet = false;
    let lines = text.lines().map(|line| match (in_snippet, line) {
        (_, "```c" | "```") => {
            in_snippet = line == "```c";
            "\n".into()
        }
        (true, line) => format!("{line}\n"),
        (false, _) => "\n".into(),
    });
    lines.collect()
}

#[test]
fn the_snippets_of_the_api_document_compile() {
    let program = snippets(include_str!("../../docs/api.md"));
    assert!(program.matches("\nbn_engine *start(").count() == 1, "no snippets in docs/api.md");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("api.md.c");
    std::fs::write(&source, format!("#line 1 \"docs/api.md\"\n{program}")).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let compiled = Command::new(&cc)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(&source)
        .output()
        .unwrap_or_else(|e| panic!("this test needs a C compiler, and `{cc}` does not start: {e}"));
    assert!(compiled.status.success(), "{cc}: {}", String::from_utf8_lossy(&compiled.stderr));
}
