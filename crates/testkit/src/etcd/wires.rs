//! Wires between the members of a cluster, to be cut without the rights of root.
//!
//! ```text
//! m0 ──► told URL of m1: a wire of this process ──► where m1 listens
//! ```
//!
//! Who is at the other end of a connection shows in its requests: etcd names itself in the header
//! `X-Server-From`. A connection belongs to one process, so once named it stays named; until then
//! nothing of it passes while any member is cut off.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use mainstay_ids::MemberId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::carrier::{ProxyRuntime, CHUNK_SIZE, parse_address, forward};

/// The header a member names itself by.
const SENDER_HEADER: &[u8] = b"X-Server-From: ";
/// Hexadecimal digits of an id, and the line end behind them.
const ID_BYTES: usize = 17;

/// One wire to each member.
#[derive(Debug)]
pub(super) struct PeerProxies {
    urls: Vec<String>,
    member_indexes: Arc<MemberIndexes>,
    isolated: watch::Sender<BTreeSet<usize>>,
    _runtime: ProxyRuntime,
}

/// Which member has which id; known once the cluster is founded.
#[derive(Debug, Default)]
struct MemberIndexes(Mutex<HashMap<MemberId, usize>>);

impl MemberIndexes {
    fn get(&self, id: MemberId) -> Option<usize> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&id).copied()
    }
}

impl PeerProxies {
    /// Lays a wire to each of the URLs where members will listen.
    pub(super) fn start(listening: &[String]) -> Self {
        let carrier = ProxyRuntime::new();
        let names = Arc::new(MemberIndexes::default());
        let isolated = watch::Sender::new(BTreeSet::new());
        let urls = listening.iter().enumerate().map(|(to, url)| {
            let (listener, address) = carrier.listen();
            let wire = PeerProxy {
                target: to,
                target_address: parse_address(url),
                member_indexes: Arc::clone(&names),
                isolated: isolated.subscribe(),
            };
            carrier.spawn(wire.serve(listener));
            format!("http://{address}")
        });
        Self {
            urls: urls.collect(),
            member_indexes: names,
            isolated,
            _runtime: carrier,
        }
    }

    /// Where members are told to find each other.
    pub(super) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// A member tells its id.
    pub(super) fn register_member(&self, id: MemberId, member: usize) {
        let mut names = self.member_indexes.0.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The wire to one member.
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
            let wire = self.clone();
            // A connection that breaks is for its ends to notice.
            tokio::spawn(async move { wire.handle_connection(stream).await.ok() });
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

    /// Passes on what the sender says, while the wire is whole.
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
            let said = &piece[..length];
            if sender.is_none() {
                unread.extend_from_slice(said);
                sender = parse_sender(&unread).and_then(|id| self.member_indexes.get(id));
                truncate_to_tail(&mut unread);
            }
            if length == 0 || !self.is_connected(sender) {
                return Ok(());
            }
            to.write_all(said).await?;
        }
    }

    /// Whether a connection of this sender may pass. Nobody knows where a nameless one comes from.
    fn is_connected(&self, sender: Option<usize>) -> bool {
        let isolated = self.isolated.borrow();
        match sender {
            _ if isolated.is_empty() => true,
            None => false,
            Some(sender) => !isolated.contains(&sender) && !isolated.contains(&self.target),
        }
    }
}

/// The id in the header, once it is there whole.
fn parse_sender(said: &[u8]) -> Option<MemberId> {
    let start = said.windows(SENDER_HEADER.len()).position(|window| window == SENDER_HEADER)? + SENDER_HEADER.len();
    let rest = &said[start..];
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let text = std::str::from_utf8(&rest[..end]).ok()?;
    MemberId::from_hex(text)
}

/// A header may be split between two pieces.
fn truncate_to_tail(said: &mut Vec<u8>) {
    let surplus = said.len().saturating_sub(SENDER_HEADER.len() + ID_BYTES);
    said.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_is_known_by_its_header_however_it_arrives() {
        let request = b"POST /raft HTTP/1.1\r\nX-Server-From: 8e9e05c52164694d\r\n\r\nbody";
        for split in 0..request.len() {
            let mut said = request[..split].to_vec();
            let early = parse_sender(&said);
            truncate_to_tail(&mut said);
            said.extend_from_slice(&request[split..]);
            let found = early.or_else(|| parse_sender(&said));
            assert_eq!(
                found,
                Some(MemberId(0x8e9e_05c5_2164_694d)),
                "split at {split}"
            );
        }
    }
}
