//! Reads arguments and variables. Errors are one line.
use super::{Adapters, ModelOptions, Options};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command, CommandFactory, Error, FromArgMatches};
use std::error::Error as _;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

const FAILURE: u8 = 1;
const WRONG: u8 = 2;

impl Options {
    /// The options of this process. Err: the process ends with this status, and everything was printed.
    pub fn of_process() -> Result<Self, ExitCode> {
        let options = match read(std::env::args_os().collect()) {
            Ok(options) => options,
            Err(error) if error.exit_code() == 0 => return Err(printed(error.print())),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "bn-server: {}", words(&error));
                return Err(ExitCode::from(WRONG));
            }
        };
        if options.version {
            return Err(printed(writeln!(std::io::stdout(), "bn-server {}", bn::version())));
        }
        if let Some(shell) = options.completions {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command(), "bn-server", &mut text);
            return Err(printed(std::io::stdout().write_all(&text)));
        }
        Ok(options)
    }

    /// The options of a command line, for tests.
    #[cfg(test)]
    pub fn of_arguments(arguments: &[&str]) -> Self {
        let all = std::iter::once("bn-server").chain(arguments.iter().copied());
        read(all.map(OsString::from).collect()).unwrap_or_else(|error| panic!("{}", words(&error)))
    }

    /// Treats empty texts as not set.
    fn tidy(&mut self) {
        let texts = [
            &mut self.model,
            &mut self.model_name,
            &mut self.models,
            &mut self.rerank_template,
            &mut self.cors,
            &mut self.otlp_endpoint,
            &mut self.each.draft_model,
            &mut self.each.drafter,
            &mut self.each.pictures,
            &mut self.each.prompt_cache,
        ];
        for text in texts {
            text.take_if(|text| text.is_empty());
        }
    }
}

/// The status once a text was printed.
fn printed(written: std::io::Result<()>) -> ExitCode {
    let written = written.and_then(|()| std::io::stdout().flush());
    ExitCode::from(if written.is_ok() { 0 } else { FAILURE })
}

pub(super) fn read(arguments: Vec<OsString>) -> Result<Options, Error> {
    let matches = command().try_get_matches_from(&arguments)?;
    let mut options = Options::from_arg_matches(&matches)?;
    options.arguments = arguments;
    options.tidy();
    Ok(options)
}

/// The command line, with the variables of options. An empty variable is not set, unless it is that of a key: an
/// administrator who sets that does not want an open server.
fn command() -> Command {
    Options::command().mut_args(|arg| {
        let Some(variable) = arg.get_long().filter(|long| !ALONE.contains(long)).map(variable) else {
            return arg;
        };
        let empty = std::env::var_os(&variable).is_some_and(|value| value.is_empty())
            && !variable.starts_with("BN_API_KEY");
        let arg = arg.hide_env_values(true);
        if empty { arg } else { arg.env(variable) }
    })
}

/// Options with which the program does not serve.
const ALONE: &[&str] = &["help", "version", "completions"];

fn variable(long: &str) -> String {
    format!("BN_{}", long.to_uppercase().replace('-', "_"))
}

pub(super) fn is_of_model(name: &str) -> bool {
    let command = ModelOptions::augment_args(Command::new(""));
    command.get_arguments().any(|arg| arg.get_long() == Some(name))
}

/// An error as one line.
pub(super) fn words(error: &Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let argument = text(ContextKind::InvalidArg);
    let name = argument.split([' ', '=']).next().unwrap_or_default();
    let value = text(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unknown option '{name}'; --help lists them"),
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            format!("{} {why}", origin(name, &value))
        }
        ErrorKind::InvalidValue if !value.is_empty() => format!("{name} must not be '{value}'"),
        ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            format!("{} needs a value", origin(name, ""))
        }
        _ => error.to_string().trim().replace('\n', " "),
    }
}

/// The name of the option, or of its variable if the value is from there.
fn origin(name: &str, value: &str) -> String {
    let variable = variable(name.trim_start_matches("--"));
    let given = std::env::args().any(|argument| argument.split('=').next() == Some(name));
    let is_variable = !given && std::env::var(&variable).is_ok_and(|set| set == value);
    if is_variable { variable } else { name.to_owned() }
}

/// Parses a number with bounds. It may have a unit: 8G is 8 GiB.
pub(super) fn number<T: TryFrom<u64> + Clone + Send + Sync + 'static>(
    low: u64,
    high: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = with_unit(text).filter(|value| (low..=high).contains(value));
        value.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
            let units = if high >> 20 > 0 { ", optionally followed by K, M, G or T" } else { "" };
            format!("must be a number from {low} to {high}{units}, not '{text}'")
        })
    }
}

fn with_unit(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let letter = unit.strip_suffix("iB").filter(|letter| !letter.is_empty()).unwrap_or(unit);
    let power = match letter.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << power)
}

pub(super) fn seconds(
    low: u64,
    high: u64,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    let read = number::<u64>(low, high);
    move |text| read(text).map(Duration::from_secs)
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("must be a number from 0 to 1, not '{text}'")),
    }
}

/// Parses one of several words. An empty word is not listed in messages.
pub(super) fn word<T: Clone + Send + Sync + 'static>(
    words: &'static [(&'static str, T)],
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let found = words.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| value.clone()).ok_or_else(|| {
            let names: Vec<_> = words.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
            let (last, others) = names.split_last().unwrap_or((&"", &[]));
            format!("must be {} or {last}, not '{text}'", others.join(", "))
        })
    }
}

/// Parses origins of pages, as browsers send them, or `*`.
pub(super) fn origins(text: &str) -> Result<String, String> {
    let is_origin = |item: &str| {
        let known = item.trim().split_once("://").filter(|(scheme, host)| {
            let usual = matches!(
                (*scheme, host.rsplit_once(':')),
                ("http", Some((_, "80"))) | ("https", Some((_, "443")))
            );
            let good = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
            !usual && !scheme.is_empty() && !host.is_empty() && host.chars().all(good)
        });
        item.trim() == "null" || known.is_some()
    };
    match text.is_empty() || text == "*" || text.split(',').all(is_origin) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("must be * or origins as https://a.example or http://b.example:8000, not '{text}'"))
        }
    }
}

/// Parses `cpu`, or `cuda:0` and so on. Whether a device exists is known only when it is opened.
pub(super) fn device(text: &str) -> Result<String, String> {
    let is_cuda = |item: &str| item.strip_prefix("cuda:").is_some_and(|number| number.parse::<u32>().is_ok());
    match text == "cpu" || text.split(',').all(is_cuda) {
        true => Ok(text.to_owned()),
        false => Err(format!("must be cpu, cuda:0, or cuda:0,cuda:1 and so on, not '{text}'")),
    }
}

/// Parses names and paths of adapters.
pub(super) fn adapters(text: &str) -> Result<Adapters, String> {
    let mut adapters = Adapters::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let parts = item.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty());
        let (name, path) = parts.ok_or_else(|| format!("must be NAME=PATH,..., not '{item}'"))?;
        if adapters.iter().any(|(known, _)| known == name) {
            return Err(format!("has '{name}' twice"));
        }
        adapters.push((name.to_owned(), path.into()));
    }
    Ok(adapters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let all = std::iter::once("bn-server").chain(arguments.iter().copied());
        read(all.map(OsString::from).collect()).map_err(|error| words(&error))
    }

    #[test]
    fn values_have_units_and_switches_may_stand_alone() {
        let options =
            parse(&["--strict", "--max-body=2MiB", "--kv-cache", "16m", "--mtp", "1", "--mtp", "0"]).unwrap();
        assert!(options.strict && !options.each.mtp);
        assert_eq!((options.max_body, options.each.kv_cache), (2 << 20, 16 << 20));
        assert_eq!(options.idle_timeout, Duration::from_secs(60));
        assert_eq!(parse(&["--model="]).unwrap().model, None);
    }

    #[test]
    fn errors_are_a_line() {
        for (arguments, expected) in [
            (&["--wrong", "1"][..], "unknown option '--wrong'; --help lists them"),
            (&["wrong"], "unknown option 'wrong'; --help lists them"),
            (&["--port"], "--port needs a value"),
            (&["--port", "x"], "--port must be a number from 0 to 65535, not 'x'"),
            (
                &["--max-body=1K", "--max-body=99999999T"],
                "--max-body must be a number from 1024 to 1073741824, optionally followed by K, M, G or T, not '99999999T'",
            ),
            (&["--kv-type", "int2"], "--kv-type must be f16, f32, int8 or int4, not 'int2'"),
            (&["--api-key="], "--api-key needs a value"),
            (&["--adapters", "a=x,b"], "--adapters must be NAME=PATH,..., not 'b'"),
            (&["--adapters", "a="], "--adapters must be NAME=PATH,..., not 'a='"),
            (&["--adapters", "=x"], "--adapters must be NAME=PATH,..., not '=x'"),
            (&["--adapters", "a=x,a=y"], "--adapters has 'a' twice"),
            (
                &["--fetch-images", "https://a.example"],
                "--fetch-images must be hosts as a.example,*.b.example or * for any, not 'https://a.example'",
            ),
            (&["--unseen-images", "x"], "--unseen-images must be refuse or leave-out, not 'x'"),
            (&["--picture-tokens", "0"], "--picture-tokens must be a number from 1 to 65536, not '0'"),
            (&["--device", "gpu"], "--device must be cpu, cuda:0, or cuda:0,cuda:1 and so on, not 'gpu'"),
            (&["--speculation", "yes"], "--speculation must be off, lookup or draft, not 'yes'"),
        ] {
            assert_eq!(parse(arguments).unwrap_err(), expected);
        }
    }

    #[test]
    fn origins_are_those_that_browsers_send() {
        for text in ["", "*", "https://a.example, http://[::1]:3000", "null", "tauri://localhost"] {
            assert_eq!(origins(text).as_deref(), Ok(text));
        }
        for text in [
            "a.example",
            "https://a.example/",
            "*,https://a.example",
            "https://a.example https://b.example",
            "https://*.example",
            "https://a.example:443",
            "https://",
            "https://a.example,",
        ] {
            assert!(origins(text).unwrap_err().ends_with(&format!("not '{text}'")));
        }
    }

    #[test]
    fn a_model_has_options_of_its_own() {
        let options = parse(&["--max-batch", "8", "--queue", "5"]).unwrap();
        let own = options.of_model(&["max-batch=4", "device=cuda:0"]).unwrap();
        assert_eq!((own.max_batch, own.queue, own.device.as_str()), (4, 5, "cuda:0"));
        for (item, words) in [
            ("port=1", "--models: 'port=1' is no option of a model, like max-batch=4"),
            ("queue", "--models: 'queue' is no option of a model, like max-batch=4"),
            ("max-batch=0", "--max-batch must be a number from 1 to 4096, not '0'"),
        ] {
            assert_eq!(options.of_model(&[item]).unwrap_err(), words);
        }
    }
}
