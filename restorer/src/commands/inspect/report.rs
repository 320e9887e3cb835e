//! The JSON report; [`super::text`] formats it as text.

use std::fs::File;

use mainstay_bbolt::Database;
use mainstay_mvcc::schema::{self, StoredAlarm, StoredAlarmKind};
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError, read_small_bucket};
use serde::{Deserialize, Serialize};

use super::ScanResults;
use super::keys::{KeyCount, KeySpace};
use super::open::{HashState, InspectedDatabase};

/// Limit of a key in the report, in bytes.
const MAX_SHOWN_BYTES: usize = 512;

/// Content of a database.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InspectReport {
    pub(super) source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) snapshot_hash: Option<HashState>,
    pub(super) revision: i64,
    pub(super) compact_revision: Option<i64>,
    pub(super) consistent_index: Option<u64>,
    pub(super) term: Option<u64>,
    pub(super) storage_version: Option<String>,
    pub(super) cluster_version: Option<String>,
    pub(super) hash_kv: HashKvReport,
    pub(super) status: StatusReport,
    pub(super) database: DatabaseReport,
    pub(super) keys: KeysReport,
    pub(super) leases: LeasesReport,
    pub(super) members: Vec<MemberReport>,
    pub(super) alarms: Vec<AlarmReport>,
    pub(super) auth: AuthReport,
}

/// The values of `etcdctl endpoint hashkv`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HashKvReport {
    pub(super) hash: u32,
    pub(super) revision: i64,
    pub(super) compact_revision: i64,
}

/// The values of `etcdutl snapshot status`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusReport {
    pub(super) hash: u32,
    pub(super) hash_hex: String,
    pub(super) revision: i64,
    /// Entries of all buckets, as etcdutl up to 3.5 prints.
    pub(super) total_key: u64,
    /// Live keys, as etcdutl 3.6 and later prints.
    pub(super) total_key_since_3_6: u64,
    pub(super) total_size: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DatabaseReport {
    pub(super) file_bytes: u64,
    pub(super) page_size: u32,
    pub(super) pages: u64,
    pub(super) pages_in_use: u64,
    pub(super) pages_free: u64,
    pub(super) bytes_in_use: u64,
    pub(super) buckets: Vec<BucketReport>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct BucketReport {
    pub(super) name: String,
    pub(super) items: u64,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeysReport {
    pub(super) rows: u64,
    pub(super) live: u64,
    pub(super) bytes: u64,
    pub(super) prefixes: Vec<PrefixReport>,
    pub(super) other_prefixes: usize,
    pub(super) largest: Vec<LargeKeyReport>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PrefixReport {
    pub(super) prefix: String,
    pub(super) keys: u64,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LargeKeyReport {
    pub(super) key: String,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeasesReport {
    pub(super) count: usize,
    pub(super) attached_keys: u64,
    pub(super) keys_on_unknown_leases: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemberReport {
    pub(super) id: String,
    pub(super) name: String,
    #[serde(rename = "peerURLs")]
    pub(super) peer_urls: Vec<String>,
    #[serde(rename = "clientURLs")]
    pub(super) client_urls: Vec<String>,
    pub(super) is_learner: bool,
}

/// A member in the format of etcd.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StoredMemberJson {
    name: String,
    #[serde(rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(rename = "clientURLs")]
    client_urls: Vec<String>,
    is_learner: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct AlarmReport {
    pub(super) member: String,
    pub(super) kind: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthReport {
    pub(super) is_enabled: bool,
    pub(super) users: usize,
    pub(super) roles: usize,
}

impl InspectReport {
    pub(super) fn new(
        opened: &InspectedDatabase,
        database: &Database<&File>,
        facts: &DatabaseStatus,
        walks: ScanResults,
    ) -> Result<Self, DatabaseStatusError> {
        let ScanResults {
            pages,
            hash_kv: hash,
            status_hash,
            keys,
        } = walks;
        let meta = database.meta();
        let page_size = u64::from(meta.page_size);
        let bucket = |bucket: &mainstay_bbolt::check::CheckedBucket| BucketReport {
            name: to_readable(&bucket.name),
            items: bucket.items,
            bytes: bucket.bytes,
        };
        Ok(Self {
            source: opened.description.clone(),
            snapshot_hash: opened.hash,
            revision: facts.revision.0,
            compact_revision: facts.compact_revision().map(|revision| revision.0),
            consistent_index: facts.consistent_index.map(|index| index.0),
            term: facts.term.map(|term| term.0),
            storage_version: facts.storage_version.clone(),
            cluster_version: read_cluster_version(database)?,
            hash_kv: HashKvReport {
                hash: hash.hash,
                revision: hash.revision.0,
                // etcd reports -1 for a database that was never compacted.
                compact_revision: hash.compact_revision.map_or(-1, |revision| revision.0),
            },
            status: StatusReport {
                hash: status_hash.hash,
                hash_hex: format!("{:x}", status_hash.hash),
                revision: facts.last_row.unwrap_or_default().0,
                total_key: status_hash.entries,
                total_key_since_3_6: keys.live.keys,
                total_size: meta.high_water.0.saturating_mul(page_size),
            },
            database: DatabaseReport {
                file_bytes: opened.bytes,
                page_size: meta.page_size,
                pages: pages.pages_total,
                pages_in_use: pages.pages_used,
                pages_free: pages.pages_total.saturating_sub(pages.pages_used),
                bytes_in_use: pages.pages_used.saturating_mul(page_size),
                buckets: pages.buckets.iter().map(bucket).collect(),
            },
            leases: LeasesReport {
                count: keys.leases,
                attached_keys: keys.leased,
                keys_on_unknown_leases: keys.orphaned,
            },
            keys: KeysReport::from_key_space(&keys),
            members: read_members(database)?,
            alarms: read_alarms(database)?,
            auth: read_auth(database)?,
        })
    }
}

impl KeysReport {
    fn from_key_space(keys: &KeySpace) -> Self {
        let (prefixes, other_prefixes) = keys.top_prefixes();
        let prefix = |(prefix, KeyCount { keys, bytes }): (&[u8], KeyCount)| PrefixReport {
            prefix: to_readable(prefix),
            keys,
            bytes,
        };
        let large = |(key, bytes): (&[u8], u64)| LargeKeyReport {
            key: to_readable(key),
            bytes,
        };
        Self {
            rows: keys.rows,
            live: keys.live.keys,
            bytes: keys.live.bytes,
            prefixes: prefixes.into_iter().map(prefix).collect(),
            other_prefixes,
            largest: keys.largest().into_iter().map(large).collect(),
        }
    }
}

fn read_cluster_version(database: &Database<&File>) -> Result<Option<String>, DatabaseStatusError> {
    let rows = read_small_bucket(database, schema::CLUSTER)?;
    let version = rows.iter().find(|(key, _)| key == schema::CLUSTER_VERSION);
    Ok(version.map(|(_, value)| to_readable(value)))
}

fn read_members(database: &Database<&File>) -> Result<Vec<MemberReport>, DatabaseStatusError> {
    let rows = read_small_bucket(database, schema::MEMBERS)?;
    let member = |(id, json): &(Vec<u8>, Vec<u8>)| {
        // An unreadable member is shown with its id only; `verify` reports the fault.
        let stored: StoredMemberJson = serde_json::from_slice(json).unwrap_or_default();
        MemberReport {
            id: to_readable(id),
            name: stored.name,
            peer_urls: stored.peer_urls,
            client_urls: stored.client_urls,
            is_learner: stored.is_learner,
        }
    };
    Ok(rows.iter().map(member).collect())
}

fn read_alarms(database: &Database<&File>) -> Result<Vec<AlarmReport>, DatabaseStatusError> {
    let rows = read_small_bucket(database, schema::ALARM)?;
    let alarm = |key: &[u8]| {
        let alarm = StoredAlarm::decode(key).ok()?;
        let kind = match alarm.kind {
            StoredAlarmKind::NoSpace => "NOSPACE".to_owned(),
            StoredAlarmKind::Corrupt => "CORRUPT".to_owned(),
            StoredAlarmKind::Other(number) => number.to_string(),
        };
        Some(AlarmReport {
            member: alarm.member.to_string(),
            kind,
        })
    };
    Ok(rows.iter().filter_map(|(key, _)| alarm(key)).collect())
}

fn read_auth(database: &Database<&File>) -> Result<AuthReport, DatabaseStatusError> {
    let switch = read_small_bucket(database, schema::AUTH)?;
    let enabled = switch.iter().find(|(key, _)| key == schema::AUTH_ENABLED);
    Ok(AuthReport {
        is_enabled: enabled.is_some_and(|(_, value)| value.first() == Some(&1)),
        users: read_small_bucket(database, schema::AUTH_USERS)?.len(),
        roles: read_small_bucket(database, schema::AUTH_ROLES)?.len(),
    })
}

/// Returns text as it is and other bytes escaped, shortened to [`MAX_SHOWN_BYTES`].
fn to_readable(bytes: &[u8]) -> String {
    let shown = bytes.get(..MAX_SHOWN_BYTES).unwrap_or(bytes);
    let more = if shown.len() < bytes.len() { "…" } else { "" };
    match std::str::from_utf8(shown) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text}{more}"),
        _ => format!("{}{more}", shown.escape_ascii()),
    }
}
