//! Classifies the requests of committed entries by their effect on the key space, without decoding them fully.
//!
//! The database of a killed etcd lags behind its log. The maximum lag is the number of entries after the database's
//! consistent index that can create a revision; this module counts them.

use bytes::Bytes;
use prost::Message as _;

use crate::message::{InternalRaftRequest, V2Request};
use crate::raft::{Entry, EntryKind};

/// Type of the request in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaftRequestKind {
    /// No request: the first entry of a new leader.
    Empty,
    /// A membership change.
    ConfChange,
    /// A v2 API request, which etcd 3.4 and 3.5 still use for member attributes and the cluster version.
    V2,
    /// A put.
    Put,
    /// A delete of one key or a range.
    DeleteRange,
    /// A transaction.
    Txn,
    /// A compaction.
    Compaction,
    /// A lease grant.
    LeaseGrant,
    /// A lease revocation, which deletes the attached keys.
    LeaseRevoke,
    /// Any other request: alarms, authentication, cluster attributes.
    Other,
    /// Invalid bytes; etcd panics on them.
    Unreadable,
}

impl RaftRequestKind {
    /// Classifies the request in `entry`.
    pub fn from_entry(entry: &Entry) -> Self {
        match entry.kind {
            EntryKind::Normal if entry.data.is_empty() => Self::Empty,
            EntryKind::Normal => Self::decode(&entry.data),
            EntryKind::ConfChange | EntryKind::ConfChangeV2 => Self::ConfChange,
        }
    }

    /// Returns true when applying the request can create a revision. Unreadable requests count, since the result is an
    /// upper bound.
    pub fn can_write(self) -> bool {
        match self {
            Self::Put | Self::DeleteRange | Self::Txn | Self::LeaseRevoke | Self::Unreadable => {
                true
            }
            Self::Empty
            | Self::ConfChange
            | Self::V2
            | Self::Compaction
            | Self::LeaseGrant
            | Self::Other => false,
        }
    }

    /// Decodes an internal request, else a bare v2 request: etcd tries them in this order.
    fn decode(data: &Bytes) -> Self {
        if let Ok(request) = InternalRaftRequest::decode(data.clone()) {
            return Self::classify(&request);
        }
        match V2Request::decode(data.clone()) {
            Ok(V2Request {
                method: Some(_),
                path: Some(_),
            }) => Self::V2,
            _ => Self::Unreadable,
        }
    }

    /// A bare v2 request has its method (a string) in the field of an internal request's v2 part, and its value in the
    /// field of the put. etcd checks the v2 part first in both cases, so its presence decides.
    fn classify(request: &InternalRaftRequest) -> Self {
        let parts = [
            (request.v2.is_some(), Self::V2),
            (request.put.is_some(), Self::Put),
            (request.delete_range.is_some(), Self::DeleteRange),
            (request.txn.is_some(), Self::Txn),
            (request.lease_revoke.is_some(), Self::LeaseRevoke),
            (request.compaction.is_some(), Self::Compaction),
            (request.lease_grant.is_some(), Self::LeaseGrant),
        ];
        parts
            .into_iter()
            .find_map(|(is_there, kind)| is_there.then_some(kind))
            .unwrap_or(Self::Other)
    }
}

/// Counts the `entries` that can create a revision, that is, the maximum number of revisions by which a database that
/// applied none of them lags behind the log. Stops at the first error.
pub fn count_possible_writes<E>(
    entries: impl IntoIterator<Item = Result<Entry, E>>,
) -> Result<u64, E> {
    let mut writes = 0;
    for entry in entries {
        writes += u64::from(RaftRequestKind::from_entry(&entry?).can_write());
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use mainstay_ids::{RaftIndex, Term};

    use super::*;

    fn entry(kind: EntryKind, data: &[u8]) -> Entry {
        Entry {
            index: RaftIndex(5),
            term: Term(2),
            kind,
            data: Bytes::copy_from_slice(data),
        }
    }

    fn classify_normal(data: &[u8]) -> RaftRequestKind {
        RaftRequestKind::from_entry(&entry(EntryKind::Normal, data))
    }

    #[test]
    fn each_kind_of_internal_request_is_classified() {
        // header {ID 7}, then one part with one field in it
        let with_part = |key: &[u8]| [b"\xa2\x06\x02\x08\x07", key, b"\x02\x08\x01"].concat();
        let kinds: Vec<_> = [0x1a, 0x22, 0x2a, 0x32, 0x3a, 0x42, 0x4a, 0x52]
            .map(|key| classify_normal(&with_part(&[key])))
            .into();
        assert_eq!(
            kinds,
            [
                RaftRequestKind::Other,
                RaftRequestKind::Put,
                RaftRequestKind::DeleteRange,
                RaftRequestKind::Txn,
                RaftRequestKind::Compaction,
                RaftRequestKind::LeaseGrant,
                RaftRequestKind::LeaseRevoke,
                RaftRequestKind::Other,
            ]
        );
    }

    /// The cluster version as an etcd 3.5.30 logs it: a request of the v2 API with all its fields.
    const SET_VERSION: &str = "0882d0e7a7a8bce8e74c12035055541a0a2f302f76657273696f6e2205332e352e30\
                               2800320038004800500058006000680070007800800100";

    #[test]
    fn value_of_a_bare_v2_request_is_not_a_put() {
        let request = hex::decode(SET_VERSION).unwrap();
        assert_eq!(classify_normal(&request), RaftRequestKind::V2);
        let without_the_zeros = &request[..34];
        assert_eq!(classify_normal(without_the_zeros), RaftRequestKind::V2);
        assert!(!RaftRequestKind::V2.can_write());
    }

    #[test]
    fn write_count_is_an_upper_bound() {
        let put = b"\x22\x02\x08\x01";
        let entries = [
            entry(EntryKind::Normal, put),
            entry(EntryKind::Normal, b""),
            entry(EntryKind::ConfChange, put),
            entry(EntryKind::Normal, b"\xff"),
            entry(EntryKind::Normal, b"\x4a\x00"),
        ];
        let count = count_possible_writes(entries.map(Ok::<_, ()>));
        assert_eq!(
            count,
            Ok(3),
            "the put, the unreadable one, the lease revocation"
        );
    }

    #[test]
    fn first_error_stops_the_count() {
        assert_eq!(count_possible_writes([Err("cut")]), Err("cut"));
    }
}
