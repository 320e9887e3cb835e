//! Reads, lets a pure function choose, writes if nothing changed meanwhile; again when something did.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::backing::{Backing, BackingError, Edits, Document};
use crate::error::{CoordinationError, build_entry_name};
use crate::held::{LockFence, HeldLock};
use crate::incident::{self, Incident};
use crate::lock::{self, LockToken, AcquireDecision, Epoch, Lock, LockLoss, LockRequest};
use crate::member::{self, MemberState};
use crate::pin::Pin;
use crate::seen::ChangeTracker;

/// How often a write is tried again when another writer was faster. A dozen parties at most share a document.
const MAX_WRITE_ATTEMPTS: u32 = 20;

/// How often a busy lock is looked at, at most: often enough to see each renewal, rarely enough to cost nothing.
const LOCK_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Tells the time for the document's readers, and for epochs. Within one document nothing depends on its being right.
type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// One party's access to the document of one etcd.
///
/// Remembers what it saw: expiry is judged by how long *this value* has seen something unchanged, so keep one and
/// use it again.
pub struct Coordinator {
    backing: Arc<dyn Backing>,
    wall_clock: WallClock,
    lock_tracker: Mutex<ChangeTracker<Lock>>,
    pub(crate) pin_tracker: Mutex<ChangeTracker<Pin>>,
}

/// What came of trying to get the lock.
#[derive(Debug)]
pub enum AcquireOutcome {
    /// It is ours.
    Acquired(HeldLock),
    /// Somebody has it.
    Busy {
        /// Who, what for, since when.
        lock: Lock,
        /// When it expires at the earliest.
        expires_in: Duration,
    },
}

/// What a transition wants written, and what it answers then.
pub(crate) enum DocumentUpdate<T> {
    NoChange(T),
    Write(Edits, T),
}

impl Coordinator {
    /// Access through a backing.
    pub fn new(backing: Arc<dyn Backing>) -> Arc<Self> {
        Self::with_wall_clock(backing, Timestamp::now)
    }

    /// Access with another wall clock, whose times people read in the document.
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

    /// The lock as it stands.
    pub async fn read_lock(&self) -> Result<Option<Lock>, CoordinationError> {
        let page = self.backing.read().await?;
        self.parse_entry(&page, lock::ENTRY)
    }

    /// Takes the lock if it is free or expired.
    pub async fn try_acquire(self: &Arc<Self>, lock_request: &LockRequest) -> Result<AcquireOutcome, CoordinationError> {
        // Valid from before the write was asked for, so that no observer's span ends earlier than ours.
        let mut asked = Instant::now();
        let outcome = self
            .update(|page| {
                asked = Instant::now();
                let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
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
                AcquireOutcome::Acquired(HeldLock::new(Arc::clone(self), claim, lock.ttl, asked))
            }
        })
    }

    /// Takes the lock, waiting for it up to `patience`.
    pub async fn acquire(
        self: &Arc<Self>,
        lock_request: &LockRequest,
        patience: Duration,
    ) -> Result<HeldLock, CoordinationError> {
        let began = Instant::now();
        loop {
            let (lock, expires_in) = match self.try_acquire(lock_request).await? {
                AcquireOutcome::Acquired(held) => return Ok(held),
                AcquireOutcome::Busy { lock, expires_in } => (lock, expires_in),
            };
            let waited = began.elapsed();
            if waited >= patience {
                return Err(CoordinationError::LockHeld {
                    place: self.location(),
                    holder: lock.holder,
                    waited,
                });
            }
            // A third of the time to live sees the change of hands soon after it is possible.
            let pause = expires_in
                .min(lock.ttl / 3)
                .min(LOCK_POLL_INTERVAL)
                .min(patience.saturating_sub(waited));
            sleep(pause.max(Duration::from_millis(10))).await;
        }
    }

    /// Goes on holding a lock after a restart: the document still names the claim.
    pub async fn resume_lock(self: &Arc<Self>, claim: &LockToken) -> Result<HeldLock, CoordinationError> {
        let (asked, ttl) = self.renew_lock(claim).await?;
        Ok(HeldLock::new(Arc::clone(self), claim.clone(), ttl, asked))
    }

    /// A fence for a claim that somebody else renews, as a Job has it that was started by the holder.
    pub fn fence_for(self: &Arc<Self>, claim: LockToken) -> LockFence {
        LockFence::without_validity(Arc::clone(self), claim)
    }

    /// What is known about the restoration of a member.
    pub async fn read_member(&self, name: &str) -> Result<Option<MemberState>, CoordinationError> {
        let page = self.backing.read().await?;
        self.parse_entry(&page, &build_entry_name(member::PREFIX, name)?)
    }

    /// Writes the state of a member, or removes it, if the claim still has the lock: both are one write.
    pub(crate) async fn write_member_state(
        &self,
        claim: &LockToken,
        name: &str,
        state: Option<&MemberState>,
    ) -> Result<(), CoordinationError> {
        let entry = build_entry_name(member::PREFIX, name)?;
        self.update(|page| {
            self.check_token(page, claim)?;
            // An entry nobody can read is not overwritten, not even by the holder.
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

    /// The recovery that goes on, or the last one.
    pub async fn read_incident(&self) -> Result<Option<Incident>, CoordinationError> {
        let page = self.backing.read().await?;
        self.parse_entry(&page, incident::ENTRY)
    }

    /// Writes an incident if the claim still has the lock and the document still says `before`: all in one write. Tells
    /// what the document says then.
    pub(crate) async fn write_incident(
        &self,
        claim: &LockToken,
        before: Option<&Incident>,
        next: &Incident,
    ) -> Result<Option<Incident>, CoordinationError> {
        self.update(|page| {
            self.check_token(page, claim)?;
            let found: Option<Incident> = self.parse_entry(page, incident::ENTRY)?;
            if found.as_ref() != before {
                return Ok(DocumentUpdate::NoChange(found));
            }
            let edits = self.build_edit(incident::ENTRY, next)?;
            Ok(DocumentUpdate::Write(edits, Some(next.clone())))
        })
        .await
    }

    /// Shows a sign of life; tells when it was begun, and how long it lasts.
    pub(crate) async fn renew_lock(
        &self,
        claim: &LockToken,
    ) -> Result<(Instant, Duration), CoordinationError> {
        let mut asked = Instant::now();
        self.update(|page| {
            asked = Instant::now();
            let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
            let next = lock::renew(found.as_ref(), claim, self.now())
                .map_err(|lost| self.lock_lost_error(claim, lost))?;
            Ok(DocumentUpdate::Write(self.build_edit(lock::ENTRY, &next)?, next.effective_ttl()))
        })
        .await
        .map(|ttl| (asked, ttl))
    }

    /// Goes above an epoch; tells when that was begun and the lock as it is then, `None` when nothing had to be written.
    pub(crate) async fn raise_epoch(
        &self,
        claim: &LockToken,
        above: Epoch,
    ) -> Result<Option<(Instant, Lock)>, CoordinationError> {
        let mut asked = Instant::now();
        self.update(|page| {
            asked = Instant::now();
            let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
            let next = lock::raise_epoch(found.as_ref(), claim, above, self.now())
                .map_err(|lost| self.lock_lost_error(claim, lost))?;
            if found.as_ref() == Some(&next) {
                return Ok(DocumentUpdate::NoChange(None));
            }
            Ok(DocumentUpdate::Write(self.build_edit(lock::ENTRY, &next)?, Some(next)))
        })
        .await
        .map(|raised| raised.map(|lock| (asked, lock)))
    }

    pub(crate) async fn release_lock(&self, claim: &LockToken) -> Result<(), CoordinationError> {
        self.update(|page| {
            let found: Option<Lock> = self.parse_entry(page, lock::ENTRY)?;
            let next = lock::release(found.as_ref(), claim, self.now())
                .map_err(|lost| self.lock_lost_error(claim, lost))?;
            Ok(DocumentUpdate::Write(self.build_edit(lock::ENTRY, &next)?, ()))
        })
        .await
    }

    pub(crate) fn check_token(&self, page: &Document, claim: &LockToken) -> Result<(), CoordinationError> {
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
        let mut seen = self
            .lock_tracker
            .lock()
            .expect("nobody panics while noting a lock");
        let now = Instant::now();
        found.map_or(Duration::ZERO, |lock| {
            seen.observe(lock::ENTRY, lock, lock.effective_ttl(), now)
        })
    }

    /// Changes the document by compare-and-swap.
    pub(crate) async fn update<T>(
        &self,
        mut change: impl FnMut(&Document) -> Result<DocumentUpdate<T>, CoordinationError> + Send,
    ) -> Result<T, CoordinationError> {
        for attempt in 0..MAX_WRITE_ATTEMPTS {
            let page = self.backing.read().await?;
            let (edits, answer) = match change(&page)? {
                DocumentUpdate::NoChange(answer) => return Ok(answer),
                DocumentUpdate::Write(edits, answer) => (edits, answer),
            };
            match self.backing.write(&page, &edits).await {
                Ok(()) => return Ok(answer),
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

    /// An entry of the document, if it is there and can be read.
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
        let text = serde_json::to_string(value).map_err(|source| CoordinationError::SerializeEntry {
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

/// A pause that grows with each attempt and differs between writers, so that they do not meet again.
fn random_backoff(attempt: u32) -> Duration {
    let most = 10 << attempt.min(5);
    Duration::from_millis(rand::rng().random_range(1..=most))
}
