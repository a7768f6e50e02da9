//! Connections, and the checks that all requests pass before an API gets them.
mod access;
mod answer;
mod connection;
mod exchange;
mod guard;
mod head;
mod io;
mod keys;
mod life;
mod link;
mod listen;
mod pool;
mod receive;
mod router;
mod signals;
mod tls;

pub use access::Answering;
pub use keys::Keys;
pub use life::{Life, State};
pub use listen::fit_connections;
pub use router::Rest;
pub use signals::Signals;
pub use tls::Tls;

use crate::app::App;
use crate::log::Log;
use pool::Pool;
use signals::Signal;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

/// Time for cancelling running requests. After it the server ends, whatever clients and threads do.
const CANCEL: Duration = Duration::from_secs(5);
/// Interval at which the end of all requests is checked for.
const LOOK: Duration = Duration::from_millis(5);
/// The exit status if an engine died.
const DIED: u8 = 1;

/// Resources that are opened before the server begins.
pub struct Open {
    pub listener: TcpListener,
    pub signals: Signals,
    pub log: Log,
}

/// Serves until the end, and returns the exit status.
pub async fn serve(app: Arc<App>, open: Open) -> u8 {
    let Open { listener, mut signals, log } = open;
    let pool = Pool::new(app.options.max_connections);
    let accepting = tokio::spawn(listen::accept(app.clone(), listener, pool.clone()));
    tokio::select! {
        status = failed(&app) => return status,
        () = end_signal(&app, &mut signals, &log) => {}
    }
    // A client that finds the socket closed finds the server and its engines draining.
    app.life.enter(State::Draining);
    if is_all_submitted(&app) {
        app.models.shutdown(bn::Shutdown::Drain);
    }
    accepting.abort();
    let _ = accepting.await; // the socket is closed
    tokio::select! {
        () = app.models.died() => DIED,
        () = end(&app, &pool, &mut signals, &log) => 0,
    }
}

/// Waits for a failure after which nothing can be served.
async fn failed(app: &App) -> u8 {
    if let Err(status) = app.models.ready().await {
        return status;
    }
    app.life.enter(State::Serving);
    if app.models.several() {
        let models = bn_hub::counted(app.models.list().await.len() as u64, "model");
        tracing::info!("serving {models}, each loaded by the first request for it");
    }
    app.models.died().await;
    DIED
}

async fn end_signal(app: &App, signals: &mut Signals, log: &Log) {
    while signals.next().await == Signal::Reload {
        reload(app, log);
    }
}

fn reload(app: &App, log: &Log) {
    if let Err(error) = log.reopen() {
        tracing::error!("the log file cannot be opened again: {error}");
    }
    if let Err(error) = app.keys.reload() {
        tracing::error!("the keys stay as they were: {error}");
    }
    if let Err(why) = app.tls.reload(&app.options) {
        tracing::error!("the certificate stays as it was: {why}");
    }
}

/// Ends the server. Each step has a time limit: running requests are finished, then cancelled, then
/// abandoned.
async fn end(app: &App, pool: &Pool, signals: &mut Signals, log: &Log) {
    tracing::info!("finishing what runs (a second signal cancels)");
    app.models.stop();
    pool.drop_receiving();
    tokio::select! {
        () = finished(app, pool, bn::Shutdown::Drain) => return,
        _ = timeout(app.options.drain_timeout, end_signal(app, signals, log)) => {}
    }
    tracing::info!("cancelling what runs");
    app.life.enter(State::Cancelling);
    tokio::select! {
        () = finished(app, pool, bn::Shutdown::Cancel) => {}
        late = timeout(CANCEL, end_signal(app, signals, log)) => {
            let why = if late.is_ok() { "another signal" } else { "cancelling took too long" };
            tracing::warn!("leaving what runs: {why}");
        }
    }
}

/// Waits until no client waits for anything. A draining engine refuses later requests, so draining begins when
/// nothing is left to submit.
async fn finished(app: &App, pool: &Pool, how: bn::Shutdown) {
    let mut begun = false;
    loop {
        if !begun && (how == bn::Shutdown::Cancel || is_all_submitted(app)) {
            app.models.shutdown(how);
            begun = true;
        }
        if app.life.exchanges() == 0 && pool.lingering() == 0 && !app.models.busy() {
            break;
        }
        sleep(LOOK).await;
    }
    if how == bn::Shutdown::Drain {
        app.tracer.finish().await;
    }
}

/// Whether all accepted requests were submitted to engines.
fn is_all_submitted(app: &App) -> bool {
    app.life.unsubmitted() == 0 && app.work.working() == 0
}
