//! Opens the models and starts the engine.
use crate::failure::{Failure, Result, failed, words_of_library};
use crate::options::{Command, Options};
use crate::say::{complain, note};
use crate::settings::Sources;
use crate::stop::Stop;
use bn::{Engine, EngineOptions, ErrorKind, Log, Model, ModelInfo, ModelOptions};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

pub const PROGRAM: &str = "bn-chat";
/// Time between two changes of the bar, each of which draws it twice: ten times a second.
const CHANGE: Duration = Duration::from_millis(200);
/// The value of --pictures for a model that is to see none.
const NO_PICTURES: &str = "none";
/// Steps of the bar.
const WHOLE: f32 = 1000.0;

/// A model and its engine.
pub struct Opened {
    pub engine: Engine,
    pub model: Model,
    pub sources: Sources,
    /// Maximum number of tokens of a request.
    pub context: u64,
}

pub fn open(command: &Command, stop: &Stop) -> Result<Opened> {
    let options = &command.options;
    let (path, pictures, found) = match options.pictures.as_deref() {
        None => find_seeing(command.model.as_deref(), stop)?,
        Some(NO_PICTURES) => (find(command.model.as_deref(), stop)?, None, false),
        given => (find(command.model.as_deref(), stop)?, find(given, stop)?, false),
    };
    let draft_path = find(options.draft_model.as_deref(), stop)?;
    let drafter_path = find(options.drafter.as_deref(), stop)?;
    let open = |pictures_path: Option<PathBuf>| {
        let model = ModelOptions {
            path: path.clone(),
            mtp: options.mtp,
            drafter_path: drafter_path.clone(),
            pictures_path,
            skip_zeros: options.skip_zeros,
            ..ModelOptions::default()
        };
        open_model(model, options, stop)
    };
    let model = match open(pictures) {
        // Nobody asked for the part.
        Err(Failure::Said(line)) if found && line.contains("--pictures") => {
            complain(format_args!("images are not seen: {line}"));
            open(None)?
        }
        opened => opened?,
    };
    check(model.info(), options)?;
    let draft_model = match draft_path {
        None => None,
        path => Some(open_model(ModelOptions { path, ..ModelOptions::default() }, options, stop)?),
    };
    let defaults = EngineOptions::default();
    // A folder may have its part that sees in itself.
    let blind = options.pictures.as_deref() == Some(NO_PICTURES);
    let engine = Engine::new(EngineOptions {
        model: Some(model.clone()),
        draft_model,
        threads: options.threads.unwrap_or(defaults.threads),
        device: options.device.clone(),
        context_length: options.context.unwrap_or(defaults.context_length),
        picture_tokens: if blind { 0 } else { defaults.picture_tokens },
        max_batch_size: 2, // sessions may hold half of the KV cache: a whole context
        log: Some(log(None)),
        ..defaults
    })?;
    let context = engine.stats()?.context_length;
    let sources = Sources::new(options.settings.clone(), model.info());
    Ok(Opened { engine, model, sources, context })
}

/// A model's path, that of its part that sees, and whether there is one.
fn find_seeing(name: Option<&str>, stop: &Stop) -> Result<(Option<PathBuf>, Option<PathBuf>, bool)> {
    let Some(found) = look(name, stop, bn_hub::resolve_seeing)? else { return Ok((None, None, false)) };
    found.unclear.iter().for_each(note);
    let is_there = found.pictures.is_some();
    Ok((Some(found.path), found.pictures, is_there))
}

/// A model with a name on Hugging Face's hub becomes a path.
fn find(name: Option<&str>, stop: &Stop) -> Result<Option<PathBuf>> {
    look(name, stop, bn_hub::resolve)
}

/// A look for a model by its name.
type Look<T> = fn(
    &str,
    &bn_hub::Settings,
    &mut dyn bn_hub::Progress,
    &AtomicBool,
) -> std::result::Result<T, bn_hub::Error>;

fn look<T>(name: Option<&str>, stop: &Stop, look: Look<T>) -> Result<Option<T>> {
    let Some(name) = name else { return Ok(None) };
    let settings = bn_hub::Settings::from_env();
    let mut bar = bn_hub::Bar::new(PROGRAM);
    look(name, &settings, &mut bar, stop.flag()).map(Some).map_err(|error| match error.is_stopped() {
        true => {
            complain(error);
            Failure::Interrupted
        }
        false => Failure::Said(error.to_string()),
    })
}

fn open_model(model: ModelOptions, options: &Options, stop: &Stop) -> Result<Model> {
    let path = model.path.clone();
    let bar = bar();
    let (shown, stop, mut next) = (bar.clone(), stop.clone(), Instant::now());
    let result = Model::open_with(ModelOptions {
        threads: options.threads.unwrap_or(model.threads),
        log: Some(log(Some(bar.clone()))),
        progress: Some(Box::new(move |fraction, what| {
            if next <= Instant::now() {
                next = Instant::now() + CHANGE;
                shown.set_message(bn_hub::printable(what).into_owned());
                shown.set_position((fraction * WHOLE) as u64);
            }
            if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })),
        ..model
    });
    bar.finish_and_clear();
    result.map_err(|error| match (error.kind(), path) {
        (ErrorKind::Cancelled, _) => Failure::Interrupted,
        (ErrorKind::Io, Some(path)) if looks_like_name(&path) => Failure::Said(format!(
            "{}\nA model on Hugging Face's hub: {PROGRAM} hf:{}",
            words_of_library(error.message()),
            bn_hub::printable(&path.to_string_lossy())
        )),
        _ => error.into(),
    })
}

/// Nothing is drawn if standard error is no terminal.
fn bar() -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let style = ProgressStyle::with_template("loading: {percent:>3}% [{bar:20}] {wide_msg}");
    let style = style.expect("the template is sound").progress_chars("#.");
    ProgressBar::with_draw_target(Some(WHOLE as u64), target).with_style(style)
}

/// Tells the user of warnings, above a bar that is drawn.
fn log(bar: Option<ProgressBar>) -> Log {
    Arc::new(move |_, message| match &bar {
        Some(bar) => bar.suspend(|| complain(words_of_library(message))),
        None => complain(words_of_library(message)),
    })
}

/// Whether a text looks like OWNER/NAME and is not a path on this machine.
fn looks_like_name(path: &Path) -> bool {
    let Some((owner, name)) = path.to_str().and_then(|path| path.split_once('/')) else { return false };
    let one = !owner.is_empty() && !name.is_empty() && !name.contains('/');
    one && !owner.starts_with(['.', '~']) && !path.exists()
}

/// Checks that the model supports the options.
fn check(info: &ModelInfo, options: &Options) -> Result<()> {
    if info.encodes {
        let makes = if info.scores_pairs { "scores pairs of texts" } else { "makes embeddings" };
        return failed(format!("the model {makes}: it does not chat"));
    }
    if !info.has_tokenizer {
        return failed("the model has no tokenizer that is supported: it cannot chat");
    }
    if options.system.is_some() && !info.has_chat_template {
        return failed("--system: this model has no chat template, so no system prompt");
    }
    Ok(())
}

/// Describes the model to a person.
pub fn introduce(opened: &Opened) {
    let info = opened.model.info();
    let name = if info.name.is_empty() { &info.architecture } else { &info.name };
    note(format_args!(
        "{}: {:.1} million parameters, context of {} tokens. /help lists commands.",
        bn_hub::printable(name),
        info.parameters as f64 / 1e6,
        opened.context
    ));
}

/// Warns of the model's limits in a chat.
pub fn warn(opened: &Opened, given: bool) {
    if !given {
        note(
            "No model was given: this is the small one inside the library. It adds (17+25=), finds a name in a\n\
             list (Ages: Ada 42, Tom 17, Mia 88. Tom?) and tells stories (Once upon a time). To chat: bn-chat MODEL,\n\
             with a GGUF file, a Hugging Face folder, or hf:OWNER/NAME for one that is downloaded from there.",
        );
    }
    if !opened.model.info().has_chat_template {
        note(
            "The model has no chat template: each line is completed as plain text, and earlier ones are not seen.",
        );
    }
}
