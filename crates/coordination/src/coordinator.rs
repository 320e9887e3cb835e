//! Reads the document, applies a pure transition and writes by compare-and-swap; retries on conflict.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::backing::{Backing, BackingError, Document, Edits};
use crate::change_tracker::ChangeTracker;
use crate::error::{CoordinationError, build_entry_name};
use crate::held_lock::{HeldLock, LockFence};
use crate::incident::{self, Incident};
use crate::lock::{self, AcquireDecision, Epoch, Lock, LockLoss, LockRequest, LockToken};
use crate::member::{self, MemberState};
use crate::pin::Pin;

/// Maximum attempts of a conflicting write. At most a dozen processes share a document.
const MAX_WRITE_ATTEMPTS: u32 = 20;

/// Maximum poll interval for a lock held by another process; short enough to observe each renewal.
const LOCK_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Wall clock for timestamps and epochs. Expiry does not depend on it.
type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Access to the coordination document of one etcd cluster.
///
/// Expiry is measured by how long *this value* has observed an entry unchanged, so reuse one
/// `Coordinator` for the lifetime of the process.
pub struct Coordinator {
    backing: Arc<dyn Backing>,
    wall_clock: WallClock,
    lock_tracker: Mutex<ChangeTracker<Lock>>,
    pub(crate) pin_tracker: Mutex<ChangeTracker<Pin>>,
}

/// Result of an attempt to acquire the lock.
#[derive(Debug)]
pub enum AcquireOutcome {
    /// The lock is acquired.
    Acquired(HeldLock),
    /// Another process holds the lock.
    Busy {
        /// The current lock.
        lock: Lock,
        /// Time until it expires, unless it is renewed.
        expires_in: Duration,
    },
}

/// The edits of a transition, if any, and its result.
pub(crate) enum DocumentUpdate<T> {
    NoChange(T),
    Write(Edits, T),
}

impl Coordinator {
    /// Uses the system clock.
    pub fn new(backing: Arc<dyn Backing>) -> Arc<Self> {
        Self::with_wall_clock(backing, Timestamp::now)
    }

    /// Uses another wall clock for the timestamps in the document.
    pub fn with_wall_clock(
        backing: Arc<dyn Backing>,
        wall_clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            backing,
            wall_clock: Arc::new(wall_clock),
            lock_tracker: Mutex::default(),
            pin_tracker: Mutex::default(),
        })
    }

    /// The current lock entry; `None` if the lock was never acquired.
    pub async fn read_lock(&self) -> Result<Option<Lock>, CoordinationError> {
        let page = self.backing.read().await?;
        self.parse_entry(&page, lock::ENTRY)
    }

    /// Acquires the lock if it is free or expired.
    pub async fn try_acquire(
        self: &Arc<Self>,
        lock_request: &LockRequest,
    ) -> Result<AcquireOutcome, CoordinationError> {
        // Validity starts before the write is sent, so that it ends before any observer's expiry.
        let mut requested = Instant::now();
        let outcome = self
            .update(|page| {
                requested = Instant::now();
                let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
                // Each read counts as an observation, also those of failed attempts.
                let unchanged = self.observe_lock(found.as_ref());
                match lock::decide_acquire(found.as_ref(), unchanged, lock_request, self.now()) {
                    AcquireDecision::Take(next) => {
                        let edits = self.build_edit(lock::ENTRY, &next)?;
                        Ok(DocumentUpdate::Write(edits, (next, None)))
                    }
                    AcquireDecision::Wait { lock, expires_in } => {
                        Ok(DocumentUpdate::NoChange((lock.clone(), Some(expires_in))))
                    }
                }
            })
            .await?;
        Ok(match outcome {
            (lock, Some(expires_in)) => AcquireOutcome::Busy { lock, expires_in },
            (lock, None) => {
                let claim = LockToken {
                    holder: lock.holder,
                    epoch: lock.epoch,
                };
                AcquireOutcome::Acquired(HeldLock::new(
                    Arc::clone(self),
                    claim,
                    lock.ttl,
                    requested,
                ))
            }
        })
    }

    /// Acquires the lock; waits for it up to `timeout`.
    pub async fn acquire(
        self: &Arc<Self>,
        lock_request: &LockRequest,
        timeout: Duration,
    ) -> Result<HeldLock, CoordinationError> {
        let started = Instant::now();
        loop {
            let (lock, expires_in) = match self.try_acquire(lock_request).await? {
                AcquireOutcome::Acquired(held) => return Ok(held),
                AcquireOutcome::Busy { lock, expires_in } => (lock, expires_in),
            };
            let waited = started.elapsed();
            if waited >= timeout {
                return Err(CoordinationError::LockHeld {
                    place: self.location(),
                    holder: lock.holder,
                    waited,
                });
            }
            // Polling at a third of the TTL notices expiry soon after it is possible.
            let pause = expires_in
                .min(lock.ttl / 3)
                .min(LOCK_POLL_INTERVAL)
                .min(timeout.saturating_sub(waited));
            sleep(pause.max(Duration::from_millis(10))).await;
        }
    }

    /// Resumes a lock after a restart, if the document still contains its holder and epoch.
    pub async fn resume_lock(
        self: &Arc<Self>,
        claim: &LockToken,
    ) -> Result<HeldLock, CoordinationError> {
        let (requested, ttl) = self.renew_lock(claim).await?;
        Ok(HeldLock::new(
            Arc::clone(self),
            claim.clone(),
            ttl,
            requested,
        ))
    }

    /// A fence for a lock that another process renews, for example for a Job that the holder started.
    pub fn fence_for(self: &Arc<Self>, claim: LockToken) -> LockFence {
        LockFence::without_validity(Arc::clone(self), claim)
    }

    /// The recorded restore state of a member; `None` if there is none.
    pub async fn read_member(&self, name: &str) -> Result<Option<MemberState>, CoordinationError> {
        let page = self.backing.read().await?;
        self.parse_entry(&page, &build_entry_name(member::PREFIX, name)?)
    }

    /// Writes or removes the state of a member. The same write checks that the lock is still held.
    pub(crate) async fn write_member_state(
        &self,
        claim: &LockToken,
        name: &str,
        state: Option<&MemberState>,
    ) -> Result<(), CoordinationError> {
        let entry = build_entry_name(member::PREFIX, name)?;
        self.update(|page| {
            self.check_token(page, claim)?;
            // Parse first: an unreadable entry must not be overwritten, not even by the lock holder.
            let found: Option<MemberState> = self.parse_entry(page, &entry)?;
            let edits = match state {
                Some(state) => self.build_edit(&entry, state)?,
                None if found.is_some() => Edits::from([(entry.clone(), None)]),
                None => return Ok(DocumentUpdate::NoChange(())),
            };
            Ok(DocumentUpdate::Write(edits, ()))
        })
        .await
    }

    /// The current or the last recovery; `None` if there was none.
    pub async fn read_incident(&self) -> Result<Option<Incident>, CoordinationError> {
        let page = self.backing.read().await?;
        self.parse_entry(&page, incident::ENTRY)
    }

    /// Writes an incident if the lock is still held and the document still contains `before`, in one write.
    /// Returns the incident that the document then contains.
    pub(crate) async fn write_incident(
        &self,
        claim: &LockToken,
        before: Option<&Incident>,
        next: &Incident,
    ) -> Result<Option<Incident>, CoordinationError> {
        self.update(|page| {
            self.check_token(page, claim)?;
            let found: Option<Incident> = self.parse_entry(page, incident::ENTRY)?;
            // Another process changed the incident since the caller read it.
            if found.as_ref() != before {
                return Ok(DocumentUpdate::NoChange(found));
            }
            let edits = self.build_edit(incident::ENTRY, next)?;
            Ok(DocumentUpdate::Write(edits, Some(next.clone())))
        })
        .await
    }

    /// Renews the lock; returns when the renewal started and the TTL.
    pub(crate) async fn renew_lock(
        &self,
        claim: &LockToken,
    ) -> Result<(Instant, Duration), CoordinationError> {
        let mut requested = Instant::now();
        self.update(|page| {
            requested = Instant::now();
            let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
            let next = lock::renew(found.as_ref(), claim, self.now())
                .map_err(|lost| self.lock_lost_error(claim, lost))?;
            Ok(DocumentUpdate::Write(
                self.build_edit(lock::ENTRY, &next)?,
                next.effective_ttl(),
            ))
        })
        .await
        .map(|ttl| (requested, ttl))
    }

    /// Raises the epoch above `above`; returns the start time and the new lock, `None` if nothing changed.
    pub(crate) async fn raise_epoch(
        &self,
        claim: &LockToken,
        above: Epoch,
    ) -> Result<Option<(Instant, Lock)>, CoordinationError> {
        let mut requested = Instant::now();
        self.update(|page| {
            requested = Instant::now();
            let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
            let next = lock::raise_epoch(found.as_ref(), claim, above, self.now())
                .map_err(|lost| self.lock_lost_error(claim, lost))?;
            // The epoch is already above; a write would only cause conflicts.
            if found.as_ref() == Some(&next) {
                return Ok(DocumentUpdate::NoChange(None));
            }
            Ok(DocumentUpdate::Write(
                self.build_edit(lock::ENTRY, &next)?,
                Some(next),
            ))
        })
        .await
        .map(|raised| raised.map(|lock| (requested, lock)))
    }

    pub(crate) async fn release_lock(&self, claim: &LockToken) -> Result<(), CoordinationError> {
        self.update(|page| {
            let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
            let next = lock::release(found.as_ref(), claim, self.now())
                .map_err(|lost| self.lock_lost_error(claim, lost))?;
            Ok(DocumentUpdate::Write(
                self.build_edit(lock::ENTRY, &next)?,
                (),
            ))
        })
        .await
    }

    pub(crate) fn check_token(
        &self,
        page: &Document,
        claim: &LockToken,
    ) -> Result<(), CoordinationError> {
        let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
        match lock::confirm_holder(found.as_ref(), claim) {
            Ok(_) => Ok(()),
            Err(lost) => Err(self.lock_lost_error(claim, lost)),
        }
    }

    pub(crate) fn lock_lost_error(&self, claim: &LockToken, source: LockLoss) -> CoordinationError {
        CoordinationError::LockLost {
            place: self.location(),
            holder: claim.holder.clone(),
            source,
        }
    }

    fn observe_lock(&self, found: Option<&Lock>) -> Duration {
        let mut tracker = self
            .lock_tracker
            .lock()
            .expect("lock tracker is never poisoned");
        let now = Instant::now();
        found.map_or(Duration::ZERO, |lock| {
            tracker.observe(lock::ENTRY, lock, lock.effective_ttl(), now)
        })
    }

    /// Changes the document by compare-and-swap.
    pub(crate) async fn update<T>(
        &self,
        mut change: impl FnMut(&Document) -> Result<DocumentUpdate<T>, CoordinationError> + Send,
    ) -> Result<T, CoordinationError> {
        for attempt in 0..MAX_WRITE_ATTEMPTS {
            let page = self.backing.read().await?;
            let (edits, result) = match change(&page)? {
                DocumentUpdate::NoChange(result) => return Ok(result),
                DocumentUpdate::Write(edits, result) => (edits, result),
            };
            match self.backing.write(&page, &edits).await {
                Ok(()) => return Ok(result),
                Err(BackingError::Conflict { .. }) => sleep(random_backoff(attempt)).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(CoordinationError::Contended {
            place: self.location(),
            attempts: MAX_WRITE_ATTEMPTS,
        })
    }

    pub(crate) async fn read_document(&self) -> Result<Document, CoordinationError> {
        Ok(self.backing.read().await?)
    }

    /// Parses an entry; `None` if it does not exist.
    pub(crate) fn parse_entry<T: DeserializeOwned>(
        &self,
        page: &Document,
        entry: &str,
    ) -> Result<Option<T>, CoordinationError> {
        let Some(text) = page.entries.get(entry) else {
            return Ok(None);
        };
        serde_json::from_str(text)
            .map(Some)
            .map_err(|source| CoordinationError::Unreadable {
                place: self.location(),
                entry: entry.to_owned(),
                source,
            })
    }

    pub(crate) fn build_edit(
        &self,
        entry: &str,
        value: &impl Serialize,
    ) -> Result<Edits, CoordinationError> {
        let text =
            serde_json::to_string(value).map_err(|source| CoordinationError::SerializeEntry {
                place: self.location(),
                entry: entry.to_owned(),
                source,
            })?;
        Ok(Edits::from([(entry.to_owned(), Some(text))]))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.wall_clock)()
    }

    pub(crate) fn location(&self) -> String {
        self.backing.location()
    }
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator")
            .field("place", &self.location())
            .finish_non_exhaustive()
    }
}

/// A random pause that grows with each attempt, so that concurrent writers do not conflict again.
fn random_backoff(attempt: u32) -> Duration {
    let max_millis = 10 << attempt.min(5);
    Duration::from_millis(rand::rng().random_range(1..=max_millis))
}
