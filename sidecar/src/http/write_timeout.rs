//! Write timeout: ends a connection whose client does not read the response.
//!
//! The timer starts when a write blocks and stops at the next completed flush, so a client that reads a byte now and
//! then does not reset it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection with a write timeout.
#[derive(Debug)]
pub(super) struct WriteTimeout<S> {
    inner: S,
    timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(inner: S, timeout: Duration) -> Self {
        Self {
            inner,
            timeout,
            deadline: None,
        }
    }

    /// Returns `result`, or `TimedOut` if it has been pending for too long.
    fn check_deadline<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            return result;
        }
        let patience = self.timeout;
        let clock = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        match clock.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.check_deadline(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.check_deadline(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(cx);
        if result.is_ready() {
            self.deadline = None;
        }
        self.check_deadline(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.check_deadline(cx, result)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn unread_response_times_out() {
        let (near, _far) = duplex(4);
        let started = Instant::now();
        let error = WriteTimeout::new(near, WRITE_TIMEOUT)
            .write_all(b"too long")
            .await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_does_not_extend_the_timeout() {
        let (near, mut far) = duplex(4);
        let slow_reader = tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(20)).await;
                if far.read_u8().await.is_err() {
                    break;
                }
            }
        });
        let started = Instant::now();
        let error = WriteTimeout::new(near, WRITE_TIMEOUT)
            .write_all(&[0; 1000])
            .await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 30);
        timeout(Duration::from_mins(10), slow_reader)
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn steady_reader_never_times_out() {
        let (near, mut far) = duplex(4);
        let reader = tokio::spawn(async move {
            let mut count = 0;
            while far.read_u8().await.is_ok() {
                count += 1;
                sleep(Duration::from_secs(1)).await;
            }
            count
        });
        let mut near = WriteTimeout::new(near, WRITE_TIMEOUT);
        for _ in 0..20 {
            near.write_all(&[0; 10]).await.unwrap();
            near.flush().await.unwrap();
        }
        drop(near);
        assert_eq!(reader.await.unwrap(), 200);
    }
}
