//! One ternary model in each of GGUF's ternary types, and in widths that are not whole blocks: the same bits.

use crate::common::gguf::{File, HIDDEN, I2_S, Tensor, bitnet};
use crate::common::{Running, Session, alone, bits, root};
use bn_engine::base::{Bytes, Result};
use bn_engine::formats::gguf::Gguf;
use bn_engine::kernels::{DType, Pool, isa};
use bn_engine::model::{Checkpoint, load_checkpoint};

const IQ1_BN: u32 = 134;
const IQ2_BN: u32 = 135;

fn open(file: &File, threads: usize) -> Result<Running> {
    let gguf = Gguf::from_bytes(Bytes::new(file.bytes()), "test file")?;
    let loaded = load_checkpoint(&gguf, &*Pool::new(threads)?, &|_, _| (), &mut |_, _| false)?;
    Running::new(loaded, threads)
}

/// A feed-forward 192 wide: rows of `ffn_down` begin within blocks of 128.
fn narrow() -> File {
    let mut file = bitnet().u32("bitnet-b1.58.feed_forward_length", 192);
    for i in 0..2 {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        for (part, dims) in
            [("ffn_gate", [HIDDEN, 192]), ("ffn_up", [HIDDEN, 192]), ("ffn_down", [192, HIDDEN])]
        {
            file = file.without(&name(part)).ternary(&name(part), &dims, 90 + i + dims[0]);
        }
        file = file.without(&name("ffn_sub_norm")).random(&name("ffn_sub_norm"), &[192], 8);
    }
    file
}

/// Converts all I2_S tensors of `file` to another type; their scale is 0.5.
fn repacked(mut file: File, type_id: u32) -> File {
    for t in file.tensors.iter_mut().filter(|t| t.type_id == I2_S) {
        let n = (t.dims[0] * t.dims[1]) as usize;
        let codes: Vec<u8> =
            (0..n).map(|i| t.data[i / 128 * 32 + i % 32] >> (6 - 2 * (i % 128 / 32)) & 3).collect();
        t.type_id = type_id;
        t.data = codes.chunks(t.dims[0] as usize).flat_map(|row| pack_row(row, type_id)).collect();
    }
    file
}

fn pack_row(row: &[u8], type_id: u32) -> Vec<u8> {
    let fives = |codes: &mut dyn Iterator<Item = u8>| {
        let (number, _) = codes.fold((0u32, 1), |(sum, power), code| (sum + power * code as u32, 3 * power));
        (256 * number).div_ceil(243) as u8
    };
    let mut out = match type_id {
        IQ2_BN => 0.5f32.to_le_bytes().to_vec(),
        _ => half::f16::from_f32(0.5).to_le_bytes().to_vec(),
    };
    for block in row.chunks(64) {
        if type_id == IQ2_BN {
            out.extend(
                (0..16).map(|j| block[j] | block[j + 16] << 2 | block[j + 32] << 4 | block[j + 48] << 6),
            );
            continue;
        }
        for part in block.chunks(16) {
            out.extend(part[..15].chunks(5).map(|five| fives(&mut five.iter().copied())));
        }
        out.push(fives(&mut (0..4).map(|i| block[16 * i + 15])));
    }
    out
}

#[test]
fn ternary_types_agree_alone_and_in_a_batch() {
    let sequences = [vec![1, 2, 3, 4, 5, 6, 7], vec![9, 8], vec![30]];
    for file in [bitnet(), narrow()] {
        let mut expected = None;
        for type_id in [I2_S, IQ1_BN, IQ2_BN] {
            let file = if type_id == I2_S { file.clone() } else { repacked(file.clone(), type_id) };
            for threads in [1, 2] {
                let loaded = open(&file, threads).expect("load");
                let single = bits(&alone(&loaded, &sequences, 16));
                let expected = expected.get_or_insert_with(|| single.clone());
                assert!(single == *expected, "type {type_id}, {threads} threads");
                let mut session = Session::new(&loaded, &sequences, 16, 5);
                let all: Vec<_> = sequences.iter().enumerate().map(|(i, s)| (i, s.len())).collect();
                session.step(&all);
                assert!(bits(&session.logits) == *expected, "type {type_id}, one batch");
            }
        }
        let some: Vec<f32> = alone(&open(&file, 1).expect("load"), &sequences, 16).concat();
        assert!(some.iter().all(|x| x.is_finite()) && some.iter().any(|x| *x != 0.0));
    }
}

/// Models whose embedding and projections have all types with tables and codebooks, and PrismML's.
#[test]
fn tables_and_codebooks_agree_alone_and_in_a_batch() {
    let sequences = [vec![1, 2, 3, 4, 5, 6, 7], vec![9, 8], vec![10]];
    for name in ["llama-tables", "llama-prism"] {
        let path = root().join(format!("fuzz/corpus/gguf/{name}.gguf"));
        let gguf = Gguf::from_bytes(Bytes::new(std::fs::read(path).expect("a seed")), name).expect("a file");
        let mut expected = None;
        for threads in [1, 2] {
            let pool = Pool::new(threads).expect("a pool");
            let model = load_checkpoint(&gguf, &pool, &|_, _| (), &mut |_, _| false).expect("load");
            let loaded = Running::new(model, threads).expect("run");
            let single = alone(&loaded, &sequences, 16);
            assert!(single.iter().flatten().all(|x| x.is_finite()) && single[0].iter().any(|x| *x != 0.0));
            let expected = expected.get_or_insert_with(|| bits(&single));
            assert!(bits(&single) == *expected, "{name}, {threads} threads");
            let mut session = Session::new(&loaded, &sequences, 16, 5);
            session.step(&sequences.iter().enumerate().map(|(i, s)| (i, s.len())).collect::<Vec<_>>());
            assert!(bits(&session.logits) == *expected, "{name}, one batch");
        }
    }
}

/// A copied tensor counts as memory held, instead of its bytes in the file, which are not read again.
#[test]
fn packed_weights_are_counted() {
    let bytes = |file: &File| open(file, 1).expect("load").model.facts().weight_bytes;
    let file = bitnet();
    assert_eq!(bytes(&file), file.bytes().len() as u64);
    let held: u64 =
        file.tensors.iter().filter(|t| t.type_id == I2_S).map(|t| t.dims[1] * (t.dims[0] / 4 + 4)).sum();
    let other = repacked(file, IQ2_BN);
    let packed: usize = other.tensors.iter().filter(|t| t.type_id == IQ2_BN).map(|t| t.data.len()).sum();
    assert_eq!(bytes(&other), (other.bytes().len() - packed) as u64 + held);
}

#[test]
fn q2_0_is_ternary_in_the_layers_of_a_bitnet_file() {
    let mut data = half::f16::from_f32(0.5).to_le_bytes().to_vec();
    data.extend([0b10_01_00_10; 16]);
    let file = |architecture: &str| {
        let mut file = File::default().str("general.architecture", architecture);
        file.tensors = ["blk.0.attn_q.weight", "output.weight"]
            .map(|name| Tensor { name: name.into(), dims: vec![64, 1], type_id: 42, data: data.clone() })
            .into();
        Gguf::from_bytes(Bytes::new(file.bytes()), "test file").expect("a file")
    };
    let pool = Pool::new(1).expect("pool");
    let dtype = |g: &Gguf, name: &str| Checkpoint::matrix(g, &pool, name, 1, 64).expect(name).dtype;
    let bitnet = file("bitnet-b1.58");
    assert_eq!(dtype(&bitnet, "blk.0.attn_q.weight"), DType::Ternary);
    assert_eq!(dtype(&bitnet, "output.weight"), DType::Q2_0);
    assert_eq!(dtype(&file("qwen3"), "blk.0.attn_q.weight"), DType::Q2_0);
}

/// BitNet's and Falcon's weights are multiplied with one scale per token, in any body; others in blocks.
#[test]
fn types_with_scaled_blocks_are_multiplied_as_their_models_were_trained() {
    let of_type = |type_id, bytes, architecture: &str, more: &[&str]| {
        let mut file = File::default().str("general.architecture", architecture);
        file.tensors = [("blk.0.attn_q.weight", type_id, vec![0x55; bytes])]
            .into_iter()
            .chain(more.iter().map(|name| (*name, 0, vec![0; 4 * 256])))
            .map(|(name, type_id, data)| Tensor { name: name.into(), dims: vec![256, 1], type_id, data })
            .collect();
        let gguf = Gguf::from_bytes(Bytes::new(file.bytes()), "test file").expect("a file");
        let pool = Pool::new(1).expect("pool");
        let m = Checkpoint::matrix(&gguf, &pool, "blk.0.attn_q.weight", 1, 256).expect("a matrix");
        assert_eq!(
            gguf.maps(&m.data),
            m.dtype.file_id() == type_id,
            "a type that is multiplied is not copied"
        );
        m.dtype
    };
    let of_base_3 = match isa().has_vbmi() {
        true => (DType::TQ1_0, DType::TQ1_0_256),
        false => (DType::TQ2_0, DType::TQ2_0_256),
    };
    for (in_file, (dtype, other)) in
        [(DType::TQ1_0, of_base_3), (DType::TQ2_0, (DType::TQ2_0, DType::TQ2_0_256))]
    {
        let made = |architecture: &str, more: &[&str]| {
            of_type(in_file.file_id(), in_file.block().1, architecture, more)
        };
        for architecture in ["bitnet", "bitnet-b1.58", "llama"] {
            assert_eq!(made(architecture, &[]), dtype, "{architecture}");
        }
        for architecture in ["qwen3", "gemma3"] {
            assert_eq!(made(architecture, &[]), other, "{architecture}");
            assert_eq!(made(architecture, &["blk.0.attn_q_norm_in.weight"]), dtype, "{architecture}");
        }
    }
}
