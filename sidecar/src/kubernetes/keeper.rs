//! Keeps one lease true: writes when what it should say changes, and when it is time; tries again until it succeeds.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use mainstay_telemetry::Chain;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::connection::{ConnectError, Connection};
use super::heartbeat::{FullTold, LeaseMetrics, PeerTls};
use super::lease::{LeaseKind, Wanted, change, held_revision, wanted};
use crate::state::View;

/// How long one update may take, with all its requests.
const DEADLINE: Duration = Duration::from_secs(15);
/// How often another writer may be faster within one update.
const ATTEMPTS: u32 = 5;
/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause: a recovered API server is noticed soon.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why a lease was not updated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LeaseError {
    #[error("connect to Kubernetes")]
    Connect { source: ConnectError },
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
    Late { namespace: String, name: String },
}

/// One lease and who keeps it.
pub(super) struct Keeper {
    pub(super) kind: LeaseKind,
    pub(super) name: String,
    pub(super) namespace: String,
    /// The member's lease is written this often, the others are looked at.
    pub(super) every: Duration,
    pub(super) connection: Arc<Connection>,
    pub(super) metrics: Arc<dyn LeaseMetrics>,
    /// Told what the Lease of the full snapshots says.
    pub(super) full_told: FullTold,
}

/// What happened so far.
#[derive(Default)]
struct Progress {
    /// What the lease says by our last update, and when that was begun.
    told: Option<(Wanted, Instant)>,
    /// The lease as the API server last showed it: saves a read before each write.
    cached: Option<Lease>,
    /// Failures in a row, and when to try again.
    failures: u32,
    not_before: Option<Instant>,
}

impl Progress {
    /// When the next update is due: at once for news, after a while to repeat what was told.
    fn due(&self, wanted: &Wanted, every: Duration) -> Instant {
        let due = match &self.told {
            Some((told, at)) if told == wanted => *at + every,
            _ => Instant::now(),
        };
        self.not_before
            .map_or(due, |not_before| due.max(not_before))
    }
}

impl Keeper {
    /// Runs until nobody writes the state any more.
    pub(super) async fn run(self, mut view: View, mut peer_tls: PeerTls) {
        let mut progress = Progress::default();
        loop {
            let peer_tls_now = *peer_tls.borrow_and_update();
            let wanted = wanted(self.kind, &view.borrow_and_update(), peer_tls_now);
            let due = wanted
                .as_ref()
                .map(|wanted| progress.due(wanted, self.every));
            if let (Some(wanted), Some(due)) = (wanted, due)
                && due <= Instant::now()
            {
                self.update(wanted, &mut progress).await;
                continue;
            }
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return },
                Ok(()) = peer_tls.changed() => {}
                () = at(due) => {}
            }
        }
    }

    /// One update, whose outcome is noted, counted, and told once.
    async fn update(&self, wanted: Wanted, progress: &mut Progress) {
        let begun = Instant::now();
        if progress
            .told
            .as_ref()
            .is_some_and(|(told, _)| *told == wanted)
            && self.kind != LeaseKind::Member
        {
            progress.cached = None; // time to look whether it still says so
        }
        let outcome = timeout(DEADLINE, self.write(&wanted, &mut progress.cached)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(LeaseError::Late {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
            })
        });
        match outcome {
            Ok(written) => {
                if written {
                    self.metrics.lease_updated(self.kind, true);
                }
                if progress.failures > 0 {
                    info!(lease = %self.name, attempt = progress.failures, "lease is up to date again");
                }
                if let Some(lease) = &progress.cached {
                    self.tell_of_a_full(lease);
                }
                progress.told = Some((wanted, begun));
                (progress.failures, progress.not_before) = (0, None);
            }
            Err(error) => {
                self.metrics.lease_updated(self.kind, false);
                progress.cached = None;
                self.tell(&error, progress.failures);
                progress.not_before = Some(Instant::now() + pause(progress.failures, self.every));
                progress.failures = progress.failures.saturating_add(1);
            }
        }
    }

    /// Somebody else may have stored a newer full snapshot than this sidecar did: then the Lease says so.
    fn tell_of_a_full(&self, lease: &Lease) {
        if self.kind == LeaseKind::FullSnapshot {
            let told = held_revision(lease);
            self.full_told
                .send_if_modified(|known| std::mem::replace(known, told) != told);
        }
    }

    fn tell(&self, error: &LeaseError, failures: u32) {
        let error = Chain(error);
        if failures == 0 {
            warn!(lease = %self.name, %error, "lease was not updated, trying again until it is");
        } else {
            debug!(lease = %self.name, %error, attempt = failures, "lease was not updated");
        }
    }

    /// Makes the lease say what is wanted; tells whether that took a write.
    async fn write(&self, wanted: &Wanted, cached: &mut Option<Lease>) -> Result<bool, LeaseError> {
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
            let Some(patch) = change(&found, wanted, Timestamp::now()) else {
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
fn pause(failures: u32, every: Duration) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(10));
    pause.min(LONGEST_PAUSE).min(every)
}

/// Waits for a moment, or for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
