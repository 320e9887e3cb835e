//! What a lease should say, and what has to change about the one that is there. Pure.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use mainstay_coordination::annotation::{DELTA_BYTES, DELTA_BYTES_SINCE, PEER_TLS};
use mainstay_ids::Revision;
use serde_json::{Value, json};

use crate::state::{DeltasSinceFull, MemberStatus, SidecarRole, SidecarState};

/// Which lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseKind {
    /// Of this member: that it lives and what it is.
    Member,
    /// The revision of the newest full snapshot.
    FullSnapshot,
    /// The revision of the newest delta.
    DeltaSnapshot,
}

impl LeaseKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Member, Self::FullSnapshot, Self::DeltaSnapshot];

    /// One word, for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::FullSnapshot => "full_snapshot",
            Self::DeltaSnapshot => "delta_snapshot",
        }
    }
}

/// What a lease should say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DesiredLease {
    /// Who this member is, now.
    Member {
        identity: String,
        /// Not known when absent: what is there stays.
        peer_tls: Option<bool>,
    },
    /// The newest full snapshot.
    Full {
        revision: Revision,
        created_at: Timestamp,
    },
    /// The newest delta, and when the schedule last passed, with or without something to write.
    Delta {
        revision: Revision,
        checked_at: Timestamp,
        /// What has piled up behind the last full snapshot, where that is known.
        deltas_since_full: Option<DeltasSinceFull>,
    },
}

/// What the state says should be in a lease; `None` when it does not say.
pub(super) fn desired_lease(kind: LeaseKind, state: &SidecarState, peer_tls: Option<bool>) -> Option<DesiredLease> {
    match kind {
        LeaseKind::Member => {
            let identity = holder_identity(state.role, state.member_status.as_ref()?)?;
            Some(DesiredLease::Member { identity, peer_tls })
        }
        // Of the snapshots, a sidecar that does not lead knows old news only.
        _ if state.role != SidecarRole::Leader => None,
        LeaseKind::FullSnapshot => {
            let name = &state.last_full.as_ref()?.name;
            Some(DesiredLease::Full {
                revision: name.last,
                created_at: name.created_at(),
            })
        }
        LeaseKind::DeltaSnapshot => {
            let revision = state
                .last_delta
                .as_ref()
                .map_or(Revision(0), |delta| delta.name.last);
            Some(DesiredLease::Delta {
                revision,
                checked_at: state.delta_checked_at?,
                deltas_since_full: state.deltas_since_full,
            })
        }
    }
}

/// `<member>:<cluster>:<role>`, ids in hexadecimal. Learners are members too. A member that does not know where it stands
/// says nothing: its lease runs out.
fn holder_identity(standing: SidecarRole, member_status: &MemberStatus) -> Option<String> {
    let role = match standing {
        SidecarRole::Unknown => return None,
        SidecarRole::Leader => "Leader",
        SidecarRole::Follower | SidecarRole::Learner => "Member",
    };
    Some(format!("{}:{}:{role}", member_status.member, member_status.cluster))
}

/// The merge patch that makes a lease say what is wanted; `None` when it says so already, or something newer.
pub(super) fn build_patch(found: &Lease, wanted: &DesiredLease, now: Timestamp) -> Option<Value> {
    let (mut spec, mut metadata) = (json!({}), json!({}));
    match wanted {
        DesiredLease::Member { identity, peer_tls } => {
            spec["holderIdentity"] = json!(identity);
            spec["renewTime"] = json!(MicroTime(now));
            if let Some(peer_tls) = peer_tls {
                metadata["annotations"] = json!({ PEER_TLS: peer_tls.to_string() });
            }
        }
        DesiredLease::Full { revision, created_at: created } => {
            let is_new = match held_revision(found) {
                Some(held) if held > *revision => false,
                Some(held) if held == *revision => renew_time(found).is_none_or(|at| at < *created),
                _ => true,
            };
            if !is_new {
                return None;
            }
            spec["holderIdentity"] = json!(revision.to_string());
            spec["renewTime"] = json!(MicroTime(*created));
        }
        DesiredLease::Delta {
            revision,
            checked_at: checked,
            deltas_since_full,
        } => {
            let held = held_revision(found);
            let revision = held.map_or(*revision, |held| held.max(*revision));
            if held == Some(revision) && renew_time(found) == Some(truncate_to_micros(*checked)) {
                return None;
            }
            spec["holderIdentity"] = json!(revision.to_string());
            spec["renewTime"] = json!(MicroTime(*checked));
            if let Some(DeltasSinceFull { since, bytes }) = deltas_since_full {
                metadata["annotations"] = json!({
                    DELTA_BYTES: bytes.to_string(),
                    DELTA_BYTES_SINCE: since.to_string(),
                });
            }
        }
    }
    // Names what it was made from, so that a newer writer is never overruled.
    if let Some(version) = &found.metadata.resource_version {
        metadata["resourceVersion"] = json!(version);
    }
    Some(json!({ "metadata": metadata, "spec": spec }))
}

/// The revision a snapshot lease holds; `None` when it holds none, or something else, which is overwritten.
pub(super) fn held_revision(lease: &Lease) -> Option<Revision> {
    let holder = lease.spec.as_ref()?.holder_identity.as_ref()?;
    holder
        .parse()
        .ok()
        .filter(|revision| *revision >= 0)
        .map(Revision)
}

fn renew_time(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

/// As precise as a lease keeps it.
fn truncate_to_micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
