//! What a lease should say, and what has to change about the one that is there. Pure.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use mainstay_coordination::annotation::{DELTA_BYTES, DELTA_BYTES_SINCE, PEER_TLS};
use mainstay_ids::Revision;
use serde_json::{Value, json};

use crate::state::{Pile, Sighting, Standing, State};

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
    pub fn word(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::FullSnapshot => "full_snapshot",
            Self::DeltaSnapshot => "delta_snapshot",
        }
    }
}

/// What a lease should say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Who this member is, now.
    Member {
        identity: String,
        /// Not known when absent: what is there stays.
        peer_tls: Option<bool>,
    },
    /// The newest full snapshot.
    Full {
        revision: Revision,
        created: Timestamp,
    },
    /// The newest delta, and when the schedule last passed, with or without something to write.
    Delta {
        revision: Revision,
        checked: Timestamp,
        /// What has piled up behind the last full snapshot, where that is known.
        piled_up: Option<Pile>,
    },
}

/// What the state says should be in a lease; `None` when it does not say.
pub(super) fn wanted(kind: LeaseKind, state: &State, peer_tls: Option<bool>) -> Option<Wanted> {
    match kind {
        LeaseKind::Member => {
            let identity = identity(state.standing, state.sighting.as_ref()?)?;
            Some(Wanted::Member { identity, peer_tls })
        }
        // Of the snapshots, a sidecar that does not lead knows old news only.
        _ if state.standing != Standing::Leader => None,
        LeaseKind::FullSnapshot => {
            let name = &state.last_full.as_ref()?.name;
            Some(Wanted::Full {
                revision: name.last,
                created: name.created_at(),
            })
        }
        LeaseKind::DeltaSnapshot => {
            let revision = state
                .last_delta
                .as_ref()
                .map_or(Revision(0), |delta| delta.name.last);
            Some(Wanted::Delta {
                revision,
                checked: state.delta_checked_at?,
                piled_up: state.piled_up,
            })
        }
    }
}

/// `<member>:<cluster>:<role>`, ids in hexadecimal. Learners are members too. A member that does not know where it stands
/// says nothing: its lease runs out.
fn identity(standing: Standing, sighting: &Sighting) -> Option<String> {
    let role = match standing {
        Standing::Unknown => return None,
        Standing::Leader => "Leader",
        Standing::Follower | Standing::Learner => "Member",
    };
    Some(format!("{}:{}:{role}", sighting.member, sighting.cluster))
}

/// The merge patch that makes a lease say what is wanted; `None` when it says so already, or something newer.
pub(super) fn change(found: &Lease, wanted: &Wanted, now: Timestamp) -> Option<Value> {
    let (mut spec, mut metadata) = (json!({}), json!({}));
    match wanted {
        Wanted::Member { identity, peer_tls } => {
            spec["holderIdentity"] = json!(identity);
            spec["renewTime"] = json!(MicroTime(now));
            if let Some(peer_tls) = peer_tls {
                metadata["annotations"] = json!({ PEER_TLS: peer_tls.to_string() });
            }
        }
        Wanted::Full { revision, created } => {
            let is_news = match held_revision(found) {
                Some(held) if held > *revision => false,
                Some(held) if held == *revision => renew_time(found).is_none_or(|at| at < *created),
                _ => true,
            };
            if !is_news {
                return None;
            }
            spec["holderIdentity"] = json!(revision.to_string());
            spec["renewTime"] = json!(MicroTime(*created));
        }
        Wanted::Delta {
            revision,
            checked,
            piled_up,
        } => {
            let held = held_revision(found);
            let revision = held.map_or(*revision, |held| held.max(*revision));
            if held == Some(revision) && renew_time(found) == Some(micros(*checked)) {
                return None;
            }
            spec["holderIdentity"] = json!(revision.to_string());
            spec["renewTime"] = json!(MicroTime(*checked));
            if let Some(Pile { since, bytes }) = piled_up {
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
fn micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
