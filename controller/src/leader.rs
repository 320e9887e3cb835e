//! Leader election with a Lease: one replica writes, and only while it certainly holds the Lease.
//!
//! ```text
//! acquired ── still held after a renew deadline ──► leader until (time of request + renew deadline) ── renew ─┐
//!                                                    ▲                                                       │
//!                                                    └────────────────────── still held ◄────────────────────┘
//! ```
//!
//! Invariant: at most one process writes, whatever the clocks say and however late requests arrive. Taking an expired
//! Lease is not a compare-and-swap: two processes may both believe to hold it, and a live holder may lose it. Therefore
//!
//! * a holder writes for at most the renew deadline after it sent the last request that confirmed it as holder; that
//!   confirmation happened before another process took the Lease;
//! * a new holder writes only after it has held the Lease for a whole renew deadline without a gap.
//!
//! Both measure durations with a monotonic clock. When the deadline passes, or another holder is observed, every write is
//! refused at once and the process ends.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::Api;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::writer::{Leadership, merge_election_lease};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderElector {
    pub(crate) lease_name: String,
    pub(crate) namespace: String,
    /// Unique per process, also across restarts of a container.
    pub(crate) identity: String,
    /// Time without renewal after which another replica may take the Lease.
    pub(crate) lease_duration: Duration,
    /// Time without renewal after which the holder stops writing; shorter than `lease_duration`.
    pub(crate) renew_deadline: Duration,
    /// Time between two attempts to acquire or renew.
    pub(crate) retry_period: Duration,
}

enum LeaseAttempt {
    Held {
        /// Before the request was sent: the Lease was held at this time or later.
        requested_at: Instant,
    },
    HeldByOther,
    /// The request failed or timed out.
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

    /// Waits until this process leads. A task then renews the Lease until `cancel` and releases it. Dropping the handle
    /// stops the renewal, so that a caller that is gone does not keep the Lease.
    pub(crate) async fn wait_for_leadership(
        self,
        client: &Client,
        cancel: CancellationToken,
    ) -> (Leadership, AbortOnDropHandle<()>) {
        let (lock, leases) = self.build_lock(client);
        let leadership = Leadership::not_leading();
        let mut held_since = None;
        let until = loop {
            match self.acquire_or_renew(&lock, &leases).await {
                LeaseAttempt::Held {
                    requested_at: request_sent,
                } => {
                    let since = *held_since.get_or_insert_with(Instant::now);
                    // A previous holder may write until its renew deadline: wait that long before leading.
                    if request_sent >= since + self.renew_deadline {
                        break request_sent + self.renew_deadline;
                    }
                }
                // Any gap restarts the wait: another process may have held the Lease meanwhile.
                LeaseAttempt::HeldByOther | LeaseAttempt::Unknown => held_since = None,
            }
            let due = held_since.map(|since| since + self.renew_deadline);
            let pause = Instant::now() + self.retry_period;
            sleep_until(due.map_or(pause, |due| due.min(pause))).await;
        };
        info!("became leader");
        leadership.set_deadline(Some(until));
        let kept = leadership.clone();
        let keeper = tokio::spawn(async move {
            self.renew_until_cancelled(&lock, &leases, &kept, cancel)
                .await;
        });
        (leadership, AbortOnDropHandle::new(keeper))
    }

    /// Acquires the Lease if it is free, renews it if this process holds it.
    async fn acquire_or_renew(&self, lock: &LeaseLock, leases: &Api<Lease>) -> LeaseAttempt {
        // Taken before the request: a late answer must not extend the leadership.
        let requested = Instant::now();
        let answer = timeout(self.renew_deadline, lock.try_acquire_or_renew()).await;
        match answer {
            Ok(Ok(LeaseLockResult::Acquired(lease))) => {
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                // Taking a Lease is not a compare-and-swap: only the stored holder counts.
                if holder.as_deref() == Some(&self.identity) {
                    LeaseAttempt::Held {
                        requested_at: requested,
                    }
                } else {
                    LeaseAttempt::HeldByOther
                }
            }
            Ok(Ok(LeaseLockResult::NotAcquired(_))) => LeaseAttempt::HeldByOther,
            Ok(Err(kube_leader_election::Error::TraverseLease { key })) => {
                warn!(key, "leader election lease lacks a field");
                self.repair_lease(leases).await;
                LeaseAttempt::Unknown
            }
            Ok(Err(error)) => {
                warn!(error = %ErrorChain(&error), "failed to renew leader election lease");
                LeaseAttempt::Unknown
            }
            Err(_) => {
                warn!("timed out renewing leader election lease");
                LeaseAttempt::Unknown
            }
        }
    }

    /// Fills in missing fields: a released Lease may have no holder, which the lock library rejects. The values make the
    /// Lease expire after a second. The resourceVersion keeps a concurrent write.
    async fn repair_lease(&self, leases: &Api<Lease>) {
        let repair = async {
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
            merge_election_lease(leases, &self.lease_name, &patch).await
        };
        let outcome: Result<Result<(), kube::Error>, _> =
            timeout(self.renew_deadline, repair).await;
        match outcome {
            Ok(Ok(())) => info!("leader election lease repaired"),
            Ok(Err(error)) => {
                warn!(error = %ErrorChain(&error), "failed to repair leader election lease");
            }
            Err(_) => warn!("timed out repairing leader election lease"),
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
                LeaseAttempt::Held {
                    requested_at: request_sent,
                } => {
                    let until = request_sent + self.renew_deadline;
                    leadership.set_deadline(Some(until));
                }
                // Another holder may write after its own wait: stop at once.
                LeaseAttempt::HeldByOther => {
                    leadership.set_deadline(None);
                    return;
                }
                // The current deadline stays: it ends leadership if no renewal succeeds before.
                LeaseAttempt::Unknown => {}
            }
        }
        // Before the Lease is released: another replica may write from then on.
        leadership.set_deadline(None);
        match timeout(self.retry_period, lock.step_down()).await {
            Ok(Ok(())) => info!("leader election lease released"),
            Ok(Err(error)) => {
                warn!(error = %ErrorChain(&error), "failed to release leader election lease");
            }
            Err(_) => warn!("timed out releasing leader election lease"),
        }
    }
}
