//! Standard input without an editor: lines from a pipe, or from a terminal that edits them itself.
use crate::failure::{Halt, Result, failed, words_of_system};
use crate::stop::Stop;
use std::io::{self, BufRead, Read, stdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// Interval at which a SIGINT is checked for during a wait.
const SOON: Duration = Duration::from_millis(50);

type Bytes = io::Result<Vec<u8>>;

/// A thread of its own reads the input, because a blocking read cannot be interrupted.
pub struct Plain(Receiver<Bytes>);

impl Plain {
    pub fn start() -> Self {
        let (to, lines) = sync_channel(0);
        thread::spawn(move || {
            while let Some(line) = next_line() {
                let failed = line.is_err();
                if to.send(line).is_err() || failed {
                    return;
                }
            }
        });
        Self(lines)
    }

    /// The next line without its end.
    pub fn line(&self, stop: &Stop) -> Result<String, Halt> {
        let mut line = text_of(wait(&self.0, stop)?)?;
        for end in ['\n', '\r'] {
            if line.ends_with(end) {
                line.pop();
            }
        }
        Ok(line)
    }
}

fn next_line() -> Option<Bytes> {
    let mut line = Vec::new();
    match stdin().lock().read_until(b'\n', &mut line) {
        Ok(0) => None,
        result => Some(result.map(|_| line)),
    }
}

/// All of standard input, without line breaks at its end.
pub fn everything(stop: &Stop) -> Result<String, Halt> {
    let (to, all) = sync_channel(1);
    thread::spawn(move || {
        let mut data = Vec::new();
        let result = stdin().lock().read_to_end(&mut data);
        _ = to.send(result.map(|_| data));
    });
    Ok(text_of(wait(&all, stop)?)?.trim_end_matches(['\n', '\r']).to_owned())
}

fn wait(from: &Receiver<Bytes>, stop: &Stop) -> Result<Bytes, Halt> {
    loop {
        if stop.take() {
            return Err(Halt::Interrupted);
        }
        match from.recv_timeout(SOON) {
            Ok(bytes) => return Ok(bytes),
            Err(RecvTimeoutError::Disconnected) => return Err(Halt::End),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn text_of(bytes: Bytes) -> Result<String> {
    match bytes.map(String::from_utf8) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => failed("the input is not UTF-8"),
        Err(error) => failed(format!("cannot read the input: {}", words_of_system(&error))),
    }
}
