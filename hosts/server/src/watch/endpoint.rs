//! `--otlp-endpoint`: the URL of the collector.
use axum::http::Uri;

/// The URL for traces. Err: why `url` cannot be a collector's URL.
pub fn parse(url: &str) -> Result<Uri, String> {
    let wrong =
        |why: &str| format!("--otlp-endpoint must be http://HOST:PORT or http://HOST:PORT/PATH: {why}");
    if url.starts_with("https://") {
        return Err(wrong("this server has no TLS; send to a collector on this machine, which may forward"));
    }
    if !url.starts_with("http://") {
        return Err(wrong("it begins with something else"));
    }
    if url.contains(['@', '?', '#', ' ', '\t', '\r', '\n']) {
        return Err(wrong("it has a user, a query or a space"));
    }
    let traces = format!("{}/v1/traces", url.trim_end_matches('/')).parse::<Uri>().ok();
    let whole = |uri: &Uri| uri.host().is_some_and(|host| !host.is_empty()) && uri.port_u16().is_some();
    traces.filter(whole).ok_or_else(|| wrong("it has no host or no port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        for (url, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://localhost:9/prefix//", "http://localhost:9/prefix/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
        ] {
            assert_eq!(parse(url).unwrap().to_string(), expected);
        }
    }
}
