//! Proxies between the members of a cluster, so that a test can cut connections without root privileges.
//!
//! ```text
//! m0 ──► advertised URL of m1: a proxy in this process ──► listen URL of m1
//! ```
//!
//! A proxy identifies the sender of a connection by the header `X-Server-From` in its requests. A connection belongs to
//! one process, so its sender never changes. While any member is isolated, an unidentified connection is blocked.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use mainstay_ids::MemberId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::proxy_runtime::{CHUNK_SIZE, ProxyRuntime, forward, parse_address};

/// Header with the ID of the sending member.
const SENDER_HEADER: &[u8] = b"X-Server-From: ";
/// Hexadecimal digits of an ID and the carriage return after them.
const ID_BYTES: usize = 17;

/// One proxy in front of each member.
#[derive(Debug)]
pub(super) struct PeerProxies {
    urls: Vec<String>,
    member_indexes: Arc<MemberIndexes>,
    isolated: watch::Sender<BTreeSet<usize>>,
    _runtime: ProxyRuntime,
}

/// Index of each member by its ID; filled after the cluster is bootstrapped.
#[derive(Debug, Default)]
struct MemberIndexes(Mutex<HashMap<MemberId, usize>>);

impl MemberIndexes {
    fn get(&self, id: MemberId) -> Option<usize> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&id).copied()
    }
}

impl PeerProxies {
    /// Starts a proxy in front of each listen URL.
    pub(super) fn start(listen_urls: &[String]) -> Self {
        let runtime = ProxyRuntime::new();
        let member_indexes = Arc::new(MemberIndexes::default());
        let isolated = watch::Sender::new(BTreeSet::new());
        let urls = listen_urls.iter().enumerate().map(|(target, url)| {
            let (listener, address) = runtime.listen();
            let proxy = PeerProxy {
                target,
                target_address: parse_address(url),
                member_indexes: Arc::clone(&member_indexes),
                isolated: isolated.subscribe(),
            };
            runtime.spawn(proxy.serve(listener));
            format!("http://{address}")
        });
        Self {
            urls: urls.collect(),
            member_indexes,
            isolated,
            _runtime: runtime,
        }
    }

    /// URLs that the members advertise.
    pub(super) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Records the ID of a member.
    pub(super) fn register_member(&self, id: MemberId, member: usize) {
        let mut names = self
            .member_indexes
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        names.insert(id, member);
    }

    pub(super) fn isolate(&self, member: usize) {
        self.isolated.send_modify(|isolated| {
            isolated.insert(member);
        });
    }

    pub(super) fn heal(&self) {
        self.isolated.send_modify(BTreeSet::clear);
    }
}

/// The proxy in front of one member.
#[derive(Clone)]
struct PeerProxy {
    target: usize,
    target_address: SocketAddr,
    member_indexes: Arc<MemberIndexes>,
    isolated: watch::Receiver<BTreeSet<usize>>,
}

impl PeerProxy {
    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let proxy = self.clone();
            // Both ends of a broken connection notice it themselves.
            tokio::spawn(async move { proxy.handle_connection(stream).await.ok() });
        }
    }

    async fn handle_connection(mut self, stream: TcpStream) -> std::io::Result<()> {
        if self.isolated.borrow().contains(&self.target) {
            return Ok(());
        }
        let (from_sender, to_sender) = stream.into_split();
        let (from_member, to_member) = TcpStream::connect(self.target_address).await?.into_split();
        tokio::select! {
            sent = self.forward_requests(from_sender, to_member) => sent,
            answered = forward(from_member, to_sender) => answered,
        }
    }

    /// Forwards requests of the sender while the connection is not cut.
    async fn forward_requests(
        &mut self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        let mut sender = None;
        let mut unread = Vec::new();
        let mut piece = vec![0; CHUNK_SIZE];
        loop {
            let length = tokio::select! {
                read = from.read(&mut piece) => read?,
                Ok(()) = self.isolated.changed() => {
                    if self.is_connected(sender) {
                        continue;
                    }
                    return Ok(());
                }
            };
            let received = &piece[..length];
            if sender.is_none() {
                unread.extend_from_slice(received);
                sender = parse_sender(&unread).and_then(|id| self.member_indexes.get(id));
                truncate_to_tail(&mut unread);
            }
            if length == 0 || !self.is_connected(sender) {
                return Ok(());
            }
            to.write_all(received).await?;
        }
    }

    /// Whether a connection of this sender is forwarded. `None` is an unidentified sender.
    fn is_connected(&self, sender: Option<usize>) -> bool {
        let isolated = self.isolated.borrow();
        match sender {
            _ if isolated.is_empty() => true,
            None => false,
            Some(sender) => !isolated.contains(&sender) && !isolated.contains(&self.target),
        }
    }
}

/// The ID in the header, if the header is complete.
fn parse_sender(received: &[u8]) -> Option<MemberId> {
    let start = received
        .windows(SENDER_HEADER.len())
        .position(|window| window == SENDER_HEADER)?
        + SENDER_HEADER.len();
    let rest = &received[start..];
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let text = std::str::from_utf8(&rest[..end]).ok()?;
    MemberId::from_hex(text)
}

/// Keeps enough bytes to find a header that is split between two reads.
fn truncate_to_tail(received: &mut Vec<u8>) {
    let surplus = received
        .len()
        .saturating_sub(SENDER_HEADER.len() + ID_BYTES);
    received.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_is_parsed_from_a_header_split_at_any_byte() {
        let request = b"POST /raft HTTP/1.1\r\nX-Server-From: 8e9e05c52164694d\r\n\r\nbody";
        for split in 0..request.len() {
            let mut received = request[..split].to_vec();
            let early = parse_sender(&received);
            truncate_to_tail(&mut received);
            received.extend_from_slice(&request[split..]);
            let found = early.or_else(|| parse_sender(&received));
            assert_eq!(
                found,
                Some(MemberId(0x8e9e_05c5_2164_694d)),
                "split at {split}"
            );
        }
    }
}
