//! The small buckets: members, alarms, authentication, cluster version.

use std::collections::BTreeSet;
use std::path::Path;

use mainstay_bbolt::{Database, OwnedItem, ReadAt};
use mainstay_ids::MemberId;
use mainstay_mvcc::{read_small_bucket, schema};
use serde::Deserialize;

use super::classification;
use super::facts::{AlarmFacts, MemberFacts};
use super::findings::CheckFailure;
use super::report::{FaultKind, format_error_chain};

/// Content of the small buckets.
#[derive(Clone, Debug, Default)]
pub(super) struct SmallBuckets {
    pub(super) members: Vec<MemberFacts>,
    pub(super) removed_members: BTreeSet<MemberId>,
    pub(super) alarms: Vec<AlarmFacts>,
    pub(super) auth_enabled: bool,
    pub(super) cluster_version: Option<String>,
}

impl SmallBuckets {
    pub(super) fn read<S: ReadAt>(
        path: &Path,
        database: &Database<S>,
    ) -> Result<Self, CheckFailure> {
        let bucket = |name: &[u8]| {
            read_small_bucket(database, name)
                .map_err(|error| classification::classify_facts_error(path, error))
        };
        let members = bucket(schema::MEMBERS)?
            .iter()
            .map(|item| decode_member(path, item))
            .collect::<Result<_, _>>()?;
        let removed_members = bucket(schema::MEMBERS_REMOVED)?
            .iter()
            .map(|(key, _)| decode_member_id(path, "members_removed", key))
            .collect::<Result<_, _>>()?;
        let alarms = bucket(schema::ALARM)?
            .iter()
            .map(|(key, _)| decode_alarm(path, key))
            .collect::<Result<_, _>>()?;
        let auth_enabled = find_value(&bucket(schema::AUTH)?, schema::AUTH_ENABLED)
            .is_some_and(|flag| flag.first() == Some(&1));
        let cluster_version = find_value(&bucket(schema::CLUSTER)?, schema::CLUSTER_VERSION)
            .map(|text| String::from_utf8_lossy(text).into_owned());
        Ok(Self {
            members,
            removed_members,
            alarms,
            auth_enabled,
            cluster_version,
        })
    }

    /// The member IDs.
    pub(super) fn member_ids(&self) -> BTreeSet<MemberId> {
        self.members.iter().map(|member| member.id).collect()
    }
}

fn find_value<'i>(items: &'i [OwnedItem], name: &[u8]) -> Option<&'i [u8]> {
    items
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_slice())
}

/// A member as etcd stores it.
#[derive(Deserialize)]
struct MemberJson {
    id: u64,
    #[serde(rename = "peerURLs")]
    peer_urls: Option<Vec<String>>,
    #[serde(default, rename = "isLearner")]
    is_learner: bool,
    #[serde(default)]
    name: String,
    #[serde(rename = "clientURLs")]
    client_urls: Option<Vec<String>>,
}

fn decode_member(path: &Path, (key, json): &OwnedItem) -> Result<MemberFacts, CheckFailure> {
    let id = decode_member_id(path, "members", key)?;
    let invalid = |reason| {
        let place = format!("bucket members, {id}");
        CheckFailure::damage(FaultKind::Entry, path, place, reason)
    };
    let stored: MemberJson = serde_json::from_slice(json)
        .map_err(|error| invalid(format!("decode member: {}", format_error_chain(&error))))?;
    // etcd uses both the key and the ID in the value, so they must match.
    if stored.id != id.0 {
        let other = MemberId(stored.id);
        return Err(invalid(format!("stored member has ID {other}")));
    }
    Ok(MemberFacts {
        id,
        name: stored.name,
        peer_urls: stored.peer_urls.unwrap_or_default(),
        client_urls: stored.client_urls.unwrap_or_default(),
        is_learner: stored.is_learner,
    })
}

fn decode_member_id(path: &Path, bucket: &str, key: &[u8]) -> Result<MemberId, CheckFailure> {
    let id = std::str::from_utf8(key).ok().and_then(MemberId::from_hex);
    id.ok_or_else(|| {
        let name = String::from_utf8_lossy(key);
        let reason = format!("invalid member ID {name:?}");
        CheckFailure::damage(FaultKind::Entry, path, format!("bucket {bucket}"), reason)
    })
}

fn decode_alarm(path: &Path, key: &[u8]) -> Result<AlarmFacts, CheckFailure> {
    let alarm = schema::StoredAlarm::decode(key).map_err(|error| {
        let reason = format!("decode alarm: {}", format_error_chain(&error));
        CheckFailure::damage(FaultKind::Entry, path, "bucket alarm", reason)
    })?;
    Ok(AlarmFacts {
        member_id: alarm.member,
        alarm: match alarm.kind {
            schema::StoredAlarmKind::NoSpace => "NOSPACE".to_owned(),
            schema::StoredAlarmKind::Corrupt => "CORRUPT".to_owned(),
            schema::StoredAlarmKind::Other(number) => number.to_string(),
        },
    })
}
