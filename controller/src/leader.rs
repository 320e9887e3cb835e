//! Which of several controllers acts: the one that holds a Lease, and only as long as it certainly does.
//!
//! ```text
//! asked ── held ── asked again after a pause, still held ──► leads until (moment of asking + renew deadline)
//! ```
//!
//! **Holds**: two processes may believe for a moment to have taken an expired Lease, since taking it is no
//! compare-and-swap. So nobody acts before it was seen to hold the Lease twice, a retry period apart. The time counts from before
//! the question, on a clock that only measures spans, and ends before others may take the Lease. When it ends, every
//! write is refused at once, and the process ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use steward_telemetry::Chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How leadership is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Name of the Lease.
    pub lease: String,
    /// Its namespace.
    pub namespace: String,
    /// Who this process is.
    pub identity: String,
    /// How long others wait for a holder that gives no sign of life.
    pub duration: Duration,
    /// How long a holder acts without having renewed; less than the duration.
    pub renew_deadline: Duration,
    /// The pause between two attempts.
    pub retry: Duration,
}

/// Whether this process may write. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    until: watch::Sender<Option<Instant>>,
    is_unopposed: AtomicBool,
}

/// Another process may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not lead any more")]
#[non_exhaustive]
pub struct LeadershipLost;

impl Leadership {
    /// Without an election there is nobody else.
    pub fn unopposed() -> Self {
        let this = Self::none();
        this.0.is_unopposed.store(true, Ordering::Release);
        this
    }

    fn none() -> Self {
        Self(Arc::new(Shared {
            until: watch::Sender::new(None),
            is_unopposed: AtomicBool::new(false),
        }))
    }

    /// Whether a write may be made now.
    pub fn check(&self) -> Result<(), LeadershipLost> {
        let is_led = self
            .0
            .until
            .borrow()
            .is_some_and(|until| Instant::now() < until);
        if is_led || self.0.is_unopposed.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(LeadershipLost)
        }
    }

    /// Returns when this process leads no more.
    pub async fn lost(&self) {
        if self.0.is_unopposed.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        let mut until = self.0.until.subscribe();
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

impl Election {
    fn lock(&self, client: &Client) -> LeaseLock {
        let params = LeaseLockParams {
            lease_name: self.lease.clone(),
            holder_id: self.identity.clone(),
            lease_ttl: self.duration,
        };
        LeaseLock::new(client.clone(), &self.namespace, params)
    }

    /// Waits until this process leads; from then on a task keeps it so until `cancel`, then gives the Lease back.
    pub async fn lead(
        self,
        client: &Client,
        cancel: CancellationToken,
    ) -> (Leadership, tokio::task::JoinHandle<()>) {
        let lock = self.lock(client);
        let leadership = Leadership::none();
        let mut in_a_row = 0_u32;
        let until = loop {
            match self.attempt(&lock).await {
                Some(until) => {
                    in_a_row += 1;
                    if in_a_row > 1 {
                        break until;
                    }
                }
                None => in_a_row = 0,
            }
            sleep(self.retry).await;
        };
        info!("this process leads");
        leadership.0.until.send_replace(Some(until));
        let kept = leadership.clone();
        let keeper = tokio::spawn(async move { self.keep(&lock, &kept, cancel).await });
        (leadership, keeper)
    }

    /// Until when this process leads, if it holds the Lease.
    async fn attempt(&self, lock: &LeaseLock) -> Option<Instant> {
        let asked = Instant::now();
        let answer = timeout(self.renew_deadline, lock.try_acquire_or_renew()).await;
        match answer {
            Ok(Ok(LeaseLockResult::Acquired(lease))) => {
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                (holder.as_deref() == Some(&self.identity)).then_some(asked + self.renew_deadline)
            }
            Ok(Ok(LeaseLockResult::NotAcquired(_))) => None,
            Ok(Err(error)) => {
                warn!(error = %Chain(&error), "the lease of the leader cannot be renewed");
                None
            }
            Err(_) => {
                warn!("the lease of the leader was not renewed in time");
                None
            }
        }
    }

    async fn keep(&self, lock: &LeaseLock, leadership: &Leadership, cancel: CancellationToken) {
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                () = leadership.lost() => return,
                () = sleep(self.retry) => {}
            }
            if let Some(until) = self.attempt(lock).await {
                leadership.0.until.send_replace(Some(until));
            }
        }
        leadership.0.until.send_replace(None);
        match timeout(self.retry, lock.step_down()).await {
            Ok(Ok(())) => info!("the lease of the leader was given back"),
            Ok(Err(error)) => {
                warn!(error = %Chain(&error), "the lease of the leader could not be given back")
            }
            Err(_) => warn!("the lease of the leader could not be given back in time"),
        }
    }
}
