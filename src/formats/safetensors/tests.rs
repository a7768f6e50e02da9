use super::*;
use crate::base::Status;
use crate::base::error::refusals;

/// A file with `header` and `data`.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn parse(header: &str, data: &[u8]) -> Result<SafeTensors> {
    SafeTensors::from_bytes(Bytes::new(file(header, data)), "x.safetensors")
}

/// The error of a file that must not open. It must name the file.
fn refused(header: &str, data: &[u8]) -> String {
    let error = parse(header, data).err().unwrap_or_else(|| panic!("{header} was taken"));
    assert_eq!(error.status, Status::BadModel);
    assert!(error.message.starts_with("x.safetensors: "), "{}", error.message);
    error.message
}

const TWO: &str = r#"{"__metadata__":{"format":"pt"},
    "b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  "#;

#[test]
fn tensors_lie_where_the_header_says() {
    let data: Vec<u8> = (0..12).collect();
    let file = parse(TWO, &data).unwrap();
    let names: Vec<_> = file.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let b = file.tensor("b").unwrap();
    assert_eq!((b.ty, &b.shape[..], b.byte_len(), b.elements()), (ElementType::BF16, &[2, 1][..], 4, 2));
    assert_eq!(file.data(b).unwrap()[..], [8, 9, 10, 11]);
    assert_eq!(file.data(file.tensor("a").unwrap()).unwrap()[..], data[..8]);
    assert_eq!(file.header_bytes(), 8 + TWO.len());
    assert!(file.tensor("c").is_none());
}

#[test]
fn every_cut_of_a_file_is_refused() {
    let whole = file(TWO, &[0; 12]);
    for len in 0..whole.len() {
        let cut = SafeTensors::from_bytes(Bytes::new(whole[..len].to_vec()), "x.safetensors");
        assert_eq!(cut.err().map(|e| e.status), Some(Status::BadModel), "{len} bytes");
    }
    let mut longer = whole;
    longer.push(0);
    assert!(SafeTensors::from_bytes(Bytes::new(longer), "x").is_err());
}

#[test]
fn a_header_beyond_the_file_or_the_format_is_refused() {
    for length in [3u64, 1 << 20, MAX_HEADER as u64 + 1, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        let error = SafeTensors::from_bytes(Bytes::new(bytes), "x").err().unwrap();
        assert!(error.message.contains(&length.to_string()), "{}", error.message);
    }
}

#[test]
fn memory_that_is_refused_is_told_apart_from_a_file_that_says_so() {
    for (calls, list) in
        ["the list of tensors", "the list of tensors", "a table of tensors"].iter().enumerate()
    {
        refusals::refuse_after(Some(calls as u64));
        let error = parse(TWO, &[0; 12]).err().unwrap();
        refusals::refuse_after(None);
        assert_eq!(error.status, Status::OutOfMemory);
        assert!(error.message.contains(list), "{error}");
    }
    let message =
        refused(r#"{"could not allocate":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#, &[0; 8]);
    assert!(message.contains("'could not allocate'"), "{message}");
}

#[test]
fn data_must_be_covered_once_and_fit_the_shape() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let eight = [0u8; 8];
    assert!(parse(&one("F32", "[2]", "[0,8]"), &eight).is_ok());
    for (header, part) in [
        (one("F32", "[3]", "[0,8]"), "'w'"),
        (one("F32", "[2]", "[8,0]"), "data_offsets [8, 0]"),
        (one("U8", "[4]", "[4,8]"), "hole"),
        (one("U8", "[4]", "[0,4]"), "8 follow the header"),
        (one("U8", "[9]", "[0,9]"), "truncated"),
        (one("F32", "[4611686018427387905]", "[0,4]"), "too large"),
        (one("F32", "[0,18446744073709551615,3]", "[0,0]"), "too large"),
        (one("F32", "[-1]", "[0,8]"), "'w'"),
        (one("F32", "[2.0]", "[0,8]"), "'w'"),
        (one("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "dimensions"),
        (one("F32", "[2]", "[0,8,8]"), "'w'"),
        (r#"{"w":{"dtype":"F32","shape":[2]}}"#.into(), "data_offsets"),
        (r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}"#.into(), "`x`"),
        (r#"{"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.into(), "empty name"),
    ] {
        let message = refused(&header, &eight);
        assert!(message.contains(part), "{header}: {message}");
    }
    let overlap = r#"{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},
        "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    assert!(refused(overlap, &eight).contains("'b', at 4, overlap"));
}

#[test]
fn names_stand_there_once() {
    let twice = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    assert!(refused(twice, &[0; 8]).contains("'a' stands there twice"));
    assert!(refused(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]).contains("twice"));
    let long = "n".repeat(5000);
    let long = format!(r#"{{"{long}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
    assert!(refused(&long, &[]).len() < 200);
}

#[test]
fn headers_that_are_no_header() {
    for header in ["", " {}", "[]", "{", "{}x", r#"{"a":1}"#, r#"{"a":null}"#, "{\"a\\ud800\":{}}"] {
        refused(header, &[]);
    }
    let deep = format!("{{\"__metadata__\":{}", "[".repeat(100_000));
    refused(&deep, &[]);
    assert!(parse("{}", &[]).unwrap().tensors().is_empty());
}

#[test]
fn other_types_are_kept_by_name() {
    let header = r#"{"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},
        "b":{"dtype":"Q9","shape":[7],"data_offsets":[8,11]}}"#;
    let file = parse(header, &[0; 11]).unwrap();
    let a = file.tensor("a").unwrap();
    assert_eq!((a.ty, a.type_name.as_str(), a.elements()), (ElementType::Other, "F64", 1));
    assert_eq!(file.tensor("b").unwrap().ty, ElementType::Other);
}
