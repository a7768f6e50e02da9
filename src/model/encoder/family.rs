//! The families of encoders as data. Which biases a layer has, and whether q, k and v are one matrix, is read off a
//! file's tensors.

use super::head::HeadActivation;
use crate::model::Pooling;
use crate::model::config::{Block, RopeConfig, RopeScaling};
use crate::ops::{Activation, RopeStyle};

/// The differences between families.
#[derive(Debug)]
pub struct EncoderFamily {
    /// `general.architecture` in GGUF.
    pub gguf: &'static str,
    /// `model_type` in `config.json`.
    pub hf: &'static [&'static str],
    /// The classes that `architectures` may name; others have heads that are not read.
    pub classes: &'static [&'static str],
    /// RMSNorm in place of LayerNorm.
    pub rms_norms: bool,
    /// The norms of each layer, by GGUF's names.
    pub norms: &'static [&'static str],
    /// The first of them is missing in the first layer, whose input is normed already.
    pub first_bare: bool,
    /// There is a norm after the embeddings, and one after the last layer.
    pub outer_norms: [bool; 2],
    pub activation: Activation,
    pub positions: Positions,
    /// Layers whose rows see only near ones.
    pub windows: Option<Windows>,
    /// Bases of the rotations of other layers and of those with windows, where files do not say.
    pub bases: [f32; 2],
    /// Embedding rows are multiplied with the square root of the hidden size.
    pub scaled: bool,
    /// In folders, added to the weights of norms.
    pub norm_offset: f32,
    /// The activation between the two products of a score.
    pub head: HeadActivation,
    /// Which states the head takes in GGUF files that do not say, as llama.cpp does.
    pub head_pooling: Pooling,
    /// Names in folders of eps and the activation.
    pub eps_key: &'static str,
    pub activation_key: &'static str,
    /// Names of keys in folders, and older ones.
    pub older_keys: &'static [(&'static str, &'static str)],
    /// Names in folders: of prefixes that files may have, of the layers, of parts of a layer and of other tensors, each
    /// with GGUF's name.
    pub prefixes: &'static [&'static str],
    pub layer: &'static str,
    pub in_layer: &'static [(&'static str, &'static str)],
    pub outside: &'static [(&'static str, &'static str)],
    /// Beginnings of names in folders that belong to other tasks, or are no weights.
    pub ignored: &'static [&'static str],
}

/// How a model tells positions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A table.
    Learned,
    /// A table, where the first token has the row after that of padding.
    BehindPadding,
    Rotated(RopeStyle),
}

/// All layers have a window but each `every`th, whose index leaves the remainder `seeing`.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub every: usize,
    pub seeing: usize,
}

const BERT_LAYER: &[(&str, &str)] = &[
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
];

const BERT_EMBEDDINGS: &[(&str, &str)] = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    // A classifier is one product after BERT's pooler, or two of its own.
    ("pooler.dense", "cls"),
    ("classifier", "cls.output"),
    ("classifier.dense", "cls"),
    ("classifier.out_proj", "cls.output"),
];

/// BERT (Devlin et al. 2018), as bge, e5, mxbai and MiniLM have it.
const BERT: EncoderFamily = EncoderFamily {
    gguf: "bert",
    hf: &["bert"],
    classes: &["BertModel", "BertForMaskedLM", "BertForSequenceClassification"],
    rms_norms: false,
    norms: &["attn_output_norm", "layer_output_norm"],
    first_bare: false,
    outer_norms: [true, false],
    activation: Activation::GeluErf,
    positions: Positions::Learned,
    windows: None,
    bases: [10_000.0; 2],
    scaled: false,
    norm_offset: 0.0,
    head: HeadActivation::Tanh,
    head_pooling: Pooling::First,
    eps_key: "layer_norm_eps",
    activation_key: "hidden_act",
    older_keys: &[],
    prefixes: &["bert."],
    layer: "encoder.layer.",
    in_layer: BERT_LAYER,
    outside: BERT_EMBEDDINGS,
    ignored: &["embeddings.position_ids", "embeddings.token_type_ids", "cls.", "dropout"],
};

/// XLM-RoBERTa (Conneau et al. 2019), as bge-m3, multilingual-e5 and bge-reranker-v2 have it. GGUF calls it `bert`.
const XLM_ROBERTA: EncoderFamily = EncoderFamily {
    gguf: "",
    hf: &["xlm-roberta", "roberta"],
    classes: &[
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
    ],
    positions: Positions::BehindPadding,
    prefixes: &["roberta."],
    ignored: &["embeddings.position_ids", "embeddings.token_type_ids", "lm_head.", "dropout"],
    ..BERT
};

/// Nomic's BERT (arXiv 2402.01613): rotations and SwiGLU. The keys of its own folders are GPT-2's.
const NOMIC_BERT: EncoderFamily = EncoderFamily {
    gguf: "nomic-bert",
    hf: &["nomic_bert"],
    classes: &["NomicBertModel", "NomicBertForMaskedLM"],
    layer: "encoder.layers.",
    in_layer: &[
        ("attn.Wqkv", "attn_qkv"),
        ("attn.out_proj", "attn_output"),
        ("norm1", "attn_output_norm"),
        ("mlp.fc11", "ffn_up"),
        ("mlp.fc12", "ffn_gate"),
        ("mlp.fc2", "ffn_down"),
        ("norm2", "layer_output_norm"),
    ],
    outside: &[
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("emb_ln", "token_embd_norm"),
    ],
    older_keys: &[
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("intermediate_size", "n_inner"),
        ("max_position_embeddings", "n_positions"),
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "activation_function"),
        ("rope_theta", "rotary_emb_base"),
    ],
    prefixes: &["nomic_bert.", "model."],
    activation: Activation::SwiGlu,
    positions: Positions::Rotated(RopeStyle::Neox),
    bases: [1000.0; 2],
    ..BERT
};

/// ModernBERT (arXiv 2412.13663): norms before attention and feed-forward, GeGLU, windows with a rotation of their own.
const MODERN_BERT: EncoderFamily = EncoderFamily {
    gguf: "modern-bert",
    hf: &["modernbert"],
    classes: &["ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"],
    norms: &["attn_norm", "ffn_norm"],
    first_bare: true,
    outer_norms: [true, true],
    activation: Activation::GeGluErf,
    positions: Positions::Rotated(RopeStyle::Neox),
    windows: Some(Windows { every: 3, seeing: 0 }),
    bases: [160_000.0, 10_000.0],
    head: HeadActivation::Gelu,
    head_pooling: Pooling::Mean,
    eps_key: "norm_eps",
    activation_key: "hidden_activation",
    prefixes: &["model."],
    layer: "layers.",
    in_layer: &[
        ("attn_norm", "attn_norm"),
        ("attn.Wqkv", "attn_qkv"),
        ("attn.Wo", "attn_output"),
        ("mlp_norm", "ffn_norm"),
        ("mlp.Wi", "ffn_up"),
        ("mlp.Wo", "ffn_down"),
    ],
    outside: &[
        ("embeddings.tok_embeddings", "token_embd"),
        ("embeddings.norm", "token_embd_norm"),
        ("final_norm", "output_norm"),
        ("head.dense", "cls"),
        ("head.norm", "cls.norm"),
        ("classifier", "cls.output"),
    ],
    ignored: &["decoder."],
    ..BERT
};

/// EmbeddingGemma (arXiv 2509.20354): Gemma 3 whose rows see each other, and two products after pooling.
pub(crate) const GEMMA_EMBEDDING: EncoderFamily = EncoderFamily {
    gguf: "gemma-embedding",
    // `gemma3_text` with `use_bidirectional_attention`.
    hf: &[],
    classes: &["Gemma3TextModel"],
    rms_norms: true,
    norms: &["attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
    outer_norms: [false, true],
    activation: Activation::GeGlu,
    positions: Positions::Rotated(RopeStyle::Neox),
    windows: Some(Windows { every: 6, seeing: 5 }),
    bases: [1_000_000.0, 10_000.0],
    scaled: true,
    norm_offset: 1.0,
    eps_key: "rms_norm_eps",
    activation_key: "hidden_activation",
    prefixes: &["model."],
    layer: "layers.",
    in_layer: &[
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    outside: &[("embed_tokens", "token_embd"), ("norm", "output_norm")],
    ignored: &[],
    ..BERT
};

pub(crate) static ENCODERS: &[&EncoderFamily] =
    &[&BERT, &XLM_ROBERTA, &NOMIC_BERT, &MODERN_BERT, &GEMMA_EMBEDDING];

impl EncoderFamily {
    /// The rotations of layers, and the layers. Rotation 0 is that of layers that see everything. `sees`: whether a
    /// layer does.
    pub fn layers(
        &self,
        dims: usize,
        bases: [f32; 2],
        layers: usize,
        window: Option<usize>,
        sees: impl Fn(usize) -> bool,
    ) -> (Vec<RopeConfig>, Vec<Block>) {
        let rope = |base| RopeConfig { base, dims, scaling: RopeScaling::None };
        let window = window.filter(|_| self.windows.is_some());
        let block = |index| match window.filter(|_| !sees(index)) {
            None => Block::default(),
            // Half of it on each side.
            Some(window) => Block { window: Some(window / 2), rope: 1, ..Block::default() },
        };
        (bases.map(rope).to_vec(), (0..layers).map(block).collect())
    }

    /// The factor on embedding rows.
    pub fn embedding_scale(&self, hidden: usize) -> f32 {
        if self.scaled { (hidden as f32).sqrt() } else { 1.0 }
    }

    pub fn of_gguf(architecture: &str) -> Option<&'static Self> {
        ENCODERS.iter().copied().find(|family| family.gguf == architecture && !architecture.is_empty())
    }

    pub fn of_hf(model_type: &str) -> Option<&'static Self> {
        ENCODERS.iter().copied().find(|family| family.hf.contains(&model_type))
    }

    /// GGUF's name of a folder's tensor; `None` if it is not part of the model.
    pub fn canonical(&self, name: &str) -> Option<String> {
        let name = self.bare(name);
        let (part, kind) = name.rsplit_once('.')?;
        let kind = match kind {
            "gamma" => "weight",
            "beta" => "bias",
            kind => kind,
        };
        let of = |table: &[(&str, &str)], part: &str| {
            table.iter().find(|(own, _)| *own == part).map(|(_, gguf)| (*gguf).to_owned())
        };
        let gguf = match part.strip_prefix(self.layer).and_then(|rest| rest.split_once('.')) {
            Some((index, part)) if index.parse::<u32>().is_ok_and(|n| n.to_string() == index) => {
                format!("blk.{index}.{}", of(self.in_layer, part)?)
            }
            _ => of(self.outside, part)?,
        };
        Some(format!("{gguf}.{kind}"))
    }

    /// A name without the prefix that files of some classes have.
    fn bare<'a>(&self, name: &'a str) -> &'a str {
        self.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
    }

    pub fn ignores(&self, name: &str) -> bool {
        let name = self.bare(name);
        self.ignored.iter().any(|start| name.starts_with(start))
    }
}
