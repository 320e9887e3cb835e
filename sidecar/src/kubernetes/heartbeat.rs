//! All Leases of one sidecar, each renewed by its own loop.

use std::sync::Arc;
use std::time::Duration;

use mainstay_ids::Revision;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connection::KubeConnection;
use super::lease::LeaseKind;
use super::renewer::LeaseRenewer;
use crate::state::StateReceiver;

/// Interval at which the snapshot Leases, which are written only on change, are checked: a user may have recreated one.
/// A revision that is missing for a few minutes only delays a compaction.
const SNAPSHOT_LEASE_INTERVAL: Duration = Duration::from_mins(5);

/// Names of the Leases; `None`: not renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Lease of this member.
    pub member: Option<String>,
    /// Lease of the latest full snapshot.
    pub full: Option<String>,
    /// Lease of the latest delta snapshot.
    pub delta: Option<String>,
    /// Renewal interval of the member Lease.
    pub heartbeat_interval: Duration,
}

/// Whether all peer URLs of this member are https; `None` while unknown.
pub type PeerTlsReceiver = watch::Receiver<Option<bool>>;

/// Revision of the latest full snapshot in its Lease, whichever sidecar or Job stored it; `None` while unknown.
pub type NewestFullSender = watch::Sender<Option<Revision>>;

pub trait LeaseMetrics: Send + Sync + 'static {
    /// Counts an attempt to write a Lease.
    fn record_lease_update(&self, lease: LeaseKind, succeeded: bool);
}

/// Renews the Leases of one sidecar.
pub struct Heartbeat {
    renewers: Vec<LeaseRenewer>,
}

impl Heartbeat {
    /// Does not connect yet.
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
            heartbeat_interval,
        } = leases;
        let kinds = [
            (LeaseKind::Member, member, heartbeat_interval),
            (LeaseKind::FullSnapshot, full, SNAPSHOT_LEASE_INTERVAL),
            (LeaseKind::DeltaSnapshot, delta, SNAPSHOT_LEASE_INTERVAL),
        ];
        let renewers = kinds
            .into_iter()
            .filter_map(|(kind, name, interval)| Some((kind, name?, interval)))
            .map(|(kind, name, interval)| LeaseRenewer {
                kind,
                name,
                namespace: namespace.to_owned(),
                interval,
                connection: Arc::clone(connection),
                metrics: Arc::clone(metrics),
                newest_full: newest_full.clone(),
            })
            .collect();
        Self { renewers }
    }

    /// Renews the Leases until cancelled, or until the state has no writer.
    pub async fn run(
        self,
        view: StateReceiver,
        peer_tls: PeerTlsReceiver,
        cancel: CancellationToken,
    ) {
        let loops = self
            .renewers
            .into_iter()
            .map(|renewer| cancel.run_until_cancelled(renewer.run(view.clone(), peer_tls.clone())));
        futures::future::join_all(loops).await;
    }
}
