//! Deletes what the rules no longer keep, once the newest chain is known to restore.
//!
//! ```text
//! list ─► plan by names ─ nothing to delete ─► done
//!              └─► prove: read the newest chain, each object once ─► pins ─► plan ─► delete, or tell (dry run)
//! ```
//!
//! **Comes in**: a store, [`RetentionConfig`], [`Pins`]. **Goes out**: deletions, a [`Summary`], calls of
//! [`RetentionMetrics`].
//!
//! **Holds**: nothing older goes before a newer chain was read to its last byte; pins that cannot be read, like a store that
//! does not answer, mean that nothing goes in that round. What the store refuses to let go (object lock, immutable
//! blobs) is skipped and tried again an hour later. The choice itself is pure: [`mainstay_archive::retention`].
//!
//! **After a crash**: deletions are ordered so that the round may end anywhere. What was proven is proven again.

pub mod args;
mod examine;
mod locked;
mod memory;
mod pins;
mod prove;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, Listed};
use mainstay_archive::layout::list_prefixes;
use mainstay_archive::retention::{Deletion, Garbage, Guard, Parts, Plan, Proof, Rules, plan};
use mainstay_store::{OpenError, Provider, SnapStore, StoreError};
use mainstay_telemetry::Chain;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

pub use examine::{Damage, ExamineError};
pub use pins::{Pinned, Pins, PinsError, StaticPins};

use memory::Memory;

/// After so many deletions pins are read again: somebody may have begun to read the backup meanwhile.
const PINS_AGAIN: usize = 20;

/// Failed deletions that end a round: the store has another problem than one object.
const MOST_FAILURES: usize = 5;

/// Whether objects are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// They are.
    #[default]
    Delete,
    /// They are only named in the log.
    DryRun,
}

/// What to keep, how often to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// How often; `None` switches it off.
    pub period: Option<Duration>,
    /// What to keep.
    pub rules: Rules,
    /// Whether objects are deleted.
    pub action: Action,
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The object is gone.
    Deleted,
    /// The store does not let it go yet.
    Locked,
    /// It did not work.
    Failed,
}

/// Where deletions are counted.
pub trait RetentionMetrics: Send + Sync + 'static {
    /// One deletion was tried.
    fn deletion(&self, kind: Garbage, outcome: Outcome);

    /// So many objects in the store are known to be damaged now.
    fn damaged(&self, objects: usize);
}

/// Counts nothing.
impl RetentionMetrics for () {
    fn deletion(&self, _: Garbage, _: Outcome) {}

    fn damaged(&self, _: usize) {}
}

/// Why a round ended without doing what it could.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// The credentials changed and do not open the store.
    #[error("reopen the store with changed credentials")]
    Reopen(#[source] OpenError),
    /// The task that reopens the store is gone.
    #[error("the task that reads the credentials ended early")]
    ReopenTask(#[source] tokio::task::JoinError),
    /// The store did not tell what it holds.
    #[error("list the snapshots")]
    List(#[source] StoreError),
    /// An object of the newest chain could not be read; that says nothing about the object.
    #[error("prove the newest chain")]
    Prove(#[source] ExamineError),
    /// Nobody knows what is in use.
    #[error("find out which snapshots are in use")]
    Pins(#[source] PinsError),
    /// Too many deletions failed.
    #[error("gave up after {failed} failed deletions; {deleted} objects were deleted")]
    Delete {
        /// Deletions that worked.
        deleted: usize,
        /// Deletions that did not.
        failed: usize,
        /// Why the last one did not.
        source: StoreError,
    },
}

/// What a round did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// What was to go, and what stays and why.
    pub plan: Plan,
    /// Key of the full snapshot whose chain was proven by reading; `None` when that was not needed or no chain is whole.
    pub proven: Option<String>,
    /// Keys of objects that were read and found damaged.
    pub damaged: Vec<String>,
    /// Objects deleted.
    pub deleted: usize,
    /// Objects the store does not let go yet.
    pub locked: usize,
    /// Objects that could not be deleted.
    pub failed: usize,
}

/// Deletes what the rules no longer keep.
pub struct Retention {
    store: Mutex<SnapStore>,
    config: RetentionConfig,
    pins: Arc<dyn Pins>,
    metrics: Arc<dyn RetentionMetrics>,
    memory: Memory,
}

impl Retention {
    /// Looks after the snapshots under the store's prefix.
    pub fn new(
        store: SnapStore,
        config: RetentionConfig,
        pins: Arc<dyn Pins>,
        metrics: Arc<dyn RetentionMetrics>,
    ) -> Self {
        Self {
            store: Mutex::new(store),
            config,
            pins,
            metrics,
            memory: Memory::default(),
        }
    }

    /// Runs round after round until cancelled. A round that fails is logged; the next one tries again.
    pub async fn run(self, cancel: CancellationToken) {
        let Some(period) = self.config.period else {
            info!("garbage collection is switched off");
            return cancel.cancelled().await;
        };
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                outcome = self.run_once(Timestamp::now()) => report(&outcome),
            }
        }
    }

    /// One round. May be dropped at any await.
    ///
    /// # Errors
    /// [`RetentionError`]; everything but [`RetentionError::Delete`] means that nothing was deleted.
    pub async fn run_once(&self, now: Timestamp) -> Result<Summary, RetentionError> {
        let store = self.current_store().await?;
        let catalogue = list(&store).await.map_err(RetentionError::List)?;
        self.memory.forget_all_but(&catalogue);
        let mut guard = Guard {
            locked: self.memory.refused(now),
            damaged: self.memory.damaged().into_iter().collect(),
            proof: Proof::Names,
            parts: match store.provider() {
                Provider::Swift => Parts::Data,
                _ => Parts::Leftovers,
            },
            ..Guard::default()
        };
        let rules = &self.config.rules;
        let mut summary = Summary::default();
        let by_names = plan(&catalogue, rules, now, &guard);
        if by_names.deletes_snapshots() {
            summary.proven = prove::newest(&store, &catalogue, &self.memory)
                .await
                .map_err(RetentionError::Prove)?;
            guard.proof = proof(summary.proven.clone());
        }
        summary.damaged = self.memory.damaged();
        self.metrics.damaged(summary.damaged.len());
        guard.damaged = summary.damaged.iter().cloned().collect();
        if !by_names.deletions.is_empty() {
            // As late as can be: whoever pins a chain after this has listed it before, and lists again.
            let Pinned(pinned) = self.pins.pinned().await.map_err(RetentionError::Pins)?;
            guard.pinned = pinned;
        }
        summary.plan = plan(&catalogue, rules, now, &guard);
        match self.config.action {
            Action::DryRun => self.tell(&summary.plan),
            Action::Delete => {
                let may_go = |Pinned(pinned)| {
                    guard.pinned = pinned;
                    let now_planned = plan(&catalogue, rules, now, &guard).deletions;
                    let keys = now_planned.into_iter().map(|one| one.object.key);
                    keys.collect::<BTreeSet<String>>()
                };
                self.carry_out(&store, now, &mut summary, may_go).await?;
            }
        }
        Ok(summary)
    }

    /// The store, with credentials as they are now.
    async fn current_store(&self) -> Result<SnapStore, RetentionError> {
        let store = self.held().clone();
        let reopened = tokio::task::spawn_blocking(move || {
            if store.credentials_changed() {
                store.reopen()
            } else {
                Ok(store)
            }
        });
        let store = reopened
            .await
            .map_err(RetentionError::ReopenTask)?
            .map_err(RetentionError::Reopen)?;
        *self.held() = store.clone();
        Ok(store)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, SnapStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names each object once that would go.
    fn tell(&self, plan: &Plan) {
        for Deletion { object, reason, .. } in &plan.deletions {
            if self.memory.is_news(&object.key) {
                info!(object_key = %object.key, bytes = object.size, ?reason, "would delete");
            }
        }
    }

    async fn carry_out(
        &self,
        store: &SnapStore,
        now: Timestamp,
        summary: &mut Summary,
        mut may_go: impl FnMut(Pinned) -> BTreeSet<String>,
    ) -> Result<(), RetentionError> {
        // Bases of deltas that are still there: neither they nor the deltas before go.
        let mut held: BTreeSet<String> = BTreeSet::new();
        let mut still = None;
        for (number, deletion) in summary.plan.deletions.iter().enumerate() {
            if number > 0 && number.is_multiple_of(PINS_AGAIN) {
                match self.pins.pinned().await {
                    Ok(pinned) => still = Some(may_go(pinned)),
                    Err(error) => {
                        warn!(error = %Chain(&error), "pins cannot be read any more; the rest stays until the next round");
                        return Ok(());
                    }
                }
            }
            let Deletion {
                object,
                kind,
                reason,
                base,
            } = deletion;
            if still
                .as_ref()
                .is_some_and(|keys| !keys.contains(&object.key))
            {
                continue;
            }
            let stays = |key: &String| held.contains(key);
            if stays(&object.key) || base.as_ref().is_some_and(stays) {
                continue;
            }
            let error = match store.delete(&object.key).await {
                Ok(()) => {
                    debug!(object_key = %object.key, bytes = object.size, ?reason, "deleted");
                    summary.deleted += 1;
                    self.metrics.deletion(*kind, Outcome::Deleted);
                    continue;
                }
                Err(error) => error,
            };
            held.extend(base.clone());
            if locked::is_locked(&error) {
                debug!(object_key = %object.key, error = %Chain(&error), "the store keeps it locked");
                summary.locked += 1;
                self.memory.refuse(&object.key, now);
                self.metrics.deletion(*kind, Outcome::Locked);
                continue;
            }
            warn!(object_key = %object.key, error = %Chain(&error), "could not delete");
            summary.failed += 1;
            self.metrics.deletion(*kind, Outcome::Failed);
            if summary.failed == MOST_FAILURES {
                return Err(RetentionError::Delete {
                    deleted: summary.deleted,
                    failed: summary.failed,
                    source: error,
                });
            }
        }
        Ok(())
    }
}

/// Everything under the prefix of the store, in both layouts.
async fn list(store: &SnapStore) -> Result<Catalogue, StoreError> {
    let mut listed = Vec::new();
    for folder in list_prefixes(store.prefix()) {
        let objects = store.list(&folder).await?;
        listed.extend(objects.into_iter().map(|object| Listed {
            key: object.key,
            size: object.size,
            modified: object.modified,
        }));
    }
    Ok(Catalogue::from_listing(store.prefix(), listed))
}

fn proof(base: Option<String>) -> Proof {
    if let Some(key) = base {
        Proof::Base { key }
    } else {
        error!("no chain in the store is whole; nothing is deleted");
        Proof::Nothing
    }
}

fn report(outcome: &Result<Summary, RetentionError>) {
    match outcome {
        Ok(summary) if summary.deleted + summary.locked + summary.failed > 0 => {
            let Summary {
                deleted,
                locked,
                failed,
                ..
            } = summary;
            info!(deleted, locked, failed, "old snapshots deleted");
        }
        Ok(_) => {}
        Err(error) => warn!(error = %Chain(error), "garbage collection did not finish"),
    }
}
