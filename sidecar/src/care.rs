//! What every sidecar does for its own member, whoever leads: peer URLs, promotion, alarms, the size of the cluster, old data
//! that a restore has put aside.

use std::sync::Arc;
use std::time::Duration;

use mainstay_telemetry::Chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::etcd::{Etcd, EtcdError, Step, within};
use crate::maintenance::alarms::{self, AlarmKind};
use crate::maintenance::aside::AsideKeeper;
use crate::maintenance::peer_url::{self, PeerUrls};
use crate::maintenance::{Connect, MaintenanceMetrics, learner};
use crate::metrics::Metrics;
use crate::state::{Standing, View};

/// How often the member list and the alarms are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks after the own member.
pub struct Care {
    /// The etcd beside this sidecar.
    pub etcd: Etcd,
    /// Ways to the cluster.
    pub ways: Arc<dyn Connect>,
    /// Peer URLs the member is to have; none are compared when this is empty.
    pub peer_urls: Vec<String>,
    /// Where it is told whether all peer URLs are encrypted.
    pub peer_tls: watch::Sender<Option<bool>>,
    /// What this sidecar is.
    pub view: View,
    /// What is measured.
    pub metrics: Metrics,
    /// What a restore has put aside.
    pub aside: AsideKeeper,
}

impl Care {
    /// Goes on until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut are_urls_right = false;
        while !cancel.is_cancelled() {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.look(&mut are_urls_right) => {}
            }
            if self.serves() {
                self.aside.look().await;
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.becomes_learner() => {}
            }
            if self.view.borrow().standing == Standing::Learner {
                learner::until_voter(&*self.ways, &self.metrics, &cancel).await;
            }
        }
    }

    /// Whether its member votes in a cluster with a leader.
    fn serves(&self) -> bool {
        matches!(
            self.view.borrow().standing,
            Standing::Leader | Standing::Follower
        )
    }

    async fn look(&self, are_urls_right: &mut bool) {
        if !*are_urls_right {
            *are_urls_right = self.reconcile().await;
        }
        if let Err(error) = self.members().await {
            debug!(error = %Chain(&error), "the member list is not known");
        }
        match alarms::alarms(&*self.ways).await {
            Ok(alarms) => {
                for kind in AlarmKind::ALL {
                    self.metrics.alarm(kind.word(), alarms.has(kind));
                }
            }
            Err(error) => debug!(error = %Chain(&error), "alarms are not known"),
        }
    }

    async fn reconcile(&self) -> bool {
        match peer_url::reconcile(&*self.ways, &self.peer_urls).await {
            Ok(PeerUrls::Updated { before }) => {
                info!(
                    before = before.join(","),
                    "the member's peer URLs were corrected"
                );
                true
            }
            Ok(PeerUrls::Right) => true,
            Ok(PeerUrls::NotAMember) => false,
            Err(error) => {
                warn!(error = %Chain(&error), "the member's peer URLs cannot be compared");
                false
            }
        }
    }

    async fn members(&self) -> Result<(), EtcdError> {
        let mut client = self.etcd.own().await?;
        let listed = within(PATIENCE, Step::Members, client.member_list()).await?;
        self.metrics.cluster_size(listed.members().len());
        let own = self.view.borrow().sighting.as_ref().map(|s| s.member.0);
        let own = listed.members().iter().find(|m| Some(m.id()) == own);
        let is_encrypted = own.map(|member| {
            let urls = member.peer_urls();
            !urls.is_empty() && urls.iter().all(|url| url.starts_with("https:"))
        });
        self.peer_tls.send_if_modified(|known| {
            let is_new = *known != is_encrypted;
            *known = is_encrypted;
            is_new
        });
        Ok(())
    }

    async fn becomes_learner(&mut self) {
        let learner = self
            .view
            .wait_for(|state| state.standing == Standing::Learner);
        if learner.await.is_err() {
            std::future::pending::<()>().await; // the process is stopping
        }
    }
}

impl MaintenanceMetrics for Metrics {
    fn defragmented(&self, _: &str, outcome: crate::maintenance::Outcome, took: Duration) {
        let succeeded = outcome == crate::maintenance::Outcome::Succeeded;
        self.defragmented(succeeded, took.as_secs_f64());
    }

    fn promoted(&self, outcome: crate::maintenance::Outcome, took: Duration) {
        let succeeded = outcome == crate::maintenance::Outcome::Succeeded;
        self.promoted(succeeded, took.as_secs_f64());
    }
}
