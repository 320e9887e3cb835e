//! Queries of a live etcd, answered as plain values that can be compared.

use std::path::Path;

use etcd_client::{
    Client, CompactionOptions, Error, GetOptions, KeyValue, KvClient, LeaseTimeToLiveOptions,
    ResponseHeader, StatusResponse,
};
use mainstay_ids::{LeaseId, MemberId, Revision};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::EtcdServer;

/// Keys per request; keeps responses small even with large values.
const PAGE_SIZE: i64 = 500;

/// A key-value pair as etcd returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kv {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Revision that created this generation of the key.
    pub create_revision: Revision,
    /// Revision that wrote this value.
    pub mod_revision: Revision,
    /// Number of writes since the key was created.
    pub version: i64,
    /// Lease of the key, or [`LeaseId::NONE`].
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

/// Hash of the history of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueHash {
    /// The hash.
    pub hash: u32,
    /// Compacted revision at the time of the hash; `None` if there was no compaction. Two hashes are comparable
    /// only if it is equal.
    pub compact_revision: Option<Revision>,
}

/// A lease and its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// ID of the lease.
    pub id: LeaseId,
    /// Remaining time in seconds.
    pub ttl: i64,
    /// Granted time in seconds.
    pub granted_ttl: i64,
    /// Attached keys in ascending order.
    pub keys: Vec<Vec<u8>>,
}

impl EtcdServer {
    /// Hash of the history up to a revision.
    pub async fn hash_kv(&self, revision: Revision) -> KeyValueHash {
        hash_kv(&mut self.client().await, revision).await
    }

    /// Current revision, read through the quorum.
    pub async fn revision(&self) -> Revision {
        let newest = current_revision(&mut self.kv_client().await).await;
        newest.expect("read the revision")
    }

    /// All keys at the current revision, in ascending order.
    pub async fn all_keys(&self) -> Vec<Kv> {
        self.all_keys_at(self.revision().await).await
    }

    /// All keys at a revision, in ascending order.
    pub async fn all_keys_at(&self, revision: Revision) -> Vec<Kv> {
        let keys = list_keys_at(&mut self.kv_client().await, revision).await;
        keys.unwrap_or_else(|error| panic!("keys at {revision}: {error}"))
    }

    /// All live leases, in ascending order of their IDs.
    pub async fn list_leases(&self) -> Vec<LeaseInfo> {
        let mut client = self.client().await;
        let listed = client.leases().await.expect("list the leases");
        let mut leases = Vec::new();
        for lease in listed.leases() {
            let options = LeaseTimeToLiveOptions::new().with_keys();
            let response = client.lease_time_to_live(lease.id(), Some(options)).await;
            let response = response.expect("read a lease");
            if response.ttl() < 0 {
                continue; // expired since the list request
            }
            let mut keys = response.keys().to_vec();
            keys.sort_unstable();
            leases.push(LeaseInfo {
                id: LeaseId::from_signed(response.id()),
                ttl: response.ttl(),
                granted_ttl: response.granted_ttl(),
                keys,
            });
        }
        leases.sort_unstable_by_key(|lease| lease.id);
        leases
    }

    /// Status of the member: version, sizes, leader, raft position.
    pub async fn status(&self) -> StatusResponse {
        self.client()
            .await
            .status()
            .await
            .expect("read the status of etcd")
    }

    /// Member ID.
    pub async fn member_id(&self) -> MemberId {
        let status = self.status().await;
        MemberId(status.header().expect("a response header").member_id())
    }

    /// Transfers leadership to another member. This member must be the leader.
    pub async fn move_leader_to(&self, member: &Self) {
        let id = member.member_id().await;
        let response = self.client().await.move_leader(id.0).await;
        response.unwrap_or_else(|error| panic!("move the leader to {id}: {error}"));
    }

    /// Compacts the history up to a revision and waits until this member has removed it from its database.
    pub async fn compact(&self, revision: Revision) {
        let options = CompactionOptions::new().with_physical();
        let response = self
            .kv_client()
            .await
            .compact(revision.0, Some(options))
            .await;
        response.unwrap_or_else(|error| panic!("compact at {revision}: {error}"));
    }

    /// Writes the stream of the Snapshot call, database and trailing hash; returns its length in bytes.
    pub async fn snapshot_to(&self, path: &Path) -> u64 {
        let mut stream = self
            .client()
            .await
            .snapshot()
            .await
            .expect("request a snapshot");
        let mut file = File::create(path).await.expect("create the snapshot file");
        let mut written = 0;
        while let Some(piece) = stream.message().await.expect("receive the snapshot") {
            file.write_all(piece.blob())
                .await
                .expect("write the snapshot file");
            written += piece.blob().len() as u64;
        }
        file.flush().await.expect("write the snapshot file");
        written
    }

    /// A key-value client without a limit on the size of responses.
    pub(crate) async fn kv_client(&self) -> KvClient {
        self.client()
            .await
            .kv_client()
            .max_decoding_message_size(usize::MAX)
    }
}

/// Hash of the history of a member up to a revision.
///
/// # Panics
/// If the member does not answer.
pub async fn hash_kv(client: &mut Client, revision: Revision) -> KeyValueHash {
    let response = client.hash_kv(revision.0).await;
    let response = response.unwrap_or_else(|error| panic!("HashKV at {revision}: {error}"));
    let compacted = response.compact_version();
    KeyValueHash {
        hash: response.hash(),
        compact_revision: (compacted >= 0).then_some(Revision(compacted)),
    }
}

/// Current revision, read through the quorum. It fails while no leader is elected.
pub async fn current_revision(kv: &mut KvClient) -> Result<Revision, Error> {
    let options = GetOptions::new().with_count_only();
    let response = kv.get("\0", Some(options)).await?;
    let revision = response.header().map_or(0, ResponseHeader::revision);
    Ok(Revision(revision))
}

/// All keys at a revision, in ascending order, read through the quorum.
pub async fn list_keys_at(kv: &mut KvClient, revision: Revision) -> Result<Vec<Kv>, Error> {
    let mut keys: Vec<Kv> = Vec::new();
    loop {
        let options = GetOptions::new()
            .with_from_key()
            .with_limit(PAGE_SIZE)
            // The fixed revision keeps the pages consistent.
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

/// The next key in byte order.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
