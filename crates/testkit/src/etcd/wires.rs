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

use crate::carrier::{Carrier, PIECE, address_of, pass_on};

/// The header a member names itself by.
const NAME: &[u8] = b"X-Server-From: ";
/// Hexadecimal digits of an id, and the line end behind them.
const ID_BYTES: usize = 17;

/// One wire to each member.
#[derive(Debug)]
pub(super) struct Wires {
    urls: Vec<String>,
    names: Arc<Names>,
    cut_off: watch::Sender<BTreeSet<usize>>,
    _carrier: Carrier,
}

/// Which member has which id; known once the cluster is founded.
#[derive(Debug, Default)]
struct Names(Mutex<HashMap<MemberId, usize>>);

impl Names {
    fn index(&self, id: MemberId) -> Option<usize> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&id).copied()
    }
}

impl Wires {
    /// Lays a wire to each of the URLs where members will listen.
    pub(super) fn lay(listening: &[String]) -> Self {
        let carrier = Carrier::new();
        let names = Arc::new(Names::default());
        let cut_off = watch::Sender::new(BTreeSet::new());
        let urls = listening.iter().enumerate().map(|(to, url)| {
            let (listener, address) = carrier.listen();
            let wire = Wire {
                to,
                member: address_of(url),
                names: Arc::clone(&names),
                cut_off: cut_off.subscribe(),
            };
            carrier.spawn(wire.serve(listener));
            format!("http://{address}")
        });
        Self {
            urls: urls.collect(),
            names,
            cut_off,
            _carrier: carrier,
        }
    }

    /// Where members are told to find each other.
    pub(super) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// A member tells its id.
    pub(super) fn belongs(&self, id: MemberId, member: usize) {
        let mut names = self.names.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(id, member);
    }

    pub(super) fn isolate(&self, member: usize) {
        self.cut_off.send_modify(|cut_off| {
            cut_off.insert(member);
        });
    }

    pub(super) fn heal(&self) {
        self.cut_off.send_modify(BTreeSet::clear);
    }
}

/// The wire to one member.
#[derive(Clone)]
struct Wire {
    to: usize,
    member: SocketAddr,
    names: Arc<Names>,
    cut_off: watch::Receiver<BTreeSet<usize>>,
}

impl Wire {
    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let wire = self.clone();
            // A connection that breaks is for its ends to notice.
            tokio::spawn(async move { wire.carry(stream).await.ok() });
        }
    }

    async fn carry(mut self, stream: TcpStream) -> std::io::Result<()> {
        if self.cut_off.borrow().contains(&self.to) {
            return Ok(());
        }
        let (from_sender, to_sender) = stream.into_split();
        let (from_member, to_member) = TcpStream::connect(self.member).await?.into_split();
        tokio::select! {
            sent = self.send(from_sender, to_member) => sent,
            answered = pass_on(from_member, to_sender) => answered,
        }
    }

    /// Passes on what the sender says, while the wire is whole.
    async fn send(
        &mut self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        let mut sender = None;
        let mut unread = Vec::new();
        let mut piece = vec![0; PIECE];
        loop {
            let length = tokio::select! {
                read = from.read(&mut piece) => read?,
                Ok(()) = self.cut_off.changed() => {
                    if self.is_open(sender) {
                        continue;
                    }
                    return Ok(());
                }
            };
            let said = &piece[..length];
            if sender.is_none() {
                unread.extend_from_slice(said);
                sender = named(&unread).and_then(|id| self.names.index(id));
                forget_all_but_an_end(&mut unread);
            }
            if length == 0 || !self.is_open(sender) {
                return Ok(());
            }
            to.write_all(said).await?;
        }
    }

    /// Whether a connection of this sender may pass. Nobody knows where a nameless one comes from.
    fn is_open(&self, sender: Option<usize>) -> bool {
        let cut_off = self.cut_off.borrow();
        match sender {
            _ if cut_off.is_empty() => true,
            None => false,
            Some(sender) => !cut_off.contains(&sender) && !cut_off.contains(&self.to),
        }
    }
}

/// The id in the header, once it is there whole.
fn named(said: &[u8]) -> Option<MemberId> {
    let start = said.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let rest = &said[start..];
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let text = std::str::from_utf8(&rest[..end]).ok()?;
    MemberId::from_hex(text)
}

/// A header may be split between two pieces.
fn forget_all_but_an_end(said: &mut Vec<u8>) {
    let surplus = said.len().saturating_sub(NAME.len() + ID_BYTES);
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
            let early = named(&said);
            forget_all_but_an_end(&mut said);
            said.extend_from_slice(&request[split..]);
            let found = early.or_else(|| named(&said));
            assert_eq!(
                found,
                Some(MemberId(0x8e9e_05c5_2164_694d)),
                "split at {split}"
            );
        }
    }
}
