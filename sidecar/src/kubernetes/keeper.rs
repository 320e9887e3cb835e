//! Keeps one lease true: writes when what it should say changes, and when it is time; tries again until it succeeds.

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
use super::heartbeat::{NewestFullSender, LeaseMetrics, PeerTlsReceiver};
use super::lease::{LeaseKind, DesiredLease, build_patch, held_revision, desired_lease};
use crate::state::StateReceiver;

/// How long one update may take, with all its requests.
const DEADLINE: Duration = Duration::from_secs(15);
/// How often another writer may be faster within one update.
const ATTEMPTS: u32 = 5;
/// The first pause after a failure; each further one is twice as long.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
/// The longest pause: a recovered API server is noticed soon.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Why a lease was not updated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LeaseError {
    #[error("connect to Kubernetes")]
    Connect { source: KubeConnectError },
    #[error("read lease {namespace}/{name}")]
    Read {
        namespace: String,
        name: String,
        source: Box<kube::Error>,
    },
    #[error("write lease {namespace}/{name}")]
    Write {
        namespace: String,
        name: String,
        source: Box<kube::Error>,
    },
    #[error(
        "lease {namespace}/{name} does not exist and may not be created here; the controller should create it, or the \
         service account be allowed to"
    )]
    Missing {
        namespace: String,
        name: String,
        source: Box<kube::Error>,
    },
    #[error("lease {namespace}/{name} changed under each of {ATTEMPTS} attempts to write it")]
    Contended { namespace: String, name: String },
    #[error("lease {namespace}/{name} was not updated within {DEADLINE:?}")]
    Timeout { namespace: String, name: String },
}

/// One lease and who keeps it.
pub(super) struct LeaseRenewer {
    pub(super) kind: LeaseKind,
    pub(super) name: String,
    pub(super) namespace: String,
    /// The member's lease is written this often, the others are looked at.
    pub(super) interval: Duration,
    pub(super) connection: Arc<KubeConnection>,
    pub(super) metrics: Arc<dyn LeaseMetrics>,
    /// Told what the Lease of the full snapshots says.
    pub(super) newest_full: NewestFullSender,
}

/// What happened so far.
#[derive(Default)]
struct RenewalState {
    /// What the lease says by our last update, and when that was begun.
    published: Option<(DesiredLease, Instant)>,
    /// The lease as the API server last showed it: saves a read before each write.
    cached: Option<Lease>,
    /// Failures in a row, and when to try again.
    failures: u32,
    retry_at: Option<Instant>,
}

impl RenewalState {
    /// When the next update is due: at once for news, after a while to repeat what was told.
    fn next_due(&self, wanted: &DesiredLease, every: Duration) -> Instant {
        let due = match &self.published {
            Some((told, at)) if told == wanted => *at + every,
            _ => Instant::now(),
        };
        self.retry_at
            .map_or(due, |not_before| due.max(not_before))
    }
}

impl LeaseRenewer {
    /// Runs until nobody writes the state any more.
    pub(super) async fn run(self, mut view: StateReceiver, mut peer_tls: PeerTlsReceiver) {
        let mut progress = RenewalState::default();
        loop {
            let peer_tls_now = *peer_tls.borrow_and_update();
            let wanted = desired_lease(self.kind, &view.borrow_and_update(), peer_tls_now);
            let due = wanted
                .as_ref()
                .map(|wanted| progress.next_due(wanted, self.interval));
            if let (Some(wanted), Some(due)) = (wanted, due)
                && due <= Instant::now()
            {
                self.update_lease(wanted, &mut progress).await;
                continue;
            }
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return },
                Ok(()) = peer_tls.changed() => {}
                () = wait_until(due) => {}
            }
        }
    }

    /// One update, whose outcome is noted, counted, and told once.
    async fn update_lease(&self, wanted: DesiredLease, progress: &mut RenewalState) {
        let started = Instant::now();
        if progress
            .published
            .as_ref()
            .is_some_and(|(told, _)| *told == wanted)
            && self.kind != LeaseKind::Member
        {
            progress.cached = None; // time to look whether it still says so
        }
        let outcome = timeout(DEADLINE, self.write_lease(&wanted, &mut progress.cached)).await;
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
                    info!(lease = %self.name, attempt = progress.failures, "lease is up to date again");
                }
                if let Some(lease) = &progress.cached {
                    self.publish_newest_full(lease);
                }
                progress.published = Some((wanted, started));
                (progress.failures, progress.retry_at) = (0, None);
            }
            Err(error) => {
                self.metrics.record_lease_update(self.kind, false);
                progress.cached = None;
                self.log_failure(&error, progress.failures);
                progress.retry_at = Some(Instant::now() + retry_delay(progress.failures, self.interval));
                progress.failures = progress.failures.saturating_add(1);
            }
        }
    }

    /// Somebody else may have stored a newer full snapshot than this sidecar did: then the Lease says so.
    fn publish_newest_full(&self, lease: &Lease) {
        if self.kind == LeaseKind::FullSnapshot {
            let told = held_revision(lease);
            self.newest_full
                .send_if_modified(|known| std::mem::replace(known, told) != told);
        }
    }

    fn log_failure(&self, error: &LeaseError, failures: u32) {
        let error = ErrorChain(error);
        if failures == 0 {
            warn!(lease = %self.name, %error, "lease was not updated, trying again until it is");
        } else {
            debug!(lease = %self.name, %error, attempt = failures, "lease was not updated");
        }
    }

    /// Makes the lease say what is wanted; tells whether that took a write.
    async fn write_lease(&self, wanted: &DesiredLease, cached: &mut Option<Lease>) -> Result<bool, LeaseError> {
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
            let Some(patch) = build_patch(&found, wanted, Timestamp::now()) else {
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
                // Another writer was faster, or somebody removed it: look again.
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

    /// The lease, created empty where there is none; `None` when somebody created it at the same moment.
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

/// The pause after a failure. A member's is never longer than its heartbeat.
fn retry_delay(failures: u32, every: Duration) -> Duration {
    let pause = MIN_RETRY_DELAY.saturating_mul(1 << failures.min(10));
    pause.min(MAX_RETRY_DELAY).min(every)
}

/// Waits for a moment, or for ever.
async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
