//! Access to the server: keys, and the origins of pages.
use crate::app::App;
use crate::failure::{Failure, Result};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode, request::Parts};
use std::net::{IpAddr, Ipv6Addr};

/// The Origin, if `--cors` lists it. None for other pages and for programs.
pub fn listed_origin<'a>(list: Option<&str>, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
    let origin = headers.get(ORIGIN).filter(|origin| !origin.is_empty())?;
    let own = |listed: &str| origin.as_bytes().eq_ignore_ascii_case(listed.trim().as_bytes());
    list.filter(|list| *list == "*" || list.split(',').any(own)).map(|_| origin)
}

/// Refuses a request of another site's page, and one without its key.
pub fn check(app: &App, parts: &Parts, open: bool) -> Result<()> {
    if is_foreign(app, parts) {
        let words = "pages of other sites may not use this server";
        return Err(Failure::new(StatusCode::FORBIDDEN, "foreign_origin", words));
    }
    if !open && !app.keys.allow(&parts.headers) {
        let words = "the API key is missing or wrong";
        return Err(Failure::new(StatusCode::UNAUTHORIZED, "invalid_api_key", words));
    }
    Ok(())
}

/// Another site's page must not make its visitors' browsers use this server, even if that site's name resolves to this
/// machine (DNS rebinding): then a page's requests to its supposed own site have no Origin. Programs name the machine,
/// and send no Origin.
fn is_foreign(app: &App, parts: &Parts) -> bool {
    let host = authority(parts);
    let unguarded = app.local && app.keys.is_open();
    if unguarded && !host.is_none_or(names_this_machine) {
        return true;
    }
    if listed_origin(app.options.cors.as_deref(), &parts.headers).is_some() {
        return false;
    }
    let Some(origin) = parts.headers.get(ORIGIN) else { return false };
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
    site.is_none() || site != host
}

/// The authority of the target, or else of the Host. None: the client names none.
fn authority(parts: &Parts) -> Option<&str> {
    let of_target = parts.uri.authority().map(|authority| authority.as_str());
    let host = || parts.headers.get(HOST).map(|host| host.to_str().unwrap_or("?"));
    of_target.or_else(host).filter(|authority| !authority.is_empty())
}

/// An address, or a name that no other site can have, as in Ollama; with or without a port.
fn names_this_machine(authority: &str) -> bool {
    if let Some((address, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let host = authority.split(':').next().unwrap_or_default();
    let host = host.strip_suffix('.').unwrap_or(host);
    let own = |end: &str| host.len() > end.len() && host[host.len() - end.len()..].eq_ignore_ascii_case(end);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok()
        || (host.is_ascii() && [".localhost", ".local", ".internal"].into_iter().any(own))
        || (!host.is_empty() && host.eq_ignore_ascii_case(&machine()))
}

/// The machine's own name.
fn machine() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        let own = format!("{}:80", machine().to_uppercase());
        for name in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1",
            "10.0.0.1:8080",
            "[::1]:80",
            "localhost.",
            "a.localhost",
            "host.docker.internal:80",
            "box.LOCAL",
            &own,
        ] {
            assert!(names_this_machine(name), "{name}");
        }
        for name in [
            "evil.example:80",
            "localhost.evil.example",
            "1.evil.example",
            "evillocal",
            ".local",
            "1.2.3",
            "1234",
            "[v1.x]",
            "",
        ] {
            assert!(!names_this_machine(name), "{name}");
        }
    }

    #[test]
    fn origins() {
        let of = |origin: &'static str| HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))]);
        let list = Some("https://a.example, http://localhost:3000");
        for (origin, list, expected) in [
            ("https://a.example", list, true),
            ("HTTP://localhost:3000", list, true),
            ("https://a.example.other", list, false),
            ("null", list, false),
            ("https://any.example", Some("*"), true),
            ("https://any.example", None, false),
        ] {
            assert_eq!(listed_origin(list, &of(origin)).is_some(), expected, "{origin}");
        }
    }
}
