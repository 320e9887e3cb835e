//! Which of several controllers acts: the one that holds a Lease, and only as long as it certainly does.
//!
//! ```text
//! held ── still held after a whole renew deadline ──► leads until (moment of asking + renew deadline) ── asked again ─┐
//!                                                       ▲                                                            │
//!                                                       └──────────────────────── still held ◄─────────────────────┘
//! ```
//!
//! **Holds**: of two processes at most one acts, whatever their clocks say and however late their requests arrive. Taking an
//! expired Lease is no compare-and-swap, so two may believe to have it, and one may take it from a holder that lives. But
//! whoever holds it acts for no longer than the renew deadline after the question that was last answered with its own
//! name, and that answer was given before another took the Lease; and the other acts only after it has held the Lease
//! for a renew deadline without a gap. Both measure spans, not times of day. When the time ends, or somebody else is seen
//! to hold the Lease, every write is refused at once, and the process ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

/// How leadership is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElector {
    /// Name of the Lease.
    pub lease_name: String,
    /// Its namespace.
    pub namespace: String,
    /// Who this process is.
    pub identity: String,
    /// How long others wait for a holder that gives no sign of life.
    pub lease_duration: Duration,
    /// How long a holder acts without having renewed; less than the duration.
    pub renew_deadline: Duration,
    /// The pause between two attempts.
    pub retry_period: Duration,
}

/// Whether this process may write. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<LeadershipState>);

#[derive(Debug)]
struct LeadershipState {
    leader_until: watch::Sender<Option<Instant>>,
    is_always_leader: AtomicBool,
}

/// Another process may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not lead any more")]
#[non_exhaustive]
pub struct LeadershipLost;

impl Leadership {
    /// Without an election there is nobody else.
    pub fn always_leader() -> Self {
        let this = Self::not_leading();
        this.0.is_always_leader.store(true, Ordering::Release);
        this
    }

    fn not_leading() -> Self {
        Self(Arc::new(LeadershipState {
            leader_until: watch::Sender::new(None),
            is_always_leader: AtomicBool::new(false),
        }))
    }

    /// Whether a write may be made now.
    pub fn check(&self) -> Result<(), LeadershipLost> {
        let is_led = self
            .0
            .leader_until
            .borrow()
            .is_some_and(|until| Instant::now() < until);
        if is_led || self.0.is_always_leader.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(LeadershipLost)
        }
    }

    /// Returns when this process leads no more.
    pub async fn wait_until_lost(&self) {
        if self.0.is_always_leader.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        let mut until = self.0.leader_until.subscribe();
        loop {
            let Some(deadline) = *until.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = sleep_until(deadline) => {
                    if self.check().is_err() {
                        return;
                    }
                }
                changed = until.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// What became of one attempt.
enum LeaseAttempt {
    /// This process holds the Lease, as of this moment at least.
    Held {
        /// Before the question was sent.
        requested_at: Instant,
    },
    /// Somebody else does.
    HeldByOther,
    /// Nobody knows.
    Unknown,
}

impl LeaderElector {
    fn build_lock(&self, client: &Client) -> (LeaseLock, Api<Lease>) {
        let params = LeaseLockParams {
            lease_name: self.lease_name.clone(),
            holder_id: self.identity.clone(),
            lease_ttl: self.lease_duration,
        };
        let lock = LeaseLock::new(client.clone(), &self.namespace, params);
        (lock, Api::namespaced(client.clone(), &self.namespace))
    }

    /// Waits until this process leads; from then on a task keeps it so until `cancel`, then gives the Lease back.
    /// Nobody keeps it for a caller that is gone.
    pub async fn wait_for_leadership(
        self,
        client: &Client,
        cancel: CancellationToken,
    ) -> (Leadership, AbortOnDropHandle<()>) {
        let (lock, leases) = self.build_lock(client);
        let leadership = Leadership::not_leading();
        let mut held_since = None;
        let until = loop {
            match self.acquire_or_renew(&lock, &leases).await {
                LeaseAttempt::Held { requested_at: record_read } => {
                    let since = *held_since.get_or_insert_with(Instant::now);
                    if record_read >= since + self.renew_deadline {
                        break record_read + self.renew_deadline;
                    }
                }
                LeaseAttempt::HeldByOther | LeaseAttempt::Unknown => held_since = None,
            }
            let due = held_since.map(|since| since + self.renew_deadline);
            let pause = Instant::now() + self.retry_period;
            sleep_until(due.map_or(pause, |due| due.min(pause))).await;
        };
        info!("this process leads");
        leadership.0.leader_until.send_replace(Some(until));
        let kept = leadership.clone();
        let keeper = tokio::spawn(async move { self.renew_until_cancelled(&lock, &leases, &kept, cancel).await });
        (leadership, AbortOnDropHandle::new(keeper))
    }

    /// Takes the Lease if it is to be had, renews it if it is held.
    async fn acquire_or_renew(&self, lock: &LeaseLock, leases: &Api<Lease>) -> LeaseAttempt {
        let requested = Instant::now();
        let answer = timeout(self.renew_deadline, lock.try_acquire_or_renew()).await;
        match answer {
            Ok(Ok(LeaseLockResult::Acquired(lease))) => {
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                if holder.as_deref() == Some(&self.identity) {
                    LeaseAttempt::Held { requested_at: requested }
                } else {
                    LeaseAttempt::HeldByOther
                }
            }
            Ok(Ok(LeaseLockResult::NotAcquired(_))) => LeaseAttempt::HeldByOther,
            Ok(Err(kube_leader_election::Error::TraverseLease { key })) => {
                warn!(key, "the lease of the leader lacks a field");
                self.repair_lease(leases).await;
                LeaseAttempt::Unknown
            }
            Ok(Err(error)) => {
                warn!(error = %ErrorChain(&error), "the lease of the leader cannot be renewed");
                LeaseAttempt::Unknown
            }
            Err(_) => {
                warn!("the lease of the leader was not renewed in time");
                LeaseAttempt::Unknown
            }
        }
    }

    /// A Lease that was given back may name no holder at all, which the lock takes for broken. What is missing is filled in
    /// such a way that the Lease is free in a moment, unless somebody wrote it meanwhile.
    async fn repair_lease(&self, leases: &Api<Lease>) {
        let mended = async {
            let Some(lease) = leases.get_opt(&self.lease_name).await? else {
                return Ok(());
            };
            let spec = lease.spec.unwrap_or_default();
            let renewed = spec.renew_time.unwrap_or(MicroTime(Timestamp::now()));
            let patch = json!({
                "metadata": { "resourceVersion": lease.metadata.resource_version },
                "spec": {
                    "holderIdentity": spec.holder_identity.unwrap_or_default(),
                    "renewTime": renewed,
                    "leaseDurationSeconds": spec.lease_duration_seconds.unwrap_or(1),
                    "leaseTransitions": spec.lease_transitions.unwrap_or_default(),
                },
            });
            let params = PatchParams::default();
            leases
                .patch(&self.lease_name, &params, &Patch::Merge(&patch))
                .await
                .map(drop)
        };
        let outcome: Result<Result<(), kube::Error>, _> =
            timeout(self.renew_deadline, mended).await;
        match outcome {
            Ok(Ok(())) => info!("the lease of the leader was completed"),
            Ok(Err(error)) => {
                warn!(error = %ErrorChain(&error), "the lease of the leader could not be completed");
            }
            Err(_) => warn!("the lease of the leader could not be completed in time"),
        }
    }

    async fn renew_until_cancelled(
        &self,
        lock: &LeaseLock,
        leases: &Api<Lease>,
        leadership: &Leadership,
        cancel: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                () = leadership.wait_until_lost() => return,
                () = sleep(self.retry_period) => {}
            }
            match self.acquire_or_renew(lock, leases).await {
                LeaseAttempt::Held { requested_at: record_read } => {
                    let until = record_read + self.renew_deadline;
                    leadership.0.leader_until.send_replace(Some(until));
                }
                LeaseAttempt::HeldByOther => {
                    leadership.0.leader_until.send_replace(None);
                    return;
                }
                LeaseAttempt::Unknown => {}
            }
        }
        leadership.0.leader_until.send_replace(None);
        match timeout(self.retry_period, lock.step_down()).await {
            Ok(Ok(())) => info!("the lease of the leader was given back"),
            Ok(Err(error)) => {
                warn!(error = %ErrorChain(&error), "the lease of the leader could not be given back");
            }
            Err(_) => warn!("the lease of the leader could not be given back in time"),
        }
    }
}
