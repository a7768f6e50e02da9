//! Options of a model. With `--models` each may have its own.
use super::read::{self, number, seconds, switch, word};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Names and paths of adapters.
pub type Adapters = Vec<(String, PathBuf)>;

/// The value of `--pictures` for a model that is to see none.
pub const NO_PICTURES: &str = "none";

#[derive(Args, Clone, Debug)]
pub struct ModelOptions {
    /// LoRA adapters, NAME=PATH,...: clients ask for them as models
    #[arg(long, default_value = "", hide_default_value = true, value_parser = read::adapters)]
    pub adapters: Adapters,
    /// A small model with the same vocabulary, which drafts tokens for the model
    #[arg(long)]
    pub draft_model: Option<String>,
    /// 1: the model's own block of multi-token prediction drafts tokens
    #[arg(long, num_args = 0..=1, default_value = "0", default_missing_value = "1", value_parser = switch)]
    pub mtp: bool,
    /// A GGUF file of a drafter alone, which drafts tokens from the model's hidden states
    #[arg(long)]
    pub drafter: Option<String>,
    /// A GGUF file of the part that sees images (the mmproj-*.gguf beside the model's file); none: no part
    #[arg(long, value_name = "FILE")]
    pub pictures: Option<String>,
    /// Tokens of the context that an image takes at most, for which memory is set aside
    #[arg(long, default_value = "4096", value_parser = number::<u32>(1, 65536))]
    pub picture_tokens: u32,
    /// Images for a model that sees none: refuse (in a new turn) or leave-out (words stand for them)
    #[arg(long, default_value = "refuse", value_parser = word(UNSEEN_IMAGES))]
    pub unseen_images: UnseenImages,
    /// 1: BitNet b1.58 2B-4T reads no weights that meet zeros; takes more memory
    #[arg(long, num_args = 0..=1, default_value = "0", default_missing_value = "1", value_parser = switch)]
    pub skip_zeros: bool,
    /// Who drafts: off, lookup or draft (draft with --draft-model, --drafter or --mtp, else lookup)
    #[arg(long, default_value = "", hide_default_value = true, value_parser = word(SPECULATIONS))]
    pub speculation: bn::Speculation,
    /// Between JSON's tokens in answers with a schema: compact, tight or flexible
    #[arg(long, default_value = "tight", value_parser = word(WHITESPACES))]
    pub json_whitespace: JsonWhitespace,
    /// Schemas whose objects have only declared keys, unless they say otherwise: all, tools (of calls) or none
    #[arg(long, default_value = "all", value_parser = word(CLOSED_SCHEMAS))]
    pub closed_schemas: ClosedSchemas,
    /// Tokens of reasoning in a chat's answer that does not say
    #[arg(long, value_parser = number::<u64>(0, u64::MAX))]
    pub reasoning_budget: Option<u64>,
    /// Where it computes: cpu, cuda:0, or cuda:0,cuda:1 and so on
    #[arg(long, default_value = "cpu", value_parser = read::device)]
    pub device: String,
    /// Compute threads; 0: one for each CPU
    #[arg(long, default_value = "0", value_parser = number::<u32>(0, 256))]
    pub threads: u32,
    /// Requests in one forward pass
    #[arg(long, default_value = "32", value_parser = number::<u32>(1, 4096))]
    pub max_batch: u32,
    /// Tokens in one forward pass, which holds an encoder's whole text; 0: 512, for an encoder its longest text
    #[arg(long, default_value = "0", value_parser = number::<u32>(0, 65536))]
    pub max_batch_tokens: u32,
    /// Unreleased requests; more get status 429
    #[arg(long, default_value = "1024", value_parser = number::<u32>(1, 1 << 20))]
    pub queue: u32,
    /// Prompt tokens in the queue; 0: no bound
    #[arg(long, default_value = "0", value_parser = number::<u64>(0, u64::MAX))]
    pub queue_tokens: u64,
    /// Bytes for the engine; 0: no limit
    #[arg(long, default_value = "0", value_parser = number::<u64>(0, u64::MAX))]
    pub memory_limit: u64,
    /// Bytes for the KV cache; 0: what fits
    #[arg(long, default_value = "0", value_parser = number::<u64>(0, u64::MAX))]
    pub kv_cache: u64,
    /// A folder that keeps prompts over restarts, for requests that begin with one
    #[arg(long)]
    pub prompt_cache: Option<String>,
    /// Bytes of files there, for each model
    #[arg(long, default_value = "10G", value_parser = number::<u64>(1, u64::MAX))]
    pub prompt_cache_bytes: u64,
    /// Bytes of memory for prompts that leave a device; 0: none
    #[arg(long, default_value = "0", value_parser = number::<u64>(0, u64::MAX))]
    pub prompt_cache_memory: u64,
    /// The type of keys and values: f16, f32, int8 or int4
    #[arg(long, default_value = "f16", value_parser = word(KV_TYPES))]
    pub kv_type: bn::KvType,
    /// States kept of models with recurrent layers; 0: as many as run
    #[arg(long, default_value = "0", value_parser = number::<u32>(0, 65536))]
    pub snapshots: u32,
    /// Prompt tokens between two of them; 0: few
    #[arg(long, default_value = "512", value_parser = number::<u32>(0, 1 << 24))]
    pub snapshot_interval: u32,
    /// Bytes of the memory limit, kept for adapters
    #[arg(long, default_value = "0", value_parser = number::<u64>(0, u64::MAX))]
    pub adapter_bytes: u64,
    /// Tokens of a request; 0: the model's context
    #[arg(long, alias = "max-sequence", default_value = "0", value_parser = number::<u32>(0, u64::from(u32::MAX)))]
    pub context: u32,
    /// Milliseconds between two tokens; 0: throughput
    #[arg(long, default_value = "0", value_parser = number::<u32>(0, 60000))]
    pub target_itl: u32,
    /// Milliseconds of a request; 0: none
    #[arg(long, default_value = "0", value_parser = number::<u32>(0, u64::from(u32::MAX) - 1))]
    pub timeout: u32,
    /// Seconds after which an idle model's mapped weights leave memory; 0: they stay
    #[arg(long, default_value = "0", value_parser = seconds(0, 604_800))]
    pub idle_release: Duration,
}

impl super::Options {
    /// The options of a model with `items` of its own, each like `max-batch=4`.
    pub fn of_model(&self, items: &[&str]) -> Result<ModelOptions, String> {
        let mut arguments = self.arguments.clone();
        for item in items {
            let name = item.split_once('=').map(|(name, _)| name).filter(|name| read::is_of_model(name));
            if name.is_none() {
                return Err(format!("--models: '{item}' is no option of a model, like max-batch=4"));
            }
            arguments.push(format!("--{item}").into());
        }
        let each = read::read(arguments).map_err(|error| read::words(&error))?.each;
        each.check().map(|()| each)
    }
}

impl ModelOptions {
    /// Err: what is missing.
    pub fn check(&self) -> Result<(), String> {
        let drafts = self.draft_model.is_some() || self.drafter.is_some() || self.mtp;
        match self.speculation == bn::Speculation::Draft && !drafts {
            true => Err("--speculation draft needs --draft-model, --drafter or --mtp".to_owned()),
            false => Ok(()),
        }
    }

    /// Whether the model may see images, if it can.
    pub fn may_see(&self) -> bool {
        self.pictures.as_deref() != Some(NO_PICTURES)
    }
}

/// White space between JSON's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonWhitespace {
    Compact,
    Tight,
    Flexible,
}

const WHITESPACES: &[(&str, JsonWhitespace)] = &[
    ("compact", JsonWhitespace::Compact),
    ("tight", JsonWhitespace::Tight),
    ("flexible", JsonWhitespace::Flexible),
];

impl TryFrom<String> for JsonWhitespace {
    type Error = &'static str;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        let found = WHITESPACES.iter().find(|(name, _)| *name == word);
        found.map(|(_, value)| *value).ok_or("must be 'compact', 'tight' or 'flexible'")
    }
}

/// Schemas whose objects have no keys but the declared ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedSchemas {
    All,
    Tools,
    None,
}

const CLOSED_SCHEMAS: &[(&str, ClosedSchemas)] =
    &[("tools", ClosedSchemas::Tools), ("all", ClosedSchemas::All), ("none", ClosedSchemas::None)];

impl TryFrom<String> for ClosedSchemas {
    type Error = &'static str;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        let found = CLOSED_SCHEMAS.iter().find(|(name, _)| *name == word);
        found.map(|(_, value)| *value).ok_or("must be 'tools', 'all' or 'none'")
    }
}

/// What becomes of images that the model does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnseenImages {
    Refuse,
    LeaveOut,
}

const UNSEEN_IMAGES: &[(&str, UnseenImages)] =
    &[("refuse", UnseenImages::Refuse), ("leave-out", UnseenImages::LeaveOut)];

const SPECULATIONS: &[(&str, bn::Speculation)] = &[
    ("", bn::Speculation::Default),
    ("off", bn::Speculation::Off),
    ("lookup", bn::Speculation::Lookup),
    ("draft", bn::Speculation::Draft),
];

const KV_TYPES: &[(&str, bn::KvType)] = &[
    ("f16", bn::KvType::F16),
    ("f32", bn::KvType::F32),
    ("int8", bn::KvType::Int8),
    ("int4", bn::KvType::Int4),
];

/// The message with the names of options in place of the engine's names of their fields.
pub fn name_fields(message: &str) -> String {
    const NAMES: &[(&str, &str)] = &[
        ("context_length", "--context"),
        ("memory_limit_bytes", "--memory-limit"),
        ("kv_cache_bytes", "--kv-cache"),
        ("kv_type", "--kv-type"),
        ("cache_path", "--prompt-cache"),
        ("host_cache_bytes", "--prompt-cache-memory"),
        ("max_batch_size", "--max-batch"),
        ("max_batch_tokens", "--max-batch-tokens"),
        ("queue_capacity", "--queue"),
        ("queue_token_capacity", "--queue-tokens"),
        ("adapter_bytes", "--adapter-bytes"),
        ("snapshot_interval", "--snapshot-interval"),
        ("target_itl_ms", "--target-itl"),
        ("default_timeout_ms", "--timeout"),
        ("draft_model", "--draft-model"),
        ("drafter_path", "--drafter"),
        ("mtp", "--mtp"),
        ("pictures_path", "--pictures"),
        ("picture_tokens", "--picture-tokens"),
        // Fields of requests.
        ("BN_SPECULATION_DRAFT", "draft"),
        ("BN_REQUEST_NO_CACHE", "no_cache"),
        ("BN_REQUEST_DROP_LATE", "drop_late"),
        ("BN_REQUEST_IGNORE_EOS", "ignore_eos"),
        ("BN_REQUEST_ECHO_PROMPT", "echo"),
        ("BN_REQUEST_LOGPROBS", "logprobs"),
        ("BN_REQUEST_PROMPT_LOGPROBS", "prompt_logprobs"),
        ("max_new_tokens", "max_tokens"),
        ("min_new_tokens", "min_tokens"),
        ("constraint", "a format or grammar"),
        ("chat.json", "the conversation"),
    ];
    bn_hub::fields_as_options(message, NAMES)
}
