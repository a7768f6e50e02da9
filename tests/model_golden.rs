//! Our logits against ones that PyTorch computed, and against themselves in every batch (invariant 3).

mod common;

use common::Golden;
use common::parity::check;

macro_rules! cases {
    ($($name:ident => $case:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            check(&Golden::read($case));
        })*

        /// A reference that no test reads proves nothing.
        #[test]
        fn every_reference_is_read() {
            let listed = [$($case),*];
            let files = std::fs::read_dir(common::root().join("tests/golden")).expect("tests/golden");
            let names = files.map(|f| f.expect("a file").file_name().into_string().expect("a name"));
            let mut cases: Vec<_> = names.filter_map(|n| n.strip_suffix(".f32").map(String::from)).collect();
            cases.sort();
            let mut listed = listed.to_vec();
            listed.sort_unstable();
            assert_eq!(cases, listed);
        }
    };
}

cases! {
    llama_f32 => "llama-tiny-f32",
    llama_f16 => "llama-tiny-f16",
    llama_bf16 => "llama-tiny-bf16",
    llama_q8_0 => "llama-tiny-q8_0",
    llama_tied => "llama-tiny-tied",
    llama_mha => "llama-tiny-mha",
    bitnet_i2_s => "bitnet-tiny-i2_s",
    bitnet_tq2_0 => "bitnet-tiny-tq2_0",
    demo => "demo",
}
