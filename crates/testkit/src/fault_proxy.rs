//! A fault proxy in front of a server: closed, failing, slow, silent, or cut in the middle of a response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::proxy_runtime::{CHUNK_SIZE, ProxyRuntime, parse_address};

/// How the proxy treats connections, including open ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// Forwards everything.
    #[default]
    Open,
    /// Drops existing and new connections.
    Closed,
    /// Answers every request with this HTTP status; the server does not receive it.
    RespondWith(u16),
    /// Accepts connections and never responds.
    Unresponsive,
    /// Forwards at most this many bytes per second from the client, per connection.
    Slow(u64),
    /// Drops the first connection on which the server has sent this many bytes since the mode was set, then
    /// switches to `Open`.
    CutAfter(u64),
}

/// A fault proxy in front of a server; it stops when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    url: String,
    mode: watch::Sender<ProxyMode>,
    fault_count: Arc<AtomicU64>,
    _runtime: ProxyRuntime,
}

impl FaultProxy {
    /// Starts a proxy in front of the server at this `http://` URL.
    pub fn start(server: &str) -> Self {
        let runtime = ProxyRuntime::new();
        let (listener, address) = runtime.listen();
        let mode = watch::Sender::new(ProxyMode::Open);
        let fault_count = Arc::new(AtomicU64::new(0));
        let server_task = FaultProxyServer {
            server: parse_address(server),
            mode: mode.clone(),
            fault_count: Arc::clone(&fault_count),
        };
        runtime.spawn(server_task.serve(listener));
        Self {
            url: format!("http://{address}"),
            mode,
            fault_count,
            _runtime: runtime,
        }
    }

    /// URL for clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Switches the mode.
    pub fn set_mode(&self, mode: ProxyMode) {
        self.mode.send_replace(mode);
    }

    /// Number of connections that were dropped, failed or ignored. Tests check it to be sure that the fault
    /// occurred.
    pub fn fault_count(&self) -> u64 {
        self.fault_count.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct FaultProxyServer {
    server: SocketAddr,
    mode: watch::Sender<ProxyMode>,
    fault_count: Arc<AtomicU64>,
}

impl FaultProxyServer {
    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let server_task = self.clone();
            // Both ends of a broken connection notice it themselves.
            tokio::spawn(async move { server_task.handle_connection(stream).await.ok() });
        }
    }

    async fn handle_connection(self, stream: TcpStream) -> std::io::Result<()> {
        let mode = *self.mode.borrow();
        match mode {
            ProxyMode::Closed => self.record_fault(),
            ProxyMode::Unresponsive => {
                self.record_fault();
                self.wait_until_changed(mode).await;
            }
            ProxyMode::RespondWith(status) => {
                self.record_fault();
                respond_with_status(stream, status).await?;
            }
            ProxyMode::Open | ProxyMode::Slow(_) | ProxyMode::CutAfter(_) => {
                self.proxy_connection(stream).await?;
            }
        }
        Ok(())
    }

    async fn proxy_connection(&self, stream: TcpStream) -> std::io::Result<()> {
        let (from_client, to_client) = stream.into_split();
        let (from_server, to_server) = TcpStream::connect(self.server).await?.into_split();
        tokio::select! {
            sent = self.forward_requests(from_client, to_server) => sent,
            answered = self.forward_responses(from_server, to_client) => answered,
            () = self.wait_until_closed() => {
                self.record_fault();
                Ok(())
            }
        }
    }

    async fn forward_requests(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        let mut piece = vec![0; CHUNK_SIZE];
        loop {
            let mode = *self.mode.borrow();
            // Small pieces make a slow connection steady instead of bursty.
            let limit = match mode {
                ProxyMode::Slow(rate) => usize::try_from(rate / 10)
                    .unwrap_or(CHUNK_SIZE)
                    .clamp(1, CHUNK_SIZE),
                _ => CHUNK_SIZE,
            };
            let length = from.read(&mut piece[..limit]).await?;
            if length == 0 {
                return to.shutdown().await;
            }
            to.write_all(&piece[..length]).await?;
            if let ProxyMode::Slow(rate) = mode {
                let micros = (length as u64).saturating_mul(1_000_000) / rate.max(1);
                let pause = tokio::time::sleep(Duration::from_micros(micros));
                tokio::select! {
                    () = pause => {}
                    () = self.wait_until_changed(mode) => {}
                }
            }
        }
    }

    async fn forward_responses(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        let mut mode = self.mode.subscribe();
        let mut passed = 0;
        let mut piece = vec![0; CHUNK_SIZE];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                return to.shutdown().await;
            }
            // `CutAfter` counts from the moment at which the mode is set.
            if mode.has_changed().unwrap_or(false) {
                mode.mark_unchanged();
                passed = 0;
            }
            passed += length as u64;
            if let ProxyMode::CutAfter(limit) = *self.mode.borrow()
                && passed >= limit
            {
                break;
            }
            to.write_all(&piece[..length]).await?;
        }
        self.record_fault();
        self.mode.send_replace(ProxyMode::Open);
        Ok(())
    }

    fn record_fault(&self) {
        self.fault_count.fetch_add(1, Ordering::SeqCst);
    }

    async fn wait_until_changed(&self, now: ProxyMode) {
        let mut mode = self.mode.subscribe();
        // `self` holds the sender, so the channel stays open.
        mode.wait_for(|mode| *mode != now).await.ok();
    }

    async fn wait_until_closed(&self) {
        let mut mode = self.mode.subscribe();
        let is_closed = |mode: &ProxyMode| {
            matches!(
                mode,
                ProxyMode::Closed | ProxyMode::RespondWith(_) | ProxyMode::Unresponsive
            )
        };
        mode.wait_for(is_closed).await.ok();
    }
}

/// Reads the head of a request and answers it.
async fn respond_with_status(mut stream: TcpStream, status: u16) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 || head.len() > CHUNK_SIZE {
            return Ok(());
        }
    }
    let text = format!("HTTP/1.1 {status} Fault\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    // Read the rest of the request: closing with unread data sends a reset, which discards the response.
    let mut rest = vec![0; CHUNK_SIZE];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
