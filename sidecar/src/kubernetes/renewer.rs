//! Renews one Lease: writes when the desired content changes and at an interval; retries until it succeeds.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use mainstay_telemetry::ErrorChain;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::connection::{KubeConnectError, KubeConnection};
use super::heartbeat::{LeaseMetrics, NewestFullSender, PeerTlsReceiver};
use super::lease::{DesiredLease, LeaseKind, build_patch, desired_lease, held_revision};
use crate::state::StateReceiver;

/// Timeout of one update, with all its requests.
const DEADLINE: Duration = Duration::from_secs(15);
/// Write conflicts tolerated within one update.
const ATTEMPTS: u32 = 5;
/// Delay after the first failure; doubles with each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum delay: short, so that a recovered API server is used soon.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Failure to update a Lease.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LeaseError {
    #[error("failed to connect to Kubernetes")]
    Connect { source: KubeConnectError },
    #[error("failed to read Lease {namespace}/{name}")]
    Read {
        namespace: String,
        name: String,
        source: Box<kube::Error>,
    },
    #[error("failed to write Lease {namespace}/{name}")]
    Write {
        namespace: String,
        name: String,
        source: Box<kube::Error>,
    },
    #[error(
        "Lease {namespace}/{name} does not exist and creating it failed: let the controller create it, or allow the \
         service account to create Leases"
    )]
    Missing {
        namespace: String,
        name: String,
        source: Box<kube::Error>,
    },
    #[error("failed to write Lease {namespace}/{name}: {ATTEMPTS} write conflicts in a row")]
    Contended { namespace: String, name: String },
    #[error("update of Lease {namespace}/{name} timed out after {DEADLINE:?}")]
    Timeout { namespace: String, name: String },
}

/// Renews one Lease.
pub(super) struct LeaseRenewer {
    pub(super) kind: LeaseKind,
    pub(super) name: String,
    pub(super) namespace: String,
    /// Interval at which the member Lease is written and the others are checked.
    pub(super) interval: Duration,
    pub(super) connection: Arc<KubeConnection>,
    pub(super) metrics: Arc<dyn LeaseMetrics>,
    /// Receives the revision in the Lease of the full snapshots.
    pub(super) newest_full: NewestFullSender,
}

/// Progress of one loop.
#[derive(Default)]
struct RenewalState {
    /// Content of the last successful update, and when that started.
    published: Option<(DesiredLease, Instant)>,
    /// Last response of the API server: saves a read before each write.
    cached: Option<Lease>,
    /// Consecutive failures.
    failures: u32,
    retry_at: Option<Instant>,
}

impl RenewalState {
    /// When the next update is due: at once if the content changed, otherwise `every` after the last one.
    fn next_due(&self, desired: &DesiredLease, every: Duration) -> Instant {
        let due = match &self.published {
            Some((reported, at)) if reported == desired => *at + every,
            _ => Instant::now(),
        };
        self.retry_at.map_or(due, |not_before| due.max(not_before))
    }
}

impl LeaseRenewer {
    /// Runs until the state has no writer.
    pub(super) async fn run(self, mut view: StateReceiver, mut peer_tls: PeerTlsReceiver) {
        let mut progress = RenewalState::default();
        loop {
            let peer_tls_now = *peer_tls.borrow_and_update();
            let desired = desired_lease(self.kind, &view.borrow_and_update(), peer_tls_now);
            let due = desired
                .as_ref()
                .map(|desired| progress.next_due(desired, self.interval));
            if let (Some(desired), Some(due)) = (desired, due)
                && due <= Instant::now()
            {
                self.update_lease(desired, &mut progress).await;
                continue;
            }
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return },
                Ok(()) = peer_tls.changed() => {}
                () = wait_until(due) => {}
            }
        }
    }

    /// Updates the Lease once; records, counts and logs the outcome.
    async fn update_lease(&self, desired: DesiredLease, progress: &mut RenewalState) {
        let started = Instant::now();
        if progress
            .published
            .as_ref()
            .is_some_and(|(reported, _)| *reported == desired)
            && self.kind != LeaseKind::Member
        {
            progress.cached = None; // read again: another writer may have changed or recreated it
        }
        let outcome = timeout(DEADLINE, self.write_lease(&desired, &mut progress.cached)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(LeaseError::Timeout {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
            })
        });
        match outcome {
            Ok(written) => {
                if written {
                    self.metrics.record_lease_update(self.kind, true);
                }
                if progress.failures > 0 {
                    info!(lease = %self.name, attempt = progress.failures, "lease updated again");
                }
                if let Some(lease) = &progress.cached {
                    self.publish_newest_full(lease);
                }
                progress.published = Some((desired, started));
                (progress.failures, progress.retry_at) = (0, None);
            }
            Err(error) => {
                self.metrics.record_lease_update(self.kind, false);
                progress.cached = None;
                self.log_failure(&error, progress.failures);
                progress.retry_at =
                    Some(Instant::now() + retry_delay(progress.failures, self.interval));
                progress.failures = progress.failures.saturating_add(1);
            }
        }
    }

    /// Publishes the revision in the Lease: a former leader or a compaction Job may have recorded a newer full snapshot.
    fn publish_newest_full(&self, lease: &Lease) {
        if self.kind == LeaseKind::FullSnapshot {
            let held = held_revision(lease);
            self.newest_full
                .send_if_modified(|known| std::mem::replace(known, held) != held);
        }
    }

    fn log_failure(&self, error: &LeaseError, failures: u32) {
        let error = ErrorChain(error);
        // Retries are frequent: only the first failure in a row is a warning.
        if failures == 0 {
            warn!(lease = %self.name, %error, "failed to update lease, retrying");
        } else {
            debug!(lease = %self.name, %error, attempt = failures, "failed to update lease");
        }
    }

    /// Writes the desired content; returns whether a write was needed.
    async fn write_lease(
        &self,
        desired: &DesiredLease,
        cached: &mut Option<Lease>,
    ) -> Result<bool, LeaseError> {
        let client = self.connection.client().await;
        let client = client.map_err(|source| LeaseError::Connect { source })?;
        let api = Api::<Lease>::namespaced(client, &self.namespace);
        for _ in 0..ATTEMPTS {
            let found = match cached.take() {
                Some(lease) => lease,
                None => match self.read_or_create(&api).await? {
                    Some(lease) => lease,
                    None => continue,
                },
            };
            let Some(patch) = build_patch(&found, desired, Timestamp::now()) else {
                *cached = Some(found);
                return Ok(false);
            };
            match api
                .patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                Ok(lease) => {
                    *cached = Some(lease);
                    return Ok(true);
                }
                // 409: another writer was faster; 404: the Lease was deleted. Read it again.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(source) => {
                    return Err(LeaseError::Write {
                        namespace: self.namespace.clone(),
                        name: self.name.clone(),
                        source: Box::new(source),
                    });
                }
            }
        }
        Err(LeaseError::Contended {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        })
    }

    /// Reads the Lease, or creates an empty one; `None` if another writer created it concurrently.
    async fn read_or_create(&self, api: &Api<Lease>) -> Result<Option<Lease>, LeaseError> {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        let found = api.get_opt(&self.name).await;
        let found = found.map_err(|source| LeaseError::Read {
            namespace: namespace.clone(),
            name: name.clone(),
            source: Box::new(source),
        })?;
        if found.is_some() {
            return Ok(found);
        }
        let empty = Lease {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        };
        match api.create(&PostParams::default(), &empty).await {
            Ok(lease) => Ok(Some(lease)),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(source @ kube::Error::Api(_)) => Err(LeaseError::Missing {
                namespace,
                name,
                source: Box::new(source),
            }),
            Err(source) => Err(LeaseError::Write {
                namespace,
                name,
                source: Box::new(source),
            }),
        }
    }
}

/// Delay after a failure. Never longer than the heartbeat, so that the member Lease does not expire by a late retry.
fn retry_delay(failures: u32, every: Duration) -> Duration {
    let pause = MIN_RETRY_DELAY.saturating_mul(1 << failures.min(10));
    pause.min(MAX_RETRY_DELAY).min(every)
}

/// Sleeps until `moment`; forever for `None`.
async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
