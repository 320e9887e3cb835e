//! Deletes snapshots that the retention policy no longer keeps, after verifying that the newest chain is restorable.
//!
//! ```text
//! list ─► scope: whose history is it? ─ unknown, or backups fail ─► frozen: nothing is deleted
//!   └─► plan by names ─ nothing to delete ─► done
//!              └─► verify: read the newest chain, each object once ─► pins ─► plan ─► delete, or log (dry run)
//! ```
//!
//! **Input**: a store, [`RetentionConfig`], [`ScopeSource`], [`PinSource`]. **Output**: deletions, a [`RetentionSummary`], calls of
//! [`RetentionMetrics`].
//!
//! **Invariants**: nothing is deleted from a history that is not known to be this etcd's, nor by the node's clock alone.
//! Nothing is deleted before a newer chain was read to its last byte. If the store or the pins cannot be
//! read, nothing is deleted in that run. Objects that the store protects (object lock, immutable blobs) are skipped and
//! retried an hour later. The selection itself is pure: [`mainstay_archive::retention`].
//!
//! **After a crash**: deletions are ordered so that a run may end at any of them. The chain is verified again.

pub(crate) mod args;
mod cache;
mod chain_verification;
mod object_lock;
mod pins;
mod scope;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::retention::{
    ChainProof, Deletion, DeletionGuard, GarbageKind, OwnedHistory, RetentionClock, RetentionPlan,
    RetentionRules, UploadParts, plan_retention,
};
use mainstay_backup::{ReadObjectError, list_snapshots};
use mainstay_store::{SnapStore, StorageProvider, StoreError, StoreOpenError};
use mainstay_telemetry::ErrorChain;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

pub use pins::{PinSource, PinnedKeys, PinsError, StaticPins};
pub(crate) use scope::SessionScope;
pub use scope::{FreezeReason, ScopeSource};

use cache::RetentionCache;

/// Deletions between two reads of the pins: a restore or compaction may have started to read the backup meanwhile.
const DELETIONS_PER_PIN_CHECK: usize = 20;

/// Failed deletions that end a run: the problem is then the store, not a single object.
const MAX_FAILED_DELETIONS: usize = 5;

/// Whether objects are deleted or only logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionAction {
    #[default]
    Delete,
    DryRun,
}

/// Settings of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Interval between runs; `None` disables retention.
    pub period: Option<Duration>,
    pub rules: RetentionRules,
    pub action: RetentionAction,
}

/// Outcome of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeletionOutcome {
    Deleted,
    /// Protected by the store (object lock, immutability).
    Locked,
    Failed,
}

/// Metrics of retention.
pub trait RetentionMetrics: Send + Sync + 'static {
    /// Counts an attempted deletion.
    fn record_deletion(&self, kind: GarbageKind, outcome: DeletionOutcome);

    /// Sets the number of objects known to be damaged.
    fn record_damaged(&self, objects: usize);

    /// Sets why nothing is deleted; `None` when retention works.
    fn record_freeze(&self, reason: Option<FreezeReason>);
}

/// Counts nothing.
impl RetentionMetrics for () {
    fn record_deletion(&self, _: GarbageKind, _: DeletionOutcome) {}

    fn record_damaged(&self, _: usize) {}

    fn record_freeze(&self, _: Option<FreezeReason>) {}
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    #[error("reopen the store with changed credentials")]
    Reopen(#[source] StoreOpenError),
    #[error("task that reads the store credentials failed")]
    ReopenTask(#[source] tokio::task::JoinError),
    #[error("list snapshots")]
    List(#[source] StoreError),
    /// An object of the newest chain could not be read; it is not known to be damaged.
    #[error("verify the newest backup chain")]
    Verify(#[source] ReadObjectError),
    #[error("read which snapshots are in use")]
    Pins(#[source] PinsError),
    #[error("stopped after {failed} failed deletions, {deleted} objects deleted")]
    Delete {
        deleted: usize,
        failed: usize,
        /// Error of the last failed deletion.
        source: StoreError,
    },
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionSummary {
    /// Planned deletions, and what is kept and why.
    pub plan: RetentionPlan,
    /// Why nothing was planned.
    pub frozen: Option<FreezeReason>,
    /// Key of the base of the verified chain; `None` if no verification was needed or no chain is intact.
    pub verified_base: Option<String>,
    /// Keys of damaged objects.
    pub damaged: Vec<String>,
    pub deleted: usize,
    /// Objects protected by the store.
    pub locked: usize,
    pub failed: usize,
}

/// Deletes snapshots that the policy no longer keeps.
pub struct Retention {
    store: Mutex<SnapStore>,
    config: RetentionConfig,
    scope: Arc<dyn ScopeSource>,
    pins: Arc<dyn PinSource>,
    metrics: Arc<dyn RetentionMetrics>,
    cache: RetentionCache,
}

impl Retention {
    /// Manages the snapshots under the store's prefix.
    pub fn new(
        store: SnapStore,
        config: RetentionConfig,
        scope: Arc<dyn ScopeSource>,
        pins: Arc<dyn PinSource>,
        metrics: Arc<dyn RetentionMetrics>,
    ) -> Self {
        Self {
            store: Mutex::new(store),
            config,
            scope,
            pins,
            metrics,
            cache: RetentionCache::default(),
        }
    }

    /// Runs periodically until cancelled. A failed run is logged; the next one retries.
    pub async fn run(self, cancel: CancellationToken) {
        let Some(period) = self.config.period else {
            info!("garbage collection disabled");
            return cancel.cancelled().await;
        };
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
            // Dropping a run is safe: its deletions are ordered so that it may end at any of them.
            tokio::select! {
                () = cancel.cancelled() => return,
                outcome = self.run_once(Timestamp::now()) => log_outcome(&outcome),
            }
        }
    }

    /// Runs once. The future may be dropped at any await.
    ///
    /// # Errors
    /// [`RetentionError`]; everything but [`RetentionError::Delete`] means that nothing was deleted.
    pub async fn run_once(&self, now: Timestamp) -> Result<RetentionSummary, RetentionError> {
        let store = self.current_store().await?;
        let catalogue = list_snapshots(&store).await.map_err(RetentionError::List)?;
        self.cache.retain_listed(&catalogue);
        let clock = RetentionClock::from_listing(now, &catalogue);
        let scope = self.scope.scope(&catalogue, clock.now());
        self.metrics.record_freeze(scope.as_ref().err().copied());
        let mut guard = match scope {
            Ok(owned) => self.names_only_guard(&store, owned, now),
            Err(reason) => {
                return Ok(RetentionSummary {
                    frozen: Some(reason),
                    ..RetentionSummary::default()
                });
            }
        };
        let rules = &self.config.rules;
        let mut summary = RetentionSummary::default();
        let by_names = plan_retention(&catalogue, rules, clock, &guard);
        // Reading the chain costs traffic, so it is skipped if nothing would be deleted anyway.
        if by_names.deletes_snapshots() {
            summary.verified_base =
                chain_verification::find_newest_intact(&store, &catalogue, &self.cache)
                    .await
                    .map_err(RetentionError::Verify)?;
            guard.proof = to_proof(summary.verified_base.clone());
        }
        summary.damaged = self.cache.damaged_keys();
        self.metrics.record_damaged(summary.damaged.len());
        guard.damaged = summary.damaged.iter().cloned().collect();
        if !by_names.deletions.is_empty() {
            // Read as late as possible: a reader that pins a chain after this lists it again.
            let PinnedKeys(pinned) = self.pins.read_pins().await.map_err(RetentionError::Pins)?;
            guard.pinned = pinned;
        }
        summary.plan = plan_retention(&catalogue, rules, clock, &guard);
        match self.config.action {
            RetentionAction::DryRun => self.log_plan(&summary.plan),
            RetentionAction::Delete => {
                let deletable = |PinnedKeys(pinned)| {
                    guard.pinned = pinned;
                    // A chain pinned meanwhile drops out of the plan.
                    let now_planned = plan_retention(&catalogue, rules, clock, &guard).deletions;
                    let keys = now_planned.into_iter().map(|one| one.object.key);
                    keys.collect::<BTreeSet<String>>()
                };
                self.delete_planned(&store, now, &mut summary, deletable)
                    .await?;
            }
        }
        Ok(summary)
    }

    /// What is known before anything was read: names are trusted only to see whether reading is worth it.
    fn names_only_guard(
        &self,
        store: &SnapStore,
        owned: OwnedHistory,
        now: Timestamp,
    ) -> DeletionGuard {
        DeletionGuard {
            owned,
            locked: self.cache.locked_objects(now),
            damaged: self.cache.damaged_keys().into_iter().collect(),
            proof: ChainProof::NamesOnly,
            parts: match store.provider() {
                // Swift large objects consist of segments: deleting a segment deletes backup data.
                StorageProvider::Swift => UploadParts::Data,
                _ => UploadParts::Leftovers,
            },
            ..DeletionGuard::default()
        }
    }

    /// Returns the store, reopened if its credentials changed.
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

    /// Logs each object that would be deleted, once.
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
        mut deletable: impl FnMut(PinnedKeys) -> BTreeSet<String>,
    ) -> Result<(), RetentionError> {
        // Bases with a delta that could not be deleted: without the base and the earlier deltas it could not be restored.
        let mut held: BTreeSet<String> = BTreeSet::new();
        let mut allowed = None;
        for (number, deletion) in summary.plan.deletions.iter().enumerate() {
            if number > 0 && number.is_multiple_of(DELETIONS_PER_PIN_CHECK) {
                match self.pins.read_pins().await {
                    Ok(pinned) => allowed = Some(deletable(pinned)),
                    Err(error) => {
                        warn!(error = %ErrorChain(&error), "failed to read pins, remaining deletions postponed to the next run");
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
            if allowed
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
                    debug!(object_key = %object.key, bytes = object.size, ?reason, "object deleted");
                    summary.deleted += 1;
                    self.metrics
                        .record_deletion(*kind, DeletionOutcome::Deleted);
                    continue;
                }
                Err(error) => error,
            };
            // The delta stays, so what it needs stays as well.
            held.extend(base.clone());
            if object_lock::is_locked(&error) {
                debug!(object_key = %object.key, error = %ErrorChain(&error), "object is locked by the store, retrying later");
                summary.locked += 1;
                self.cache.record_locked(&object.key, now);
                self.metrics.record_deletion(*kind, DeletionOutcome::Locked);
                continue;
            }
            warn!(object_key = %object.key, error = %ErrorChain(&error), "failed to delete object");
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

fn to_proof(base: Option<String>) -> ChainProof {
    if let Some(key) = base {
        ChainProof::VerifiedBase { key }
    } else {
        error!("no intact backup chain in the store, deleting nothing");
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
            info!(deleted, locked, failed, "garbage collection finished");
        }
        Ok(RetentionSummary {
            frozen: Some(reason),
            ..
        }) => warn!(reason = %reason, "garbage collection is frozen, nothing is deleted"),
        Ok(_) => {}
        Err(error) => warn!(error = %ErrorChain(error), "garbage collection failed"),
    }
}
