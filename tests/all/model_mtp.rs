//! Blocks of multi-token prediction: their drafts against a reference of transformers' layers, the hidden states that they continue from, and
//! files with wrong ones.

use crate::common::gguf::{File, HIDDEN, qwen35, qwen35moe};
use crate::common::{Running, alone, bits, floats, json, load_source, numbers, relative_error, root};
use crate::model_bad_files::refused;
use bn_engine::base::{Bytes, Error, Status};
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Outputs, Source};
use bn_engine::ops::{Accepted, Memory, RaggedBatch, StateRows};

const BLOCKS: [u32; 8] = [5, 2, 7, 0, 3, 6, 1, 4];

fn load(source: &Source) -> Result<Running, Error> {
    load_source(source, &LoadOptions { mtp: true, ..LoadOptions::default() }, 1)
}

fn golden(name: &str) -> Running {
    load(&Source::File(root().join("tests/golden/mtp").join(name).to_string_lossy().into_owned())).unwrap()
}

/// A model without a block, and the block in a file of its own.
fn beside(model: &str, block: &str) -> Running {
    let path = |path: String| root().join("tests/golden").join(path).to_string_lossy().into_owned();
    let options = LoadOptions { drafter: Some(path(format!("mtp/{block}.gguf"))), ..LoadOptions::default() };
    load_source(&Source::File(path(format!("models/{model}"))), &options, 1).unwrap()
}

/// One sequence in a model's memory.
pub struct Chat<'a> {
    model: &'a Running,
    pub memory: Box<dyn Memory>,
    out: Outputs,
    drafts: Outputs,
    pub done: u32,
}

pub const SLOT: u32 = 1;

impl<'a> Chat<'a> {
    pub fn new(model: &'a Running) -> Self {
        let memory = model.memory(KvType::F32, BLOCKS.len(), 16, 1);
        Self { model, memory, out: Outputs::default(), drafts: Outputs::default(), done: 0 }
    }

    fn batch(&self, tokens: &[u32], start: u32) -> RaggedBatch {
        let mut batch = RaggedBatch::default();
        batch.reserve(tokens.len(), 1, tokens.len()).unwrap();
        let row = batch.push_seq(&BLOCKS, start, tokens.len() as u32).unwrap();
        batch.tokens.extend(tokens);
        batch.logits_rows.push(row + tokens.len() as u32 - 1);
        batch
    }

    /// Runs tokens, of which the last `drafted` are drafts. Each save is a number of rows and a slot.
    pub fn run(&mut self, tokens: &[u32], drafted: u32, saves: &[(u32, u32)]) {
        let mut batch = self.batch(tokens, self.done);
        batch.saves.extend(saves);
        batch.states.push(StateRows { slot: SLOT, drafted, saves: (0, saves.len() as u32) });
        self.model.forward(&batch, &mut *self.memory, &mut self.out).unwrap();
        self.done += tokens.len() as u32 - drafted;
    }

    pub fn hidden(&self, slot: u32) -> Vec<f32> {
        let mut hidden = Vec::new();
        self.memory.read_hidden(slot, &mut hidden).unwrap();
        hidden
    }

    /// The logits of the token after `token`, which stands after those that ran and `ahead` drafts.
    pub fn draft(&mut self, token: u32, ahead: u32) -> Vec<f32> {
        let before = if ahead == 0 { self.hidden(SLOT) } else { self.drafts.hidden.clone() };
        let mut batch = self.batch(&[token], self.done + ahead);
        batch.hidden_rows = vec![0];
        self.model
            .model
            .draft(&*self.model.ops, &batch, &before, &mut *self.memory, &mut self.drafts)
            .unwrap();
        self.drafts.logits.clone()
    }
}

#[test]
fn drafts_are_those_of_the_reference() {
    for name in ["qwen35", "qwen35moe"] {
        let folder = root().join("tests/golden/mtp").join(name);
        let case = json(&folder.join("drafts.json"));
        let (tokens, drafts) = (numbers(&case["tokens"]), numbers(&case["drafts"]));
        let want = floats(&folder.join("drafts.f32"));
        let vocab = want.len() / (tokens.len() - 1 + drafts.len());
        let gguf = format!("{name}.gguf");
        let models =
            [("a folder", golden(name)), ("two", beside(name, name)), ("two files", beside(&gguf, name))];
        for (kind, model) in models {
            for chunk in [1, 7, 17, 39] {
                let (mut chat, mut seen) = (Chat::new(&model), 0.0f64);
                while (chat.done as usize) + 1 < tokens.len() {
                    let from = chat.done as usize;
                    let to = (from + chunk).min(tokens.len() - 1);
                    chat.run(&tokens[from..to], 0, &[]);
                    let row = &want[(to - 1) * vocab..to * vocab];
                    seen = seen.max(relative_error(&chat.draft(tokens[to], 0), row));
                }
                let last = tokens.len() - 1;
                for (ahead, token) in drafts.iter().enumerate() {
                    let row = &want[(last + ahead) * vocab..(last + ahead + 1) * vocab];
                    seen = seen.max(relative_error(&chat.draft(*token, ahead as u32 + 1), row));
                }
                println!("{name} in {kind}, chunks of {chunk}: {seen:.1e}");
                assert!(seen < 1e-5, "{name} in {kind}, chunks of {chunk}: {seen:.1e}");
            }
        }
    }
}

/// A folder without the block takes the file of a block that llama.cpp's converter has written.
#[test]
fn a_folder_drafts_the_same_with_its_block_in_a_file() {
    for name in ["qwen35", "qwen35moe"] {
        let [one, two] = [golden(name), beside(name, name)].map(|model| {
            let mut chat = Chat::new(&model);
            chat.run(&[5, 17, 40, 3, 60, 21], 0, &[]);
            bits(&(0..4).map(|ahead| chat.draft(9 + ahead, ahead)).collect::<Vec<_>>())
        });
        assert!(one == two, "{name}");
    }
}

/// The model's own results are those without the block.
#[test]
fn a_block_changes_no_bit_of_the_model() {
    let path = root().join("tests/golden/mtp/qwen35").to_string_lossy().into_owned();
    let without = load_source(&Source::File(path), &LoadOptions::default(), 1).unwrap();
    let tokens = vec![(0..40).map(|n| n * 7 % 64).collect::<Vec<u32>>()];
    assert!(bits(&alone(&golden("qwen35"), &tokens, 16)) == bits(&alone(&without, &tokens, 16)));
    assert!(!without.model.drafts() && golden("qwen35").model.drafts());
}

/// A picture's vectors stand in the place of its tokens' embeddings in the block, too.
#[test]
fn a_block_sees_vectors_that_are_given() {
    let model = golden("qwen35");
    let width = model.model.facts().hidden_size;
    let tokens: Vec<u32> = (0..30).map(|n| n * 11 % 64).collect();
    let vectors: Vec<f32> = (0..5 * width).map(|n| (n * 37 % 101) as f32 / 50.0 - 1.0).collect();
    // Tokens of rows with vectors do not count.
    let draft = |token: u32, scale: f32| {
        let mut chat = Chat::new(&model);
        let mut batch = chat.batch(&tokens, 0);
        batch.vector_rows = vec![7, 8, 9, 28, 29];
        batch.vectors = vectors.iter().map(|x| x * scale).collect();
        batch.vector_rows.iter().for_each(|row| batch.tokens[*row as usize] = token);
        batch.states.push(StateRows { slot: SLOT, drafted: 0, saves: (0, 0) });
        model.forward(&batch, &mut *chat.memory, &mut chat.out).unwrap();
        chat.done = 30;
        chat.draft(5, 0)
    };
    assert!(draft(60, 1.0) == draft(3, 1.0));
    assert!(draft(60, 1.0) != draft(60, 2.0));
}

#[test]
fn hidden_states_follow_what_is_certain() {
    let model = golden("qwen35");
    let tokens: Vec<u32> = (0..30).map(|n| n * 11 % 64).collect();
    let after = |count: usize| {
        let mut chat = Chat::new(&model);
        chat.run(&tokens[..count], 0, &[]);
        chat.hidden(SLOT)
    };
    let mut chat = Chat::new(&model);
    chat.run(&tokens[..20], 0, &[(1, 2), (16, 3)]);
    assert!(chat.hidden(2) == after(1) && chat.hidden(3) == after(16) && chat.hidden(SLOT) == after(20));
    // Two of five drafts are accepted.
    chat.run(&tokens[20..26], 5, &[]);
    assert!(chat.hidden(SLOT) == after(21));
    let accept = |rows, first| [Accepted { slot: SLOT, first, rows }];
    let advance = |chat: &mut Chat, accepted: &[Accepted]| {
        model.model.advance(&*model.ops, &mut *chat.memory, accepted)
    };
    advance(&mut chat, &accept(2, 0)).unwrap();
    assert!(chat.hidden(SLOT) == after(23));
    let mut same = Chat::new(&model);
    same.run(&tokens[..23], 0, &[]);
    chat.done = 23;
    assert!(chat.draft(5, 0) == same.draft(5, 0));
    assert!(advance(&mut chat, &accept(1, u32::MAX - 1)).is_err());
}

/// Opens a file with its block.
pub fn open(file: File) -> Result<Running, Error> {
    load(&Source::Memory { bytes: Bytes::new(file.bytes()), what: "test file".into() })
}

/// A file with a block after its two layers.
pub fn with_block(file: File, name: &str) -> File {
    let own = |part: &str| format!("blk.2.{part}.weight");
    let mut file = file
        .u32(&format!("{name}.block_count"), 3)
        .u32(&format!("{name}.nextn_predict_layers"), 1)
        .random(&own("nextn.eh_proj"), &[2 * HIDDEN, HIDDEN], 201)
        .random(&own("nextn.enorm"), &[HIDDEN], 202)
        .random(&own("nextn.hnorm"), &[HIDDEN], 203);
    // The block has attention, like the second layer.
    let layer: Vec<_> =
        file.tensors.iter().filter(|tensor| tensor.name.starts_with("blk.1.")).cloned().collect();
    file.tensors.extend(layer.into_iter().map(|mut tensor| {
        tensor.name = tensor.name.replacen("blk.1.", "blk.2.", 1);
        tensor
    }));
    file
}

#[test]
fn files_with_blocks_that_are_not_understood_are_refused() {
    for (file, name) in [(qwen35 as fn() -> File, "qwen35"), (qwen35moe, "qwen35moe")] {
        let whole = with_block(file(), name);
        let model = open(whole.clone()).unwrap();
        let mut chat = Chat::new(&model);
        chat.run(&[1, 2, 3], 0, &[]);
        assert!(chat.draft(4, 0).iter().all(|x| x.is_finite()));
        assert_eq!(model.model.kv_shape().layers, 2);
        let unsupported = |file: File, words: &[&str]| refused(open(file), Status::Unsupported, words);
        let bad = |file: File, words: &[&str]| refused(open(file), Status::BadModel, words);
        unsupported(file(), &["mtp is set", "no block", "drafter_path"]);
        unsupported(whole.clone().without("blk.2.nextn.eh_proj.weight"), &["mtp is set", "no block"]);
        bad(whole.clone().without("blk.2.nextn.enorm.weight"), &["'blk.2.nextn.enorm.weight'"]);
        bad(whole.clone().without("blk.2.attn_k.weight"), &["'blk.2.attn_k.weight'"]);
        let strange = "blk.2.nextn.other.weight";
        unsupported(whole.clone().random(strange, &[HIDDEN, 40], 1), &[strange, "no part"]);
        let narrow = whole.clone().without("blk.2.nextn.hnorm.weight");
        bad(narrow.random("blk.2.nextn.hnorm.weight", &[HIDDEN - 1], 1), &["hnorm"]);
        let two = whole.u32(&format!("{name}.nextn_predict_layers"), 2);
        unsupported(two.u32(&format!("{name}.block_count"), 4), &["2 blocks"]);
    }
    let echo = load(&Source::parse(Some("builtin:echo")).unwrap());
    refused(echo, Status::Unsupported, &["mtp is set", "builtin:echo"]);
}
