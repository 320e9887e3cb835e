//! Names of etcd's buckets and the encodings of the small ones.

use mainstay_ids::{LeaseId, MemberId};

use crate::proto::{FieldReader, FieldValue, WireError, put_number};

/// Bucket of all versions of all keys.
pub const KEY: &[u8] = b"key";
/// Bucket of leases.
pub const LEASE: &[u8] = b"lease";
/// Bucket of metadata: consistent index, compaction, raft membership.
pub const META: &[u8] = b"meta";
/// Bucket of members.
pub const MEMBERS: &[u8] = b"members";
/// Bucket of removed members.
pub const MEMBERS_REMOVED: &[u8] = b"members_removed";
/// Bucket of the cluster version and of a running downgrade.
pub const CLUSTER: &[u8] = b"cluster";
/// Bucket of raised alarms.
pub const ALARM: &[u8] = b"alarm";
/// Bucket of the authentication settings.
pub const AUTH: &[u8] = b"auth";
/// Bucket of users.
pub const AUTH_USERS: &[u8] = b"authUsers";
/// Bucket of roles.
pub const AUTH_ROLES: &[u8] = b"authRoles";

/// In `meta`: raft index of the last applied entry.
pub const CONSISTENT_INDEX: &[u8] = b"consistent_index";
/// In `meta`: term of that entry (since 3.5).
pub const TERM: &[u8] = b"term";
/// In `meta`: revision of the last scheduled compaction.
pub const SCHEDULED_COMPACT: &[u8] = b"scheduledCompactRev";
/// In `meta`: revision of the last finished compaction.
pub const FINISHED_COMPACT: &[u8] = b"finishedCompactRev";
/// In `meta`: raft membership as JSON (since 3.5).
pub const CONF_STATE: &[u8] = b"confState";
/// In `meta`: schema version (since 3.6).
pub const STORAGE_VERSION: &[u8] = b"storageVersion";
/// In `auth`: one byte, 1 when authentication is enabled.
pub const AUTH_ENABLED: &[u8] = b"authEnabled";
/// In `cluster`: the cluster version as text.
pub const CLUSTER_VERSION: &[u8] = b"clusterVersion";

/// A stored lease. Its remaining TTL restarts when a new leader is elected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Lease ID.
    pub id: LeaseId,
    /// Granted TTL in seconds.
    pub ttl_seconds: i64,
    /// Remaining TTL in seconds at the last checkpoint; 0 without a checkpoint.
    pub remaining_seconds: i64,
}

impl Lease {
    /// Decodes a value of the `lease` bucket.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut lease = Self {
            id: LeaseId::NONE,
            ttl_seconds: 0,
            remaining_seconds: 0,
        };
        let mut fields = FieldReader::new(bytes);
        while let Some((field, value)) = fields.next_field()? {
            match (field, value) {
                (1, FieldValue::Number(n)) => lease.id = LeaseId(n),
                (2, FieldValue::Number(n)) => lease.ttl_seconds = n.cast_signed(),
                (3, FieldValue::Number(n)) => lease.remaining_seconds = n.cast_signed(),
                (1..=3, _) => return Err(WireError::WireType { field, wire: 7 }),
                _ => {}
            }
        }
        Ok(lease)
    }

    /// Encodes key and value of the row in the `lease` bucket.
    pub fn encode(&self) -> ([u8; 8], Vec<u8>) {
        let mut value = Vec::new();
        put_number(&mut value, 1, self.id.to_signed());
        put_number(&mut value, 2, self.ttl_seconds);
        put_number(&mut value, 3, self.remaining_seconds);
        (self.id.0.to_be_bytes(), value)
    }
}

/// Type of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAlarmKind {
    /// The database reached its quota; etcd rejects writes.
    NoSpace,
    /// The data of members differs.
    Corrupt,
    /// An unknown alarm type.
    Other(u64),
}

/// A raised alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAlarm {
    /// The affected member.
    pub member: MemberId,
    /// Type of the alarm.
    pub kind: StoredAlarmKind,
}

impl StoredAlarm {
    /// Decodes a key of the `alarm` bucket.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let (mut member, mut kind) = (0, 0);
        let mut fields = FieldReader::new(bytes);
        while let Some((field, value)) = fields.next_field()? {
            match (field, value) {
                (1, FieldValue::Number(n)) => member = n,
                (2, FieldValue::Number(n)) => kind = n,
                _ => {}
            }
        }
        let kind = match kind {
            1 => StoredAlarmKind::NoSpace,
            2 => StoredAlarmKind::Corrupt,
            other => StoredAlarmKind::Other(other),
        };
        Ok(Self {
            member: MemberId(member),
            kind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_lease_round_trips() {
        let lease = Lease {
            id: LeaseId(0x1cc4_a1e2_08af_bf0b),
            ttl_seconds: 3600,
            remaining_seconds: 0,
        };
        let (key, value) = lease.encode();
        assert_eq!(hex::encode(key), "1cc4a1e208afbf0b");
        assert_eq!(hex::encode(&value), "088bfebec5a0bca8e21c10901c");
        assert_eq!(Lease::decode(&value), Ok(lease));
    }

    #[test]
    fn documented_alarm_decodes() {
        let key = hex::decode("089d83c7abb5cca5d31e1001").unwrap();
        let member = MemberId(0x1ea6_9663_5571_c19d);
        assert_eq!(
            StoredAlarm::decode(&key),
            Ok(StoredAlarm {
                member,
                kind: StoredAlarmKind::NoSpace
            })
        );
    }
}
