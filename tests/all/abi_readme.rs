//! The README's C program is the one that is compiled and run.

#[test]
fn the_readme_shows_hello_c() {
    let (readme, hello) = (include_str!("../../README.md"), include_str!("../../examples-c/hello.c"));
    assert!(readme.contains(&format!("```c\n{hello}```")), "README.md differs from examples-c/hello.c");
}
