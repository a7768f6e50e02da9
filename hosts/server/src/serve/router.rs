//! Finds the route of a request by its head.
use super::guard;
use super::life::State;
use crate::api::{ROUTES, Route};
use crate::app::App;
use crate::failure::{Failure, Result};
use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ALLOW, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, request::Parts};
use percent_encoding::percent_decode_str;

/// The path after a route's that ends with `{*rest}`, decoded, as an extension of a request.
#[derive(Clone, Debug)]
pub struct Rest(pub String);

/// The result of routing.
pub enum Way {
    To(&'static Route),
    /// The request is answered already.
    Answered(Response<Body>),
}

/// Finds the route of a request, or refuses it without its body.
pub fn find(app: &App, parts: &mut Parts, extra: bool) -> Result<Way> {
    let path = tidy(&percent_decode_str(parts.uri.path()).decode_utf8_lossy());
    let origin = guard::listed_origin(app.options.cors.as_deref(), &parts.headers);
    if origin.is_some() && parts.method == Method::OPTIONS {
        return Ok(Way::Answered(preflight()));
    }
    let (route, rest) = match lookup(&parts.method, &path) {
        Some((Ok(route), rest)) => (route, rest.to_owned()),
        Some((Err(allow), _)) => return Ok(Way::Answered(not_allowed(parts, &path, allow))),
        None => return Err(Failure::new(StatusCode::NOT_FOUND, "not_found", missing(parts, &path))),
    };
    guard::check(app, parts, route.open)?;
    let state = app.life.state();
    if !route.always && (state != State::Serving || extra) {
        return Err(unavailable(state));
    }
    parts.extensions.insert(Rest(rest));
    parts.extensions.insert(route);
    Ok(Way::To(route))
}

/// Allows a page that `--cors` lists to read the answer.
pub fn open_to(origin: &HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}

/// The route of a path, or the methods of the path, and the text that `{*rest}` matches.
fn lookup<'a>(
    method: &Method,
    path: &'a str,
) -> Option<(std::result::Result<&'static Route, String>, &'a str)> {
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    let mut allowed = Vec::new();
    let mut rest = "";
    for route in ROUTES {
        let Some(behind) = behind(route.path, path) else { continue };
        if route.method == method {
            return Some((Ok(route), behind));
        }
        allowed.push(if route.method == "GET" { "GET, HEAD" } else { route.method });
        rest = behind;
    }
    (!allowed.is_empty()).then(|| (Err(allowed.join(", ")), rest))
}

/// Matches a path with a route. None: it does not match.
fn behind<'a>(route: &str, path: &'a str) -> Option<&'a str> {
    match route.split_once("{*") {
        Some((front, _)) => path.strip_prefix(front).filter(|rest| !rest.is_empty()),
        None => (route == path).then_some(""),
    }
}

/// A path without doubled slashes, and without those at its end.
fn tidy(path: &str) -> String {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    format!("/{}", parts.join("/"))
}

fn missing(parts: &Parts, path: &str) -> String {
    format!("there is no {:.40} {path:.200}", parts.method)
}

fn not_allowed(parts: &Parts, path: &str, allow: String) -> Response<Body> {
    let failure = Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", missing(parts, path));
    let mut response = failure.response(crate::run::shape_of(path));
    response.headers_mut().extend(HeaderValue::try_from(allow).ok().map(|allow| (ALLOW, allow)));
    response
}

fn unavailable(state: State) -> Failure {
    let (words, seconds) = match state {
        State::Loading => ("the model is loading", 5),
        State::Serving => ("the server has as many connections as it takes", 1),
        State::Draining | State::Cancelling => ("the server is shutting down", 1),
    };
    Failure::unavailable("unavailable", words, seconds)
}

/// The answer to a browser's preflight request.
fn preflight() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    for (name, value) in [
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, DELETE"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "*, Authorization"),
        (ACCESS_CONTROL_MAX_AGE, "86400"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!((tidy("//v1///models/").as_str(), tidy("//").as_str()), ("/v1/models", "/"));
        assert_eq!(behind("/v1/models/{*name}", "/v1/models/a/b"), Some("a/b"));
        assert_eq!(behind("/v1/models/{*name}", "/v1/models/"), None);
        let (found, rest) = lookup(&Method::HEAD, "/v1/models/x").unwrap();
        assert_eq!((found.unwrap().path, rest), ("/v1/models/{*name}", "x"));
        assert_eq!(lookup(&Method::PUT, "/v1/responses/x").unwrap().0.err().unwrap(), "GET, HEAD, DELETE");
        assert!(lookup(&Method::GET, "/nothing").is_none());
    }
}
