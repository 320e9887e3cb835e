//! Runtime of proxied connections, on its own thread: a test that blocks on a child process must not stall the traffic
//! between its servers.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// Buffer size in bytes.
pub(crate) const CHUNK_SIZE: usize = 64 << 10;

/// A runtime that proxies connections until it is dropped.
#[derive(Debug)]
pub(crate) struct ProxyRuntime(Option<Runtime>);

impl ProxyRuntime {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build();
        Self(Some(runtime.expect("create the proxy runtime")))
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime().spawn(task);
    }

    /// Listens on a free loopback port.
    pub(crate) fn listen(&self) -> (TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = listener.expect("bind a free port");
        let address = listener.local_addr().expect("address of the listener");
        listener
            .set_nonblocking(true)
            .expect("set the listener non-blocking");
        let _entered = self.runtime().enter();
        let listener = TcpListener::from_std(listener).expect("register the listener");
        (listener, address)
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("the runtime exists until drop")
    }
}

impl Drop for ProxyRuntime {
    fn drop(&mut self) {
        // Tests end inside another tokio runtime, where a blocking shutdown would panic.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Copies bytes until one end closes.
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

/// Socket address of an `http://` URL.
pub(crate) fn parse_address(url: &str) -> SocketAddr {
    let text = url.trim_start_matches("http://").trim_end_matches('/');
    text.parse()
        .unwrap_or_else(|error| panic!("invalid server address {url}: {error}"))
}
