//! The listening socket.
use super::connection;
use super::pool::{FRESH, Pool};
use crate::app::App;
use crate::options::Options;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Each connection takes a descriptor. Lowers the limit of connections to the system's, so that the model's files and
/// the engine never lack descriptors because of clients.
#[cfg(unix)]
pub fn fit_connections(options: &mut Options) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: u64 = 96;
    let wanted = options.max_connections as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    let mut now = limit.current.unwrap_or(u64::MAX);
    if now < wanted {
        let more = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        if setrlimit(Resource::Nofile, Rlimit { current: Some(more), maximum: limit.maximum }).is_ok() {
            now = more;
        }
    }
    if now < wanted {
        let fits = if now > 2 * OTHERS { now - OTHERS } else { now.div_ceil(2) };
        options.max_connections = fits as usize;
        tracing::warn!("the system allows {now} descriptors: {fits} connections at a time");
    }
}

#[cfg(not(unix))]
pub fn fit_connections(_: &mut Options) {}

/// Accepts connections until it is dropped.
pub async fn accept(app: Arc<App>, listener: TcpListener, pool: Arc<Pool>) {
    loop {
        if !pool.has_room() {
            wait(&pool).await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, peer)) => {
                let serve = connection::serve(app.clone(), stream, peer.ip(), pool.enter());
                tokio::spawn(serve);
            }
            Err(error) if is_of_client(&error) => {}
            Err(_) => {
                // No descriptor or no memory is left.
                pool.evict();
                wait(&pool).await;
            }
        }
    }
}

/// Waits a short time, or until a connection was closed.
async fn wait(pool: &Pool) {
    let _ = timeout(FRESH, pool.closed.notified()).await;
}

fn is_of_client(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted)
}
