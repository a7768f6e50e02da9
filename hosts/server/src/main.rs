//! bn-server: models over HTTP. README.md describes its use.
mod api;
mod app;
mod body;
mod failure;
mod feed;
mod fetch;
mod fields;
mod log;
mod memory;
mod models;
mod options;
mod request;
mod run;
mod serve;
mod sessions;
mod store;
mod stream;
mod watch;
mod work;

use app::App;
use log::Log;
use options::Options;
use serve::{Open, Signals};
use std::io::Write as _;
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

const FAILURE: u8 = 1;
const WRONG_OPTION: u8 = 2;
/// Threads of the runtime. They only pass bytes on, and the engine's threads need the cores.
const THREADS: usize = 2;
/// Maximum time for the end of engines, so that a compilation that does not end cannot delay it.
const ENGINES_END: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let options = match Options::of_process() {
        Ok(options) => options,
        Err(status) => return status,
    };
    let log = match Log::start(&options) {
        Ok(log) => log,
        Err(error) => return say(FAILURE, &format!("the log file cannot be opened: {error}")),
    };
    match Builder::new_multi_thread().worker_threads(THREADS).enable_all().build() {
        Ok(runtime) => run(runtime, options, log),
        Err(error) => say(FAILURE, &format!("cannot start: {error}")),
    }
}

/// Prints on stderr, independently of the log.
fn say(status: u8, words: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "bn-server: {words}");
    ExitCode::from(status)
}

fn run(runtime: Runtime, options: Options, log: Log) -> ExitCode {
    let (app, open) = match runtime.block_on(start(options, log)) {
        Ok(started) => started,
        Err((status, words)) => return say(status, &words),
    };
    let status = runtime.block_on(serve::serve(app.clone(), open));
    if app.work.working() > 0 || app.models.busy() {
        tracing::warn!("ending while a thread is still at work");
        exit(i32::from(status));
    }
    thread::spawn(move || {
        thread::sleep(ENGINES_END);
        exit(i32::from(status));
    });
    runtime.shutdown_background();
    drop(app);
    ExitCode::from(status)
}

/// Err: the exit status, and the reason.
async fn start(options: Options, log: Log) -> Result<(Arc<App>, Open), (u8, String)> {
    let signals = Signals::new().map_err(|error| (FAILURE, format!("signals: {error}")))?;
    let mut app = App::new(options).map_err(|why| (WRONG_OPTION, why))?;
    let (host, port) = (app.options.host.clone(), app.options.port);
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    let failed = |error| (FAILURE, format!("cannot listen on {host} port {port}: {error}"));
    let listener = TcpListener::bind((plain, port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!("listening on {host} port {}", address.port());
    app.local = address.ip().is_loopback();
    if !app.local && app.keys.is_open() {
        tracing::warn!("it has no key: whoever reaches {host} may use it (BN_API_KEY)");
    }
    serve::fit_connections(&mut app.options);
    app.models.start().map_err(|error| (FAILURE, format!("cannot start: {error}")))?;
    Ok((Arc::new(app), Open { listener, signals, log }))
}
