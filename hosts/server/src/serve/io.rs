//! The socket that HTTP reads and writes, with or without TLS. It drops clients that make no progress.
use super::link::{Link, PROGRESS};
use std::future::Future as _;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, sleep_until};

/// Interval at which a client that has sent more than its request is checked.
const LOOK: Duration = Duration::from_millis(100);

/// A socket that can be inspected while it is read.
#[derive(Clone)]
pub struct Socket(Arc<TcpStream>);

impl Socket {
    pub fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Waits until the client has closed its side, without reading its bytes.
    pub async fn hung_up(&self) {
        let stream = &self.0;
        while let Ok(1..) = stream.peek(&mut [0]).await {
            // The socket is readable because of these bytes, so it must be polled for the end after them.
            if stream.ready(Interest::READABLE).await.is_ok_and(|ready| ready.is_read_closed()) {
                return;
            }
            sleep(LOOK).await;
        }
    }

    fn shut_down(&self) {
        // Errors are ignored, as the client may have closed it before.
        let _ = socket2::SockRef::from(&*self.0).shutdown(std::net::Shutdown::Write);
    }

    /// Reads until the client's end. Closing a socket with unread bytes resets it, and the client may lose the answer.
    pub async fn drain(&self) {
        self.shut_down();
        let mut scrap = [0; 4096];
        while self.0.readable().await.is_ok() {
            match self.0.try_read(&mut scrap) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        self.poll_write_vectored(context, &[std::io::IoSlice::new(data)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write_vectored(parts) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        self.shut_down();
        Poll::Ready(Ok(()))
    }
}

/// Reads and writes with time limits.
pub struct Timed<S> {
    inner: S,
    link: Arc<Link>,
    reading: Option<Pin<Box<Sleep>>>,
    writing: Option<Pin<Box<Sleep>>>,
    /// Bytes that were taken since the time to write began.
    sent: usize,
}

impl<S> Timed<S> {
    pub fn new(inner: S, link: Arc<Link>) -> Self {
        Self { inner, link, reading: None, writing: None, sent: 0 }
    }

    /// Fails if the client sends too little.
    fn wait_to_read(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            // The time limit may begin while this waits.
            let until =
                self.link.until().unwrap_or_else(|| Instant::now() + self.link.app.options.idle_timeout);
            if until <= Instant::now() {
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
            let timer = self.reading.get_or_insert_with(|| Box::pin(sleep_until(until.into())));
            if timer.deadline() > until.into() {
                timer.as_mut().reset(until.into());
            }
            ready!(timer.as_mut().poll(context));
            self.reading = None;
        }
    }

    /// Fails if the client takes too little.
    fn wait_to_write(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        self.link.stuffed.store(true, Ordering::Relaxed);
        let idle = self.link.app.options.idle_timeout;
        if self.sent >= PROGRESS {
            self.writing = None;
        }
        let timer = self.writing.get_or_insert_with(|| {
            self.sent = 0;
            Box::pin(sleep(idle))
        });
        timer.as_mut().poll(context).map(|()| ErrorKind::TimedOut.into())
    }

    fn written(&mut self, context: &mut Context<'_>, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        match written {
            Poll::Pending => self.wait_to_write(context).map(Err),
            Poll::Ready(result) => {
                self.sent += result.as_ref().copied().unwrap_or_default();
                Poll::Ready(result)
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        let room = buf.remaining().min(this.link.piece());
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(room));
        match Pin::new(&mut this.inner).poll_read(context, &mut piece) {
            Poll::Pending => this.wait_to_read(context),
            Poll::Ready(result) => {
                let count = piece.filled().len();
                buf.advance(count);
                if count > 0 {
                    this.link.received();
                }
                Poll::Ready(result)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(context, data);
        this.written(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(context, parts);
        this.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Called once all is written.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_flush(context) {
            Poll::Pending => this.wait_to_write(context).map(Err),
            Poll::Ready(result) => {
                this.writing = None;
                this.link.stuffed.store(false, Ordering::Relaxed);
                Poll::Ready(result)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_shutdown(context) {
            Poll::Pending => this.wait_to_write(context).map(Err),
            ready => ready,
        }
    }
}
