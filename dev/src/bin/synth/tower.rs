//! Qwen 3.5 4B's vision tower, as llama.cpp's converter writes it (an mmproj file).

use crate::{Tensor, Tensors};
use bn_engine::formats::gguf::writer::Meta;
use bn_engine::kernels::DType;

pub const NAME: &str = "qwen35-tower";
pub const LAYERS: usize = 24;

const HIDDEN: usize = 1024;
const FFN: usize = 4096;
const HEADS: u32 = 16;
const PATCH: u64 = 16;
/// Rows of the table of positions, 48 on a side.
const POSITIONS: usize = 2304;
/// Patches on a side of a soft token.
const MERGE: u32 = 2;
/// The hidden size of the language model.
const WIDTH: usize = 2560;
const NORM: f32 = 1.0;

pub fn metadata(layers: usize) -> Vec<(String, Meta)> {
    let key = |k: &str| format!("clip.{k}");
    let u32s = [
        ("projection_dim", WIDTH as u32),
        ("image_size", 768),
        ("patch_size", PATCH as u32),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", FFN as u32),
        ("block_count", layers as u32),
        ("attention.head_count", HEADS),
        ("spatial_merge_size", MERGE),
    ];
    let mut pairs: Vec<(String, Meta)> = vec![
        ("general.architecture".into(), "clip".into()),
        ("general.type".into(), "mmproj".into()),
        ("general.name".into(), Meta::Str(format!("synthetic {NAME}"))),
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
    pub fn tower(&mut self, layers: usize) -> std::result::Result<(), String> {
        for name in ["v.patch_embd.weight", "v.patch_embd.weight.1"] {
            self.add(name.into(), self.weights, HIDDEN, 3 * (PATCH * PATCH) as usize)?;
            self.list.last_mut().expect("it was added").dims = vec![PATCH, PATCH, 3, HIDDEN as u64];
        }
        self.vector("v.patch_embd.bias", HIDDEN, 0.0)?;
        self.add("v.position_embd.weight".into(), self.head, POSITIONS, HIDDEN)?;
        for layer in 0..layers {
            let name = |part: &str| format!("v.blk.{layer}.{part}");
            self.norm(&name("ln1"))?;
            self.product(&name("attn_qkv"), 3 * HIDDEN, HIDDEN)?;
            self.product(&name("attn_out"), HIDDEN, HIDDEN)?;
            self.norm(&name("ln2"))?;
            self.product(&name("ffn_up"), FFN, HIDDEN)?;
            self.product(&name("ffn_down"), HIDDEN, FFN)?;
        }
        self.norm("v.post_ln")?;
        let merged = HIDDEN * (MERGE * MERGE) as usize;
        self.product("mm.0", merged, merged)?;
        self.product("mm.2", WIDTH, merged)
    }

    fn product(&mut self, name: &str, rows: usize, cols: usize) -> std::result::Result<(), String> {
        self.add(format!("{name}.weight"), self.weights, rows, cols)?;
        self.vector(&format!("{name}.bias"), rows, 0.0)
    }

    fn norm(&mut self, name: &str) -> std::result::Result<(), String> {
        self.vector(&format!("{name}.weight"), HIDDEN, NORM)?;
        self.vector(&format!("{name}.bias"), HIDDEN, 0.0)
    }

    /// A vector of about `size`.
    fn vector(&mut self, name: &str, len: usize, size: f32) -> std::result::Result<(), String> {
        self.add(name.into(), DType::F32, 1, len)?;
        self.list.iter_mut().last().into_iter().for_each(|tensor: &mut Tensor| tensor.norm = size);
        Ok(())
    }
}
