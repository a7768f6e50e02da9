//! The log: lines for people, or JSON for programs, on stderr or in a file.
use crate::options::{LogFormat, Options};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The log file. None: stderr.
pub struct Log(Option<LogFile>);

#[derive(Clone)]
struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<Arc<File>>>,
}

impl Log {
    /// Starts logging for the whole process.
    pub fn start(options: &Options) -> io::Result<Self> {
        let log = Self(options.log_file.clone().map(LogFile::open).transpose()?);
        let writer = match log.0.clone() {
            None => BoxMakeWriter::new(io::stderr),
            Some(log) => BoxMakeWriter::new(move || log.lock().clone()),
        };
        let builder = tracing_subscriber::fmt()
            .with_max_level(options.log_level)
            .with_writer(writer)
            .log_internal_errors(false); // a line that cannot be written is lost, and cannot be reported
        match options.log_format {
            LogFormat::Json => {
                builder.json().flatten_event(true).finish().with(own(options.log_level)).init()
            }
            LogFormat::Text => {
                let text = Text { time: log.0.is_some() };
                builder.event_format(text).finish().with(own(options.log_level)).init();
            }
        }
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        Ok(log)
    }

    /// Reopens the file, which may have been moved away.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(log) = &self.0 {
            let file = open(&log.path)?;
            *log.lock() = file;
        }
        Ok(())
    }
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = Arc::new(Mutex::new(open(&path)?));
        Ok(Self { path, file })
    }

    fn lock(&self) -> MutexGuard<'_, Arc<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Libraries log only warnings, unless everything is wanted.
fn own(level: Level) -> Targets {
    let others = if level == Level::TRACE { level } else { level.min(Level::WARN) };
    Targets::new().with_default(others).with_target("bn_server", level).with_target("access", level)
}

fn open(path: &PathBuf) -> io::Result<Arc<File>> {
    OpenOptions::new().create(true).append(true).open(path).map(Arc::new)
}

/// `bn-server: message name=value`, and in a file the time in front.
struct Text {
    time: bool,
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.time {
            SystemTime.format_time(&mut out)?;
            out.write_char(' ')?;
        }
        out.write_str("bn-server:")?;
        match *event.metadata().level() {
            Level::ERROR => out.write_str(" error:")?,
            Level::WARN => out.write_str(" warning:")?,
            _ => {}
        }
        let mut line = String::new();
        context.format_fields(Writer::new(&mut line), event)?;
        // Escape untrusted texts.
        writeln!(out, " {}", bn_hub::printable(&line))
    }
}
