//! A gate before a server that fails on demand: closed, refusing, slow, silent, or cut in the middle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::carrier::{Carrier, PIECE, address_of};

/// What the gate does with connections, those that are open already included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gating {
    /// Passes everything on.
    #[default]
    Open,
    /// Drops connections, old and new.
    Closed,
    /// Answers every request with this HTTP status; the server never hears of it.
    Answering(u16),
    /// Takes connections and never says anything.
    Silent,
    /// Passes at most this many bytes per second of what clients send, on each connection.
    Slow(u64),
    /// Drops the first connection on which the server has sent this many bytes since now, and is
    /// open from then on.
    CutAfter(u64),
}

/// A gate before a server; gone when dropped.
#[derive(Debug)]
pub struct Gate {
    url: String,
    gating: watch::Sender<Gating>,
    spoiled: Arc<AtomicU64>,
    _carrier: Carrier,
}

impl Gate {
    /// Stands before the server at this `http://` URL.
    pub fn before(server: &str) -> Self {
        let carrier = Carrier::new();
        let (listener, address) = carrier.listen();
        let gating = watch::Sender::new(Gating::Open);
        let spoiled = Arc::new(AtomicU64::new(0));
        let passage = Passage {
            server: address_of(server),
            gating: gating.clone(),
            spoiled: Arc::clone(&spoiled),
        };
        carrier.spawn(passage.serve(listener));
        Self {
            url: format!("http://{address}"),
            gating,
            spoiled,
            _carrier: carrier,
        }
    }

    /// Where clients connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Behaves like this from now on.
    pub fn set(&self, gating: Gating) {
        self.gating.send_replace(gating);
    }

    /// How many connections were dropped, refused or ignored. A fault that never struck was not
    /// survived.
    pub fn spoiled(&self) -> u64 {
        self.spoiled.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct Passage {
    server: SocketAddr,
    gating: watch::Sender<Gating>,
    spoiled: Arc<AtomicU64>,
}

impl Passage {
    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let passage = self.clone();
            // A connection that breaks is for its ends to notice.
            tokio::spawn(async move { passage.carry(stream).await.ok() });
        }
    }

    async fn carry(self, stream: TcpStream) -> std::io::Result<()> {
        let gating = *self.gating.borrow();
        match gating {
            Gating::Closed => self.spoil(),
            Gating::Silent => {
                self.spoil();
                self.until_changed(gating).await;
            }
            Gating::Answering(status) => {
                self.spoil();
                answer(stream, status).await?;
            }
            Gating::Open | Gating::Slow(_) | Gating::CutAfter(_) => {
                self.connect(stream).await?;
            }
        }
        Ok(())
    }

    async fn connect(&self, stream: TcpStream) -> std::io::Result<()> {
        let (from_client, to_client) = stream.into_split();
        let (from_server, to_server) = TcpStream::connect(self.server).await?.into_split();
        tokio::select! {
            sent = self.send(from_client, to_server) => sent,
            answered = self.answer(from_server, to_client) => answered,
            () = self.until_shut() => {
                self.spoil();
                Ok(())
            }
        }
    }

    async fn send(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let gating = *self.gating.borrow();
            // Small pieces, so that a slow connection is slow and not stop and go.
            let most = match gating {
                Gating::Slow(rate) => usize::try_from(rate / 10).unwrap_or(PIECE).clamp(1, PIECE),
                _ => PIECE,
            };
            let length = from.read(&mut piece[..most]).await?;
            if length == 0 {
                return to.shutdown().await;
            }
            to.write_all(&piece[..length]).await?;
            if let Gating::Slow(rate) = gating {
                let micros = (length as u64).saturating_mul(1_000_000) / rate.max(1);
                let pause = tokio::time::sleep(Duration::from_micros(micros));
                tokio::select! {
                    () = pause => {}
                    () = self.until_changed(gating) => {}
                }
            }
        }
    }

    async fn answer(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        let mut gating = self.gating.subscribe();
        let mut passed = 0;
        let mut piece = vec![0; PIECE];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                return to.shutdown().await;
            }
            if gating.has_changed().unwrap_or(false) {
                gating.mark_unchanged();
                passed = 0;
            }
            passed += length as u64;
            if let Gating::CutAfter(most) = *self.gating.borrow()
                && passed >= most
            {
                break;
            }
            to.write_all(&piece[..length]).await?;
        }
        self.spoil();
        self.gating.send_replace(Gating::Open);
        Ok(())
    }

    fn spoil(&self) {
        self.spoiled.fetch_add(1, Ordering::SeqCst);
    }

    async fn until_changed(&self, now: Gating) {
        let mut gating = self.gating.subscribe();
        // The sender lives as long as this passage.
        gating.wait_for(|gating| *gating != now).await.ok();
    }

    async fn until_shut(&self) {
        let mut gating = self.gating.subscribe();
        let is_shut = |gating: &Gating| {
            matches!(
                gating,
                Gating::Closed | Gating::Answering(_) | Gating::Silent
            )
        };
        gating.wait_for(is_shut).await.ok();
    }
}

/// Reads the head of a request and answers it.
async fn answer(mut stream: TcpStream, status: u16) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 || head.len() > PIECE {
            return Ok(());
        }
    }
    let text =
        format!("HTTP/1.1 {status} Spoiled\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    // What was sent behind the head is read, or the answer would be lost in a reset.
    let mut rest = vec![0; PIECE];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
