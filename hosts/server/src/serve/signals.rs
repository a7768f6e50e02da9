//! Signals to this process.
use std::io::Result;

/// The action that a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    End,
    /// Reopen the log file, and read the keys again.
    Reload,
}

#[cfg(unix)]
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::End,
            _ = self.interrupt.recv() => Signal::End,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }
}

#[cfg(windows)]
pub struct Signals {
    interrupt: tokio::signal::windows::CtrlC,
    close: tokio::signal::windows::CtrlClose,
    shutdown: tokio::signal::windows::CtrlShutdown,
}

#[cfg(windows)]
impl Signals {
    pub fn new() -> Result<Self> {
        use tokio::signal::windows::{ctrl_c, ctrl_close, ctrl_shutdown};
        Ok(Self { interrupt: ctrl_c()?, close: ctrl_close()?, shutdown: ctrl_shutdown()? })
    }

    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.close.recv() => {}
            _ = self.shutdown.recv() => {}
        }
        Signal::End
    }
}
