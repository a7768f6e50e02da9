//! A connection from its first byte to its end.
use super::exchange;
use super::io::{Socket, Timed};
use super::link::Link;
use super::pool::{Phase, PoolEntry};
use crate::app::App;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Time for the client to read the last answer.
const LINGER: Duration = Duration::from_secs(2);
/// Time between two checks of a client that hung up, since its last request may be answered at once.
const GRACE: Duration = Duration::from_millis(10);
/// Maximum number of header fields.
const FIELDS: usize = 128;
/// Maximum number of concurrent requests on an HTTP/2 connection.
const STREAMS: u32 = 128;
/// Minimum buffer size that hyper accepts.
const LEAST_BUFFER: usize = 8192;

pub async fn serve(app: Arc<App>, stream: TcpStream, peer: IpAddr, entry: PoolEntry) {
    let _ = stream.set_nodelay(true); // a token does not wait for the one before it to be received
    let socket = Socket::new(stream);
    let link = Arc::new(Link::new(app, peer, entry));
    tokio::select! {
        biased;
        ended = talk(&socket, &link) => {
            if ended {
                link.entry.go(Phase::Lingers);
                tokio::select! {
                    () = link.entry.evicted() => {}
                    _ = timeout(LINGER, Box::pin(socket.drain())) => {}
                }
            }
        }
        () = link.entry.evicted() => {}
        () = hung_up(&socket, &link) => {}
        () = link.stalled() => {}
    }
}

/// False: the client is gone, or did not speak in time.
async fn talk(socket: &Socket, link: &Arc<Link>) -> bool {
    let Some(tls) = link.app.tls.now() else { return http(socket.clone(), link).await };
    match timeout(link.app.options.receive_timeout, tls.accept(socket.clone())).await {
        Ok(Ok(stream)) => Box::pin(http(stream, link)).await,
        _ => false,
    }
}

async fn http<S>(stream: S, link: &Arc<Link>) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(Timed::new(stream, link.clone()));
    let service = service_fn(|request: Request<Incoming>| {
        let answer = Box::pin(exchange::answer(link.clone(), request)); // idle connections hold none
        async { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .half_close(true) // `hung_up` decides
        .title_case_headers(true)
        .max_headers(FIELDS)
        .max_buf_size(link.piece().max(LEAST_BUFFER));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(link.piece() as u32)
        .max_send_buf_size(link.piece().max(LEAST_BUFFER));
    match builder.serve_connection(io, service).await {
        Ok(()) => true,
        Err(error) => error.downcast_ref().is_some_and(hyper::Error::is_parse), // it was refused with an answer
    }
}

/// Waits until the client has hung up or closed its side, and nothing more of its answer is ready.
async fn hung_up(socket: &Socket, link: &Link) {
    loop {
        link.answers().await;
        socket.hung_up().await;
        while !link.is_idle() {
            sleep(GRACE).await;
            let before = link.is_paused();
            sleep(GRACE).await;
            if before && link.is_paused() {
                return;
            }
        }
        // No request is being answered, so the connection itself will read the end.
        sleep(GRACE).await;
    }
}
