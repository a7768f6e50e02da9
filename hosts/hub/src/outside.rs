//! Files of other servers, whose URLs come from people that this machine does not trust. They must not reach what is
//! behind its firewall: hosts are on a list, their addresses are public, and a connection goes to an address that was
//! checked, whatever the name stands for a moment later.
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::{Uri, header};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Timeout};

use crate::http::{is_secure, led_to, reason, tls};

/// Time for everything, redirects included.
const TIME: Duration = Duration::from_secs(20);
const REDIRECTS: usize = 3;

/// Hosts that files may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

impl std::str::FromStr for Hosts {
    type Err = String;

    /// Names after commas: `a.example`, `*.b.example` for all below it, `*` for any.
    fn from_str(text: &str) -> Result<Self, String> {
        let good = |item: &str| {
            let name = item.strip_prefix("*.").unwrap_or(item);
            let signs = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
            item == "*" || (signs && !name.is_empty() && !name.starts_with('.'))
        };
        let items: Vec<_> = text.split(',').map(|item| item.trim().to_ascii_lowercase()).collect();
        match items.iter().all(|item| good(item)) {
            true => Ok(Self(items)),
            false => Err(format!("must be hosts as a.example,*.b.example or * for any, not '{text}'")),
        }
    }
}

impl Hosts {
    fn has(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.0.iter().any(|item| match item.strip_prefix('*') {
            Some(end) => host.ends_with(end) && host.len() > end.len(),
            None => *item == host,
        })
    }
}

/// Fetches files.
#[derive(Clone)]
pub struct Outside {
    hosts: Hosts,
    agent: Agent,
    /// Whether an address, and a port, may be connected to.
    may: fn(IpAddr) -> bool,
    ports: &'static [u16],
}

/// Finds addresses, and refuses names that have one which is not allowed.
#[derive(Debug)]
struct Checked {
    inner: DefaultResolver,
    may: fn(IpAddr) -> bool,
}

impl Resolver for Checked {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        match found.iter().all(|address| (self.may)(address.ip())) {
            true => Ok(found),
            false => Err(ureq::Error::Other("its address is not public".into())),
        }
    }
}

impl Outside {
    pub fn new(hosts: Hosts) -> Self {
        Self::with(hosts, is_public, &[80, 443])
    }

    fn with(hosts: Hosts, may: fn(IpAddr) -> bool, ports: &'static [u16]) -> Self {
        let config = Agent::config_builder()
            .user_agent("bn_engine")
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A proxy would look up the name itself.
            .proxy(None)
            .max_idle_connections(0)
            .tls_config(tls())
            .build();
        let resolver = Checked { inner: DefaultResolver::default(), may };
        Self { hosts, agent: Agent::with_parts(config, DefaultConnector::new(), resolver), may, ports }
    }

    /// The bytes of the file at a URL, `most` at most. It waits up to 20 seconds. Err: why there are none, as the end
    /// of a sentence.
    pub fn fetch(&self, url: &str, most: u64) -> Result<Vec<u8>, String> {
        let end = Instant::now() + TIME;
        let mut place: Uri = url.parse().map_err(|_| "its URL is none of HTTP".to_owned())?;
        for _ in 0..=REDIRECTS {
            self.check(&place)?;
            let left = end.saturating_duration_since(Instant::now());
            let request = self.agent.get(&place).config().timeout_global(Some(left)).build();
            let answer = request.call().map_err(|error| why(&error))?;
            match answer.status().as_u16() {
                200 => {
                    let mut bytes = Vec::new();
                    let mut body = answer.into_body().into_reader().take(most.saturating_add(1));
                    body.read_to_end(&mut bytes).map_err(|error| why(&ureq::Error::from(error)))?;
                    return match bytes.len() as u64 > most {
                        true => Err(format!("it has more than {most} bytes")),
                        false => Ok(bytes),
                    };
                }
                301 | 302 | 303 | 307 | 308 => {
                    let location =
                        answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
                    let next = location.and_then(|to| led_to(&place, to)).ok_or("it redirects to no URL")?;
                    if is_secure(&place) && !is_secure(&next) {
                        return Err("it redirects from HTTPS to HTTP".to_owned());
                    }
                    place = next;
                }
                status => return Err(format!("its server answers with HTTP status {status}")),
            }
        }
        Err("it redirects too often".to_owned())
    }

    fn check(&self, place: &Uri) -> Result<(), String> {
        let host = place.host().unwrap_or_default();
        let port = place.port_u16().unwrap_or(if is_secure(place) { 443 } else { 80 });
        if !matches!(place.scheme_str(), Some("http" | "https")) {
            return Err("its URL is none of HTTP".to_owned());
        }
        if !self.hosts.has(host) {
            return Err("its host is not one of those of this server's list".to_owned());
        }
        if !self.ports.is_empty() && !self.ports.contains(&port) {
            return Err("its port is neither 80 nor 443".to_owned());
        }
        // An address in place of a name is not always resolved.
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address.is_ok_and(|address| !(self.may)(address)) {
            true => Err("its address is not public".to_owned()),
            false => Ok(()),
        }
    }
}

fn why(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(Timeout::Resolve) | ureq::Error::HostNotFound => {
            "its host is not found".to_owned()
        }
        ureq::Error::Other(error) => error.to_string(),
        error => reason(error),
    }
}

/// Whether an address is of the public Internet (IANA's registries of special addresses).
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    const SPECIAL: [([u8; 4], u32); 15] = [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 88, 99, 0], 24),
        ([192, 168, 0, 0], 16),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        ([224, 0, 0, 0], 4),
        ([240, 0, 0, 0], 4),
    ];
    let bits = u32::from(address);
    !SPECIAL.iter().any(|(net, length)| (bits ^ u32::from_be_bytes(*net)) >> (32 - length) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let special = (a == 0x2001 && (b < 0x200 || b == 0xdb8)) // protocols, Teredo, documentation
        || a == 0x2002 // has an IPv4 address in it
        || (a == 0x3fff && b < 0x1000);
    // Only these are assigned to the Internet.
    a & 0xe000 == 0x2000 && !special
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn only_public_addresses_are_connected_to() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.19.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "2001:200::1",
            "2606:4700::1111",
            "2a00::1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn hosts_are_names_and_what_is_below_them() {
        let hosts: Hosts = "A.example, *.b.example".parse().unwrap();
        for host in ["a.example", "A.EXAMPLE", "a.example.", "x.b.example", "x.y.b.example"] {
            assert!(hosts.has(host), "{host}");
        }
        for host in
            ["", "b.example", "xa.example", "x.a.example", "xb.example", "a.example.org", ".b.example"]
        {
            assert!(!hosts.has(host), "{host}");
        }
        assert!("*".parse::<Hosts>().unwrap().has("any.example"));
        for text in
            ["", "a.example,", "https://a.example", "a.example:80", "*a.example", "*.", "a b", "[::1]"]
        {
            assert!(text.parse::<Hosts>().is_err(), "{text}");
        }
    }

    /// A server that gives each answer to one connection, and its port.
    fn server(answers: Vec<String>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 1024];
                _ = stream.read(&mut head);
                _ = stream.write_all(answer.as_bytes());
            }
        });
        port
    }

    fn answer(status: &str, headers: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    fn local(may: fn(IpAddr) -> bool) -> Outside {
        Outside::with("localhost,127.0.0.1".parse().unwrap(), may, &[])
    }

    #[test]
    fn redirects_and_sizes_are_bounded() {
        let fetch = |answers: Vec<String>, path: &str| {
            let url = format!("http://localhost:{}{path}", server(answers));
            local(|_| true).fetch(&url, 4)
        };
        let moved = |to: &str| answer("302 Found", &format!("Location: {to}\r\n"), "");
        assert_eq!(fetch(vec![answer("200 OK", "", "abcd")], "/x"), Ok(b"abcd".to_vec()));
        assert_eq!(fetch(vec![moved("/y"), answer("200 OK", "", "abc")], "/x"), Ok(b"abc".to_vec()));
        for (answers, words) in [
            (vec![answer("200 OK", "", "abcde")], "it has more than 4 bytes"),
            (vec![answer("404 Not Found", "", "")], "its server answers with HTTP status 404"),
            (vec![moved("/y"); 4], "it redirects too often"),
            (vec![moved("http://other.example/")], "its host is not one of those of this server's list"),
            (vec!["HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n".to_owned()], "it redirects to no URL"),
        ] {
            assert_eq!(fetch(answers, "/x"), Err(words.to_owned()));
        }
    }

    #[test]
    fn addresses_of_this_machine_and_its_networks_are_refused() {
        let port = server(vec![answer("200 OK", "", "a"); 3]);
        for host in ["localhost", "127.0.0.1"] {
            let result = local(is_public).fetch(&format!("http://{host}:{port}/"), 4);
            assert!(
                result.as_ref().is_err_and(|why| why.contains("its address is not public")),
                "{result:?}"
            );
        }
        let any = Outside::new("*".parse().unwrap());
        for (url, words) in [
            ("http://127.0.0.1/", "its address is not public"),
            ("http://[::1]/", "its address is not public"),
            ("http://[::ffff:10.0.0.1]/", "its address is not public"),
            ("http://169.254.169.254/latest/meta-data/", "its address is not public"),
            ("http://1.1.1.1:22/", "its port is neither 80 nor 443"),
            ("file:///etc/passwd", "its URL is none of HTTP"),
            ("x", "its URL is none of HTTP"),
            ("ftp://1.1.1.1/x", "its URL is none of HTTP"),
        ] {
            let result = any.fetch(url, 4);
            assert!(result.as_ref().is_err_and(|why| why.contains(words)), "{url}: {result:?}");
        }
        // Other spellings of addresses are found by the resolver.
        for url in ["http://localhost/", "http://2130706433/", "http://0x7f000001/", "http://127.1/"] {
            let result = any.fetch(url, 4);
            assert!(result.as_ref().is_err_and(|why| !why.contains("onnect")), "{url}: {result:?}");
        }
    }
}
