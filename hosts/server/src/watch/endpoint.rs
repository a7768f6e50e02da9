//! `--otlp-endpoint`: where the collector listens.
use axum::http::Uri;

/// A collector's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// The URL for traces.
    pub url: String,
}

impl Endpoint {
    /// Err: why `url` cannot be one.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("--otlp-endpoint must be http://HOST:PORT or http://HOST:PORT/PATH: {why}");
        if url.starts_with("https://") {
            return Err(wrong(
                "this server has no TLS; send to a collector on this machine, which may forward",
            ));
        }
        if !url.starts_with("http://") {
            return Err(wrong("it begins with something else"));
        }
        if url.contains(['@', '?', '#', ' ', '\t', '\r', '\n']) {
            return Err(wrong("it has a user, a query or a space"));
        }
        let plain = url.trim_end_matches('/');
        let parsed = plain.parse::<Uri>().ok();
        let place = parsed
            .as_ref()
            .and_then(|uri| Some((uri.host().filter(|host| !host.is_empty())?, uri.port_u16()?)));
        let (host, port) = place.ok_or_else(|| wrong("it has no host or no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port, url: format!("{plain}/v1/traces") })
    }

    /// For people.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        for (url, host, port, path) in [
            ("http://127.0.0.1:4318", "127.0.0.1", 4318, "http://127.0.0.1:4318/v1/traces"),
            ("http://localhost:9/prefix//", "localhost", 9, "http://localhost:9/prefix/v1/traces"),
            ("http://[::1]:4318/", "::1", 4318, "http://[::1]:4318/v1/traces"),
        ] {
            let expected = Endpoint { host: host.to_owned(), port, url: path.to_owned() };
            assert_eq!(Endpoint::parse(url), Ok(expected));
        }
        assert_eq!(Endpoint::parse("http://[::1]:4318").unwrap().authority(), "[::1]:4318");
    }

    #[test]
    fn others_are_refused_with_a_reason() {
        for (url, words) in [
            ("https://127.0.0.1:4318", "no TLS"),
            ("127.0.0.1:4318", "begins with"),
            ("http://127.0.0.1", "no port"),
            ("http://:4318", "no host"),
            ("http://127.0.0.1:x", "no port"),
            ("http://127.0.0.1:65536", "no port"),
            ("http://u@h:4318", "user"),
            ("http://h:4318?x", "query"),
            ("http://", "no host"),
        ] {
            assert!(Endpoint::parse(url).unwrap_err().contains(words), "{url}");
        }
    }
}
