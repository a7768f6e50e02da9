//! Requests over HTTP. Each runs in a thread of its own and passes the received bytes on, so that the caller can
//! always check its flag and its clock, whatever the request waits for: a name, a connection, a byte.
//!
//! This is ureq and not the crate hf-hub, whose downloads know neither this flag nor mirrors that fail, and which
//! compares no checksums.
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ureq::http::{Response, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::printable;
use crate::proxy::proxy_for;

const CONNECTING: Duration = Duration::from_secs(15);
/// Maximum time in which a server sends nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum time until the head of an answer is complete.
const HEAD: Duration = Duration::from_secs(120);
const REDIRECTS: usize = 10;
/// Interval at which a waiting caller is woken.
const TICK: Duration = Duration::from_millis(100);
/// Maximum number of pieces that wait for the caller, since a disk may be slower than the network.
const WAITING: usize = 4;
const PIECE: usize = 1 << 16;

/// Makes requests, which end when it is dropped.
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    plain: Agent,
    secure: Agent,
    token: Option<String>,
}

/// A step of a request.
pub enum Step {
    Status(u16),
    Bytes(Vec<u8>),
    /// Nothing came for a tenth of a second.
    Nothing,
    /// The answer is whole, as far as the server said.
    End,
    Failed(String),
}

/// A request that runs. It ends when this is dropped, with the next byte that comes, or with its client.
pub struct Request(Receiver<Step>);

impl Request {
    pub fn step(&self) -> Step {
        match self.0.recv_timeout(TICK) {
            Ok(step) => step,
            Err(RecvTimeoutError::Timeout) => Step::Nothing,
            Err(RecvTimeoutError::Disconnected) => Step::End,
        }
    }
}

impl Client {
    /// The token is sent only to the scheme, host and port of the first URL, not to those of redirects.
    pub fn new(token: Option<&str>) -> Self {
        let token = token.map(str::to_owned);
        Self { shared: Arc::new(Shared { plain: agent("http"), secure: agent("https"), token }) }
    }

    /// Requests the URL, from byte `from` on.
    pub fn get(&self, url: &str, from: u64) -> Request {
        let (sender, receiver) = sync_channel(WAITING);
        let (shared, url, failed) = (Arc::clone(&self.shared), url.to_owned(), sender.clone());
        let run = move || {
            if let Err(why) = shared.run(&url, from, &sender) {
                _ = sender.send(Step::Failed(why));
            }
        };
        if let Err(error) = thread::Builder::new().name("bn-hub".to_owned()).spawn(run) {
            _ = failed.send(Step::Failed(error.to_string()));
        }
        Request(receiver)
    }
}

/// Ends running requests, which may wait for their server.
impl Drop for Client {
    fn drop(&mut self) {
        self.shared.plain.clone().shutdown();
        self.shared.secure.clone().shutdown();
    }
}

impl Shared {
    fn run(&self, url: &str, from: u64, to: &SyncSender<Step>) -> Result<(), String> {
        let answer = self.follow(url, from)?;
        let status = answer.status().as_u16();
        let mut body = answer.into_body().into_reader();
        let mut wanted = to.send(Step::Status(status)).is_ok();
        while wanted {
            let mut piece = vec![0; PIECE];
            let size = body.read(&mut piece).map_err(|error| reason(&ureq::Error::from(error)))?;
            if size == 0 {
                break;
            }
            piece.truncate(size);
            wanted = to.send(Step::Bytes(piece)).is_ok();
        }
        Ok(())
    }

    /// Follows redirects. ureq itself would send the token to other ports of a host too.
    fn follow(&self, url: &str, from: u64) -> Result<Response<Body>, String> {
        let first: Uri = url.parse().map_err(|error| format!("{error}"))?;
        let mut place = first.clone();
        for _ in 0..=REDIRECTS {
            let agent = if is_secure(&place) { &self.secure } else { &self.plain };
            let mut request = agent.get(&place);
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| is_same_server(&first, &place)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let answer = request.call().map_err(|error| reason(&error))?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            place = location.and_then(|location| led_to(&place, location)).ok_or("it redirects to no URL")?;
            if is_secure(&first) && !is_secure(&place) {
                return Err("it redirects from HTTPS to HTTP".to_owned());
            }
        }
        Err("it redirects too often".to_owned())
    }
}

/// The system's certificates are used, since a company may have its own.
pub fn tls() -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
    tls.unversioned_rustls_crypto_provider(provider).build()
}

fn agent(scheme: &str) -> Agent {
    let config = Agent::config_builder()
        .user_agent("bn_engine")
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_resolve(Some(CONNECTING))
        .timeout_connect(Some(CONNECTING))
        .timeout_per_read(Some(SILENCE))
        .timeout_per_write(Some(SILENCE))
        .timeout_recv_response(Some(HEAD))
        .proxy(proxy_for(scheme))
        .tls_config(tls());
    config.build().into()
}

/// The reason of a failed request, in words for people.
pub fn reason(error: &ureq::Error) -> String {
    let text = match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        error => error.to_string(),
    };
    printable(&text).into_owned()
}

pub fn is_secure(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

fn is_same_server(one: &Uri, other: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if is_secure(uri) { 443 } else { 80 });
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    one.scheme() == other.scheme() && host(one) == host(other) && port(one) == port(other)
}

/// The URL of a redirect, which may be relative to `from`. None if it is not an HTTP URL.
pub fn led_to(from: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let starts_with =
        |scheme: &str| location.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme));
    let text = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if starts_with("http://") || starts_with("https://") {
        location.to_owned()
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    text.parse::<Uri>().ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn redirects_lead_to_absolute_and_relative_places() {
        let from = uri("https://hub.example/a/b?c");
        for (location, expected) in [
            ("HTTPS://other.example/x?y=https://z", "https://other.example/x?y=https://z"),
            ("http://other.example:81/x#fragment", "http://other.example:81/x"),
            ("//other.example/x", "https://other.example/x"),
            ("/x?u=http://y/", "https://hub.example/x?u=http://y/"),
            ("x", "https://hub.example/a/x"),
        ] {
            assert_eq!(led_to(&from, location).unwrap().to_string(), expected);
        }
        assert_eq!(led_to(&from, "https:///x"), None);
        assert_eq!(led_to(&from, "/a b"), None);
    }

    #[test]
    fn a_server_is_its_scheme_host_and_port() {
        let hub = uri("https://hub.example/a");
        assert!(is_same_server(&hub, &uri("https://HUB.example:443/b")));
        for other in ["http://hub.example/a", "https://hub.example:444/a", "https://cdn.hub.example/a"] {
            assert!(!is_same_server(&hub, &uri(other)), "{other}");
        }
    }
}
