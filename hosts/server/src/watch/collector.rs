//! The exporter's HTTP client, with a connection for each batch. At one batch a second a pool would save
//! little, and would keep broken connections longer.
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Request, Response, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time limit for a batch.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of an answer that are read.
const MOST: usize = 1 << 16;

#[derive(Debug)]
pub struct Collector {
    /// The runtime, since the exporter's own thread has none.
    runtime: Handle,
    /// The last batch was not accepted, which was logged.
    fails: AtomicBool,
}

impl Collector {
    pub fn new() -> Self {
        Self { runtime: Handle::current(), fails: AtomicBool::new(false) }
    }
}

async fn send(mut request: Request<Bytes>, authority: &str) -> Result<Response<Bytes>, String> {
    // Tries the addresses of the name one after the other.
    let stream = TcpStream::connect(authority).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| words(&error))?;
    let mut driver = JoinSet::new(); // its end closes the connection
    driver.spawn(connection);
    let host = HeaderValue::try_from(authority).map_err(|error| error.to_string())?;
    request.headers_mut().insert(header::HOST, host);
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    if let Some(path) = request.uri().path_and_query() {
        *request.uri_mut() = path.clone().into();
    }
    let response = sender.send_request(request.map(Body::from)).await.map_err(|error| words(&error))?;
    let (parts, body) = response.into_parts();
    if !parts.status.is_success() {
        return Err(format!("it answers with status {}", parts.status.as_u16()));
    }
    // The status says that the batch was accepted, so errors of the rest are ignored.
    let body = axum::body::to_bytes(Body::new(body), MOST).await.unwrap_or_default();
    Ok(Response::from_parts(parts, body))
}

/// An error of the connection in words for people, without any bytes from the collector.
fn words(error: &hyper::Error) -> String {
    if error.is_parse() {
        "the collector does not speak HTTP/1".to_owned()
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        "the collector closed the connection".to_owned()
    } else {
        error.source().map_or_else(|| error.to_string(), ToString::to_string)
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let to = authority.clone();
        let sent = self.runtime.spawn(async move { timeout(TIMEOUT, send(request, &to)).await }).await?;
        let sent = sent.unwrap_or_else(|_| Err("the collector takes too long".to_owned()));
        match (&sent, self.fails.swap(sent.is_err(), Ordering::Relaxed)) {
            (Err(why), false) => tracing::warn!("traces to {authority}: {why}"),
            (Ok(_), true) => tracing::info!("traces to {authority}: they are taken again"),
            _ => {}
        }
        sent.map_err(Into::into)
    }
}
