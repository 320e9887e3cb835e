//! Facts read from a data directory.

use mainstay_ids::{ClusterId, MemberId, RaftIndex, Revision, Term, TxId};
use serde::{Serialize, Serializer};

/// Facts read from a data directory. `None` means not recorded or not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DirFacts {
    /// Revision of the database, without unapplied WAL entries; see
    /// [`possible_writes_in_wal`](Self::possible_writes_in_wal).
    #[serde(serialize_with = "number")]
    pub revision: Revision,
    /// Compacted revision; etcd rejects reads below it.
    #[serde(serialize_with = "number")]
    pub compact_revision: Option<Revision>,
    /// Last WAL entry applied to the database.
    #[serde(serialize_with = "number")]
    pub consistent_index: Option<RaftIndex>,
    /// Term of that entry as recorded in the database (since 3.5).
    #[serde(serialize_with = "number")]
    pub term: Option<Term>,
    /// ID of the member that owns the directory.
    #[serde(serialize_with = "hex")]
    pub member_id: Option<MemberId>,
    /// ID of its cluster.
    #[serde(serialize_with = "hex")]
    pub cluster_id: Option<ClusterId>,
    /// Members listed in the database.
    pub members: Vec<MemberFacts>,
    /// Raised alarms.
    pub alarms: Vec<AlarmFacts>,
    /// Whether authentication is enabled.
    pub auth_enabled: bool,
    /// Newest write transaction of the database file.
    #[serde(serialize_with = "number")]
    pub db_txid: TxId,
    /// Size of the database file in bytes.
    pub db_bytes: u64,
    /// Bytes of used pages; the rest is free. Full verification only.
    pub db_bytes_in_use: Option<u64>,
    /// Number of keys at the newest revision. Full verification only.
    pub live_keys: Option<u64>,
    /// Number of rows in the key bucket: versions and tombstones. Full verification only.
    pub rows: Option<u64>,
    /// Number of leases. Full verification only.
    pub leases: Option<u64>,
    /// Index of the raft snapshot that etcd starts from; 0 if there is none.
    #[serde(serialize_with = "number")]
    pub snapshot_index: Option<RaftIndex>,
    /// Index of the newest WAL entry.
    #[serde(serialize_with = "number")]
    pub last_wal_index: Option<RaftIndex>,
    /// Commit index recorded in the WAL. It may be lower than the consistent index.
    #[serde(serialize_with = "number")]
    pub commit: Option<RaftIndex>,
    /// Maximum number of revisions that the database can gain from the WAL: entries after the consistent index
    /// that can write, committed or not.
    pub possible_writes_in_wal: Option<u64>,
    /// Those of them known to be committed.
    pub committed_writes_in_wal: Option<u64>,
    /// Schema version of the database (since 3.6).
    pub storage_version: Option<String>,
    /// Cluster version.
    pub cluster_version: Option<String>,
}

/// A member in the `members` bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberFacts {
    /// Member ID.
    #[serde(serialize_with = "hex")]
    pub id: MemberId,
    /// Member name; empty until its first start.
    pub name: String,
    /// Peer URLs.
    pub peer_urls: Vec<String>,
    /// Client URLs; empty until its first start.
    pub client_urls: Vec<String>,
    /// Whether the member is a learner, without a vote.
    pub is_learner: bool,
}

/// A raised alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AlarmFacts {
    /// The member that raised it.
    #[serde(serialize_with = "hex")]
    pub member_id: MemberId,
    /// `NOSPACE`, `CORRUPT`, or the number of an unknown alarm type.
    pub alarm: String,
}

/// A counter or `None`, serialized as a JSON number.
trait JsonNumber {
    fn serialize_number<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
}

macro_rules! impl_json_number {
    ($($id:ty),*) => {$(
        impl JsonNumber for $id {
            fn serialize_number<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(serializer)
            }
        }

        impl JsonNumber for Option<$id> {
            fn serialize_number<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.map(|id| id.0).serialize(serializer)
            }
        }
    )*};
}

impl_json_number!(Revision, RaftIndex, Term, TxId);

fn number<C: JsonNumber, S: Serializer>(counter: &C, serializer: S) -> Result<S::Ok, S::Error> {
    counter.serialize_number(serializer)
}

/// An ID or `None`, serialized in etcd's hex notation: most JSON readers lose precision of 64-bit numbers.
trait HexId {
    fn to_hex(&self) -> Option<String>;
}

macro_rules! impl_hex_id {
    ($($id:ty),*) => {$(
        impl HexId for $id {
            fn to_hex(&self) -> Option<String> {
                Some(self.to_string())
            }
        }

        impl HexId for Option<$id> {
            fn to_hex(&self) -> Option<String> {
                self.map(|id| id.to_string())
            }
        }
    )*};
}

impl_hex_id!(MemberId, ClusterId);

fn hex<I: HexId, S: Serializer>(id: &I, serializer: S) -> Result<S::Ok, S::Error> {
    id.to_hex().serialize(serializer)
}
