//! Tests of tensor types: as they are in a file, and as the kernels get them.

use super::writer::Writer;
use super::*;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::ternary;
use crate::kernels::isa;
use std::path::{Path, PathBuf};

fn parse(writer: &Writer) -> Gguf {
    Gguf::from_bytes(writer.bytes(), "test.gguf").expect("a file")
}

fn pool() -> Arc<Pool> {
    Pool::new(2).expect("a pool")
}

/// The committed tensor `name`: type, rows, columns, packed bytes, and its elements before scaling (int8).
fn golden(name: &str) -> (u32, usize, usize, Vec<u8>, Vec<i8>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quants");
    let text = std::fs::read_to_string(folder.join("quants.json")).expect("quants.json");
    let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("a list");
    let case = list.iter().find(|case| case["name"] == name).expect(name);
    let number = |key: &str| case[key].as_u64().expect("a number") as usize;
    let data = std::fs::read(folder.join(format!("{name}.bin"))).expect("the tensor");
    let (packed, values) = data.split_at(number("bytes"));
    let values = values.iter().map(|v| *v as i8).collect();
    (number("type") as u32, number("rows"), number("cols"), packed.to_vec(), values)
}

#[track_caller]
fn holds(m: &Matrix, values: &[i8], scale: f32) {
    ternary::validate(&pool(), m).expect("valid");
    let mut row = vec![0.0; m.cols];
    for (i, want) in values.chunks_exact(m.cols).enumerate() {
        dequantize_row(isa(), m, i, &mut row);
        assert!(row.iter().zip(want).all(|(got, want)| *got == *want as f32 * scale), "row {i}");
    }
}

#[track_caller]
fn refused(result: Result<Matrix>, status: Status, words: &[&str]) {
    let error = result.err().expect("refused");
    assert_eq!(error.status, status, "{error}");
    words.iter().for_each(|word| assert!(error.message.contains(word), "'{word}' is not in: {error}"));
}

#[test]
fn i2s_is_copied_only_where_rows_end_within_blocks() {
    let (_, rows, cols, packed, values) = golden("i2_s_within");
    let g = parse(&Writer::new().tensor("w", &[cols as u64, rows as u64], 36, &packed));
    let raw = g.matrix("w", rows, cols).unwrap();
    assert!(g.maps(&raw.data) && raw.dtype == DType::I2S);
    let m = g.prepared(&pool(), "w", rows, cols).unwrap();
    assert!(!g.maps(&m.data) && m.dtype == DType::Ternary);
    holds(&m, &values, 0.0371);
    let (_, rows, cols, packed, values) = golden("i2_s");
    let g = parse(&Writer::new().tensor("w", &[cols as u64, rows as u64], 36, &packed));
    let m = g.prepared(&pool(), "w", rows, cols).unwrap();
    assert!(g.maps(&m.data) && m.dtype == DType::I2S);
    holds(&m, &values, 0.0371);
}

#[test]
fn every_type_has_a_name_and_a_length() {
    for dtype in DType::IN_FILES {
        let (rows, cols) = (64, 512);
        let len = dtype.byte_len(rows, cols).expect("possible");
        let g =
            parse(&Writer::new().tensor("w", &[cols as u64, rows as u64], dtype.file_id(), &vec![0; len]));
        let info = g.tensor("w").unwrap();
        assert_eq!((info.dtype(), info.byte_len), (Some(dtype), Some(len)));
        assert!(!info.type_name().contains("unknown"), "{}", info.type_name());
        assert_eq!(g.matrix("w", rows, cols).unwrap().data.len(), len);
    }
    let g = parse(&Writer::new().tensor("w", &[64, 1], 777, &[0; 64]));
    refused(
        g.matrix("w", 1, 64),
        Status::Unsupported,
        &["777", "it reads F32, F16, Q4_0", "TL2, MXFP4, Q1_0, Q2_0", "and PTQ1_0"],
    );
}

/// A TL tensor `w` and its scale, as the converter writes them.
fn tl_file(name: &str) -> (Writer, usize, usize, Vec<i8>) {
    let (type_id, rows, cols, packed, values) = golden(name);
    let writer = Writer::new()
        .tensor("blk.0.w.weight", &[cols as u64, rows as u64], type_id, &packed)
        .tensor("blk.0.w.weight_scale", &[1], 0, &0.5f32.to_le_bytes());
    (writer, rows, cols, values)
}

const CONFIG: &str = "[Kernels_0]\nm = 64\nk = 96\nbm = 32\nbk = 32\nbmm = 32\n[Kernels_1]\nm = 64\nk = 320\nbm = 32\nbk = \
                      96\nbmm = 32\n";

#[test]
fn look_up_tables_by_their_tilings_and_scales() {
    for name in ["tl1_0", "tl2_1"] {
        let (writer, rows, cols, values) = tl_file(name);
        let mut g = parse(&writer);
        let advice =
            ["test.gguf", "'blk.0.w.weight'", "kernel_config.ini", &format!("m = {rows}, k = {cols}")];
        refused(g.prepared(&pool(), "blk.0.w.weight", rows, cols), Status::Unsupported, &advice);
        g.set_tilings(Tilings::parse(CONFIG, "kernel_config.ini").unwrap());
        let m = g.prepared(&pool(), "blk.0.w.weight", rows, cols).unwrap();
        holds(&m, &values, 0.5);
        assert!(!g.maps(&m.data));
        assert!(g.is_scale("blk.0.w.weight_scale") && !g.is_scale("blk.0.w.weight"));
        // Without a tensor for it, the scale is where bitnet.cpp reads it: after the packed bytes.
        let mut behind = writer.clone();
        behind.tensors.pop();
        let packed = &mut behind.tensors[0].3;
        packed.resize(packed.len().next_multiple_of(32), 0);
        let bare = behind.clone();
        behind.tensors[0].3.extend(0.25f32.to_le_bytes());
        let read = |writer: &Writer| {
            let mut g = parse(writer);
            g.set_tilings(Tilings::parse(CONFIG, "kernel_config.ini").unwrap());
            g.prepared(&pool(), "blk.0.w.weight", rows, cols)
        };
        holds(&read(&behind).unwrap(), &values, 0.25);
        refused(read(&bare), Status::BadModel, &["no scale", "blk.0.w.weight_scale"]);
        refused(read(&bare.tensor("next", &[1], 0, &[0; 4])), Status::BadModel, &["no scale"]);
    }
}

#[test]
fn tilings_are_read_beside_the_file_or_where_the_caller_says() {
    let folder = std::env::temp_dir().join(format!("bn-tilings-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("elsewhere")).unwrap();
    let (writer, rows, cols, values) = tl_file("tl2_1");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (model, there) = (path("model.gguf"), path("elsewhere/tiles.ini"));
    std::fs::write(&model, writer.build()).unwrap();
    let read = |config: Option<&str>| {
        Gguf::open_with(&model, config)?.prepared(&pool(), "blk.0.w.weight", rows, cols)
    };
    refused(read(None), Status::Unsupported, &["kernel_config.ini", "beside it"]);
    refused(read(Some(&there)), Status::Io, &["tiles.ini", "kernel_config_path"]);
    std::fs::write(&there, CONFIG).unwrap();
    holds(&read(Some(&there)).unwrap(), &values, 0.5);
    std::fs::write(path("kernel_config.ini"), CONFIG).unwrap();
    holds(&read(None).unwrap(), &values, 0.5);
    // The file that the caller names takes precedence over the one beside the model.
    std::fs::write(&there, "[s]\nm = nonsense\n").unwrap();
    refused(read(Some(&there)), Status::BadModel, &["tiles.ini", "'m'"]);
    refused(read(Some(&path("elsewhere"))), Status::Io, &["elsewhere"]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn types_that_share_a_number_are_told_apart_by_their_bytes() {
    // MXFP4: 17 bytes for 32 elements. TL2 has no rows of 64 elements.
    for (cols, rows) in [(320u64, 64u64), (64, 64), (32, 3)] {
        let mxfp4 = vec![0; (cols * rows / 32 * 17) as usize];
        for writer in [
            Writer::new().tensor("w", &[cols, rows], 39, &mxfp4),
            Writer::new().tensor("w", &[cols, rows], 39, &mxfp4).tensor("next", &[8], 0, &[0; 32]),
        ] {
            let g = parse(&writer);
            let info = g.tensor("w").unwrap();
            assert_eq!((info.byte_len, info.type_name()), (Some(mxfp4.len()), "39 (MXFP4)".into()));
            assert_eq!(g.matrix("w", rows as usize, cols as usize).unwrap().dtype, DType::MXFP4);
        }
    }
    let file = |cols: u64, rows: u64, bytes: usize| {
        let writer = Writer::new().tensor("w", &[cols, rows], 39, &vec![0; bytes]);
        Gguf::from_bytes(writer.bytes(), "test.gguf")
    };
    let tl2 = file(320, 64, DType::TL2.byte_len(64, 320).unwrap() + 64).unwrap();
    assert_eq!(tl2.tensor("w").unwrap().dtype(), Some(DType::TL2));
    for (cols, rows, bytes, word) in [(64, 64, 2000, "truncated"), (48, 4, 256, "multiples of")] {
        let error = file(cols, rows, bytes).err().expect("neither type");
        assert!(error.message.contains(word) && error.message.contains("'w'"), "{error}");
    }
    // A fork's Q2_0 has 34 bytes for 128 elements, ggml's 36.
    let (rows, cols) = (64u64, 128u64);
    let q2_0 = |bytes: u64| {
        let data = vec![0; (rows * cols / 128 * bytes) as usize];
        let writer = Writer::new().tensor("w", &[cols, rows], 42, &data).tensor("next", &[8], 0, &[0; 32]);
        Gguf::from_bytes(writer.bytes(), "test.gguf")?.matrix("w", rows as usize, cols as usize)
    };
    assert_eq!(q2_0(34).unwrap().dtype, DType::Q2_0_128);
    assert_eq!(q2_0(36).unwrap().dtype, DType::Q2_0);
    assert_eq!(q2_0(33).err().expect("too short").status, Status::BadModel);
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("bn-gguf-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn kernel_config_is_read_beside_the_file() {
    let folder = folder("tl");
    let config = folder.join("kernel_config.ini");
    let path = folder.join("model.gguf").to_str().unwrap().to_owned();
    let (writer, rows, cols, values) = tl_file("tl1_0");
    std::fs::write(&path, writer.build()).unwrap();
    let open = || Gguf::open(&path)?.prepared(&pool(), "blk.0.w.weight", rows, cols);
    refused(open(), Status::Unsupported, &["kernel_config.ini"]);
    std::fs::write(&config, CONFIG).unwrap();
    holds(&open().unwrap(), &values, 0.5);
    std::fs::write(&config, "[a]\nm = 64\n").unwrap();
    refused(open(), Status::BadModel, &["kernel_config.ini", "[a]", "'k'"]);
    std::fs::write(&config, [0xff, 0xfe]).unwrap();
    refused(open(), Status::BadModel, &["kernel_config.ini", "UTF-8"]);
    std::fs::write(&config, vec![b'\n'; (1 << 20) + 1]).unwrap();
    refused(open(), Status::BadModel, &["kernel_config.ini", "1048577 bytes"]);
    std::fs::remove_file(&config).unwrap();
    std::fs::create_dir(&config).unwrap();
    refused(open(), Status::Io, &["kernel_config.ini", "directory"]);
    // A file without such tensors does not need it.
    std::fs::write(&path, Writer::new().tensor("w", &[1], 0, &[0; 4]).build()).unwrap();
    assert!(Gguf::open(&path).is_ok());
    let error = Gguf::open_with(&path, Some("x.ini")).err().expect("it has no use for it");
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("kernel_config_path") && error.message.contains(&path), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// All types in one damaged file: each tensor is refused, or has numbers that the kernels can read.
#[test]
fn damaged_tensors_are_refused_or_usable() {
    let mut writer = Writer::new().meta("general.architecture", "bitnet-b1.58");
    for dtype in DType::IN_FILES {
        let (rows, cols) = if dtype == DType::TL2 { (64, 320) } else { (64, 256) };
        let len = dtype.byte_len(rows, cols).expect("possible");
        let name = format!("blk.0.{dtype:?}");
        let dims = [cols as u64, rows as u64];
        writer = writer.tensor(&name, &dims, dtype.file_id(), &vec![0b0101_0101; len]);
        if matches!(dtype, DType::TL1 | DType::TL2) {
            writer = writer.tensor(&format!("{name}_scale"), &[1], 0, &0.5f32.to_le_bytes());
        }
    }
    let whole = writer.build();
    let header = whole.len() - parse(&writer).tensors().iter().filter_map(|t| t.byte_len).sum::<usize>();
    let config = CONFIG.replace("k = 96", "k = 256");
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let pool = Pool::new(1).expect("a pool");
    let (mut usable, mut turned_away) = (0, 0);
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random(3) {
            let at = if random(3) == 0 { random(bytes.len()) } else { random(header) };
            bytes[at] = [bytes[at] ^ 1 << random(8), 0xff, 0, random(256) as u8][random(4)];
        }
        let Ok(mut g) = Gguf::from_bytes(Bytes::new(bytes), "damaged") else { continue };
        g.set_tilings(Tilings::parse(&config, "kernel_config.ini").expect("tilings"));
        let Some(info) = g.tensors().get(random(g.tensors().len().max(1))) else { continue };
        let (rows, cols) = (info.dims[1], info.dims[0]);
        match g.prepared(&pool, &info.name, rows, cols) {
            Ok(m) if ternary::validate(&pool, &m).is_err_and(|e| e.status == Status::BadModel) => {
                turned_away += 1
            }
            Ok(m) => {
                let mut row = vec![0.0; cols];
                (0..rows).for_each(|i| dequantize_row(isa(), &m, i, &mut row));
                usable += 1;
            }
            Err(error) => {
                assert!(error.status != Status::Internal && error.message.contains("damaged"), "{error}");
                turned_away += 1;
            }
        }
    }
    assert!(usable > 200 && turned_away > 10, "{usable} usable, {turned_away} refused");
}
