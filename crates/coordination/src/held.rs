//! A lock that is held, and the fence that says whether it still is.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::coordinator::Coordinator;
use crate::error::CoordinationError;
use crate::incident::Incident;
use crate::lock::{Claim, Epoch, Lost};
use crate::member::MemberState;

/// Until when a holder may believe in its lock. Shared between the one who renews and those who ask.
#[derive(Clone, Debug)]
struct Validity(Arc<Mutex<Instant>>);

impl Validity {
    /// Three quarters of the time to live, counted from before the renewal was asked for. An observer counts the whole
    /// of it from later on; the quarter between covers clocks that do not run equally fast.
    fn from(asked: Instant, ttl: Duration) -> Instant {
        asked + ttl - ttl / 4
    }

    fn until(&self) -> Instant {
        *self.0.lock().expect("nobody panics while noting a time")
    }

    fn set(&self, until: Instant) {
        *self.0.lock().expect("nobody panics while noting a time") = until;
    }
}

/// A lock that is held. Dropping it is what a crash does: others wait until it expires; [`Held::release`] gives it back.
#[derive(Debug)]
pub struct Held {
    coordinator: Arc<Coordinator>,
    claim: Claim,
    ttl: Duration,
    validity: Validity,
}

impl Held {
    pub(crate) fn new(
        coordinator: Arc<Coordinator>,
        claim: Claim,
        ttl: Duration,
        asked: Instant,
    ) -> Self {
        let validity = Validity(Arc::new(Mutex::new(Validity::from(asked, ttl))));
        Self {
            coordinator,
            claim,
            ttl,
            validity,
        }
    }

    /// Who holds it with which epoch.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Until when it is ours without a further renewal.
    pub fn valid_until(&self) -> Instant {
        self.validity.until()
    }

    /// A fence for the writes this lock protects.
    pub fn fence(&self) -> Fence {
        Fence {
            coordinator: Arc::clone(&self.coordinator),
            claim: self.claim.clone(),
            validity: Some(self.validity.clone()),
        }
    }

    /// Shows a sign of life. A lock that was not renewed in time but that nobody took is held again.
    pub async fn renew(&self) -> Result<(), CoordinationError> {
        let (asked, ttl) = self.coordinator.renew_lock(&self.claim).await?;
        self.validity.set(Validity::from(asked, ttl));
        Ok(())
    }

    /// Goes on with an epoch above one that was found elsewhere: on a volume that remembers a lost document. Claims and
    /// fences of before do not pass any more. What is above already, and a number that cannot be an epoch, change nothing.
    pub async fn raise(self, above: Epoch) -> Result<Self, CoordinationError> {
        let raised = self.coordinator.raise_lock(&self.claim, above).await?;
        let Some((asked, lock)) = raised else {
            return Ok(self);
        };
        let lasts = lock.lasts();
        let claim = Claim {
            holder: lock.holder,
            epoch: lock.epoch,
        };
        Ok(Self::new(self.coordinator, claim, lasts, asked))
    }

    /// Gives the lock back.
    pub async fn release(self) -> Result<(), CoordinationError> {
        // Whoever still has a fence must not pass it while the release is on its way.
        self.validity.set(Instant::now());
        self.coordinator.release_lock(&self.claim).await
    }

    /// Does some work and renews the lock meanwhile. The work is dropped, at one of its awaits, when the lock is lost or
    /// could not be renewed for so long that it may be. Work that computes for long belongs on the blocking pool.
    pub async fn keep<W: Future>(&self, work: W) -> Result<W::Output, CoordinationError> {
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
                Err(_) => return self.coordinator.lost(&self.claim, Lost::Expired),
            }
            if pause < self.ttl / 3 && Instant::now() + pause >= self.valid_until() {
                sleep_until(self.valid_until()).await;
                return self.coordinator.lost(&self.claim, Lost::Expired);
            }
        }
    }
}

/// Says whether a claim still has the lock. Ask it before each write the lock protects.
#[derive(Clone, Debug)]
pub struct Fence {
    coordinator: Arc<Coordinator>,
    claim: Claim,
    /// Known to the holder only.
    validity: Option<Validity>,
}

impl Fence {
    pub(crate) fn of_another(coordinator: Arc<Coordinator>, claim: Claim) -> Self {
        Self {
            coordinator,
            claim,
            validity: None,
        }
    }

    /// Whose lock it is, with which epoch.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Passes while the document names the claim and, for the holder itself, the last renewal is recent enough. A machine
    /// that slept does not notice the hours it missed; the document tells it.
    pub async fn check(&self) -> Result<(), CoordinationError> {
        self.check_time()?;
        let page = self.coordinator.read().await?;
        self.coordinator.confirmed(&page, &self.claim)?;
        self.check_time()
    }

    fn check_time(&self) -> Result<(), CoordinationError> {
        match &self.validity {
            Some(validity) if Instant::now() >= validity.until() => {
                Err(self.coordinator.lost(&self.claim, Lost::Expired))
            }
            _ => Ok(()),
        }
    }

    /// Writes how far the restoration of a member is. The lock is checked in the same write.
    pub async fn report(&self, member: &str, state: &MemberState) -> Result<(), CoordinationError> {
        self.check_time()?;
        self.coordinator
            .report(&self.claim, member, Some(state))
            .await
    }

    /// Forgets the restoration of a member. The lock is checked in the same write.
    pub async fn forget(&self, member: &str) -> Result<(), CoordinationError> {
        self.check_time()?;
        self.coordinator.report(&self.claim, member, None).await
    }

    /// Writes how far a recovery is, if the document still says `before`. The lock is checked in the same write.
    /// Returns what the document says then: another party's words when it was faster.
    pub async fn record(
        &self,
        before: Option<&Incident>,
        next: &Incident,
    ) -> Result<Option<Incident>, CoordinationError> {
        self.check_time()?;
        self.coordinator.record(&self.claim, before, next).await
    }
}
