//! The report, as machines read it; [`super::text`] shows it to people.

use std::fs::File;

use mainstay_bbolt::Database;
use mainstay_mvcc::schema::{self, Alarm, AlarmKind};
use mainstay_mvcc::{Facts, FactsError, small_bucket};
use serde::{Deserialize, Serialize};

use super::Walks;
use super::keys::{KeySpace, Tally};
use super::open::{HashState, Opened};

/// Longest key shown.
const SHOWN_BYTES: usize = 512;

/// What is in a database.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
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

/// As `etcdctl endpoint hashkv` answers.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HashKvReport {
    pub(super) hash: u32,
    pub(super) revision: i64,
    pub(super) compact_revision: i64,
}

/// As `etcdutl snapshot status` answers.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusReport {
    pub(super) hash: u32,
    pub(super) hash_hex: String,
    pub(super) revision: i64,
    /// Entries of all buckets: what versions up to 3.5 print.
    pub(super) total_key: u64,
    /// Live keys: what 3.6 and later print.
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
    pub(super) largest: Vec<LargeReport>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PrefixReport {
    pub(super) prefix: String,
    pub(super) keys: u64,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LargeReport {
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

/// A member as etcd stores it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StoredMember {
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

impl Report {
    pub(super) fn new(
        opened: &Opened,
        database: &Database<&File>,
        facts: &Facts,
        walks: Walks,
    ) -> Result<Self, FactsError> {
        let Walks {
            pages,
            hash,
            status,
            keys,
        } = walks;
        let meta = database.meta();
        let page_size = u64::from(meta.page_size);
        let bucket = |bucket: &mainstay_bbolt::check::CheckedBucket| BucketReport {
            name: readable(&bucket.name),
            items: bucket.items,
            bytes: bucket.bytes,
        };
        Ok(Self {
            source: opened.place.clone(),
            snapshot_hash: opened.hash,
            revision: facts.revision.0,
            compact_revision: facts.compact_revision().map(|revision| revision.0),
            consistent_index: facts.consistent_index.map(|index| index.0),
            term: facts.term.map(|term| term.0),
            storage_version: facts.storage_version.clone(),
            cluster_version: cluster_version(database)?,
            hash_kv: HashKvReport {
                hash: hash.hash,
                revision: hash.revision.0,
                compact_revision: hash.compact_revision.map_or(-1, |revision| revision.0),
            },
            status: StatusReport {
                hash: status.hash,
                hash_hex: format!("{:x}", status.hash),
                revision: facts.last_row.unwrap_or_default().0,
                total_key: status.entries,
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
            keys: KeysReport::of(&keys),
            members: members(database)?,
            alarms: alarms(database)?,
            auth: auth(database)?,
        })
    }
}

impl KeysReport {
    fn of(keys: &KeySpace) -> Self {
        let (prefixes, other_prefixes) = keys.top_prefixes();
        let prefix = |(prefix, Tally { keys, bytes }): (&[u8], Tally)| PrefixReport {
            prefix: readable(prefix),
            keys,
            bytes,
        };
        let large = |(key, bytes): (&[u8], u64)| LargeReport {
            key: readable(key),
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

fn cluster_version(database: &Database<&File>) -> Result<Option<String>, FactsError> {
    let rows = small_bucket(database, schema::CLUSTER)?;
    let version = rows.iter().find(|(key, _)| key == schema::CLUSTER_VERSION);
    Ok(version.map(|(_, value)| readable(value)))
}

fn members(database: &Database<&File>) -> Result<Vec<MemberReport>, FactsError> {
    let rows = small_bucket(database, schema::MEMBERS)?;
    let member = |(id, json): &(Vec<u8>, Vec<u8>)| {
        // One that cannot be read is shown with its id alone: `verify` judges it.
        let stored: StoredMember = serde_json::from_slice(json).unwrap_or_default();
        MemberReport {
            id: readable(id),
            name: stored.name,
            peer_urls: stored.peer_urls,
            client_urls: stored.client_urls,
            is_learner: stored.is_learner,
        }
    };
    Ok(rows.iter().map(member).collect())
}

fn alarms(database: &Database<&File>) -> Result<Vec<AlarmReport>, FactsError> {
    let rows = small_bucket(database, schema::ALARM)?;
    let alarm = |key: &[u8]| {
        let alarm = Alarm::decode(key).ok()?;
        let kind = match alarm.kind {
            AlarmKind::NoSpace => "NOSPACE".to_owned(),
            AlarmKind::Corrupt => "CORRUPT".to_owned(),
            AlarmKind::Other(number) => number.to_string(),
        };
        Some(AlarmReport {
            member: alarm.member.to_string(),
            kind,
        })
    };
    Ok(rows.iter().filter_map(|(key, _)| alarm(key)).collect())
}

fn auth(database: &Database<&File>) -> Result<AuthReport, FactsError> {
    let switch = small_bucket(database, schema::AUTH)?;
    let enabled = switch.iter().find(|(key, _)| key == schema::AUTH_ENABLED);
    Ok(AuthReport {
        is_enabled: enabled.is_some_and(|(_, value)| value.first() == Some(&1)),
        users: small_bucket(database, schema::AUTH_USERS)?.len(),
        roles: small_bucket(database, schema::AUTH_ROLES)?.len(),
    })
}

/// Text as it is; other bytes escaped, and all of it cut where it is too long to read.
fn readable(bytes: &[u8]) -> String {
    let shown = bytes.get(..SHOWN_BYTES).unwrap_or(bytes);
    let more = if shown.len() < bytes.len() { "…" } else { "" };
    match std::str::from_utf8(shown) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text}{more}"),
        _ => format!("{}{more}", shown.escape_ascii()),
    }
}
