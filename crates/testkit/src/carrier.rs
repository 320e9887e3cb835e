//! Connections that pass through this process, on a thread of their own: a test that waits for a child
//! process must not hold up what runs between its servers.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// Bytes taken at a time.
pub(crate) const CHUNK_SIZE: usize = 64 << 10;

/// A thread that carries connections until this is dropped.
#[derive(Debug)]
pub(crate) struct ProxyRuntime(Option<Runtime>);

impl ProxyRuntime {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("carrier")
            .enable_all()
            .build();
        Self(Some(runtime.expect("a thread to carry connections")))
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime().spawn(task);
    }

    /// Listens on a free loopback port.
    pub(crate) fn listen(&self) -> (TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("the address of a listener");
        listener
            .set_nonblocking(true)
            .expect("a listener that waits");
        let _entered = self.runtime().enter();
        let listener = TcpListener::from_std(listener).expect("a listener of the carrier");
        (listener, address)
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("a carrier that was not dropped")
    }
}

impl Drop for ProxyRuntime {
    fn drop(&mut self) {
        // Tests end inside another runtime, where waiting for this one is not allowed.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Passes everything on until one end is closed.
pub(crate) async fn forward<R, W>(mut from: R, mut to: W) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut piece = vec![0; CHUNK_SIZE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..length]).await?;
    }
}

/// The address behind an `http://` URL.
pub(crate) fn parse_address(url: &str) -> SocketAddr {
    let text = url.trim_start_matches("http://").trim_end_matches('/');
    text.parse()
        .unwrap_or_else(|error| panic!("{url} is no address of a server: {error}"))
}
