//! The metadata of a shape's file.

use crate::shapes::{DELTA_DIM, KERNEL, Shape};
use bn_dev::SplitMix;
use bn_engine::formats::gguf::writer::Meta;

/// `tensors`: the names of all tensors.
pub fn of(s: &Shape, layers: usize, tensors: &[(String, Vec<u64>)]) -> Vec<(String, Meta)> {
    let key = |k: &str| format!("{}.{k}", s.architecture);
    let u32s = [
        ("context_length", s.context),
        ("embedding_length", s.hidden as u32),
        ("block_count", layers as u32 + u32::from(s.mtp)),
        ("feed_forward_length", s.ffn as u32),
        ("attention.head_count", s.heads as u32),
        ("attention.head_count_kv", s.kv_heads as u32),
        ("attention.key_length", s.head_dim() as u32),
        ("attention.value_length", s.head_dim() as u32),
        ("rope.dimension_count", s.rotated() as u32),
        ("vocab_size", s.vocab as u32),
    ];
    let mut pairs: Vec<(String, Meta)> = vec![
        ("general.architecture".into(), s.architecture.into()),
        ("general.name".into(), Meta::Str(format!("synthetic {}", s.name))),
        (key("attention.layer_norm_rms_epsilon"), Meta::F32(s.eps)),
        (key("rope.freq_base"), Meta::F32(s.rope_base)),
    ];
    pairs.extend(u32s.map(|(k, v)| (key(k), Meta::U32(v))));
    if s.mtp {
        pairs.push((key("nextn_predict_layers"), Meta::U32(1)));
    }
    pairs.extend(mixers(s, layers));
    if s.folded {
        pairs.extend(rotation(s, tensors));
    }
    if let Some((factor, context)) = s.yarn {
        pairs.extend([
            (key("rope.scaling.type"), "yarn".into()),
            (key("rope.scaling.factor"), Meta::F32(factor)),
            (key("rope.scaling.original_context_length"), Meta::U32(context)),
        ]);
    }
    pairs.extend(tokenizer(s.vocab));
    pairs
}

/// Keys of layers of Gated DeltaNet, and of experts.
fn mixers(s: &Shape, layers: usize) -> Vec<(String, Meta)> {
    let key = |k: &str| format!("{}.{k}", s.architecture);
    let mut pairs = Vec::new();
    let (key_heads, value_heads) = s.delta;
    if value_heads > 0 {
        let sizes = [
            ("full_attention_interval", 4),
            ("ssm.conv_kernel", KERNEL),
            ("ssm.state_size", DELTA_DIM),
            ("ssm.group_count", key_heads),
            ("ssm.time_step_rank", value_heads),
            ("ssm.inner_size", value_heads * DELTA_DIM),
        ];
        pairs.extend(sizes.map(|(k, v)| (key(k), Meta::U32(v as u32))));
        pairs.push((key("rope.dimension_sections"), Meta::I32s(vec![11, 11, 10, 0])));
    }
    let (count, used, width) = s.experts;
    if count > 0 {
        let sizes = [
            ("expert_count", count),
            ("expert_used_count", used),
            ("expert_feed_forward_length", width),
            ("attention.sliding_window", 512),
        ];
        pairs.extend(sizes.map(|(k, v)| (key(k), Meta::U32(v as u32))));
        let windowed = (1..=layers).map(|layer| !layer.is_multiple_of(4)).collect();
        pairs.push((key("attention.sliding_window_pattern"), Meta::Bools(windowed)));
        pairs.push((key("swiglu_clamp_exp"), Meta::F32s(vec![7.0; layers])));
    }
    pairs
}

/// The rotation that the weights are folded with: of the inputs of all quantized products, and of the embedding's rows.
fn rotation(s: &Shape, tensors: &[(String, Vec<u64>)]) -> Vec<(String, Meta)> {
    let (widths, mut rng) = (s.widths(), SplitMix(7));
    let values = (0..widths.iter().sum()).map(|_| 1 - 2 * (rng.draw() % 2) as i32).collect();
    let folded = |name: &str| {
        let part = name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
        part.is_some_and(|part| FOLDED.contains(&part))
    };
    let names = tensors.iter().map(|(name, _)| name).filter(|name| folded(name)).cloned().collect();
    let key = |k: &str| format!("prism.hadamard.{k}");
    vec![
        (key("version"), Meta::U32(if s.tied { 2 } else { 1 })),
        (key("tied_output"), Meta::Bool(s.tied)),
        (key("block_size"), Meta::U32(s.block() as u32)),
        (key("transform"), "normalized-sylvester-walsh-hadamard".into()),
        (key("axis"), "input-last-dimension".into()),
        (key("sign_mode"), "explicit".into()),
        (key("sign_widths"), Meta::I32s(widths.iter().map(|width| *width as i32).collect())),
        (key("sign_values"), Meta::I32s(values)),
        (key("weight_names"), Meta::Strs(names)),
        (key("inverse_weight_names"), Meta::Strs(vec!["token_embd.weight".into()])),
        (key("gdn_v_grouped"), Meta::Bool(true)),
    ]
}

/// The last parts of the names of weights that are folded.
const FOLDED: [&str; 11] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "ssm_out",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "output",
];

/// The tokens of begin and end, and those of Qwen's pictures.
const CONTROLS: [&str; 5] = ["<|begin|>", "<|end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"];

/// A token for each byte, control tokens, and fillers: a tokenizer of the model's size without a training text.
fn tokenizer(vocab: usize) -> Vec<(String, Meta)> {
    // GPT-2's stand-ins: printable bytes are themselves, the others follow from U+0100 on.
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut tokens: Vec<String> = (0..256u32)
        .map(|b| {
            let c = if printable(b) { b } else { next };
            next += u32::from(!printable(b));
            char::from_u32(c).map(String::from).unwrap_or_default()
        })
        .collect();
    tokens.extend(CONTROLS.map(String::from));
    tokens.extend((tokens.len()..vocab).map(|i| format!("<|filler_{i}|>")));
    let types = (0..vocab).map(|i| match i {
        0..256 => 1,
        i if i < 256 + CONTROLS.len() => 3,
        _ => 5,
    });
    let key = |k: &str| format!("tokenizer.ggml.{k}");
    vec![
        (key("model"), "gpt2".into()),
        (key("pre"), "gpt-2".into()),
        (key("tokens"), Meta::Strs(tokens)),
        (key("token_type"), Meta::I32s(types.collect())),
        (key("merges"), Meta::Strs(Vec::new())),
        (key("bos_token_id"), Meta::U32(256)),
        (key("eos_token_id"), Meta::U32(257)),
    ]
}
