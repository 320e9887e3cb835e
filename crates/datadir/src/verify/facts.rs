//! What a data directory says about itself.

use mainstay_ids::{ClusterId, MemberId, RaftIndex, Revision, Term, TxId};
use serde::{Serialize, Serializer};

/// What a data directory says about itself. Absent is what it does not say or what was not looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DirFacts {
    /// The revision of the database. What it has yet to apply from the log comes on top, see
    /// [`possible_writes_in_wal`](Self::possible_writes_in_wal).
    #[serde(serialize_with = "number")]
    pub revision: Revision,
    /// The revision below which reads are refused.
    #[serde(serialize_with = "number")]
    pub compact_revision: Option<Revision>,
    /// The last entry of the log that the database reflects.
    #[serde(serialize_with = "number")]
    pub consistent_index: Option<RaftIndex>,
    /// The term of that entry, as the database says (since 3.5).
    #[serde(serialize_with = "number")]
    pub term: Option<Term>,
    /// Whose directory it is.
    #[serde(serialize_with = "hex")]
    pub member_id: Option<MemberId>,
    /// Of which cluster.
    #[serde(serialize_with = "hex")]
    pub cluster_id: Option<ClusterId>,
    /// The members the database knows.
    pub members: Vec<MemberFacts>,
    /// Raised alarms.
    pub alarms: Vec<AlarmFacts>,
    /// Whether clients must authenticate.
    pub auth_enabled: bool,
    /// The newest write transaction of the database file.
    #[serde(serialize_with = "number")]
    pub db_txid: TxId,
    /// Bytes of the database file.
    pub db_bytes: u64,
    /// Bytes of its pages that hold something; the rest is free. Full verification only.
    pub db_bytes_in_use: Option<u64>,
    /// Keys that exist at the newest revision. Full verification only.
    pub live_keys: Option<u64>,
    /// Rows of the key bucket: versions and deletes. Full verification only.
    pub rows: Option<u64>,
    /// Leases. Full verification only.
    pub leases: Option<u64>,
    /// The raft snapshot etcd would start from; 0 for none.
    #[serde(serialize_with = "number")]
    pub snapshot_index: Option<RaftIndex>,
    /// The newest entry of the log.
    #[serde(serialize_with = "number")]
    pub last_wal_index: Option<RaftIndex>,
    /// The newest entry the log knows to be committed. It may trail what was applied.
    #[serde(serialize_with = "number")]
    pub commit: Option<RaftIndex>,
    /// How many revisions the database may gain from the log at most: entries behind the consistent index that can
    /// write, whether known to be committed or not.
    pub possible_writes_in_wal: Option<u64>,
    /// Those of them that are known to be committed.
    pub committed_writes_in_wal: Option<u64>,
    /// Schema version of the database (since 3.6).
    pub storage_version: Option<String>,
    /// The version all members agreed on.
    pub cluster_version: Option<String>,
}

/// A member as the `members` bucket has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberFacts {
    /// Its identity.
    #[serde(serialize_with = "hex")]
    pub id: MemberId,
    /// Its name; empty until it has started for the first time.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty until it has started for the first time.
    pub client_urls: Vec<String>,
    /// Whether it has no vote.
    pub is_learner: bool,
}

/// A raised alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AlarmFacts {
    /// The member it concerns.
    #[serde(serialize_with = "hex")]
    pub member_id: MemberId,
    /// `NOSPACE`, `CORRUPT`, or the number of one this program does not know.
    pub alarm: String,
}

/// A counter, or none, as the number it is in JSON.
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

/// An identity, or none, as etcd prints it: a number of 64 bits does not survive most readers of JSON.
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
