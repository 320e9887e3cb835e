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
use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::layout::list_prefixes;
use mainstay_archive::retention::{Deletion, GarbageKind, DeletionGuard, UploadParts, RetentionPlan, ChainProof, RetentionRules, plan_retention};
use mainstay_store::{StoreOpenError, StorageProvider, SnapStore, StoreError};
use mainstay_telemetry::ErrorChain;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

pub use examine::{ObjectDamage, ObjectReadError};
pub use pins::{PinnedKeys, PinSource, PinsError, StaticPins};

use memory::RetentionCache;

/// After so many deletions pins are read again: somebody may have begun to read the backup meanwhile.
const DELETIONS_PER_PIN_CHECK: usize = 20;

/// Failed deletions that end a round: the store has another problem than one object.
const MAX_FAILED_DELETIONS: usize = 5;

/// Whether objects are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionAction {
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
    pub rules: RetentionRules,
    /// Whether objects are deleted.
    pub action: RetentionAction,
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeletionOutcome {
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
    fn record_deletion(&self, kind: GarbageKind, outcome: DeletionOutcome);

    /// So many objects in the store are known to be damaged now.
    fn record_damaged(&self, objects: usize);
}

/// Counts nothing.
impl RetentionMetrics for () {
    fn record_deletion(&self, _: GarbageKind, _: DeletionOutcome) {}

    fn record_damaged(&self, _: usize) {}
}

/// Why a round ended without doing what it could.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// The credentials changed and do not open the store.
    #[error("reopen the store with changed credentials")]
    Reopen(#[source] StoreOpenError),
    /// The task that reopens the store is gone.
    #[error("the task that reads the credentials ended early")]
    ReopenTask(#[source] tokio::task::JoinError),
    /// The store did not tell what it holds.
    #[error("list the snapshots")]
    List(#[source] StoreError),
    /// An object of the newest chain could not be read; that says nothing about the object.
    #[error("prove the newest chain")]
    Verify(#[source] ObjectReadError),
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
pub struct RetentionSummary {
    /// What was to go, and what stays and why.
    pub plan: RetentionPlan,
    /// Key of the full snapshot whose chain was proven by reading; `None` when that was not needed or no chain is whole.
    pub verified_base: Option<String>,
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
    pins: Arc<dyn PinSource>,
    metrics: Arc<dyn RetentionMetrics>,
    cache: RetentionCache,
}

impl Retention {
    /// Looks after the snapshots under the store's prefix.
    pub fn new(
        store: SnapStore,
        config: RetentionConfig,
        pins: Arc<dyn PinSource>,
        metrics: Arc<dyn RetentionMetrics>,
    ) -> Self {
        Self {
            store: Mutex::new(store),
            config,
            pins,
            metrics,
            cache: RetentionCache::default(),
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
                outcome = self.run_once(Timestamp::now()) => log_outcome(&outcome),
            }
        }
    }

    /// One round. May be dropped at any await.
    ///
    /// # Errors
    /// [`RetentionError`]; everything but [`RetentionError::Delete`] means that nothing was deleted.
    pub async fn run_once(&self, now: Timestamp) -> Result<RetentionSummary, RetentionError> {
        let store = self.current_store().await?;
        let catalogue = list_snapshots(&store).await.map_err(RetentionError::List)?;
        self.cache.retain_listed(&catalogue);
        let mut guard = DeletionGuard {
            locked: self.cache.locked_objects(now),
            damaged: self.cache.damaged_keys().into_iter().collect(),
            proof: ChainProof::NamesOnly,
            parts: match store.provider() {
                StorageProvider::Swift => UploadParts::Data,
                _ => UploadParts::Leftovers,
            },
            ..DeletionGuard::default()
        };
        let rules = &self.config.rules;
        let mut summary = RetentionSummary::default();
        let names_only_guard = plan_retention(&catalogue, rules, now, &guard);
        if names_only_guard.deletes_snapshots() {
            summary.verified_base = prove::find_newest_intact(&store, &catalogue, &self.cache)
                .await
                .map_err(RetentionError::Verify)?;
            guard.proof = to_proof(summary.verified_base.clone());
        }
        summary.damaged = self.cache.damaged_keys();
        self.metrics.record_damaged(summary.damaged.len());
        guard.damaged = summary.damaged.iter().cloned().collect();
        if !names_only_guard.deletions.is_empty() {
            // As late as can be: whoever pins a chain after this has listed it before, and lists again.
            let PinnedKeys(pinned) = self.pins.read_pins().await.map_err(RetentionError::Pins)?;
            guard.pinned = pinned;
        }
        summary.plan = plan_retention(&catalogue, rules, now, &guard);
        match self.config.action {
            RetentionAction::DryRun => self.log_plan(&summary.plan),
            RetentionAction::Delete => {
                let may_go = |PinnedKeys(pinned)| {
                    guard.pinned = pinned;
                    let now_planned = plan_retention(&catalogue, rules, now, &guard).deletions;
                    let keys = now_planned.into_iter().map(|one| one.object.key);
                    keys.collect::<BTreeSet<String>>()
                };
                self.delete_planned(&store, now, &mut summary, may_go).await?;
            }
        }
        Ok(summary)
    }

    /// The store, with credentials as they are now.
    async fn current_store(&self) -> Result<SnapStore, RetentionError> {
        let store = self.lock_store().clone();
        let reopened = tokio::task::spawn_blocking(move || {
            if store.has_changed_credentials() {
                store.reopen()
            } else {
                Ok(store)
            }
        });
        let store = reopened
            .await
            .map_err(RetentionError::ReopenTask)?
            .map_err(RetentionError::Reopen)?;
        *self.lock_store() = store.clone();
        Ok(store)
    }

    fn lock_store(&self) -> std::sync::MutexGuard<'_, SnapStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names each object once that would go.
    fn log_plan(&self, plan: &RetentionPlan) {
        for Deletion { object, reason, .. } in &plan.deletions {
            if self.cache.mark_logged(&object.key) {
                info!(object_key = %object.key, bytes = object.size, ?reason, "would delete");
            }
        }
    }

    async fn delete_planned(
        &self,
        store: &SnapStore,
        now: Timestamp,
        summary: &mut RetentionSummary,
        mut may_go: impl FnMut(PinnedKeys) -> BTreeSet<String>,
    ) -> Result<(), RetentionError> {
        // Bases of deltas that are still there: neither they nor the deltas before go.
        let mut held: BTreeSet<String> = BTreeSet::new();
        let mut still = None;
        for (number, deletion) in summary.plan.deletions.iter().enumerate() {
            if number > 0 && number.is_multiple_of(DELETIONS_PER_PIN_CHECK) {
                match self.pins.read_pins().await {
                    Ok(pinned) => still = Some(may_go(pinned)),
                    Err(error) => {
                        warn!(error = %ErrorChain(&error), "pins cannot be read any more; the rest stays until the next round");
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
                    self.metrics.record_deletion(*kind, DeletionOutcome::Deleted);
                    continue;
                }
                Err(error) => error,
            };
            held.extend(base.clone());
            if locked::is_locked(&error) {
                debug!(object_key = %object.key, error = %ErrorChain(&error), "the store keeps it locked");
                summary.locked += 1;
                self.cache.record_locked(&object.key, now);
                self.metrics.record_deletion(*kind, DeletionOutcome::Locked);
                continue;
            }
            warn!(object_key = %object.key, error = %ErrorChain(&error), "could not delete");
            summary.failed += 1;
            self.metrics.record_deletion(*kind, DeletionOutcome::Failed);
            if summary.failed == MAX_FAILED_DELETIONS {
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
async fn list_snapshots(store: &SnapStore) -> Result<Catalogue, StoreError> {
    let mut listed = Vec::new();
    for folder in list_prefixes(store.prefix()) {
        let objects = store.list(&folder).await?;
        listed.extend(objects.into_iter().map(|object| ListedObject {
            key: object.key,
            size: object.size,
            modified: object.last_modified,
        }));
    }
    Ok(Catalogue::from_listing(store.prefix(), listed))
}

fn to_proof(base: Option<String>) -> ChainProof {
    if let Some(key) = base {
        ChainProof::VerifiedBase { key }
    } else {
        error!("no chain in the store is whole; nothing is deleted");
        ChainProof::Unproven
    }
}

fn log_outcome(outcome: &Result<RetentionSummary, RetentionError>) {
    match outcome {
        Ok(summary) if summary.deleted + summary.locked + summary.failed > 0 => {
            let RetentionSummary {
                deleted,
                locked,
                failed,
                ..
            } = summary;
            info!(deleted, locked, failed, "old snapshots deleted");
        }
        Ok(_) => {}
        Err(error) => warn!(error = %ErrorChain(error), "garbage collection did not finish"),
    }
}
