//! `docs/models.md` names the families that there are, and formats of answers that there are.

use super::FAMILIES;
use crate::model::encoder::family::ENCODERS;
use crate::text::reply::{format_named, thoughts_named};
use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../docs/models.md");

/// The cells of the table whose header begins like this, after a heading.
fn table(heading: &str, header: &str) -> Vec<Vec<&'static str>> {
    let part = DOCUMENT.split_once(heading).expect(heading).1;
    let at = part.find(header).unwrap_or_else(|| panic!("no table {header}"));
    let lines = part[at..].lines().skip(2).take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn column(table: &[Vec<&'static str>], at: usize) -> Vec<&'static str> {
    table.iter().map(|row| row[at]).collect()
}

/// The words in backticks.
fn names(cells: &[&'static str]) -> BTreeSet<&'static str> {
    cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn each_family_is_in_both_tables() {
    let (overview, files) = (
        table("## At a glance", "| family | models on the hub, for example | calls"),
        table("## Names in files", "| family | GGUF arch"),
    );
    assert_eq!(column(&overview, 0), column(&files, 0));
    let gguf: BTreeSet<_> = FAMILIES.iter().flat_map(|family| family.gguf.iter().copied()).collect();
    assert_eq!(names(&column(&files, 1)), gguf);
    let types = names(&column(&files, 2));
    for name in FAMILIES.iter().flat_map(|family| family.hf.iter().chain(family.hf_whole)) {
        assert!(types.contains(name), "{name} is in no row");
    }
}

#[test]
fn formats_of_answers_are_known() {
    for row in table("## At a glance", "| family | models on the hub, for example | calls") {
        let (calls, reasoning) = row[2].split_once(';').unwrap_or((row[2], ""));
        for name in names(&[calls]) {
            assert!(name == "none" || format_named(name).is_some(), "{}: {name}", row[0]);
        }
        for name in names(&[reasoning]) {
            assert!(thoughts_named(name).is_some(), "{}: {name}", row[0]);
        }
    }
}

#[test]
fn each_encoder_is_in_both_tables() {
    let overview = table("## At a glance", "| family | models on the hub, for example | tasks");
    let rows = table("## Encoders", "| family | GGUF arch");
    assert_eq!(column(&overview, 0), column(&rows, 0));
    let gguf: BTreeSet<_> =
        ENCODERS.iter().map(|family| family.gguf).filter(|name| !name.is_empty()).collect();
    assert_eq!(names(&column(&rows, 1)), gguf);
    let types = names(&column(&rows, 2));
    for name in ENCODERS.iter().flat_map(|family| family.hf) {
        assert!(types.contains(name), "{name} is in no row");
    }
}
