//! The rules of RFC 9112 for a request's head, as far as hyper leaves them. A proxy and this server must agree on the
//! bytes of a request, so an invalid head is refused, and its connection is closed.
use crate::failure::{Failure, Result};
use axum::http::header::{EXPECT, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, StatusCode, Uri, Version, request::Parts};
use std::net::Ipv6Addr;

/// Checks a head. It may have `most` bytes.
pub fn check(parts: &Parts, most: usize) -> Result<()> {
    if length(parts) > most {
        return Err(refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }
    if !is_target(&parts.method, &parts.uri) {
        return Err(refuse(StatusCode::BAD_REQUEST));
    }
    check_expectation(&parts.headers)?;
    match parts.version {
        Version::HTTP_10 | Version::HTTP_11 => {
            check_host(parts)?;
            check_coding(&parts.headers)
        }
        _ => Ok(()),
    }
}

/// The code of failures after which the connection is closed.
pub const INVALID: &str = "invalid_http";

fn refuse(status: StatusCode) -> Failure {
    let words = match status {
        StatusCode::EXPECTATION_FAILED => "no other expectation than 100-continue is known",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "the header fields are too many or too long",
        StatusCode::NOT_IMPLEMENTED => "no other transfer coding than chunked is known",
        _ => "the request is not valid HTTP/1.1",
    };
    Failure::new(status, INVALID, words)
}

fn length(parts: &Parts) -> usize {
    const LINE: usize = "  HTTP/1.1\r\n".len();
    const FIELD: usize = ": \r\n".len();
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let authority = parts.uri.authority().map_or(0, |authority| authority.as_str().len());
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD);
    parts.method.as_str().len() + target + authority + LINE + fields.sum::<usize>()
}

/// `/path?query`, `http://authority/path?query`, or `*` for OPTIONS.
fn is_target(method: &Method, uri: &Uri) -> bool {
    let Some(target) = uri.path_and_query() else { return false };
    if target.as_str() == "*" {
        return method == Method::OPTIONS;
    }
    let known = uri.scheme_str().is_none_or(|scheme| matches!(scheme, "http" | "https"));
    let nul = uri.path().contains("%00");
    known
        && !nul
        && uri.path().starts_with('/')
        && uri.authority().is_none_or(|authority| is_authority(authority.as_str()))
        && is_coded(target.as_str(), |byte| is_name(byte) || b"/?:@".contains(&byte))
}

/// RFC 3986: unreserved characters, sub-delims, and the `%` of codes.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte)
}

/// Whether all characters are of one kind; each `%` must begin a code.
fn is_coded(text: &str, is: impl Fn(u8) -> bool) -> bool {
    let code = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    text.bytes().enumerate().all(|(at, byte)| is(byte) && (byte != b'%' || (code(at + 1) && code(at + 2))))
}

/// A host and maybe a port. The host must not be empty (RFC 9110, 4.2.1).
fn is_authority(text: &str) -> bool {
    let (known, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((literal, port)) => (literal.parse::<Ipv6Addr>().is_ok() || is_future(literal), port),
            None => return false,
        },
        None => {
            let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (!host.is_empty() && is_coded(host, is_name), port)
        }
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    known
        && (port.is_empty() || digits.len() < port.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// `v1.x`, for addresses of the future.
fn is_future(text: &str) -> bool {
    let Some((version, rest)) = text.split_once('.') else { return false };
    let digits = version.strip_prefix(['v', 'V']).unwrap_or_default();
    !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        && !rest.is_empty()
        && rest.bytes().all(|byte| byte != b'%' && (byte == b':' || is_name(byte)))
}

/// An empty Host is valid: the client knows no authority.
fn check_host(parts: &Parts) -> Result<()> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let first = hosts.next();
    let missing = first.is_none() && parts.version == Version::HTTP_11;
    let valid = first.is_none_or(|host| host.is_empty() || host.to_str().is_ok_and(is_authority));
    if missing || !valid || hosts.next().is_some() {
        return Err(refuse(StatusCode::BAD_REQUEST));
    }
    Ok(())
}

/// Accepts only a single `chunked`, although other codings before it would be valid. hyper refuses codings that do not
/// end with it and lengths that differ, and closes the connection if there is also a length.
fn check_coding(headers: &HeaderMap) -> Result<()> {
    let fields = headers.get_all(TRANSFER_ENCODING).iter();
    let texts: Vec<_> = fields.map(|value| value.to_str().unwrap_or_default()).collect();
    let codings = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
    let codings: Vec<_> = codings.filter(|coding| !coding.is_empty()).collect();
    let chunked = codings.iter().filter(|coding| coding.eq_ignore_ascii_case("chunked")).count();
    match (texts.len(), codings.len(), chunked) {
        (0, ..) | (1, 1, 1) => Ok(()),
        (1, _, 1) => Err(refuse(StatusCode::NOT_IMPLEMENTED)),
        _ => Err(refuse(StatusCode::BAD_REQUEST)),
    }
}

fn check_expectation(headers: &HeaderMap) -> Result<()> {
    match headers.get_all(EXPECT).iter().all(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        true => Ok(()),
        false => Err(refuse(StatusCode::EXPECTATION_FAILED)),
    }
}
