//! Desired content of a Lease, and the patch that leads to it. Pure functions.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use mainstay_coordination::annotations::{DELTA_BYTES, DELTA_BYTES_SINCE, PEER_TLS};
use mainstay_ids::Revision;
use serde_json::{Value, json};

use crate::state::{DeltasSinceFull, MemberStatus, SidecarRole, SidecarState};

/// A Lease of this sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseKind {
    /// Heartbeat and role of the member.
    Member,
    /// Revision of the latest full snapshot.
    FullSnapshot,
    /// Revision of the latest delta snapshot.
    DeltaSnapshot,
}

impl LeaseKind {
    pub(crate) const ALL: [Self; 3] = [Self::Member, Self::FullSnapshot, Self::DeltaSnapshot];

    /// Label value of metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::FullSnapshot => "full-snapshot",
            Self::DeltaSnapshot => "delta-snapshot",
        }
    }
}

/// Desired content of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DesiredLease {
    /// Identity and role of this member.
    Member {
        identity: String,
        /// `None` while unknown: the annotation stays as it is.
        peer_tls: Option<bool>,
    },
    /// Latest full snapshot.
    Full {
        revision: Revision,
        created_at: Timestamp,
    },
    /// Latest delta snapshot, and the time of the last delta run, with or without events to store.
    Delta {
        revision: Revision,
        checked_at: Timestamp,
        /// Deltas since the latest full snapshot; `None` while unknown.
        deltas_since_full: Option<DeltasSinceFull>,
    },
}

/// Desired content by the state; `None` while unknown.
pub(super) fn desired_lease(
    kind: LeaseKind,
    state: &SidecarState,
    peer_tls: Option<bool>,
) -> Option<DesiredLease> {
    match kind {
        LeaseKind::Member => {
            let identity = holder_identity(state.role, state.member_status.as_ref()?)?;
            Some(DesiredLease::Member { identity, peer_tls })
        }
        // The snapshots in the state of a sidecar that does not lead are stale.
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

/// `<member>:<cluster>:<role>`, IDs in hexadecimal, as etcd-druid parses it. A learner has role Member. In role Unknown the
/// Lease is not renewed, so that it expires and the controller reports the member.
fn holder_identity(standing: SidecarRole, member_status: &MemberStatus) -> Option<String> {
    let role = match standing {
        SidecarRole::Unknown => return None,
        SidecarRole::Leader => "Leader",
        SidecarRole::Follower | SidecarRole::Learner => "Member",
    };
    Some(format!(
        "{}:{}:{role}",
        member_status.member, member_status.cluster
    ))
}

/// Merge patch to the desired content; `None` if the Lease has it already, or a newer revision.
pub(super) fn build_patch(found: &Lease, desired: &DesiredLease, now: Timestamp) -> Option<Value> {
    let (mut spec, mut metadata) = (json!({}), json!({}));
    match desired {
        DesiredLease::Member { identity, peer_tls } => {
            spec["holderIdentity"] = json!(identity);
            spec["renewTime"] = json!(MicroTime(now));
            if let Some(peer_tls) = peer_tls {
                metadata["annotations"] = json!({ PEER_TLS: peer_tls.to_string() });
            }
        }
        DesiredLease::Full {
            revision,
            created_at,
        } => {
            let is_new = match held_revision(found) {
                Some(held) if held > *revision => false,
                Some(held) if held == *revision => {
                    renew_time(found).is_none_or(|at| at < *created_at)
                }
                _ => true,
            };
            if !is_new {
                return None;
            }
            spec["holderIdentity"] = json!(revision.to_string());
            spec["renewTime"] = json!(MicroTime(*created_at));
        }
        DesiredLease::Delta {
            revision,
            checked_at,
            deltas_since_full,
        } => {
            let held = held_revision(found);
            let revision = held.map_or(*revision, |held| held.max(*revision));
            if held == Some(revision) && renew_time(found) == Some(truncate_to_micros(*checked_at))
            {
                return None;
            }
            spec["holderIdentity"] = json!(revision.to_string());
            spec["renewTime"] = json!(MicroTime(*checked_at));
            if let Some(DeltasSinceFull { since, bytes }) = deltas_since_full {
                metadata["annotations"] = json!({
                    DELTA_BYTES: bytes.to_string(),
                    DELTA_BYTES_SINCE: since.to_string(),
                });
            }
        }
    }
    // Optimistic locking: without it a stale writer could overwrite a newer one.
    if let Some(version) = &found.metadata.resource_version {
        metadata["resourceVersion"] = json!(version);
    }
    Some(json!({ "metadata": metadata, "spec": spec }))
}

/// Revision in a snapshot Lease; `None` if the holder is missing or not a revision, and is then overwritten.
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

/// Leases store microseconds; a finer time would never compare equal.
fn truncate_to_micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
