use super::writer::{Meta, Writer};
use super::*;
use proptest::prelude::*;

fn parse(bytes: Vec<u8>) -> Result<Gguf> {
    Gguf::from_bytes(Bytes::new(bytes), "test.gguf")
}

fn refused(writer: &Writer) -> Error {
    parse(writer.build()).err().expect("the file must be refused")
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A file with a sample of everything.
fn sample() -> Writer {
    let i2s: Vec<u8> = (0..256 / 4 + 32).map(|i| i as u8).collect();
    Writer::new()
        .meta("general.architecture", "bitnet-b1.58")
        .meta("a.u32", Meta::U32(7))
        .meta("a.i32", Meta::I32(-7))
        .meta("a.u64", Meta::U64(1 << 40))
        .meta("a.f32", Meta::F32(0.5))
        .meta("a.bool", Meta::Bool(true))
        .meta("a.strs", Meta::Strs(vec!["x".into(), "".into(), "äö".into()]))
        .meta("a.i32s", Meta::I32s(vec![1, -2, 3]))
        .meta("a.f32s", Meta::F32s(vec![1.5, -2.5]))
        .tensor("w", &[128, 2], 36, &i2s)
        .tensor("f32", &[3], 0, &f32s(&[1.0, 2.0, -3.5]))
        .tensor("f16", &[2, 1], 1, &[0x00, 0x3c, 0x00, 0xc0])
        .tensor("bf16", &[2], 30, &[0x80, 0x3f, 0x00, 0xc0])
        .tensor("iq1", &[256, 4], 19, &[9; 4 * 50])
        .tensor("odd", &[8], 777, &[1; 40])
        .tensor("m", &[2, 3], 0, &f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
}

#[test]
fn reads_metadata() {
    for version in [2, 3] {
        let g = parse(Writer { version, ..sample() }.build()).unwrap();
        assert_eq!(g.version(), version);
        assert_eq!(g.get::<&str>("general.architecture").unwrap(), "bitnet-b1.58");
        assert_eq!(g.get::<u32>("a.u32").unwrap(), 7);
        assert_eq!(g.get::<u64>("a.u32").unwrap(), 7);
        assert_eq!(g.get::<i32>("a.i32").unwrap(), -7);
        assert_eq!(g.get::<u64>("a.u64").unwrap(), 1 << 40);
        assert_eq!(g.get::<f32>("a.f32").unwrap(), 0.5);
        assert!(g.get::<bool>("a.bool").unwrap());
        assert_eq!(g.get::<Vec<&str>>("a.strs").unwrap(), ["x", "", "äö"]);
        assert_eq!(g.get::<Vec<i32>>("a.i32s").unwrap(), [1, -2, 3]);
        assert_eq!(g.get::<Vec<f32>>("a.f32s").unwrap(), [1.5, -2.5]);
        assert_eq!(g.find::<u32>("absent").unwrap(), None);
        assert_eq!(g.keys().count(), 9);
    }
}

#[test]
fn wrong_types_name_key_and_types() {
    let g = parse(sample().build()).unwrap();
    let says = |e: Error, parts: &[&str]| {
        assert_eq!(e.status, Status::BadModel);
        for part in parts {
            assert!(e.message.contains(part), "{} lacks {part}", e.message);
        }
    };
    says(g.get::<u32>("absent").unwrap_err(), &["test.gguf", "'absent'", "missing"]);
    says(g.get::<u32>("a.i32").unwrap_err(), &["'a.i32'", "I32", "unsigned 32-bit"]);
    says(g.get::<u32>("a.u64").unwrap_err(), &["'a.u64'", "U64", "unsigned 32-bit"]);
    says(g.get::<&str>("a.u32").unwrap_err(), &["'a.u32'", "U32", "string"]);
    says(g.find::<Vec<u32>>("a.i32s").unwrap_err(), &["'a.i32s'", "array of I32", "unsigned"]);
    says(g.find::<Vec<i32>>("a.strs").unwrap_err(), &["'a.strs'", "array of String"]);
    says(g.find::<f32>("a.f32s").unwrap_err(), &["'a.f32s'", "array of F32", "32-bit float"]);
    says(g.find::<Vec<&str>>("a.bool").unwrap_err(), &["'a.bool'", "Bool", "array of UTF-8"]);
}

#[test]
fn reads_tensors_in_place() {
    let bytes = sample().bytes();
    let g = Gguf::from_bytes(bytes.clone(), "test.gguf").unwrap();
    let w = g.matrix("w", 2, 128).unwrap();
    assert_eq!((w.dtype, w.rows, w.cols, w.data.len()), (DType::I2S, 2, 128, 96));
    assert_eq!(w.data[..4], [0, 1, 2, 3]);
    assert!(bytes.as_ptr_range().contains(&w.data.as_ptr()), "the data must not be copied");
    assert_eq!(g.vector_f32("f32", 3).unwrap()[..], [1.0, 2.0, -3.5]);
    assert_eq!(g.vector_f32("f16", 2).unwrap()[..], [1.0, -2.0]);
    assert_eq!(g.vector_f32("bf16", 2).unwrap()[..], [1.0, -2.0]);
    assert_eq!(g.tensor("m").unwrap().elements(), 6);
    assert_eq!(g.tensors().len(), 7);
    assert_eq!(g.tensor_bytes(), 96 + 12 + 4 + 4 + 24);
    assert_eq!(g.alignment(), 32);
}

#[test]
fn refuses_tensors_only_when_asked() {
    let g = parse(sample().build()).unwrap();
    let check = |e: Error, status: Status, parts: &[&str]| {
        assert_eq!(e.status, status, "{}", e.message);
        for part in parts {
            assert!(e.message.contains(part), "{} lacks {part}", e.message);
        }
    };
    check(g.matrix("iq1", 4, 256).err().unwrap(), Status::Unsupported, &["'iq1'", "19 (IQ1_S)"]);
    check(g.matrix("odd", 1, 8).err().unwrap(), Status::Unsupported, &["'odd'", "777"]);
    check(g.matrix("none", 1, 8).err().unwrap(), Status::BadModel, &["'none'", "missing"]);
    check(g.matrix("m", 2, 3).err().unwrap(), Status::BadModel, &["'m'", "[2, 3, 1, 1]", "[3, 2, 1, 1]"]);
    check(g.vector_f32("w", 256).err().unwrap(), Status::BadModel, &["'w'"]);
    let g = parse(Writer::new().tensor("v", &[128], 36, &[0; 64]).build()).unwrap();
    check(g.vector_f32("v", 128).err().unwrap(), Status::Unsupported, &["'v'", "I2S"]);
}

#[test]
fn refuses_foreign_files() {
    let cases: [(&[u8], Status, &str); 7] = [
        (b"", Status::BadModel, "ends inside"),
        (b"PK\x03\x04....", Status::BadModel, "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid", Status::BadModel, "git lfs pull"),
        (b"GGUF\x01\0\0\0", Status::Unsupported, "version 1"),
        (b"GGUF\0\0\0\x03", Status::Unsupported, "big-endian"),
        (b"GGUF\x09\0\0\0", Status::Unsupported, "version 9"),
        (b"GGUF\x03\0\0\0", Status::BadModel, "tensor count"),
    ];
    for (bytes, status, part) in cases {
        let e = parse(bytes.to_vec()).err().unwrap();
        assert_eq!(e.status, status);
        assert!(e.message.contains(part) && e.message.contains("test.gguf"), "{}", e.message);
    }
}

#[test]
fn refuses_duplicates_and_misplaced_tensors() {
    let e = refused(&Writer::new().meta("k", Meta::U32(1)).meta("k", Meta::U32(2)));
    assert!(e.message.contains("'k'") && e.message.contains("twice"));
    let e = refused(&Writer::new().tensor("t", &[1], 0, &[0; 4]).tensor("t", &[1], 0, &[0; 4]));
    assert!(e.message.contains("'t'") && e.message.contains("twice"));
    // Written with 8-byte alignment, read with 32: the second tensor is misaligned.
    let misaligned = Writer { alignment: 8, ..Writer::new() };
    let e = refused(&misaligned.clone().tensor("a", &[2], 0, &[0; 8]).tensor("b", &[64], 0, &[0; 256]));
    assert!(e.message.contains("'b'") && e.message.contains("alignment"), "{}", e.message);
    let aligned = misaligned.meta("general.alignment", Meta::U32(8)).tensor("a", &[2], 0, &[0; 8]).tensor(
        "b",
        &[1],
        0,
        &[0; 4],
    );
    assert_eq!(parse(aligned.build()).unwrap().alignment(), 8);
    for alignment in [0, 1, 4, 24] {
        let e = refused(&Writer::new().meta("general.alignment", Meta::U32(alignment)));
        assert!(e.message.contains("general.alignment"));
    }
    let e = refused(&Writer::new().tensor("short", &[9], 0, &[0; 32]));
    assert!(e.message.contains("'short'"), "{}", e.message);
    let e = refused(&Writer::new().tensor("five", &[1, 1, 1, 1, 1], 0, &[0; 4]));
    assert!(e.message.contains("'five'") && e.message.contains("5 dimensions"));
    let e = refused(&Writer::new().tensor("q8", &[33], 8, &[0; 68]));
    assert!(e.message.contains("'q8'") && e.message.contains("32"));
}

#[test]
fn refuses_overflow_and_counts_beyond_the_file() {
    for dims in [&[u64::MAX, u64::MAX][..], &[u64::MAX], &[1 << 40, 1 << 40, 0], &[1 << 62, 4]] {
        for type_id in [0, 36, 777] {
            if type_id == 777 && dims.len() == 1 {
                continue; // u64::MAX elements of an unknown type do not overflow.
            }
            assert!(refused(&Writer::new().tensor("t", dims, type_id, &[0; 64])).message.contains("'t'"));
        }
    }
    let huge = u64::MAX.to_le_bytes();
    let array_of = |elem: u32, count: [u8; 8]| [elem.to_le_bytes().to_vec(), count.to_vec()].concat();
    for elem in 0..13 {
        let e = refused(&Writer::new().meta("big", Meta::Raw(9, array_of(elem, huge))));
        assert!(e.message.contains("'big'"), "{}", e.message);
    }
    assert!(
        refused(&Writer::new().meta("s", Meta::Raw(8, huge.to_vec()))).message.contains("bytes are left")
    );
    assert!(
        refused(&Writer::new().meta("t", Meta::Raw(13, vec![0; 8])))
            .message
            .contains("the unknown value type 13")
    );
    // An array that nests a thousand levels deep.
    let nest: Vec<u8> = (0..1000).flat_map(|_| array_of(9, 1u64.to_le_bytes())).collect();
    assert!(refused(&Writer::new().meta("nest", Meta::Raw(9, nest))).message.contains("nests"));
}

#[test]
fn truncation_at_every_byte_is_an_error() {
    let whole = sample().build();
    for n in 0..whole.len() {
        assert!(parse(whole[..n].to_vec()).is_err(), "cut to {n} of {} bytes", whole.len());
    }
    assert!(parse(whole).is_ok());
}

/// Reads everything from a parsed file; nothing may panic or read outside of it.
fn exercise(g: &Gguf) {
    for key in g.keys() {
        let _ = (g.find::<u32>(key), g.find::<u64>(key), g.find::<i32>(key), g.find::<f32>(key));
        let _ = (g.find::<bool>(key), g.find::<&str>(key), g.find::<Vec<&str>>(key));
        let _ = (g.find::<Vec<u32>>(key), g.find::<Vec<i32>>(key), g.find::<Vec<f32>>(key));
    }
    for t in g.tensors() {
        let _ = (
            g.matrix(&t.name, t.dims[1], t.dims[0]).map(|m| m.data.iter().map(|b| *b as u64).sum::<u64>()),
            t.elements(),
        );
        let _ = g.vector_f32(&t.name, t.dims[0]);
    }
}

#[test]
fn mutations_never_panic() {
    let whole = sample().build();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random(4) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes[at] = random(256) as u8,
                2 => bytes[at] = 0xff,
                _ => {
                    // Replace a whole word: counts, lengths and offsets at their extremes.
                    let word = [0, 1, 1 << 31, u64::MAX, u64::MAX / 2, 1 << 40][random(6)].to_le_bytes();
                    let n = word.len().min(bytes.len() - at);
                    bytes[at..at + n].copy_from_slice(&word[..n]);
                }
            }
        }
        if let Ok(g) = parse(bytes) {
            accepted += 1;
            exercise(&g);
        }
    }
    assert!(accepted > 1000, "mutations of tensor data leave the file readable: {accepted}");
}

proptest! {
    #[test]
    fn any_bytes_behind_the_magic_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        let bytes = [b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".to_vec(), tail].concat();
        if let Ok(g) = parse(bytes) {
            exercise(&g);
        }
    }

    #[test]
    fn what_is_written_is_read(
        strings in proptest::collection::vec(".*", 0..20),
        numbers in proptest::collection::vec(any::<i32>(), 0..20),
        values in proptest::collection::vec(any::<f32>(), 1..40),
    ) {
        let w = Writer::new()
            .meta("s", Meta::Strs(strings.clone()))
            .meta("n", Meta::I32s(numbers.clone()))
            .tensor("v", &[values.len() as u64], 0, &f32s(&values));
        let g = parse(w.build()).unwrap();
        prop_assert_eq!(g.get::<Vec<&str>>("s").unwrap(), strings);
        prop_assert_eq!(g.get::<Vec<i32>>("n").unwrap(), numbers);
        let read = g.vector_f32("v", values.len()).unwrap();
        prop_assert!(read.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

/// Moves tensor `name`, of `dims` dimensions, to `offset` in the data.
fn moved(mut bytes: Vec<u8>, name: &str, dims: usize, offset: u64) -> Vec<u8> {
    let entry = [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
    let found = bytes.windows(entry.len()).position(|window| window == entry).expect(name);
    let at = found + entry.len() + 4 + 8 * dims + 4;
    bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
    bytes
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let file = Writer::new()
        .tensor("first", &[20], 0, &[1; 80])
        .tensor("none", &[0], 0, &[])
        .tensor("second", &[8], 0, &[2; 32])
        .tensor("odd", &[8], 777, &[3; 40])
        .build();
    exercise(&parse(file.clone()).unwrap());
    // A tensor without bytes overlaps no other.
    assert!(parse(moved(file.clone(), "none", 1, 32)).is_ok());
    for (name, offset, other) in
        [("second", 64, "first"), ("second", 0, "first"), ("first", 64, "second"), ("odd", 64, "first")]
    {
        let e = parse(moved(file.clone(), name, 1, offset)).err().expect(name);
        assert_eq!(e.status, Status::BadModel, "{e}");
        let named = [name, other].iter().all(|name| e.message.contains(&format!("'{name}'")));
        assert!(named && e.message.contains("share bytes"), "{e}");
    }
}

/// The messages and the special files are those of Unix (`base/os/windows` has tests of its own).
#[cfg(unix)]
#[test]
fn paths_that_cannot_be_opened() {
    let dir = std::env::temp_dir().join(format!("bn-gguf-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let check = |path: &str, status: Status, part: &str| {
        let e = Gguf::open(path).err().unwrap();
        assert_eq!(e.status, status, "{}", e.message);
        assert!(e.message.contains(path) && e.message.contains(part), "{}", e.message);
    };
    check(&path("missing"), Status::Io, "No such file");
    check(&path(""), Status::Io, "directory");
    check("", Status::Io, "No such file");
    assert!(Gguf::open("a\0b").err().unwrap().message.contains("'a\\u{0}b'"));
    check("/dev/null", Status::Io, "not a regular file");
    std::fs::write(path("empty"), b"").unwrap();
    check(&path("empty"), Status::BadModel, "empty");
    std::fs::write(path("foreign"), b"hello, world").unwrap();
    check(&path("foreign"), Status::BadModel, "not a GGUF file");
    std::fs::write(path("good"), sample().build()).unwrap();
    exercise(&Gguf::open(&path("good")).unwrap());
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path("good"), std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root can read it anyway.
    if std::fs::File::open(path("good")).is_err() {
        check(&path("good"), Status::Io, "ermission denied");
    }
    let fifo = std::ffi::CString::new(path("fifo")).unwrap();
    // SAFETY: `fifo` is a valid C string.
    if unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) } == 0 {
        check(&path("fifo"), Status::Io, "not a regular file");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
