//! A lock that is held, and the fence that says whether it still is.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::coordinator::Coordinator;
use crate::error::CoordinationError;
use crate::incident::Incident;
use crate::lock::{LockToken, Epoch, LockLoss};
use crate::member::MemberState;

/// Until when a holder may believe in its lock. Shared between the one who renews and those who ask.
#[derive(Clone, Debug)]
struct LockValidity(Arc<Mutex<Instant>>);

impl LockValidity {
    /// Three quarters of the time to live, counted from before the renewal was asked for. An observer counts the whole
    /// of it from later on; the quarter between covers clocks that do not run equally fast.
    fn compute_expiry(asked: Instant, ttl: Duration) -> Instant {
        asked + ttl - ttl / 4
    }

    fn expires_at(&self) -> Instant {
        *self.0.lock().expect("nobody panics while noting a time")
    }

    fn set(&self, until: Instant) {
        *self.0.lock().expect("nobody panics while noting a time") = until;
    }
}

/// A lock that is held. Dropping it is what a crash does: others wait until it expires; [`Held::release`] gives it back.
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
        claim: LockToken,
        ttl: Duration,
        asked: Instant,
    ) -> Self {
        let validity = LockValidity(Arc::new(Mutex::new(LockValidity::compute_expiry(asked, ttl))));
        Self {
            coordinator,
            token: claim,
            ttl,
            validity,
        }
    }

    /// Who holds it with which epoch.
    pub fn token(&self) -> &LockToken {
        &self.token
    }

    /// Until when it is ours without a further renewal.
    pub fn valid_until(&self) -> Instant {
        self.validity.expires_at()
    }

    /// A fence for the writes this lock protects.
    pub fn fence(&self) -> LockFence {
        LockFence {
            coordinator: Arc::clone(&self.coordinator),
            token: self.token.clone(),
            validity: Some(self.validity.clone()),
        }
    }

    /// Shows a sign of life. A lock that was not renewed in time but that nobody took is held again.
    pub async fn renew(&self) -> Result<(), CoordinationError> {
        let (asked, ttl) = self.coordinator.renew_lock(&self.token).await?;
        self.validity.set(LockValidity::compute_expiry(asked, ttl));
        Ok(())
    }

    /// Goes on with an epoch above one that was found elsewhere: on a volume that remembers a lost document. Claims and
    /// fences of before do not pass any more. What is above already, and a number that cannot be an epoch, change nothing.
    pub async fn raise_epoch(self, above: Epoch) -> Result<Self, CoordinationError> {
        let raised = self.coordinator.raise_epoch(&self.token, above).await?;
        let Some((asked, lock)) = raised else {
            return Ok(self);
        };
        let lasts = lock.effective_ttl();
        let claim = LockToken {
            holder: lock.holder,
            epoch: lock.epoch,
        };
        Ok(Self::new(self.coordinator, claim, lasts, asked))
    }

    /// Gives the lock back.
    pub async fn release(self) -> Result<(), CoordinationError> {
        // Whoever still has a fence must not pass it while the release is on its way.
        self.validity.set(Instant::now());
        self.coordinator.release_lock(&self.token).await
    }

    /// Does some work and renews the lock meanwhile. The work is dropped, at one of its awaits, when the lock is lost or
    /// could not be renewed for so long that it may be. Work that computes for long belongs on the blocking pool.
    pub async fn run_while_held<W: Future>(&self, work: W) -> Result<W::Output, CoordinationError> {
        tokio::select! {
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
                Ok(Err(error)) if error.is_transient() => pause = self.ttl / 20,
                Ok(Err(error)) => return error,
                Err(_) => return self.coordinator.lock_lost_error(&self.token, LockLoss::Expired),
            }
            if pause < self.ttl / 3 && Instant::now() + pause >= self.valid_until() {
                sleep_until(self.valid_until()).await;
                return self.coordinator.lock_lost_error(&self.token, LockLoss::Expired);
            }
        }
    }
}

/// Says whether a claim still has the lock. Ask it before each write the lock protects.
#[derive(Clone, Debug)]
pub struct LockFence {
    coordinator: Arc<Coordinator>,
    token: LockToken,
    /// Known to the holder only.
    validity: Option<LockValidity>,
}

impl LockFence {
    pub(crate) fn without_validity(coordinator: Arc<Coordinator>, claim: LockToken) -> Self {
        Self {
            coordinator,
            token: claim,
            validity: None,
        }
    }

    /// Whose lock it is, with which epoch.
    pub fn token(&self) -> &LockToken {
        &self.token
    }

    /// Passes while the document names the claim and, for the holder itself, the last renewal is recent enough. A machine
    /// that slept does not notice the hours it missed; the document tells it.
    pub async fn check(&self) -> Result<(), CoordinationError> {
        self.check_validity()?;
        let page = self.coordinator.read_document().await?;
        self.coordinator.check_token(&page, &self.token)?;
        self.check_validity()
    }

    fn check_validity(&self) -> Result<(), CoordinationError> {
        match &self.validity {
            Some(validity) if Instant::now() >= validity.expires_at() => {
                Err(self.coordinator.lock_lost_error(&self.token, LockLoss::Expired))
            }
            _ => Ok(()),
        }
    }

    /// Writes how far the restoration of a member is. The lock is checked in the same write.
    pub async fn write_member_state(&self, member: &str, state: &MemberState) -> Result<(), CoordinationError> {
        self.check_validity()?;
        self.coordinator
            .write_member_state(&self.token, member, Some(state))
            .await
    }

    /// Forgets the restoration of a member. The lock is checked in the same write.
    pub async fn remove_member_state(&self, member: &str) -> Result<(), CoordinationError> {
        self.check_validity()?;
        self.coordinator.write_member_state(&self.token, member, None).await
    }

    /// Writes how far a recovery is, if the document still says `before`. The lock is checked in the same write.
    /// Returns what the document says then: another party's words when it was faster.
    pub async fn write_incident(
        &self,
        before: Option<&Incident>,
        next: &Incident,
    ) -> Result<Option<Incident>, CoordinationError> {
        self.check_validity()?;
        self.coordinator.write_incident(&self.token, before, next).await
    }
}
