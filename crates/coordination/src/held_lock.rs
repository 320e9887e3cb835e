//! A held lock, and the fence that checks whether it is still held.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::coordinator::Coordinator;
use crate::error::CoordinationError;
use crate::incident::Incident;
use crate::lock::{Epoch, LockLoss, LockToken};
use crate::member::MemberState;

/// Time until which the holder may rely on its lock. Shared between the renewal and the fences.
#[derive(Clone, Debug)]
struct LockValidity(Arc<Mutex<Instant>>);

impl LockValidity {
    /// Three quarters of the TTL, from before the renewal was requested. Observers count the full TTL from a
    /// later start; the remaining quarter covers clocks that run at different speeds.
    fn compute_expiry(requested: Instant, ttl: Duration) -> Instant {
        requested + ttl - ttl / 4
    }

    fn expires_at(&self) -> Instant {
        *self.0.lock().expect("validity lock is never poisoned")
    }

    fn set(&self, until: Instant) {
        *self.0.lock().expect("validity lock is never poisoned") = until;
    }
}

/// A held lock. Dropping it acts like a crash: others wait until it expires. [`HeldLock::release`] frees it
/// immediately.
#[derive(Debug)]
pub struct HeldLock {
    coordinator: Arc<Coordinator>,
    token: LockToken,
    ttl: Duration,
    validity: LockValidity,
}

impl HeldLock {
    pub(crate) fn new(
        coordinator: Arc<Coordinator>,
        token: LockToken,
        ttl: Duration,
        requested: Instant,
    ) -> Self {
        let validity = LockValidity(Arc::new(Mutex::new(LockValidity::compute_expiry(
            requested, ttl,
        ))));
        Self {
            coordinator,
            token,
            ttl,
            validity,
        }
    }

    /// Holder and epoch.
    pub fn token(&self) -> &LockToken {
        &self.token
    }

    /// Time until which the lock is valid without another renewal.
    pub fn valid_until(&self) -> Instant {
        self.validity.expires_at()
    }

    /// A fence for the writes that this lock protects.
    pub fn fence(&self) -> LockFence {
        LockFence {
            coordinator: Arc::clone(&self.coordinator),
            token: self.token.clone(),
            validity: Some(self.validity.clone()),
        }
    }

    /// Renews the lock. An expired lock that no other process acquired becomes valid again.
    pub async fn renew(&self) -> Result<(), CoordinationError> {
        let (requested, ttl) = self.coordinator.renew_lock(&self.token).await?;
        self.validity
            .set(LockValidity::compute_expiry(requested, ttl));
        Ok(())
    }

    /// Raises the epoch above one found on a volume, after the document was lost. Earlier tokens and fences
    /// become invalid. Nothing changes if the epoch is already higher or `above` is not a valid epoch.
    pub async fn raise_epoch(self, above: Epoch) -> Result<Self, CoordinationError> {
        let raised = self.coordinator.raise_epoch(&self.token, above).await?;
        let Some((requested, lock)) = raised else {
            return Ok(self);
        };
        let lasts = lock.effective_ttl();
        let claim = LockToken {
            holder: lock.holder,
            epoch: lock.epoch,
        };
        Ok(Self::new(self.coordinator, claim, lasts, requested))
    }

    /// Releases the lock.
    pub async fn release(self) -> Result<(), CoordinationError> {
        // Invalidate local fences first: they must not pass while the release is in flight.
        self.validity.set(Instant::now());
        self.coordinator.release_lock(&self.token).await
    }

    /// Runs `work` and renews the lock meanwhile. Cancels `work` at an await point when the lock is lost, or
    /// when it could not be renewed within its validity. Run long computations on the blocking pool.
    pub async fn run_while_held<W: Future>(&self, work: W) -> Result<W::Output, CoordinationError> {
        tokio::select! {
            // Lock loss has precedence over completed work.
            biased;
            error = self.renew_until_lost() => Err(error),
            done = work => Ok(done),
        }
    }

    async fn renew_until_lost(&self) -> CoordinationError {
        let mut pause = self.ttl / 3;
        loop {
            sleep(pause).await;
            match timeout_at(self.valid_until(), self.renew()).await {
                Ok(Ok(())) => pause = self.ttl / 3,
                // Retry faster: several attempts must fit into the remaining validity.
                Ok(Err(error)) if error.is_transient() => pause = self.ttl / 20,
                Ok(Err(error)) => return error,
                Err(_) => {
                    return self
                        .coordinator
                        .lock_lost_error(&self.token, LockLoss::Expired);
                }
            }
            // No further attempt fits: stop at the end of validity, before another process may acquire the lock.
            if pause < self.ttl / 3 && Instant::now() + pause >= self.valid_until() {
                sleep_until(self.valid_until()).await;
                return self
                    .coordinator
                    .lock_lost_error(&self.token, LockLoss::Expired);
            }
        }
    }
}

/// Checks whether the lock is still held. Check it before each write that the lock protects.
#[derive(Clone, Debug)]
pub struct LockFence {
    coordinator: Arc<Coordinator>,
    token: LockToken,
    /// `None` in a process that does not renew the lock itself.
    validity: Option<LockValidity>,
}

impl LockFence {
    pub(crate) fn without_validity(coordinator: Arc<Coordinator>, token: LockToken) -> Self {
        Self {
            coordinator,
            token,
            validity: None,
        }
    }

    /// Holder and epoch.
    pub fn token(&self) -> &LockToken {
        &self.token
    }

    /// Passes while the document contains this holder and epoch and, in the holder's process, the last renewal
    /// is recent. The document is read because the monotonic clock stops while a machine is suspended.
    pub async fn check(&self) -> Result<(), CoordinationError> {
        self.check_validity()?;
        let page = self.coordinator.read_document().await?;
        self.coordinator.check_token(&page, &self.token)?;
        // The read may have taken longer than the remaining validity.
        self.check_validity()
    }

    fn check_validity(&self) -> Result<(), CoordinationError> {
        match &self.validity {
            Some(validity) if Instant::now() >= validity.expires_at() => Err(self
                .coordinator
                .lock_lost_error(&self.token, LockLoss::Expired)),
            _ => Ok(()),
        }
    }

    /// Writes the restore state of a member; the same write checks the lock.
    pub async fn write_member_state(
        &self,
        member: &str,
        state: &MemberState,
    ) -> Result<(), CoordinationError> {
        self.check_validity()?;
        self.coordinator
            .write_member_state(&self.token, member, Some(state))
            .await
    }

    /// Removes the restore state of a member; the same write checks the lock.
    pub async fn remove_member_state(&self, member: &str) -> Result<(), CoordinationError> {
        self.check_validity()?;
        self.coordinator
            .write_member_state(&self.token, member, None)
            .await
    }

    /// Writes the state of a recovery if the document still contains `before`; the same write checks the lock.
    /// Returns the incident that the document then contains, which is another writer's if that was faster.
    pub async fn write_incident(
        &self,
        before: Option<&Incident>,
        next: &Incident,
    ) -> Result<Option<Incident>, CoordinationError> {
        self.check_validity()?;
        self.coordinator
            .write_incident(&self.token, before, next)
            .await
    }
}
