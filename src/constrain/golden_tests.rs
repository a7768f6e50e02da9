//! Texts under schemas, judged by Python's `jsonschema` (`tools/golden/schemas.py`).

use super::ConstraintKind;
use super::tests::{grammars, guides_of, matches};
use serde_json::Value;

/// Formats for which Python accepts texts that are never generated: dates and hosts that a program should not
/// have to read.
const NARROWER: [&str; 4] = [r#""xn--X""#, r#""ab--cd.com""#, r#""2020-01-01\n""#, r#""1.2.3.4""#];

#[test]
fn what_is_accepted_is_valid_and_what_is_valid_is_accepted() {
    let golden: Value = serde_json::from_str(include_str!("../../tests/golden/schemas.json")).unwrap();
    let (mut refused, mut accepted, mut faults) = (0, 0, Vec::new());
    for case in golden["cases"].as_array().unwrap() {
        let (grammars, schema) = (grammars(), case["schema"].to_string());
        let guides = guides_of(&grammars, ConstraintKind::JsonSchema, &schema);
        let guides = match (guides, case["refused"].as_str()) {
            (Ok(_), Some(why)) => {
                faults.push(format!("{schema} is kept, not refused: {why}"));
                continue;
            }
            (Ok(guides), None) => guides,
            (Err(error), why) => {
                refused += 1;
                if !why.is_some_and(|why| error.message.contains(why)) {
                    faults.push(format!("{schema}: {error:?}"));
                }
                continue;
            }
        };
        for text in case["texts"].as_array().unwrap() {
            let (valid, spelled) = (text["valid"] == true, text["text"].as_str().unwrap());
            let accepts = matches(&mut guides(), spelled).unwrap();
            let wanted = valid && text["other"] != true && !NARROWER.contains(&spelled);
            if accepts && !valid || wanted && !accepts {
                faults.push(format!("{schema}: {spelled} is valid: {valid}, accepted: {accepts}"));
            }
            accepted += usize::from(accepts);
        }
        grammars.stop();
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(refused > 15 && accepted > 250, "{refused} refused, {accepted} accepted");
}
