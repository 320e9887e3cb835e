//! Reads, lets a pure function choose, writes if nothing changed meanwhile; again when something did.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::backing::{Backing, BackingError, Edits, Page};
use crate::error::{CoordinationError, entry_name};
use crate::held::{Fence, Held};
use crate::incident::{self, Incident};
use crate::lock::{self, Claim, Decision, Epoch, Lock, Lost, Wish};
use crate::member::{self, MemberState};
use crate::pin::Pin;
use crate::seen::Seen;

/// How often a write is tried again when another writer was faster. A dozen parties at most share a document.
const ATTEMPTS: u32 = 20;

/// How often a busy lock is looked at, at most: often enough to see each renewal, rarely enough to cost nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Tells the time for the document's readers, and for epochs. Within one document nothing depends on its being right.
type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// One party's access to the document of one etcd.
///
/// Remembers what it saw: expiry is judged by how long *this value* has seen something unchanged, so keep one and
/// use it again.
pub struct Coordinator {
    backing: Arc<dyn Backing>,
    wall: Wall,
    seen_lock: Mutex<Seen<Lock>>,
    pub(crate) seen_pins: Mutex<Seen<Pin>>,
}

/// What came of trying to get the lock.
#[derive(Debug)]
pub enum Attempt {
    /// It is ours.
    Held(Held),
    /// Somebody has it.
    Busy {
        /// Who, what for, since when.
        lock: Lock,
        /// When it expires at the earliest.
        expires_in: Duration,
    },
}

/// What a transition wants written, and what it answers then.
pub(crate) enum Change<T> {
    Nothing(T),
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
        wall: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            backing,
            wall: Arc::new(wall),
            seen_lock: Mutex::default(),
            seen_pins: Mutex::default(),
        })
    }

    /// The lock as it stands.
    pub async fn lock(&self) -> Result<Option<Lock>, CoordinationError> {
        let page = self.backing.read().await?;
        self.entry(&page, lock::ENTRY)
    }

    /// Takes the lock if it is free or expired.
    pub async fn try_acquire(self: &Arc<Self>, wish: &Wish) -> Result<Attempt, CoordinationError> {
        // Valid from before the write was asked for, so that no observer's span ends earlier than ours.
        let mut asked = Instant::now();
        let outcome = self
            .update(|page| {
                asked = Instant::now();
                let found: Option<Lock> = self.entry(page, lock::ENTRY)?;
                let unchanged = self.observe_lock(found.as_ref());
                match lock::decide(found.as_ref(), unchanged, wish, self.now()) {
                    Decision::Take(next) => {
                        let edits = self.edit(lock::ENTRY, &next)?;
                        Ok(Change::Write(edits, (next, None)))
                    }
                    Decision::Wait { lock, expires_in } => {
                        Ok(Change::Nothing((lock.clone(), Some(expires_in))))
                    }
                }
            })
            .await?;
        Ok(match outcome {
            (lock, Some(expires_in)) => Attempt::Busy { lock, expires_in },
            (lock, None) => {
                let claim = Claim {
                    holder: lock.holder,
                    epoch: lock.epoch,
                };
                Attempt::Held(Held::new(Arc::clone(self), claim, lock.ttl, asked))
            }
        })
    }

    /// Takes the lock, waiting for it up to `patience`.
    pub async fn acquire(
        self: &Arc<Self>,
        wish: &Wish,
        patience: Duration,
    ) -> Result<Held, CoordinationError> {
        let began = Instant::now();
        loop {
            let (lock, expires_in) = match self.try_acquire(wish).await? {
                Attempt::Held(held) => return Ok(held),
                Attempt::Busy { lock, expires_in } => (lock, expires_in),
            };
            let waited = began.elapsed();
            if waited >= patience {
                return Err(CoordinationError::Held {
                    place: self.place(),
                    holder: lock.holder,
                    waited,
                });
            }
            // A third of the time to live sees the change of hands soon after it is possible.
            let pause = expires_in
                .min(lock.ttl / 3)
                .min(LOOK_AGAIN)
                .min(patience.saturating_sub(waited));
            sleep(pause.max(Duration::from_millis(10))).await;
        }
    }

    /// Goes on holding a lock after a restart: the document still names the claim.
    pub async fn resume(self: &Arc<Self>, claim: &Claim) -> Result<Held, CoordinationError> {
        let (asked, ttl) = self.renew_lock(claim).await?;
        Ok(Held::new(Arc::clone(self), claim.clone(), ttl, asked))
    }

    /// A fence for a claim that somebody else renews, as a Job has it that was started by the holder.
    pub fn fence(self: &Arc<Self>, claim: Claim) -> Fence {
        Fence::of_another(Arc::clone(self), claim)
    }

    /// What is known about the restoration of a member.
    pub async fn member(&self, name: &str) -> Result<Option<MemberState>, CoordinationError> {
        let page = self.backing.read().await?;
        self.entry(&page, &entry_name(member::PREFIX, name)?)
    }

    /// Writes the state of a member, or removes it, if the claim still has the lock: both are one write.
    pub(crate) async fn report(
        &self,
        claim: &Claim,
        name: &str,
        state: Option<&MemberState>,
    ) -> Result<(), CoordinationError> {
        let entry = entry_name(member::PREFIX, name)?;
        self.update(|page| {
            self.confirmed(page, claim)?;
            // An entry nobody can read is not overwritten, not even by the holder.
            let found: Option<MemberState> = self.entry(page, &entry)?;
            let edits = match state {
                Some(state) => self.edit(&entry, state)?,
                None if found.is_some() => Edits::from([(entry.clone(), None)]),
                None => return Ok(Change::Nothing(())),
            };
            Ok(Change::Write(edits, ()))
        })
        .await
    }

    /// The recovery that goes on, or the last one.
    pub async fn incident(&self) -> Result<Option<Incident>, CoordinationError> {
        let page = self.backing.read().await?;
        self.entry(&page, incident::ENTRY)
    }

    /// Writes an incident if the claim still has the lock and the document still says `before`: all in one write. Tells
    /// what the document says then.
    pub(crate) async fn record(
        &self,
        claim: &Claim,
        before: Option<&Incident>,
        next: &Incident,
    ) -> Result<Option<Incident>, CoordinationError> {
        self.update(|page| {
            self.confirmed(page, claim)?;
            let found: Option<Incident> = self.entry(page, incident::ENTRY)?;
            if found.as_ref() != before {
                return Ok(Change::Nothing(found));
            }
            let edits = self.edit(incident::ENTRY, next)?;
            Ok(Change::Write(edits, Some(next.clone())))
        })
        .await
    }

    /// Shows a sign of life; tells when it was begun, and how long it lasts.
    pub(crate) async fn renew_lock(
        &self,
        claim: &Claim,
    ) -> Result<(Instant, Duration), CoordinationError> {
        let mut asked = Instant::now();
        self.update(|page| {
            asked = Instant::now();
            let found: Option<Lock> = self.entry(page, lock::ENTRY)?;
            let next = lock::renewed(found.as_ref(), claim, self.now())
                .map_err(|lost| self.lost(claim, lost))?;
            Ok(Change::Write(self.edit(lock::ENTRY, &next)?, next.lasts()))
        })
        .await
        .map(|ttl| (asked, ttl))
    }

    /// Goes above an epoch; tells when that was begun and the lock as it is then, `None` when nothing had to be written.
    pub(crate) async fn raise_lock(
        &self,
        claim: &Claim,
        above: Epoch,
    ) -> Result<Option<(Instant, Lock)>, CoordinationError> {
        let mut asked = Instant::now();
        self.update(|page| {
            asked = Instant::now();
            let found: Option<Lock> = self.entry(page, lock::ENTRY)?;
            let next = lock::raised(found.as_ref(), claim, above, self.now())
                .map_err(|lost| self.lost(claim, lost))?;
            if found.as_ref() == Some(&next) {
                return Ok(Change::Nothing(None));
            }
            Ok(Change::Write(self.edit(lock::ENTRY, &next)?, Some(next)))
        })
        .await
        .map(|raised| raised.map(|lock| (asked, lock)))
    }

    pub(crate) async fn release_lock(&self, claim: &Claim) -> Result<(), CoordinationError> {
        self.update(|page| {
            let found: Option<Lock> = self.entry(page, lock::ENTRY)?;
            let next = lock::released(found.as_ref(), claim, self.now())
                .map_err(|lost| self.lost(claim, lost))?;
            Ok(Change::Write(self.edit(lock::ENTRY, &next)?, ()))
        })
        .await
    }

    pub(crate) fn confirmed(&self, page: &Page, claim: &Claim) -> Result<(), CoordinationError> {
        let found: Option<Lock> = self.entry(page, lock::ENTRY)?;
        match lock::confirm(found.as_ref(), claim) {
            Ok(_) => Ok(()),
            Err(lost) => Err(self.lost(claim, lost)),
        }
    }

    pub(crate) fn lost(&self, claim: &Claim, source: Lost) -> CoordinationError {
        CoordinationError::Lost {
            place: self.place(),
            holder: claim.holder.clone(),
            source,
        }
    }

    fn observe_lock(&self, found: Option<&Lock>) -> Duration {
        let mut seen = self
            .seen_lock
            .lock()
            .expect("nobody panics while noting a lock");
        let now = Instant::now();
        found.map_or(Duration::ZERO, |lock| {
            seen.unchanged(lock::ENTRY, lock, lock.lasts(), now)
        })
    }

    /// Changes the document by compare-and-swap.
    pub(crate) async fn update<T>(
        &self,
        mut change: impl FnMut(&Page) -> Result<Change<T>, CoordinationError> + Send,
    ) -> Result<T, CoordinationError> {
        for attempt in 0..ATTEMPTS {
            let page = self.backing.read().await?;
            let (edits, answer) = match change(&page)? {
                Change::Nothing(answer) => return Ok(answer),
                Change::Write(edits, answer) => (edits, answer),
            };
            match self.backing.write(&page, &edits).await {
                Ok(()) => return Ok(answer),
                Err(BackingError::Conflict { .. }) => sleep(jitter(attempt)).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(CoordinationError::Contended {
            place: self.place(),
            attempts: ATTEMPTS,
        })
    }

    pub(crate) async fn read(&self) -> Result<Page, CoordinationError> {
        Ok(self.backing.read().await?)
    }

    /// An entry of the document, if it is there and can be read.
    pub(crate) fn entry<T: DeserializeOwned>(
        &self,
        page: &Page,
        entry: &str,
    ) -> Result<Option<T>, CoordinationError> {
        let Some(text) = page.entries.get(entry) else {
            return Ok(None);
        };
        serde_json::from_str(text)
            .map(Some)
            .map_err(|source| CoordinationError::Unreadable {
                place: self.place(),
                entry: entry.to_owned(),
                source,
            })
    }

    pub(crate) fn edit(
        &self,
        entry: &str,
        value: &impl Serialize,
    ) -> Result<Edits, CoordinationError> {
        let text = serde_json::to_string(value).map_err(|source| CoordinationError::Render {
            place: self.place(),
            entry: entry.to_owned(),
            source,
        })?;
        Ok(Edits::from([(entry.to_owned(), Some(text))]))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.wall)()
    }

    pub(crate) fn place(&self) -> String {
        self.backing.place()
    }
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator")
            .field("place", &self.place())
            .finish_non_exhaustive()
    }
}

/// A pause that grows with each attempt and differs between writers, so that they do not meet again.
fn jitter(attempt: u32) -> Duration {
    let most = 10 << attempt.min(5);
    Duration::from_millis(rand::rng().random_range(1..=most))
}
