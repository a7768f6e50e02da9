//! packaging/THIRD-PARTY names every package that the library is built from, hosts/THIRD-PARTY those of the programs.

fn every_locked_package_is_listed(lock: &str, notices: &str) {
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

#[test]
fn every_package_of_the_library_is_listed() {
    every_locked_package_is_listed(
        include_str!("../../Cargo.lock"),
        include_str!("../../packaging/THIRD-PARTY"),
    );
}

#[test]
fn every_package_of_the_programs_is_listed() {
    let lock = include_str!("../../hosts/Cargo.lock");
    every_locked_package_is_listed(lock, include_str!("../../hosts/THIRD-PARTY"));
}
