//! Maintenance of this sidecar's member, in every role: peer URLs, learner promotion, alarms, cluster size, and previous data
//! directories that a restore set aside.

use std::sync::Arc;
use std::time::Duration;

use mainstay_etcd::list_members;
use mainstay_telemetry::ErrorChain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::etcd::{EtcdCall, EtcdClient, EtcdError};
use crate::maintenance::alarms::{self, ClusterAlarmKind};
use crate::maintenance::peer_url::{self, PeerUrlOutcome};
use crate::maintenance::previous_data::PreviousDataCleaner;
use crate::maintenance::{Connect, MaintenanceMetrics, learner};
use crate::metrics::SidecarMetrics;
use crate::state::{SidecarRole, StateReceiver};

/// Interval between checks of the member list and the alarms.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(15);
/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Maintains this sidecar's member.
pub(crate) struct MemberReconciler {
    pub(crate) etcd: EtcdClient,
    pub(crate) connector: Arc<dyn Connect>,
    /// Peer URLs that the member should have; not checked if empty.
    pub(crate) peer_urls: Vec<String>,
    /// Publishes whether all peer URLs of the member are https.
    pub(crate) peer_tls: watch::Sender<Option<bool>>,
    pub(crate) state_rx: StateReceiver,
    pub(crate) metrics: SidecarMetrics,
    /// Deletes previous data directories.
    pub(crate) previous_data: PreviousDataCleaner,
}

impl MemberReconciler {
    /// Runs until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut are_urls_correct = false;
        while !cancel.is_cancelled() {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.reconcile(&mut are_urls_correct) => {}
            }
            // Before the member serves, the previous data directory may still be needed to recover.
            if self.is_voting() {
                self.previous_data.clean_up().await;
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(RECONCILE_INTERVAL) => {}
                () = self.wait_for_learner() => {}
            }
            if self.state_rx.borrow().role == SidecarRole::Learner {
                learner::promote_until_voter(&*self.connector, &self.metrics, &cancel).await;
            }
        }
    }

    /// Whether the member votes in a cluster with a leader.
    fn is_voting(&self) -> bool {
        matches!(
            self.state_rx.borrow().role,
            SidecarRole::Leader | SidecarRole::Follower
        )
    }

    async fn reconcile(&self, are_urls_correct: &mut bool) {
        // Flags do not change at run time, so the URLs are compared until they are right once.
        if !*are_urls_correct {
            *are_urls_correct = self.reconcile_peer_urls().await;
        }
        if let Err(error) = self.update_members().await {
            debug!(error = %ErrorChain(&error), "failed to list members");
        }
        match alarms::list_alarms(&*self.connector).await {
            Ok(alarms) => {
                for kind in ClusterAlarmKind::ALL {
                    self.metrics.set_alarm(kind.as_str(), alarms.has(kind));
                }
            }
            Err(error) => debug!(error = %ErrorChain(&error), "failed to list alarms"),
        }
    }

    async fn reconcile_peer_urls(&self) -> bool {
        match peer_url::reconcile_peer_urls(&*self.connector, &self.peer_urls).await {
            Ok(PeerUrlOutcome::Updated { before }) => {
                info!(before = before.join(","), "peer URLs of the member updated");
                true
            }
            Ok(PeerUrlOutcome::UpToDate) => true,
            Ok(PeerUrlOutcome::NotAMember) => false,
            Err(error) => {
                warn!(error = %ErrorChain(&error), "failed to check peer URLs of the member");
                false
            }
        }
    }

    async fn update_members(&self) -> Result<(), EtcdError> {
        let mut client = self.etcd.own_client().await?;
        let listed = list_members(&mut client, REQUEST_TIMEOUT).await;
        let listed = listed.map_err(EtcdError::request_failed(EtcdCall::Members))?;
        self.metrics.set_cluster_size(listed.len());
        let own = self
            .state_rx
            .borrow()
            .member_status
            .as_ref()
            .map(|status| status.member);
        let own = listed.iter().find(|member| Some(member.id) == own);
        let is_encrypted = own.map(|member| {
            let urls = &member.peer_urls;
            !urls.is_empty() && urls.iter().all(|url| url.starts_with("https:"))
        });
        self.peer_tls.send_if_modified(|known| {
            let is_new = *known != is_encrypted;
            *known = is_encrypted;
            is_new
        });
        Ok(())
    }

    async fn wait_for_learner(&mut self) {
        let learner = self
            .state_rx
            .wait_for(|state| state.role == SidecarRole::Learner);
        if learner.await.is_err() {
            std::future::pending::<()>().await; // the process is stopping
        }
    }
}

impl MaintenanceMetrics for SidecarMetrics {
    fn record_defragmentation(
        &self,
        _: &str,
        outcome: crate::maintenance::MaintenanceOutcome,
        duration: Duration,
    ) {
        let succeeded = outcome == crate::maintenance::MaintenanceOutcome::Succeeded;
        self.observe_defragmentation(succeeded, duration.as_secs_f64());
    }

    fn record_promotion(
        &self,
        outcome: crate::maintenance::MaintenanceOutcome,
        duration: Duration,
    ) {
        let succeeded = outcome == crate::maintenance::MaintenanceOutcome::Succeeded;
        self.observe_promotion(succeeded, duration.as_secs_f64());
    }
}
