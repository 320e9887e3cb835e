//! All leases of one sidecar, each kept by a loop of its own.

use std::sync::Arc;
use std::time::Duration;

use mainstay_ids::Revision;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connection::KubeConnection;
use super::keeper::LeaseRenewer;
use super::lease::LeaseKind;
use crate::state::StateReceiver;

/// How often the leases that are written on change only are looked at. Somebody may have recreated one; a few minutes of
/// a missing revision delay a compaction, no more.
const SNAPSHOT_LEASE_INTERVAL: Duration = Duration::from_mins(5);

/// The names of the leases; one that is absent is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Of this member.
    pub member: Option<String>,
    /// Of the newest full snapshot.
    pub full: Option<String>,
    /// Of the newest delta.
    pub delta: Option<String>,
    /// Time between two renewals of the member's lease.
    pub heartbeat_interval: Duration,
}

/// Whether all peer URLs of this member are https; `None` while that is not known.
pub type PeerTlsReceiver = watch::Receiver<Option<bool>>;

/// Where it is told which full snapshot is the newest by its Lease, whoever stored it; `None` while that is not known.
pub type NewestFullSender = watch::Sender<Option<Revision>>;

/// What is counted.
pub trait LeaseMetrics: Send + Sync + 'static {
    /// A write was tried.
    fn record_lease_update(&self, lease: LeaseKind, succeeded: bool);
}

/// Keeps the leases of one sidecar true.
pub struct Heartbeat {
    renewers: Vec<LeaseRenewer>,
}

impl Heartbeat {
    /// Prepares to keep these leases. Nothing is opened or asked yet.
    pub fn new(
        leases: LeaseConfig,
        namespace: &str,
        connection: &Arc<KubeConnection>,
        metrics: &Arc<dyn LeaseMetrics>,
        newest_full: &NewestFullSender,
    ) -> Self {
        let LeaseConfig {
            member,
            full,
            delta,
            heartbeat_interval: heartbeat,
        } = leases;
        let kinds = [
            (LeaseKind::Member, member, heartbeat),
            (LeaseKind::FullSnapshot, full, SNAPSHOT_LEASE_INTERVAL),
            (LeaseKind::DeltaSnapshot, delta, SNAPSHOT_LEASE_INTERVAL),
        ];
        let renewers = kinds
            .into_iter()
            .filter_map(|(kind, name, every)| Some((kind, name?, every)))
            .map(|(kind, name, every)| LeaseRenewer {
                kind,
                name,
                namespace: namespace.to_owned(),
                interval: every,
                connection: Arc::clone(connection),
                metrics: Arc::clone(metrics),
                newest_full: newest_full.clone(),
            })
            .collect();
        Self { renewers }
    }

    /// Keeps them until cancelled, or until nobody writes the state any more.
    pub async fn run(self, view: StateReceiver, peer_tls: PeerTlsReceiver, cancel: CancellationToken) {
        let keep = self
            .renewers
            .into_iter()
            .map(|keeper| cancel.run_until_cancelled(keeper.run(view.clone(), peer_tls.clone())));
        futures::future::join_all(keep).await;
    }
}
