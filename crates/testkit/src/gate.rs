//! A gate before a server that fails on demand: closed, refusing, slow, silent, or cut in the middle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::carrier::{ProxyRuntime, CHUNK_SIZE, parse_address};

/// What the gate does with connections, those that are open already included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// Passes everything on.
    #[default]
    Open,
    /// Drops connections, old and new.
    Closed,
    /// Answers every request with this HTTP status; the server never hears of it.
    RespondWith(u16),
    /// Takes connections and never says anything.
    Unresponsive,
    /// Passes at most this many bytes per second of what clients send, on each connection.
    Slow(u64),
    /// Drops the first connection on which the server has sent this many bytes since now, and is
    /// open from then on.
    CutAfter(u64),
}

/// A gate before a server; gone when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    url: String,
    mode: watch::Sender<ProxyMode>,
    fault_count: Arc<AtomicU64>,
    _runtime: ProxyRuntime,
}

impl FaultProxy {
    /// Stands before the server at this `http://` URL.
    pub fn start(server: &str) -> Self {
        let carrier = ProxyRuntime::new();
        let (listener, address) = carrier.listen();
        let mode = watch::Sender::new(ProxyMode::Open);
        let fault_count = Arc::new(AtomicU64::new(0));
        let passage = FaultProxyServer {
            server: parse_address(server),
            mode: mode.clone(),
            fault_count: Arc::clone(&fault_count),
        };
        carrier.spawn(passage.serve(listener));
        Self {
            url: format!("http://{address}"),
            mode,
            fault_count,
            _runtime: carrier,
        }
    }

    /// Where clients connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Behaves like this from now on.
    pub fn set_mode(&self, mode: ProxyMode) {
        self.mode.send_replace(mode);
    }

    /// How many connections were dropped, refused or ignored. A fault that never struck was not
    /// survived.
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
            let passage = self.clone();
            // A connection that breaks is for its ends to notice.
            tokio::spawn(async move { passage.handle_connection(stream).await.ok() });
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

    async fn forward_requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        let mut piece = vec![0; CHUNK_SIZE];
        loop {
            let mode = *self.mode.borrow();
            // Small pieces, so that a slow connection is slow and not stop and go.
            let most = match mode {
                ProxyMode::Slow(rate) => usize::try_from(rate / 10).unwrap_or(CHUNK_SIZE).clamp(1, CHUNK_SIZE),
                _ => CHUNK_SIZE,
            };
            let length = from.read(&mut piece[..most]).await?;
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

    async fn forward_responses(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        let mut mode = self.mode.subscribe();
        let mut passed = 0;
        let mut piece = vec![0; CHUNK_SIZE];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                return to.shutdown().await;
            }
            if mode.has_changed().unwrap_or(false) {
                mode.mark_unchanged();
                passed = 0;
            }
            passed += length as u64;
            if let ProxyMode::CutAfter(most) = *self.mode.borrow()
                && passed >= most
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
        // The sender lives as long as this passage.
        mode.wait_for(|mode| *mode != now).await.ok();
    }

    async fn wait_until_closed(&self) {
        let mut mode = self.mode.subscribe();
        let is_shut = |mode: &ProxyMode| {
            matches!(
                mode,
                ProxyMode::Closed | ProxyMode::RespondWith(_) | ProxyMode::Unresponsive
            )
        };
        mode.wait_for(is_shut).await.ok();
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
    let text =
        format!("HTTP/1.1 {status} Spoiled\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    // What was sent behind the head is read, or the answer would be lost in a reset.
    let mut rest = vec![0; CHUNK_SIZE];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
