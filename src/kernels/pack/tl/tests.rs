use super::*;
use crate::base::Status;
use crate::kernels::gemm::golden_tests::case;

#[track_caller]
fn refused<T>(result: Result<T>, status: Status, words: &[&str]) {
    let error = result.err().expect("refused");
    assert_eq!(error.status, status, "{error}");
    words.iter().for_each(|word| assert!(error.message.contains(word), "'{word}' is not in: {error}"));
}

const CONFIG: &str = "# made by hand\n[Kernels_0]\nm = 64\nk=96\n  bm : 32 \nBK = 32\nbmm = 32\n\n; another\n[b]\nM = 128\nK = \
                      64\nBM = 64\nBK = 32\nBMM = 64\n";

#[test]
fn reads_kernel_config() {
    let tilings = Tilings::parse(CONFIG, "kernel_config.ini").unwrap();
    assert_eq!(tilings.find(DType::TL1, 64, 96).unwrap(), tiling(64, 96, 32, 32, 32));
    assert_eq!(tilings.find(DType::TL1, 128, 64).unwrap(), tiling(128, 64, 64, 32, 64));
    let advice = ["1536 rows", "kernel_config.ini", "m = 1536, k = 4096", "beside it"];
    refused(tilings.find(DType::TL1, 1536, 4096), Status::Unsupported, &advice);
    refused(
        Tilings::default().find(DType::TL1, 64, 96),
        Status::Unsupported,
        &["built-in", "kernel_config.ini"],
    );
    assert!(Tilings::parse("", "empty").unwrap().find(DType::TL2, 1536, 4096).is_err(), "the file decides");
}

#[test]
fn a_bad_config_is_refused_by_section_and_key() {
    let bad = |text: &str, words: &[&str]| refused(Tilings::parse(text, "my.ini"), Status::BadModel, words);
    bad("m = 1\n", &["my.ini", "line 1"]);
    bad("[a]\nnonsense\n", &["my.ini", "line 2"]);
    bad("[a\n", &["line 1"]);
    for key in ["m", "k", "bm", "bk", "bmm"] {
        let all = ["m", "k", "bm", "bk", "bmm"];
        let lines = |value: &str| -> String {
            all.map(|k| if k == key { value.to_owned() } else { format!("{k} = 32\n") }).concat()
        };
        bad(&format!("[s]\n{}", lines("")), &["my.ini", "[s]", &format!("'{key}'"), "missing"]);
        bad(
            &format!("[s]\n{}", lines(&format!("{key} = 32\n{key} = 32\n"))),
            &["[s]", &format!("'{key}'"), "twice"],
        );
        for value in ["0", "-1", "x", "", "1e3", "4294967296"] {
            bad(&format!("[s]\n{}", lines(&format!("{key} = {value}\n"))), &["[s]", &format!("'{key}'")]);
        }
    }
    bad(&"[s]\nm=1\nk=1\nbm=1\nbk=1\nbmm=1\n".repeat(1025), &["1024"]);
}

#[test]
fn tilings_that_cannot_be_are_refused() {
    let check = |dtype, (rows, cols, bm, bk, lanes), word: &str| {
        let text = format!("[s]\nm={rows}\nk={cols}\nbm={bm}\nbk={bk}\nbmm={lanes}\n");
        let tilings = Tilings::parse(&text, "my.ini").unwrap();
        refused(tilings.find(dtype, rows, cols), Status::BadModel, &["my.ini", word]);
    };
    check(DType::TL1, (64, 96, 48, 32, 32), "m = 64");
    check(DType::TL1, (96, 96, 48, 32, 32), "bm = 48");
    check(DType::TL1, (64, 96, 32, 36, 32), "bk = 36");
    check(DType::TL1, (64, 96, 32, 64, 32), "k = 96");
    check(DType::TL1, (64, 96, 32, 32, 16), "bmm = 16");
    check(DType::TL2, (64, 320, 32, 96, 64), "bmm = 64");
    check(DType::TL2, (64, 320, 32, 80, 32), "bk = 80");
    check(DType::TL2, (64, 300, 32, 96, 32), "k after the last bk = 12");
    check(DType::TL2, (64, 640, 32, 960, 32), "640 columns");
    check(DType::TL2, (64, 192, 32, 96, 32), "k = 192");
}

#[test]
fn built_in_tilings_are_possible() {
    for (dtype, known) in [(DType::TL1, TL1.as_slice()), (DType::TL2, TL2.as_slice())] {
        for t in known {
            assert_eq!(Tilings::default().find(dtype, t.rows, t.cols).unwrap(), *t);
            assert!(dtype.byte_len(t.rows, t.cols).is_some());
        }
    }
}

#[test]
fn numbers_that_stand_for_nothing_are_refused() {
    let pool = Pool::new(1).unwrap();
    // TL1: a pair above 8 in either half; TL2: a magnitude above 13, with either sign, and a pair.
    for (name, at, bits) in
        [("tl1_0", 7, 0x0f), ("tl1_1", 1000, 0xf0), ("tl2_0", 5, 0xf0), ("tl2_0", 900, 0x0f)]
    {
        let mut case = case(name);
        case.packed[at] |= bits;
        refused(case.load(&pool), Status::BadModel, &["row", "stands for no weights"]);
    }
    let mut case = case("tl2_1");
    let pairs = 64 * 288 * 5 / 24;
    case.packed[pairs + 40] = 0x9f;
    refused(case.load(&pool), Status::BadModel, &["row"]);
    case.scale = Some(f32::NAN);
    refused(case.load(&pool), Status::BadModel, &["NaN"]);
}
