//! The log: lines for people, or JSON for programs, on stderr or in a file.
use crate::options::{LogFormat, Options};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::{Event, Level, Subscriber, field};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Where lines go. None: to stderr.
#[derive(Clone)]
pub struct Log(Option<Arc<LogFile>>);

struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl Log {
    /// Begins to log for the whole process.
    pub fn start(options: &Options) -> io::Result<Self> {
        let file = options.log_file.as_ref().map(|path| {
            let file = Mutex::new(open(path)?);
            Ok::<_, io::Error>(Arc::new(LogFile { path: path.clone(), file }))
        });
        let log = Self(file.transpose()?);
        let builder = tracing_subscriber::fmt().with_max_level(options.log_level).with_writer(log.clone());
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

    /// Opens the file again, which may have been moved away.
    pub fn reopen(&self) -> io::Result<()> {
        let Some(log) = &self.0 else { return Ok(()) };
        let file = open(&log.path)?;
        *log.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

/// The libraries under the server tell warnings alone, unless all is wanted.
fn own(level: Level) -> Targets {
    let others = if level == Level::TRACE { level } else { level.min(Level::WARN) };
    Targets::new().with_default(others).with_target("bn_server", level).with_target("access", level)
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        Lines(self.0.as_deref())
    }
}

/// Writes whole lines.
pub struct Lines<'a>(Option<&'a LogFile>);

impl Write for Lines<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.0 {
            Some(log) => log.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line)?,
            None => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
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
        event.record(&mut Fields(&mut line));
        // Texts of others must not do more than print.
        writeln!(out, "{}", bn_hub::printable(&line))
    }
}

struct Fields<'a>(&'a mut String);

impl field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.0.push(' ');
        if field.name() != "message" {
            self.0.push_str(field.name());
            self.0.push('=');
        }
        self.0.push_str(&text);
    }

    fn record_str(&mut self, field: &field::Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
