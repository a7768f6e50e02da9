//! A small hub on 127.0.0.1 that misbehaves as it is told to. Large files are redirected to another port.
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha1::Digest as _;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The behavior of the hub.
#[derive(Default)]
pub struct State {
    pub files: Vec<(String, Vec<u8>)>,
    /// A size that is listed instead of the right ones.
    pub size: Option<u64>,
    /// An answer instead of a list.
    pub list: Option<List>,
    /// The token that files require.
    pub token: Option<String>,
    /// Numbers of bytes after which the next downloads end.
    pub cuts: VecDeque<usize>,
    /// Number of next downloads that get a wrong byte.
    pub damaged: usize,
    pub no_ranges: bool,
    /// Downloads never end.
    pub endless: bool,
    /// Request lines and headers that were received.
    pub seen: Vec<Vec<String>>,
}

#[derive(Clone)]
pub enum List {
    Status(u16),
    Text(String),
    Endless,
    /// The hub sends nothing.
    Silent,
}

pub struct Server {
    pub url: String,
    state: Arc<Mutex<State>>,
    /// While it is set, cut downloads and silent lists wait.
    pub stall: Arc<AtomicBool>,
}

impl Server {
    pub fn start(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, data)| ((*name).to_owned(), data.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let stall = Arc::new(AtomicBool::new(false));
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = [0, 1].map(|i: usize| listeners[i].local_addr().unwrap().port());
        for listener in listeners {
            let (state, stall) = (Arc::clone(&state), Arc::clone(&stall));
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let here = Connection {
                        state: Arc::clone(&state),
                        stall: Arc::clone(&stall),
                        storage: ports[1],
                    };
                    thread::spawn(move || here.answer(stream));
                }
            });
        }
        Self { url: format!("http://127.0.0.1:{}", ports[0]), state, stall }
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// The byte that each download began with.
    pub fn downloads(&self) -> Vec<u64> {
        let first = |lines: &Vec<String>| {
            let range = lines.iter().find_map(|line| line.strip_prefix("range: bytes="));
            range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap())
        };
        self.with(|state| {
            state.seen.iter().filter(|lines| lines[0].contains("/storage/")).map(first).collect()
        })
    }
}

struct Connection {
    state: Arc<Mutex<State>>,
    stall: Arc<AtomicBool>,
    storage: u16,
}

impl Connection {
    fn answer(&self, mut to: TcpStream) -> Result<()> {
        let lines: Vec<String> = BufReader::new(to.try_clone()?)
            .lines()
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty())
            .enumerate()
            .map(|(i, line)| if i == 0 { line } else { line.to_ascii_lowercase() })
            .collect();
        let Some(path) = lines.first().and_then(|line| line.split(' ').nth(1)).map(str::to_owned) else {
            return Ok(());
        };
        let header = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let (authorization, range) = (header("authorization: bearer "), header("range: bytes="));
        let wrong_token = self.with(|state| {
            state.seen.push(lines.clone());
            state.token.is_some() && state.token != authorization
        });
        if path.starts_with("/api/") {
            self.list(&mut to)
        } else if let Some(file) = path.strip_prefix("/storage/") {
            self.download(&mut to, file, range)
        } else if wrong_token {
            head(&mut to, if authorization.is_some() { 403 } else { 401 }, "Content-Length: 0")
        } else {
            let file = path.strip_prefix(&format!("/tiny/model/resolve/{COMMIT}/")).unwrap_or_default();
            head(
                &mut to,
                302,
                &format!("Location: http://127.0.0.1:{}/storage/{file}\r\nContent-Length: 0", self.storage),
            )
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    fn wait(&self) {
        while self.stall.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn list(&self, to: &mut TcpStream) -> Result<()> {
        let text = match self.with(|state| state.list.clone()) {
            Some(List::Status(status)) => return head(to, status, "Content-Length: 0"),
            Some(List::Silent) => {
                self.wait();
                return Ok(());
            }
            Some(List::Endless) => {
                head(to, 200, "Connection: close")?;
                return endless(to);
            }
            Some(List::Text(text)) => text,
            None => self.with(|state| listed(&state.files, state.size)),
        };
        head(to, 200, &format!("Content-Length: {}", text.len()))?;
        to.write_all(text.as_bytes())
    }

    fn download(&self, to: &mut TcpStream, file: &str, range: Option<String>) -> Result<()> {
        let (data, cut, endless_too, no_ranges) = self.with(|state| {
            let mut data = state.files.iter().find(|(name, _)| name == file).unwrap().1.clone();
            if state.damaged > 0 {
                state.damaged -= 1;
                data[0] ^= 1;
            }
            (data, state.cuts.pop_front(), state.endless, state.no_ranges)
        });
        let first = range.filter(|_| !no_ranges).map(|range| range.trim_end_matches('-').parse().unwrap());
        let part = &data[first.unwrap_or(0)..];
        let status = if first.is_some() { 206 } else { 200 };
        if endless_too {
            head(to, status, "Connection: close")?;
            return endless(to);
        }
        head(to, status, &format!("Content-Length: {}", part.len()))?;
        to.write_all(&part[..cut.unwrap_or(part.len())])?;
        if cut.is_some() {
            self.wait();
        }
        Ok(())
    }
}

fn head(to: &mut TcpStream, status: u16, headers: &str) -> Result<()> {
    write!(to, "HTTP/1.1 {status} X\r\n{headers}\r\n\r\n")
}

fn endless(to: &mut TcpStream) -> Result<()> {
    loop {
        to.write_all(&[b'['; 1 << 16])?;
    }
}

pub fn listed(files: &[(String, Vec<u8>)], size: Option<u64>) -> String {
    let one = |(name, data): &(String, Vec<u8>)| {
        let size = size.unwrap_or(data.len() as u64);
        let lfs = serde_json::json!({"sha256": sha256(data), "size": size});
        let mut file = serde_json::json!({"rfilename": name, "size": size, "blobId": git_sum(data)});
        if is_large(name) {
            file["lfs"] = lfs;
        }
        file
    };
    let files: Vec<_> = files.iter().map(one).collect();
    serde_json::json!({"id": "tiny/model", "sha": COMMIT, "siblings": files}).to_string()
}

pub fn is_large(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors")
}

pub fn sha256(data: &[u8]) -> String {
    hex(&sha2::Sha256::digest(data))
}

pub fn git_sum(data: &[u8]) -> String {
    let mut sum = sha1::Sha1::new();
    sum.update(format!("blob {}\0", data.len()));
    sum.update(data);
    hex(&sum.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
