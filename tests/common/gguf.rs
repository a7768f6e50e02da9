//! A GGUF v3 writer for small test models whose keys and tensors a test may change.

use super::Rng;

pub const F32: u32 = 0;
pub const F16: u32 = 1;
pub const TQ2_0: u32 = 35;
pub const I2_S: u32 = 36;
const ALIGN: usize = 32;

#[derive(Clone)]
pub enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    Bools(Vec<bool>),
    /// The number of a type, and the bytes of a value.
    Raw(u32, Vec<u8>),
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    /// Dimensions in ggml's order: columns first.
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
}

#[derive(Clone, Default)]
pub struct File {
    pub keys: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

impl File {
    /// Replaces or adds a key.
    pub fn set(mut self, key: &str, value: Value) -> Self {
        self.keys.retain(|(k, _)| k != key);
        self.keys.push((key.into(), value));
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.set(key, Value::U32(value))
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.set(key, Value::F32(value))
    }

    pub fn str(self, key: &str, value: &str) -> Self {
        self.set(key, Value::Str(value.into()))
    }

    pub fn without_key(mut self, key: &str) -> Self {
        let before = self.keys.len();
        self.keys.retain(|(k, _)| k != key);
        assert_ne!(before, self.keys.len(), "no key {key}");
        self
    }

    pub fn without(mut self, tensor: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|t| t.name != tensor);
        assert_ne!(before, self.tensors.len(), "no tensor {tensor}");
        self
    }

    pub fn change(mut self, tensor: &str, change: impl FnOnce(&mut Tensor)) -> Self {
        change(self.tensors.iter_mut().find(|t| t.name == tensor).expect(tensor));
        self
    }

    /// Small random f32 values.
    pub fn random(mut self, name: &str, dims: &[u64], seed: u64) -> Self {
        let mut rng = Rng(seed);
        let n: u64 = dims.iter().product();
        let data = (0..n).flat_map(|_| (rng.below(2000) as f32 / 1000.0 - 1.0).to_le_bytes()).collect();
        self.tensors.push(Tensor { name: name.into(), dims: dims.into(), type_id: F32, data });
        self
    }

    /// I2_S with random codes 0 to 2 and a scale of 0.5.
    pub fn ternary(mut self, name: &str, dims: &[u64], seed: u64) -> Self {
        let mut rng = Rng(seed);
        let n: u64 = dims.iter().product();
        let code = |rng: &mut Rng| rng.below(3) as u8;
        let byte = |_| (0..4).fold(0u8, |byte, _| byte << 2 | code(&mut rng));
        let mut data: Vec<u8> = (0..n / 4).map(byte).collect();
        data.extend(0.5f32.to_le_bytes());
        data.extend([0; 28]);
        self.tensors.push(Tensor { name: name.into(), dims: dims.into(), type_id: I2_S, data });
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            string(&mut out, key);
            match value {
                Value::U32(v) => (out.extend(4u32.to_le_bytes()), out.extend(v.to_le_bytes())),
                Value::F32(v) => (out.extend(6u32.to_le_bytes()), out.extend(v.to_le_bytes())),
                Value::Bool(v) => (out.extend(7u32.to_le_bytes()), out.push(*v as u8)),
                Value::Str(s) => (out.extend(8u32.to_le_bytes()), string(&mut out, s)),
                Value::Strs(all) => {
                    array(&mut out, 8, all.len());
                    ((), all.iter().for_each(|s| string(&mut out, s)))
                }
                Value::I32s(all) => {
                    array(&mut out, 5, all.len());
                    ((), out.extend(all.iter().flat_map(|v| v.to_le_bytes())))
                }
                Value::Raw(kind, raw) => (out.extend(kind.to_le_bytes()), out.extend(raw)),
                Value::Bools(all) => {
                    array(&mut out, 7, all.len());
                    ((), out.extend(all.iter().map(|v| *v as u8)))
                }
            };
        }
        let mut offset = 0;
        for t in &self.tensors {
            string(&mut out, &t.name);
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.type_id.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += t.data.len().next_multiple_of(ALIGN);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGN), 0);
            out.extend(&t.data);
        }
        out
    }
}

fn string(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

pub const HIDDEN: u64 = 128;
pub const FFN: u64 = 256;
pub const VOCAB: u64 = 40;

const HEAD: u64 = HIDDEN / 2;

fn array(out: &mut Vec<u8>, elements: u32, len: usize) {
    out.extend([9, elements].iter().flat_map(|n| n.to_le_bytes()));
    out.extend((len as u64).to_le_bytes());
}

/// Two layers, two heads over one KV head: small enough for thousands of loads.
fn model(architecture: &str) -> File {
    let key = |k: &str| format!("{architecture}.{k}");
    File::default()
        .str("general.architecture", architecture)
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), HIDDEN as u32)
        .u32(&key("block_count"), 2)
        .u32(&key("feed_forward_length"), FFN as u32)
        .u32(&key("attention.head_count"), 2)
        .u32(&key("attention.head_count_kv"), 1)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 10000.0)
        .u32(&key("vocab_size"), VOCAB as u32)
        .random("token_embd.weight", &[HIDDEN, VOCAB], 1)
        .random("output_norm.weight", &[HIDDEN], 2)
}

fn layers(mut file: File, norms: &[(&str, u64)], matrix: fn(File, &str, &[u64], u64) -> File) -> File {
    for i in 0..2u64 {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        file = file.random(&name("attn_norm"), &[HIDDEN], 3 + i).random(&name("ffn_norm"), &[HIDDEN], 5 + i);
        for (part, width) in norms {
            file = file.random(&name(part), &[*width], 7);
        }
        for (part, cols, rows) in [
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", HIDDEN, HIDDEN / 2),
            ("attn_v", HIDDEN, HIDDEN / 2),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", HIDDEN, FFN),
            ("ffn_up", HIDDEN, FFN),
            ("ffn_down", FFN, HIDDEN),
        ] {
            file = matrix(file, &name(part), &[cols, rows], 10 * i + rows);
        }
    }
    file
}

fn dense(file: File, name: &str, dims: &[u64], seed: u64) -> File {
    file.random(name, dims, seed)
}

pub fn llama() -> File {
    layers(model("llama"), &[], dense)
}

pub fn granite() -> File {
    layers(model("granite"), &[], dense)
}

pub fn qwen2() -> File {
    layers(model("qwen2"), &[], dense)
}

pub fn gemma3() -> File {
    let norms = [
        ("attn_q_norm", HEAD),
        ("attn_k_norm", HEAD),
        ("post_attention_norm", HIDDEN),
        ("post_ffw_norm", HIDDEN),
    ];
    layers(model("gemma3"), &norms, dense).u32("gemma3.attention.sliding_window", 16)
}

/// Four experts of two layers; two are used.
pub fn qwen3moe() -> File {
    experts("qwen3moe", layers(model("qwen3moe"), &[("attn_q_norm", HEAD), ("attn_k_norm", HEAD)], dense))
}

/// Like `qwen3moe`; the first layer has a window and rotates half of a head, the second has no window and no
/// rotation.
pub fn maple() -> File {
    experts("maple", layers(model("maple"), &[("attn_q_norm", HEAD), ("attn_k_norm", HEAD)], dense))
        .random("output.weight", &[HIDDEN, VOCAB], 8)
        .u32("maple.rope.dimension_count", HEAD as u32 / 2)
        .u32("maple.attention.sliding_window", 16)
        .set("maple.attention.sliding_window_pattern", Value::Bools(vec![true, false]))
        .f32("maple.swiglu_clamp_exp", 7.0)
}

/// A model with LongRoPE.
pub fn minicpm() -> File {
    let factor = |t: &mut Tensor| t.data = 1.5f32.to_le_bytes().repeat(HEAD as usize / 2);
    layers(model("minicpm"), &[], dense)
        .f32("minicpm.embedding_scale", 12.0)
        .f32("minicpm.residual_scale", 0.9)
        .f32("minicpm.logit_scale", 4.0)
        .str("minicpm.rope.scaling.type", "longrope")
        .u32("minicpm.rope.scaling.original_context_length", 32)
        .random("rope_factors_short.weight", &[HEAD / 2], 9)
        .change("rope_factors_short.weight", factor)
        .random("rope_factors_long.weight", &[HEAD / 2], 9)
        .change("rope_factors_long.weight", factor)
}

/// A model with soft caps.
pub fn gemma2() -> File {
    layers(model("gemma2"), &[("post_attention_norm", HIDDEN), ("post_ffw_norm", HIDDEN)], dense)
        .f32("gemma2.attn_logit_softcapping", 50.0)
        .f32("gemma2.final_logit_softcapping", 30.0)
        .u32("gemma2.attention.sliding_window", 16)
}

/// A model with YaRN and queries that grow with their position.
pub fn mistral3() -> File {
    layers(model("mistral3"), &[], dense)
        .str("mistral3.rope.scaling.type", "yarn")
        .f32("mistral3.rope.scaling.factor", 4.0)
        .u32("mistral3.rope.scaling.original_context_length", 16)
        .f32("mistral3.rope.scaling.yarn_log_multiplier", 1.0)
        .f32("mistral3.attention.temperature_scale", 0.1)
}

/// A model with q, k and v in one matrix, and gate and up in one.
pub fn phi3() -> File {
    let mut file = layers(model("phi3"), &[], dense);
    for i in 0..2 {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        for part in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
            file = file.without(&name(part));
        }
        file = file.random(&name("attn_qkv"), &[HIDDEN, 2 * HIDDEN], 30 + i);
        file = file.random(&name("ffn_up"), &[HIDDEN, 2 * FFN], 32 + i);
    }
    file
}

/// A model with LayerNorm and a feed-forward without gate.
pub fn starcoder2() -> File {
    let mut file = layers(model("starcoder2"), &[], dense)
        .without_key("starcoder2.attention.layer_norm_rms_epsilon")
        .f32("starcoder2.attention.layer_norm_epsilon", 1e-5)
        .random("output_norm.bias", &[HIDDEN], 34);
    for i in 0..2 {
        file = file.without(&format!("blk.{i}.ffn_gate.weight"));
        for part in ["attn_norm", "ffn_norm"] {
            file = file.random(&format!("blk.{i}.{part}.bias"), &[HIDDEN], 35 + i);
        }
    }
    file
}

/// `file` with experts in place of its feed-forwards.
fn experts(architecture: &str, file: File) -> File {
    let key = |key: &str| format!("{architecture}.{key}");
    let mut file = file
        .u32(&key("expert_count"), 4)
        .u32(&key("expert_used_count"), 2)
        .u32(&key("expert_feed_forward_length"), 32);
    for i in 0..2 {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        for part in ["ffn_gate", "ffn_up", "ffn_down"] {
            file = file.without(&name(part));
        }
        file = file
            .random(&name("ffn_gate_inp"), &[HIDDEN, 4], 20 + i)
            .random(&name("ffn_gate_exps"), &[HIDDEN, 32, 4], 30 + i)
            .random(&name("ffn_up_exps"), &[HIDDEN, 32, 4], 40 + i)
            .random(&name("ffn_down_exps"), &[32, HIDDEN, 4], 50 + i);
    }
    file
}

pub fn bitnet() -> File {
    let norms = [("attn_sub_norm", HIDDEN), ("ffn_sub_norm", FFN)];
    layers(model("bitnet-b1.58"), &norms, |file, name, dims, seed| file.ternary(name, dims, seed))
}

pub const CHANNELS: u64 = 128;
pub const VALUES: u64 = 64;

/// A layer of Gated DeltaNet, with two key heads and four value heads of 16, then one of attention with a gate.
fn hybrid(architecture: &str) -> File {
    let key = |key: &str| format!("{architecture}.{key}");
    let mut file = layers(model(architecture), &[("post_attention_norm", HIDDEN)], dense)
        .u32(&key("full_attention_interval"), 2)
        .u32(&key("ssm.conv_kernel"), 4)
        .u32(&key("ssm.state_size"), 16)
        .u32(&key("ssm.group_count"), 2)
        .u32(&key("ssm.time_step_rank"), 4)
        .u32(&key("ssm.inner_size"), VALUES as u32)
        .u32(&key("rope.dimension_count"), 16);
    for name in ["blk.0.ffn_norm", "blk.1.ffn_norm", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"] {
        file = file.without(&format!("{name}.weight"));
    }
    let heads = [("attn_q_norm", HEAD), ("attn_k_norm", HEAD)];
    let of_heads =
        |file: File, (part, width): (&str, u64)| file.random(&format!("blk.1.{part}.weight"), &[width], 7);
    heads
        .into_iter()
        .fold(file, of_heads)
        .without("blk.0.attn_output.weight")
        .without("blk.1.attn_q.weight")
        .random("blk.1.attn_q.weight", &[HIDDEN, 2 * HIDDEN], 60)
        .random("blk.0.attn_qkv.weight", &[HIDDEN, CHANNELS], 61)
        .random("blk.0.attn_gate.weight", &[HIDDEN, VALUES], 62)
        .random("blk.0.ssm_beta.weight", &[HIDDEN, 4], 63)
        .random("blk.0.ssm_alpha.weight", &[HIDDEN, 4], 64)
        .random("blk.0.ssm_conv1d.weight", &[4, CHANNELS], 65)
        .random("blk.0.ssm_dt.bias", &[4], 66)
        .random("blk.0.ssm_a", &[4], 67)
        .change("blk.0.ssm_a", |t| t.data = (-0.5f32).to_le_bytes().repeat(4))
        .random("blk.0.ssm_norm.weight", &[16], 68)
        .random("blk.0.ssm_out.weight", &[VALUES, HIDDEN], 69)
}

pub const STATES: u64 = 12;
pub const INNER: u64 = 80;
/// Channels of the convolution: x, and B and C in two groups.
pub const MAMBA_CHANNELS: u64 = INNER + 4 * STATES;

/// Mamba-2 in layer `i`: four heads of 20 in two groups.
fn mamba(file: File, i: u64) -> File {
    let name = |part: &str| format!("blk.{i}.{part}");
    let negative = |t: &mut Tensor| t.data = (-0.5f32).to_le_bytes().repeat(4);
    file.random(&name("ssm_in.weight"), &[HIDDEN, INNER + MAMBA_CHANNELS + 4], 60)
        .random(&name("ssm_conv1d.weight"), &[4, MAMBA_CHANNELS], 61)
        .random(&name("ssm_conv1d.bias"), &[MAMBA_CHANNELS], 62)
        .random(&name("ssm_dt.bias"), &[4], 63)
        .random(&name("ssm_a"), &[1, 4], 64)
        .change(&name("ssm_a"), negative)
        .random(&name("ssm_d"), &[1, 4], 65)
        .random(&name("ssm_norm.weight"), &[INNER / 2, 2], 66)
        .random(&name("ssm_out.weight"), &[INNER, HIDDEN], 67)
}

fn mamba_keys(file: File, architecture: &str) -> File {
    let key = |key: &str| format!("{architecture}.ssm.{key}");
    file.u32(&key("conv_kernel"), 4)
        .u32(&key("state_size"), STATES as u32)
        .u32(&key("group_count"), 2)
        .u32(&key("time_step_rank"), 4)
        .u32(&key("inner_size"), INNER as u32)
}

/// Mamba-2, then attention that does not rotate.
pub fn granitehybrid() -> File {
    let mut file = mamba_keys(layers(model("granitehybrid"), &[], dense), "granitehybrid")
        .set("granitehybrid.attention.head_count_kv", Value::I32s(vec![0, 1]))
        .set("granitehybrid.rope.scaling.finetuned", Value::Bool(false));
    for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        file = file.without(&format!("blk.0.{part}.weight"));
    }
    mamba(file, 0)
}

/// Mamba-2 beside attention in both layers.
pub fn falcon_h1() -> File {
    let file = mamba_keys(layers(model("falcon-h1"), &[], dense), "falcon-h1");
    mamba(mamba(file, 0), 1)
}

pub fn qwen35() -> File {
    hybrid("qwen35")
}

pub fn qwen35moe() -> File {
    with_shared("qwen35moe")
}

pub fn qwen3next() -> File {
    with_shared("qwen3next")
}

fn with_shared(architecture: &str) -> File {
    let key = format!("{architecture}.expert_shared_feed_forward_length");
    let mut file = experts(architecture, hybrid(architecture)).u32(&key, 32);
    for i in 0..2 {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        file = file
            .random(&name("ffn_gate_inp_shexp"), &[HIDDEN], 70 + i)
            .random(&name("ffn_gate_shexp"), &[HIDDEN, 32], 80 + i)
            .random(&name("ffn_up_shexp"), &[HIDDEN, 32], 90 + i)
            .random(&name("ffn_down_shexp"), &[32, HIDDEN], 100 + i);
    }
    file
}

/// Sizes of latent attention: the two parts of a head's query, a head's value, the latent, and the latent of
/// queries.
pub const LATENT: [u64; 5] = [12, 8, 10, 24, 20];

/// Latent attention of two heads with YaRN; a dense layer, then one of four experts in two groups.
pub fn deepseek2() -> File {
    let [nope, rope, value, rank, query_rank] = LATENT;
    let mut file = model("deepseek2").random("output.weight", &[HIDDEN, VOCAB], 8);
    for (key, value) in [
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", rank),
        ("attention.q_lora_rank", query_rank),
        ("attention.key_length", rank + rope),
        ("attention.value_length", rank),
        ("attention.key_length_mla", nope + rope),
        ("attention.value_length_mla", value),
        ("rope.dimension_count", rope),
        ("rope.scaling.original_context_length", 32),
        ("leading_dense_block_count", 1),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 32),
        ("expert_shared_count", 2),
        ("expert_group_count", 2),
        ("expert_group_used_count", 1),
        ("expert_gating_func", 2),
    ] {
        file = file.u32(&format!("deepseek2.{key}"), value as u32);
    }
    for i in 0..2 {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        for (n, (part, dims)) in [
            ("attn_norm", &[HIDDEN][..]),
            ("ffn_norm", &[HIDDEN]),
            ("attn_q_a_norm", &[query_rank]),
            ("attn_kv_a_norm", &[rank]),
            ("attn_q_a", &[HIDDEN, query_rank]),
            ("attn_q_b", &[query_rank, 2 * (nope + rope)]),
            ("attn_kv_a_mqa", &[HIDDEN, rank + rope]),
            ("attn_k_b", &[nope, rank, 2]),
            ("attn_v_b", &[rank, value, 2]),
            ("attn_output", &[2 * value, HIDDEN]),
        ]
        .into_iter()
        .chain(if i == 0 { DENSE_PARTS } else { SPARSE_PARTS }.iter().copied())
        .enumerate()
        {
            file = file.random(&name(part), dims, 10 + n as u64 + 30 * i);
        }
    }
    file.random("blk.1.exp_probs_b.bias", &[4], 3)
        .set("deepseek2.expert_weights_norm", Value::Bool(true))
        .f32("deepseek2.expert_weights_scale", 2.5)
        .str("deepseek2.rope.scaling.type", "yarn")
        .f32("deepseek2.rope.scaling.factor", 4.0)
        .f32("deepseek2.rope.scaling.yarn_log_multiplier", 0.1)
}

const DENSE_PARTS: &[(&str, &[u64])] =
    &[("ffn_gate", &[HIDDEN, FFN]), ("ffn_up", &[HIDDEN, FFN]), ("ffn_down", &[FFN, HIDDEN])];
const SPARSE_PARTS: &[(&str, &[u64])] = &[
    ("ffn_gate_inp", &[HIDDEN, 4]),
    ("ffn_gate_exps", &[HIDDEN, 32, 4]),
    ("ffn_up_exps", &[HIDDEN, 32, 4]),
    ("ffn_down_exps", &[32, HIDDEN, 4]),
    ("ffn_gate_shexp", &[HIDDEN, 64]),
    ("ffn_up_shexp", &[HIDDEN, 64]),
    ("ffn_down_shexp", &[64, HIDDEN]),
];
