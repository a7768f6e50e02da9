//! Our logits compared with PyTorch's, and with themselves in every batch (invariant 3).

use crate::common;
use crate::common::parity::check;
use crate::common::{GOLDEN, Golden};

#[test]
fn every_reference() {
    for case in GOLDEN {
        check(&Golden::read(case));
    }
}

/// A reference that no test reads would prove nothing.
#[test]
fn every_reference_is_listed() {
    let files = std::fs::read_dir(common::root().join("tests/golden")).expect("tests/golden");
    let names = files.map(|f| f.expect("a file").file_name().into_string().expect("a name"));
    let mut cases: Vec<_> = names.filter_map(|n| n.strip_suffix(".f32").map(String::from)).collect();
    cases.sort();
    assert_eq!(cases, GOLDEN);
}
