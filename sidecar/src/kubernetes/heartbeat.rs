//! All leases of one sidecar, each kept by a loop of its own.

use std::sync::Arc;
use std::time::Duration;

use mainstay_ids::Revision;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::keeper::Keeper;
use super::lease::LeaseKind;
use crate::state::View;

/// How often the leases that are written on change only are looked at. Somebody may have recreated one; a few minutes of
/// a missing revision delay a compaction, no more.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

/// The names of the leases; one that is absent is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Of this member.
    pub member: Option<String>,
    /// Of the newest full snapshot.
    pub full: Option<String>,
    /// Of the newest delta.
    pub delta: Option<String>,
    /// Time between two renewals of the member's lease.
    pub heartbeat: Duration,
}

/// Whether all peer URLs of this member are https; `None` while that is not known.
pub type PeerTls = watch::Receiver<Option<bool>>;

/// Where it is told which full snapshot is the newest by its Lease, whoever stored it; `None` while that is not known.
pub type FullTold = watch::Sender<Option<Revision>>;

/// What is counted.
pub trait LeaseMetrics: Send + Sync + 'static {
    /// A write was tried.
    fn lease_updated(&self, lease: LeaseKind, succeeded: bool);
}

/// Keeps the leases of one sidecar true.
pub struct Heartbeat {
    keepers: Vec<Keeper>,
}

impl Heartbeat {
    /// Prepares to keep these leases. Nothing is opened or asked yet.
    pub fn new(
        leases: Leases,
        namespace: &str,
        connection: &Arc<Connection>,
        metrics: &Arc<dyn LeaseMetrics>,
        full_told: &FullTold,
    ) -> Self {
        let Leases {
            member,
            full,
            delta,
            heartbeat,
        } = leases;
        let kinds = [
            (LeaseKind::Member, member, heartbeat),
            (LeaseKind::FullSnapshot, full, LOOK_AGAIN),
            (LeaseKind::DeltaSnapshot, delta, LOOK_AGAIN),
        ];
        let keepers = kinds
            .into_iter()
            .filter_map(|(kind, name, every)| Some((kind, name?, every)))
            .map(|(kind, name, every)| Keeper {
                kind,
                name,
                namespace: namespace.to_owned(),
                every,
                connection: Arc::clone(connection),
                metrics: Arc::clone(metrics),
                full_told: full_told.clone(),
            })
            .collect();
        Self { keepers }
    }

    /// Keeps them until cancelled, or until nobody writes the state any more.
    pub async fn run(self, view: View, peer_tls: PeerTls, cancel: CancellationToken) {
        let keep = self
            .keepers
            .into_iter()
            .map(|keeper| cancel.run_until_cancelled(keeper.run(view.clone(), peer_tls.clone())));
        futures::future::join_all(keep).await;
    }
}
