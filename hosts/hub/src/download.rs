//! Downloads that go on where an earlier one ended, and compare size and checksum.
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::Hub;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::http::Step;
use crate::list::File;
use crate::remote::refusal;

/// Attempts without progress before a download is given up.
const TRIES: u32 = 4;
/// Characters of a name that are encoded: all except slashes and the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
const STOPPED: &str = "stopped: the next call goes on from there";

/// Downloads a file to `path`, where a part of it may already be, and compares size and checksum.
pub fn get(hub: &mut Hub, commit: &str, file: &File, path: &Path) -> Result<()> {
    let mut download = Download::resume(hub, commit, file, path)?;
    download.hub.progress.begin(&file.name, file.size);
    let result = download.sound();
    download.hub.progress.end();
    result
}

struct Download<'h, 'a> {
    hub: &'h mut Hub<'a>,
    file: &'h File,
    url: String,
    path: &'h Path,
    out: fs::File,
    sum: Digest,
    done: u64,
    /// The file has bytes from an earlier process.
    kept: bool,
}

impl<'h, 'a> Download<'h, 'a> {
    /// Opens the file and continues after its existing bytes.
    fn resume(hub: &'h mut Hub<'a>, commit: &str, file: &'h File, path: &'h Path) -> Result<Self> {
        let name = utf8_percent_encode(&file.name, RESERVED);
        let url = format!("{}/{}/resolve/{commit}/{name}", hub.settings.endpoint, hub.name.repo);
        let out = fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
        let out = out.map_err(|error| Error::io(path, &error))?;
        let mut this = Self { hub, file, url, path, out, sum: Digest::of(file), done: 0, kept: false };
        let mut chunk = vec![0; 1 << 16];
        let readable = loop {
            this.hub.check(STOPPED)?;
            match this.out.read(&mut chunk) {
                Ok(0) => break true,
                Ok(size) => this.count(&chunk[..size]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
            if this.done > file.size {
                break false;
            }
        };
        this.kept = this.done > 0;
        if !readable {
            this.start_over()?;
        }
        Ok(this)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.sum.add(bytes);
        self.done += bytes.len() as u64;
    }

    fn start_over(&mut self) -> Result<()> {
        self.done = 0;
        self.kept = false;
        self.sum = Digest::of(self.file);
        let emptied = self.out.set_len(0).and_then(|()| self.out.rewind());
        emptied.map_err(|error| Error::io(self.path, &error))
    }

    /// Gets all bytes with the right checksum.
    fn sound(&mut self) -> Result<()> {
        self.transfer()?;
        // A part that an earlier process left may be damaged.
        if !self.is_sound() && self.kept {
            self.start_over()?;
            self.transfer()?;
        }
        if self.is_sound() {
            return Ok(());
        }
        _ = fs::remove_file(self.path);
        Err(Error::failed(format!(
            "{}: its checksum is not the one that {} lists: it was damaged on its way",
            self.file.name,
            self.hub.endpoint()
        )))
    }

    fn is_sound(&self) -> bool {
        self.sum.clone().hex() == self.file.etag
    }

    /// Gets all bytes. Tries again as long as attempts make progress.
    fn transfer(&mut self) -> Result<()> {
        let (mut most, mut fruitless) = (self.done, 0);
        loop {
            let Some(why) = self.attempt()? else { return Ok(()) };
            // Only more bytes than ever before count, because a server without ranges begins anew each time.
            fruitless = if self.done > most { 0 } else { fruitless + 1 };
            most = most.max(self.done);
            if fruitless == TRIES {
                return Err(Error::failed(format!(
                    "{}: {} of {} bytes have come: {why}. The next call goes on from there.",
                    self.file.name, self.done, self.file.size
                )));
            }
            self.pause(5 << fruitless)?;
        }
    }

    fn pause(&mut self, tenths: u32) -> Result<()> {
        for _ in 0..tenths {
            self.hub.check(STOPPED)?;
            thread::sleep(Duration::from_millis(100));
        }
        self.hub.check(STOPPED)
    }

    /// Returns the reason why not all bytes came; None if all did.
    fn attempt(&mut self) -> Result<Option<String>> {
        if self.done == self.file.size {
            return Ok(None);
        }
        let before = self.done;
        let (status, failed) = self.receive()?;
        let nothing_more = failed.is_none() && status < 300 && self.done == before;
        if status == 416 || nothing_more {
            return Err(self.other_size("shorter"));
        }
        Ok(match status {
            408 | 429 | 500.. => Some(format!("HTTP status {status}")),
            400.. => return Err(refusal(self.hub, status, &self.file.name)),
            _ if failed.is_some() => failed,
            _ if self.done < self.file.size => Some("the server ended it".to_owned()),
            _ => None,
        })
    }

    fn other_size(&self, size: &str) -> Error {
        _ = fs::remove_file(self.path);
        let (name, listed, endpoint) = (&self.file.name, self.file.size, self.hub.endpoint());
        Error::failed(format!("{name}: it is {size} than the {listed} bytes that {endpoint} lists"))
    }

    /// Receives the bytes of one request. Returns its status, and the reason of a failure.
    fn receive(&mut self) -> Result<(u16, Option<String>)> {
        let request = self.hub.client.get(&self.url, self.done);
        let mut status = 0;
        loop {
            let step = request.step();
            self.hub.check(STOPPED)?;
            match step {
                Step::Status(code) => {
                    status = code;
                    // The text of an error is not read.
                    if !matches!(status, 200 | 206) {
                        return Ok((status, None));
                    }
                    // A server without ranges sends the whole file.
                    if status == 200 && self.done > 0 {
                        self.start_over()?;
                    }
                }
                Step::Bytes(bytes) if bytes.len() as u64 > self.file.size - self.done => {
                    return Err(self.other_size("longer"));
                }
                Step::Bytes(bytes) => {
                    self.out.write_all(&bytes).map_err(|error| Error::io(self.path, &error))?;
                    self.count(&bytes);
                }
                Step::Nothing => {}
                Step::End => return Ok((status, None)),
                Step::Failed(why) => return Ok((status, Some(why))),
            }
            self.hub.progress.advance(self.done);
        }
    }
}
