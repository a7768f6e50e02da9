//! Vision towers of Qwen 3.5, as llama.cpp's converter writes them (mmproj files).

use crate::{Tensor, Tensors};
use bn_engine::formats::gguf::writer::Meta;
use bn_engine::kernels::DType;

pub struct Tower {
    pub name: &'static str,
    pub layers: usize,
    hidden: usize,
    ffn: usize,
    heads: u32,
    /// The hidden size of the language model.
    width: usize,
}

/// The sizes of 0.8B's were not compared with a file.
pub const TOWERS: [Tower; 2] = [
    Tower { name: "qwen35-tower", layers: 24, hidden: 1024, ffn: 4096, heads: 16, width: 2560 },
    Tower { name: "qwen35-0.8b-tower", layers: 12, hidden: 768, ffn: 3072, heads: 12, width: 1024 },
];

const PATCH: u64 = 16;
/// Rows of the table of positions, 48 on a side.
const POSITIONS: usize = 2304;
/// Patches on a side of a soft token.
const MERGE: u32 = 2;
const NORM: f32 = 1.0;

pub fn metadata(tower: &Tower, layers: usize) -> Vec<(String, Meta)> {
    let key = |k: &str| format!("clip.{k}");
    let u32s = [
        ("projection_dim", tower.width as u32),
        ("image_size", 768),
        ("patch_size", PATCH as u32),
        ("embedding_length", tower.hidden as u32),
        ("feed_forward_length", tower.ffn as u32),
        ("block_count", layers as u32),
        ("attention.head_count", tower.heads),
        ("spatial_merge_size", MERGE),
    ];
    let mut pairs: Vec<(String, Meta)> = vec![
        ("general.architecture".into(), "clip".into()),
        ("general.type".into(), "mmproj".into()),
        ("general.name".into(), Meta::Str(format!("synthetic {}", tower.name))),
        (key("has_vision_encoder"), Meta::Bool(true)),
        (key("projector_type"), "qwen3vl_merger".into()),
        (key("use_gelu"), Meta::Bool(true)),
        (key("vision.attention.layer_norm_epsilon"), Meta::F32(1e-6)),
        (key("vision.image_mean"), Meta::F32s(vec![0.5; 3])),
        (key("vision.image_std"), Meta::F32s(vec![0.5; 3])),
        (key("vision.is_deepstack_layers"), Meta::Bools(vec![false; layers])),
    ];
    pairs.extend(u32s.map(|(k, v)| (key(&format!("vision.{k}")), Meta::U32(v))));
    pairs
}

impl Tensors {
    /// The tensors of a tower. Vectors are F32, as is the table of positions if `head` is.
    pub fn tower(&mut self, t: &Tower, layers: usize) -> std::result::Result<(), String> {
        let (hidden, ffn) = (t.hidden, t.ffn);
        for name in ["v.patch_embd.weight", "v.patch_embd.weight.1"] {
            self.add(name.into(), self.weights, hidden, 3 * (PATCH * PATCH) as usize)?;
            self.list.last_mut().expect("it was added").dims = vec![PATCH, PATCH, 3, hidden as u64];
        }
        self.vector("v.patch_embd.bias", hidden, 0.0)?;
        self.add("v.position_embd.weight".into(), self.head, POSITIONS, hidden)?;
        for layer in 0..layers {
            let name = |part: &str| format!("v.blk.{layer}.{part}");
            self.norm(&name("ln1"), hidden)?;
            self.product(&name("attn_qkv"), 3 * hidden, hidden)?;
            self.product(&name("attn_out"), hidden, hidden)?;
            self.norm(&name("ln2"), hidden)?;
            self.product(&name("ffn_up"), ffn, hidden)?;
            self.product(&name("ffn_down"), hidden, ffn)?;
        }
        self.norm("v.post_ln", hidden)?;
        let merged = hidden * (MERGE * MERGE) as usize;
        self.product("mm.0", merged, merged)?;
        self.product("mm.2", t.width, merged)
    }

    fn product(&mut self, name: &str, rows: usize, cols: usize) -> std::result::Result<(), String> {
        self.add(format!("{name}.weight"), self.weights, rows, cols)?;
        self.vector(&format!("{name}.bias"), rows, 0.0)
    }

    fn norm(&mut self, name: &str, hidden: usize) -> std::result::Result<(), String> {
        self.vector(&format!("{name}.weight"), hidden, NORM)?;
        self.vector(&format!("{name}.bias"), hidden, 0.0)
    }

    /// A vector of about `size`.
    fn vector(&mut self, name: &str, len: usize, size: f32) -> std::result::Result<(), String> {
        self.add(name.into(), DType::F32, 1, len)?;
        self.list.iter_mut().last().into_iter().for_each(|tensor: &mut Tensor| tensor.norm = size);
        Ok(())
    }
}
