//! THIRD-PARTY names every package that anything here is built from.

#[test]
fn every_locked_package_is_listed() {
    let notices = include_str!("../../THIRD-PARTY");
    let lock = include_str!("../../Cargo.lock");
    let field = |entry: &str, key: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(key)).map(|rest| rest.trim_matches('"'));
        line.unwrap_or_default().to_string()
    };
    let foreign = lock.split("[[package]]").filter(|entry| entry.contains("\nsource = "));
    let missing: Vec<String> = foreign
        .map(|entry| format!("{} {}", field(entry, "name = "), field(entry, "version = ")))
        .filter(|name| !notices.lines().any(|line| line.starts_with(&format!("  {name}  "))))
        .collect();
    assert!(missing.is_empty(), "THIRD-PARTY lacks {}: run `make notices`", missing.join(", "));
    assert!(lock.matches("\nsource = ").count() > 100, "Cargo.lock was read");
}
