//! Progress of downloads.
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::printable;

/// Time between two drawings.
const PERIOD: Duration = Duration::from_millis(100);
const LONGEST_NAME: usize = 32;
const MARKS: usize = 20;

/// Receives the progress of a download.
pub trait Progress {
    /// A line for people, such as "another process downloads it: waiting".
    fn note(&mut self, text: &str);
    /// A line that is shown while there is nothing else, such as "asking https://huggingface.co".
    fn wait(&mut self, _: &str) {}
    /// The download of a file of `size` bytes begins.
    fn begin(&mut self, file: &str, size: u64);
    /// `done` bytes of the file are there now, including those of earlier downloads. Called about ten times a second,
    /// even while nothing arrives.
    fn advance(&mut self, done: u64);
    /// The file is there, or its download ended.
    fn end(&mut self);
}

/// Ignores the progress.
impl Progress for () {
    fn note(&mut self, _: &str) {}
    fn begin(&mut self, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn end(&mut self) {}
}

/// A line on stderr, redrawn if that is a terminal; otherwise one line when a file begins. Notes are printed as
/// `PROGRAM: NOTE`.
pub struct Bar {
    program: String,
    terminal: bool,
    line: ProgressLine,
    drawn: bool,
}

impl Bar {
    pub fn new(program: &str) -> Self {
        let line = ProgressLine::new("", 0, Instant::now());
        Self { program: program.to_owned(), terminal: io::stderr().is_terminal(), line, drawn: false }
    }
}

impl Progress for Bar {
    fn note(&mut self, text: &str) {
        self.end();
        _ = writeln!(io::stderr(), "{}: {text}", self.program);
    }

    fn wait(&mut self, text: &str) {
        if self.terminal {
            self.note(text);
        }
    }

    fn begin(&mut self, file: &str, size: u64) {
        self.end();
        self.line = ProgressLine::new(file, size, Instant::now());
        if !self.terminal {
            self.note(&format!("downloading {} ({})", printable(file), bytes(size)));
        }
    }

    fn advance(&mut self, done: u64) {
        let Some(line) = self.line.due(done, Instant::now()).filter(|_| self.terminal) else { return };
        // Leave the last column free, since some terminals begin a new line there. Spaces cover the rest of a
        // longer line, because not every Windows console knows the sequence that clears a line.
        let width =
            terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| usize::from(width.0));
        let width = width.saturating_sub(1);
        let mut out = io::stderr().lock();
        _ = write!(out, "\r{line:<width$.width$}").and_then(|()| out.flush());
        self.drawn = true;
    }

    fn end(&mut self) {
        if self.drawn {
            _ = writeln!(io::stderr());
        }
        self.drawn = false;
    }
}

/// The line of a file, by itself. indicatif is not used for it: its bars come in bursts of more than ten in a second,
/// and take several lines on a narrow terminal.
struct ProgressLine {
    name: String,
    size: u64,
    began: Instant,
    /// Bytes of earlier downloads.
    first: Option<u64>,
    shown: Option<Instant>,
}

impl ProgressLine {
    fn new(file: &str, size: u64, began: Instant) -> Self {
        let name = file.rsplit('/').next().unwrap_or(file);
        let name = printable(name).chars().take(LONGEST_NAME).collect();
        Self { name, size, began, first: None, shown: None }
    }

    /// The line if it is time to draw it again.
    fn due(&mut self, done: u64, now: Instant) -> Option<String> {
        let first = *self.first.get_or_insert(done);
        if done < self.size && self.shown.is_some_and(|shown| now - shown < PERIOD) {
            return None;
        }
        self.shown = Some(now);
        let share = if self.size > 0 { (done as f64 / self.size as f64).min(1.0) } else { 1.0 };
        let rate = done.saturating_sub(first) as f64 / (now - self.began).as_secs_f64().max(0.001);
        let left = if rate > 0.0 { (self.size.saturating_sub(done) as f64 / rate) as u64 } else { 0 };
        let left = if left > 0 { format!(", {}:{:02} left", left / 60, left % 60) } else { String::new() };
        let marks = "#".repeat((share * MARKS as f64) as usize);
        Some(format!(
            "{} {:>3}% [{marks:.<MARKS$}] {} of {}, {}/s{left}",
            self.name,
            (share * 100.0) as u32,
            bytes(done),
            bytes(self.size),
            bytes(rate as u64)
        ))
    }
}

/// A number of bytes in readable form.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut units = ["bytes", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "bytes" { counted(count, "byte") } else { format!("{value:.1} {unit}") }
}

/// A number of things, of which `one` names a single one.
pub fn counted(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_drawn_ten_times_a_second_and_at_the_end() {
        let began = Instant::now();
        let mut line = ProgressLine::new("q/tiny\x1b[2J.gguf", 4 << 20, began);
        let drawn = |line: &mut ProgressLine, ms| line.due(ms << 10, began + Duration::from_millis(ms));
        assert_eq!((0..1000).filter(|&ms| drawn(&mut line, ms).is_some()).count(), 10);
        let expected = "tiny[2J.gguf  25% [#####...............] 1.0 MiB of 4.0 MiB, 1000.0 KiB/s, 0:03 left";
        assert_eq!(line.due(1 << 20, began + Duration::from_millis(1024)).unwrap(), expected);
        let expected = "tiny[2J.gguf 100% [####################] 4.0 MiB of 4.0 MiB, 3.9 MiB/s";
        assert_eq!(line.due(4 << 20, began + Duration::from_millis(1025)).unwrap(), expected);
    }

    #[test]
    fn the_rate_is_that_of_this_download() {
        let began = Instant::now();
        let mut line = ProgressLine::new("a", 3 << 20, began);
        assert!(line.due(1 << 20, began).unwrap().ends_with("1.0 MiB of 3.0 MiB, 0 bytes/s"));
        let later = line.due(2 << 20, began + Duration::from_secs(100)).unwrap();
        assert!(later.ends_with("2.0 MiB of 3.0 MiB, 10.2 KiB/s, 1:40 left"), "{later}");
        assert!(ProgressLine::new("a", 0, began).due(0, began).unwrap().starts_with("a 100% ["));
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "token")), ["0 tokens", "1 token", "2 tokens"]);
    }

    #[test]
    fn bytes_come_in_the_largest_unit_that_fits() {
        let shown = [0, 1023, 1024, 9000, 1 << 20, 3 << 30, u64::MAX].map(bytes);
        assert_eq!(
            shown,
            ["0 bytes", "1023 bytes", "1.0 KiB", "8.8 KiB", "1.0 MiB", "3.0 GiB", "16777216.0 TiB"]
        );
    }
}
