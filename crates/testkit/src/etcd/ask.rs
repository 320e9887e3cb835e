//! What a test asks a live etcd, answered as plain values that can be compared.

use std::path::Path;

use etcd_client::{
    Client, CompactionOptions, Error, GetOptions, KeyValue, KvClient, LeaseTimeToLiveOptions,
    ResponseHeader, StatusResponse,
};
use mainstay_ids::{LeaseId, MemberId, Revision};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::EtcdServer;

/// Keys per request: one answer stays small even when values are large.
const PAGE_SIZE: i64 = 500;

/// A key as etcd shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kv {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The revision that created this generation of the key.
    pub create_revision: Revision,
    /// The revision that wrote this value.
    pub mod_revision: Revision,
    /// Writes since the key was created.
    pub version: i64,
    /// The lease the key hangs on, or [`LeaseId::NONE`].
    pub lease: LeaseId,
}

impl From<&KeyValue> for Kv {
    fn from(kv: &KeyValue) -> Self {
        Self {
            key: kv.key().to_vec(),
            value: kv.value().to_vec(),
            create_revision: Revision(kv.create_revision()),
            mod_revision: Revision(kv.mod_revision()),
            version: kv.version(),
            lease: LeaseId::from_signed(kv.lease()),
        }
    }
}

/// A member's hash of its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueHash {
    /// The hash.
    pub hash: u32,
    /// The compaction it was computed with; `None` when there was none. Two hashes compare only
    /// when this is equal.
    pub compact_revision: Option<Revision>,
}

/// A lease and the keys on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its identity.
    pub id: LeaseId,
    /// Seconds left.
    pub ttl: i64,
    /// Seconds it was granted.
    pub granted_ttl: i64,
    /// Attached keys, ascending.
    pub keys: Vec<Vec<u8>>,
}

impl EtcdServer {
    /// The hash of the history up to a revision.
    pub async fn hash_kv(&self, revision: Revision) -> KeyValueHash {
        hash_kv(&mut self.client().await, revision).await
    }

    /// The revision of the store, read through the quorum.
    pub async fn revision(&self) -> Revision {
        let newest = current_revision(&mut self.kv_client().await).await;
        newest.expect("read the revision")
    }

    /// Every key as it is now, ascending.
    pub async fn all_keys(&self) -> Vec<Kv> {
        self.all_keys_at(self.revision().await).await
    }

    /// Every key as it was at a revision, ascending.
    pub async fn all_keys_at(&self, revision: Revision) -> Vec<Kv> {
        let keys = list_keys_at(&mut self.kv_client().await, revision).await;
        keys.unwrap_or_else(|error| panic!("keys at {revision}: {error}"))
    }

    /// Every live lease, ascending by identity.
    pub async fn list_leases(&self) -> Vec<LeaseInfo> {
        let mut client = self.client().await;
        let listed = client.leases().await.expect("list the leases");
        let mut leases = Vec::new();
        for lease in listed.leases() {
            let options = LeaseTimeToLiveOptions::new().with_keys();
            let answer = client.lease_time_to_live(lease.id(), Some(options)).await;
            let answer = answer.expect("ask for a lease");
            if answer.ttl() < 0 {
                continue; // gone since it was listed
            }
            let mut keys = answer.keys().to_vec();
            keys.sort_unstable();
            leases.push(LeaseInfo {
                id: LeaseId::from_signed(answer.id()),
                ttl: answer.ttl(),
                granted_ttl: answer.granted_ttl(),
                keys,
            });
        }
        leases.sort_unstable_by_key(|lease| lease.id);
        leases
    }

    /// The member's own view: version, sizes, leader, raft position.
    pub async fn status(&self) -> StatusResponse {
        self.client()
            .await
            .status()
            .await
            .expect("the status of etcd")
    }

    /// The identity the cluster knows this member by.
    pub async fn member_id(&self) -> MemberId {
        let status = self.status().await;
        MemberId(status.header().expect("a response header").member_id())
    }

    /// Hands leadership over to another member. This one must lead.
    pub async fn move_leader_to(&self, member: &Self) {
        let id = member.member_id().await;
        let answer = self.client().await.move_leader(id.0).await;
        answer.unwrap_or_else(|error| panic!("move the leader to {id}: {error}"));
    }

    /// Compacts the history up to a revision and waits until this member dropped it.
    pub async fn compact(&self, revision: Revision) {
        let options = CompactionOptions::new().with_physical();
        let answer = self.kv_client().await.compact(revision.0, Some(options)).await;
        answer.unwrap_or_else(|error| panic!("compact at {revision}: {error}"));
    }

    /// Writes what the Snapshot call streams, database and trailing hash; returns its length.
    pub async fn snapshot_to(&self, path: &Path) -> u64 {
        let mut stream = self
            .client()
            .await
            .snapshot()
            .await
            .expect("ask for a snapshot");
        let mut file = File::create(path).await.expect("create the snapshot file");
        let mut written = 0;
        while let Some(piece) = stream.message().await.expect("a piece of the snapshot") {
            file.write_all(piece.blob())
                .await
                .expect("write the snapshot file");
            written += piece.blob().len() as u64;
        }
        file.flush().await.expect("write the snapshot file");
        written
    }

    /// A key-value client without a limit on the size of answers.
    pub(crate) async fn kv_client(&self) -> KvClient {
        self.client()
            .await
            .kv_client()
            .max_decoding_message_size(usize::MAX)
    }
}

/// The hash a member has of its history up to a revision.
///
/// # Panics
/// When the member does not answer.
pub async fn hash_kv(client: &mut Client, revision: Revision) -> KeyValueHash {
    let answer = client.hash_kv(revision.0).await;
    let answer = answer.unwrap_or_else(|error| panic!("HashKV at {revision}: {error}"));
    let compacted = answer.compact_version();
    KeyValueHash {
        hash: answer.hash(),
        compact_revision: (compacted >= 0).then_some(Revision(compacted)),
    }
}

/// The revision of a store, read through the quorum. There may be none for a moment, while a leader is elected.
pub async fn current_revision(kv: &mut KvClient) -> Result<Revision, Error> {
    let options = GetOptions::new().with_count_only();
    let answer = kv.get("\0", Some(options)).await?;
    let revision = answer.header().map_or(0, ResponseHeader::revision);
    Ok(Revision(revision))
}

/// Every key of a store as it was at a revision, ascending, read through the quorum.
pub async fn list_keys_at(kv: &mut KvClient, revision: Revision) -> Result<Vec<Kv>, Error> {
    let mut keys: Vec<Kv> = Vec::new();
    loop {
        let options = GetOptions::new()
            .with_from_key()
            .with_limit(PAGE_SIZE)
            .with_revision(revision.0);
        let start = keys
            .last()
            .map_or_else(|| vec![0], |last| successor(&last.key));
        let page = kv.get(start, Some(options)).await?;
        keys.extend(page.kvs().iter().map(Kv::from));
        if !page.more() {
            return Ok(keys);
        }
    }
}

/// The smallest key above another.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
