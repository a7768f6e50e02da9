//! The command line and the environment. Each option has a variable: `BN_MAX_BATCH` for `--max-batch`.
mod model;
mod read;

pub use model::{
    Adapters, ClosedSchemas, JsonWhitespace, ModelOptions, NO_PICTURES, UnseenImages, name_fields,
};

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use read::{number, origins, seconds, switch, word};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const GIB: u64 = 1 << 30;
const HALF: u64 = u64::MAX >> 1;
const END: &str = "Each option may be given as the environment variable beside it. SIGTERM and SIGINT finish what runs \
    and end the server; a second one cancels what runs, a third one ends it at once. SIGHUP opens the log file and \
    reads the keys and the certificate again. Exit status: 0, 1 for a failure, 2 for a wrong option, 3 for a model that cannot be loaded.";

/// Serves models over HTTP with the APIs of OpenAI, Anthropic and Ollama.
#[derive(Clone, Debug, Parser)]
#[command(name = "bn-server", args_override_self = true, after_help = END)]
pub struct Options {
    /// A GGUF file, a Hugging Face folder, hf:OWNER/NAME or builtin:echo (none: the demo)
    #[arg(long)]
    pub model: Option<String>,
    /// The name that clients see (the model's own)
    #[arg(long)]
    pub model_name: Option<String>,
    /// Several models: a folder, or a list NAME=PATH;max-batch=4;...,NAME=PATH,... (README.md)
    #[arg(long)]
    pub models: Option<String>,
    /// The most models loaded at a time; 0: no bound
    #[arg(long, default_value = "0", value_parser = number::<usize>(0, 4096))]
    pub max_loaded: usize,
    /// Bytes of all that are loaded; 0: what the machine has
    #[arg(long, default_value = "0", value_parser = number::<u64>(0, u64::MAX))]
    pub models_memory: u64,
    /// Seconds after which an idle model is let go; 0: it stays
    #[arg(long, default_value = "0", value_parser = seconds(0, 31_536_000))]
    pub idle_unload: Duration,
    /// 1: names that are not there are the model's too; 0: status 404
    #[arg(long, num_args = 0..=1, default_value = "0", default_missing_value = "1", value_parser = switch)]
    pub any_model: bool,
    /// Prompt of a {document} and a {query} to score (README.md)
    #[arg(long)]
    pub rerank_template: Option<String>,
    /// The options of models that do not set their own.
    #[command(flatten)]
    pub each: ModelOptions,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port; 0: any that is free
    #[arg(long, default_value = "8080", value_parser = number::<u16>(0, 65535))]
    pub port: u16,
    /// Origins of pages that may use the server: https://a.example,... or *
    #[arg(long, value_parser = origins)]
    pub cors: Option<String>,
    /// Key that clients must send; the variable keeps it from the process list
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub api_key: Option<String>,
    /// A file of such keys, one in a line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// A file of certificates in PEM, the server's own first: HTTPS in place of HTTP
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The file of its private key in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// 1: fields of requests that are not known are refused; 0: passed over
    #[arg(long, num_args = 0..=1, default_value = "0", default_missing_value = "1", value_parser = switch)]
    pub strict: bool,
    /// Hosts from which images at URLs are fetched: a.example,*.b.example or * for any (none: URLs are refused)
    #[arg(long, value_name = "HOSTS", value_parser = str::parse::<bn_hub::Hosts>)]
    pub fetch_images: Option<bn_hub::Hosts>,
    /// Bytes of responses kept for previous_response_id; 0: none are
    #[arg(long, default_value = "0", value_parser = number::<u64>(0, HALF))]
    pub keep_responses: u64,
    /// A folder where clients may save sessions (none: they may not)
    #[arg(long, value_name = "DIR")]
    pub session_path: Option<PathBuf>,
    /// Saved sessions at a time
    #[arg(long, default_value = "64", value_parser = number::<usize>(1, 1 << 16))]
    pub max_sessions: usize,
    /// Bytes of all saved sessions
    #[arg(long, default_value = "16G", value_parser = number::<u64>(1, HALF))]
    pub session_bytes: u64,
    /// Bytes of a request's body
    #[arg(long, default_value = "32M", value_parser = number::<usize>(1024, GIB))]
    pub max_body: usize,
    /// Bytes for a request's line and headers
    #[arg(long, default_value = "32K", value_parser = number::<usize>(4096, 1 << 20))]
    pub max_header: usize,
    /// Nesting of a body's JSON
    #[arg(long, default_value = "128", value_parser = number::<usize>(4, 512))]
    pub max_depth: usize,
    /// Values in a body's JSON, 140 bytes each
    #[arg(long, default_value = "256K", value_parser = number::<usize>(64, 1 << 28))]
    pub max_items: usize,
    /// Connections at a time
    #[arg(long, default_value = "1024", value_parser = number::<usize>(1, 65536))]
    pub max_connections: usize,
    /// Bytes of a stream that its client may leave unread
    #[arg(long, default_value = "1M", value_parser = number::<usize>(4096, GIB))]
    pub max_unread: usize,
    /// Bytes of all bodies, their values and answers
    #[arg(long, default_value = "256M", value_parser = number::<usize>(1 << 20, HALF))]
    pub max_memory: usize,
    /// Seconds for a whole request to arrive
    #[arg(long, default_value = "30", value_parser = seconds(1, 86400))]
    pub receive_timeout: Duration,
    /// Seconds without progress of a connection
    #[arg(long, default_value = "60", value_parser = seconds(1, 86400))]
    pub idle_timeout: Duration,
    /// Seconds that a shutdown finishes what runs
    #[arg(long, default_value = "60", value_parser = seconds(0, 86400))]
    pub drain_timeout: Duration,

    /// 1: a line of the log for each answer
    #[arg(long, num_args = 0..=1, default_value = "0", default_missing_value = "1", value_parser = switch)]
    pub access_log: bool,
    /// The log's file (stderr)
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// The log's lines: text or json
    #[arg(long, default_value = "text", value_parser = word(&[("text", LogFormat::Text), ("json", LogFormat::Json)]))]
    pub log_format: LogFormat,
    /// The least that is logged: error, warn, info, debug or trace
    #[arg(long, default_value = "info", value_parser = word(LEVELS))]
    pub log_level: tracing::Level,
    /// Send traces to the collector at http://HOST:PORT
    #[arg(long)]
    pub otlp_endpoint: Option<String>,

    /// Print completions of the command line for a shell: bash, zsh, fish, ...
    #[arg(long, value_name = "SHELL")]
    completions: Option<clap_complete::Shell>,
    /// Print the version
    #[arg(long)]
    version: bool,
    /// The arguments, to read those of one model after them.
    #[arg(skip)]
    arguments: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

const LEVELS: &[(&str, tracing::Level)] = &[
    ("error", tracing::Level::ERROR),
    ("warn", tracing::Level::WARN),
    ("info", tracing::Level::INFO),
    ("debug", tracing::Level::DEBUG),
    ("trace", tracing::Level::TRACE),
];
