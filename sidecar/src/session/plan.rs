//! Plans a round: lists the store, reads etcd's revision, and verifies that the store belongs to etcd's history.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::name::SnapshotKind;
use mainstay_history::{BackupEvent, HistoryMatch, match_history, read_key_history};
use mainstay_ids::Revision;
use mainstay_telemetry::ErrorChain;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::conflict::StoreConflict;
use super::handle::SessionRequest;
use super::inventory::Inventory;
use super::last_event::{self, LastEventError};
use super::leader::{BackupLeader, CONFLICT_RECHECK_INTERVAL};
use super::live_history::MemberHistory;
use super::start_plan::{FullSnapshotReason, StartInputs, StartPlan, plan_start};
use crate::backup_store::{BackupStore, BackupStoreError};
use crate::state;
use crate::tail::newest_revision;

/// Timeout to read one value: it may be as large as etcd's request limit.
const KEY_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// What a session keeps between rounds.
#[derive(Debug, Default)]
pub(super) struct SessionContext {
    /// Reason to start the next round with a full snapshot, whatever the store holds.
    pub(super) forced_full: Option<FullSnapshotReason>,
    /// The store was verified to belong to this etcd's history.
    is_history_verified: bool,
    /// Last revision of the store when it was ahead of etcd. The store stays refused while it still ends there: an etcd
    /// that started empty passes that revision after a while, with a different history.
    store_ahead_at: Option<Revision>,
}

impl SessionContext {
    /// Refuses a plan for a store that is, or was, ahead of etcd.
    fn check_plan(&mut self, plan: StartPlan, store: Revision) -> Result<StartPlan, StoreConflict> {
        match plan {
            StartPlan::StoreAhead { store, etcd } => {
                self.store_ahead_at = Some(store);
                Err(StoreConflict::StoreAhead { store, etcd })
            }
            _ if self.store_ahead_at == Some(store) => {
                Err(StoreConflict::ForeignHistory { revision: store })
            }
            // The store changed since, for example because it was emptied.
            plan => {
                self.store_ahead_at = None;
                Ok(plan)
            }
        }
    }
}

enum PlanError {
    /// etcd or the store failed; retried with backoff.
    Failed { class: &'static str, reason: String },
    /// The store must not be written to.
    Refused(StoreConflict),
}

impl From<StoreConflict> for PlanError {
    fn from(refusal: StoreConflict) -> Self {
        Self::Refused(refusal)
    }
}

impl BackupLeader {
    /// Retries until a plan is made. `None` when stopped.
    pub(super) async fn plan_round(
        &self,
        bucket: &BackupStore,
        context: &mut SessionContext,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<SessionRequest>,
    ) -> Option<(StartPlan, Inventory)> {
        let mut attempts = 0u32;
        while !stop.is_cancelled() {
            // Store retries can take minutes; stopping must not wait for them.
            let attempt = stop.run_until_cancelled(self.check_store(bucket, context));
            let pause = match attempt.await? {
                Ok((plan, catalogue)) => {
                    let stock = Inventory::new(&bucket.config().prefix, catalogue);
                    self.publish(&stock);
                    return Some((plan, stock));
                }
                Err(PlanError::Refused(refusal)) => {
                    self.report_conflict(refusal);
                    CONFLICT_RECHECK_INTERVAL
                }
                Err(PlanError::Failed { class, reason }) => {
                    self.report_failure(class, &reason);
                    attempts = attempts.saturating_add(1);
                    self.config.backoff.delay(attempts)
                }
            };
            self.wait_and_reject(pause, stop, asks).await;
        }
        None
    }

    /// Publishes the store's contents in the state and the metrics.
    pub(super) fn publish(&self, stock: &Inventory) {
        let compacted = *self.newest_full.borrow();
        stock.publish(compacted, &self.state_tx, &self.metrics);
    }

    async fn check_store(
        &self,
        bucket: &BackupStore,
        context: &mut SessionContext,
    ) -> Result<(StartPlan, Catalogue), PlanError> {
        // Read etcd's revision after the listing: it only grows, so a store that appears ahead really is ahead.
        let catalogue = bucket
            .list_snapshots()
            .await
            .map_err(|error| self.record_store_error(&error))?;
        let etcd = self.etcd.read_quorum_revision(self.fence.timeout).await;
        let etcd = etcd.map_err(|error| to_plan_error("etcd", &error))?;
        let plan = plan_start(&catalogue, etcd, &self.start_inputs());
        let plan = context.check_plan(plan, newest_revision(&catalogue))?;
        if !context.is_history_verified {
            let check = self.check_history(bucket, &catalogue, etcd).await?;
            let is_match = matches!(check, HistoryCheck::Verified);
            state::record_history_match(&self.state_tx, is_match);
            match check {
                HistoryCheck::Verified | HistoryCheck::Unrefuted => {
                    context.is_history_verified = true;
                }
                HistoryCheck::Unverified(because) => {
                    return Ok((StartPlan::FullFirst(because), catalogue));
                }
            }
        }
        let plan = context.forced_full.map_or(plan, StartPlan::FullFirst);
        Ok((plan, catalogue))
    }

    fn start_inputs(&self) -> StartInputs<'_> {
        let period = self.config.tail.as_ref().and_then(|tail| tail.period);
        StartInputs {
            schedule: &self.config.schedule,
            delta_period: period.unwrap_or_default(),
            now: Timestamp::now(),
        }
    }

    /// Looks up in etcd the last event of the newest delta, or of the newest full snapshot if there are no deltas.
    async fn check_history(
        &self,
        bucket: &BackupStore,
        catalogue: &Catalogue,
        etcd: Revision,
    ) -> Result<HistoryCheck, PlanError> {
        let store = bucket.open().await;
        let store = store.map_err(|error| self.record_store_error(&error))?;
        match (catalogue.deltas.last(), catalogue.fulls.last()) {
            (None, None) => Ok(HistoryCheck::Verified), // an empty store belongs to any history
            (Some(delta), _) => {
                let last = last_event::read_last_event(&store, delta).await;
                let Some(witness) = skip_damaged(delta, last)? else {
                    return Ok(HistoryCheck::Unverified(
                        FullSnapshotReason::MissingRevisions,
                    ));
                };
                self.check_event(&witness, HistoryCheck::Unrefuted).await
            }
            (None, Some(full)) => {
                // An empty etcd has no history to compare.
                if full.name.last <= Revision::EMPTY {
                    return Ok(HistoryCheck::Unrefuted);
                }
                // Without deltas nothing builds on the snapshot.
                let unproven = match self.config.tail {
                    Some(_) => HistoryCheck::Unverified(FullSnapshotReason::UnverifiedHistory),
                    None => HistoryCheck::Unrefuted,
                };
                let last = last_event::read_last_row(&store, full).await;
                let Some(witness) = skip_damaged(full, last)? else {
                    return Ok(unproven);
                };
                let store = witness.revision; // the content of a full snapshot may be newer than its name
                if store > etcd {
                    return Err(StoreConflict::StoreAhead { store, etcd }.into());
                }
                // An older row proves nothing about the revisions after it, whose rows were compacted.
                let is_last = witness.revision >= full.name.last;
                match self.check_event(&witness, unproven).await? {
                    HistoryCheck::Verified if !is_last => Ok(unproven),
                    check => Ok(check),
                }
            }
        }
    }

    /// Compares an event with etcd's history; returns `if_unknown` if etcd compacted what is needed.
    async fn check_event(
        &self,
        witness: &BackupEvent,
        if_unknown: HistoryCheck,
    ) -> Result<HistoryCheck, PlanError> {
        let member = MemberHistory {
            etcd: &self.etcd,
            limit: KEY_READ_TIMEOUT,
        };
        let key_history = read_key_history(&member, witness).await;
        let key_history = key_history.map_err(|error| to_plan_error("etcd", &error))?;
        let revision = witness.revision;
        match match_history(witness, &key_history) {
            HistoryMatch::Same => Ok(HistoryCheck::Verified),
            HistoryMatch::Unknown => {
                info!(revision = %revision, "cannot verify that the backup belongs to this etcd: etcd has compacted the revision where it ends");
                Ok(if_unknown)
            }
            HistoryMatch::Diverged => {
                warn!(revision = %revision, "the backup in the store ends in a different history than etcd");
                Ok(HistoryCheck::Unverified(
                    FullSnapshotReason::DivergedHistory,
                ))
            }
            HistoryMatch::Foreign => Err(StoreConflict::ForeignHistory { revision }.into()),
        }
    }

    fn record_store_error(&self, error: &BackupStoreError) -> PlanError {
        if let Some(error) = error.store_error() {
            self.metrics.count_store_error(error.class());
        }
        to_plan_error("store", error)
    }

    fn report_conflict(&self, refusal: StoreConflict) {
        error!("{refusal}");
        state::record_history_match(&self.state_tx, false);
        let class = refusal.class();
        let trouble = self.state_tx.borrow().failure.clone();
        // Planning repeats every 30 s: count the gap once, not on each retry.
        if trouble.is_none_or(|trouble| trouble.class != class) {
            self.metrics.count_gap(refusal.gap_cause());
        }
        self.metrics.count_failure(class);
        self.metrics.set_required(SnapshotKind::Full, true);
        state::record_failure(&self.state_tx, class, &refusal.to_string());
    }

    /// Reports a failed attempt to start; the caller retries.
    pub(super) fn report_failure(&self, class: &'static str, reason: &str) {
        warn!(error = reason, "cannot start backups, retrying");
        self.metrics.count_failure(class);
        state::record_failure(&self.state_tx, class, reason);
    }
}

/// Whether the store belongs to etcd's history.
#[derive(Clone, Copy)]
enum HistoryCheck {
    /// It does.
    Verified,
    /// Nothing contradicts it: enough to continue the backup, not to delete from it.
    Unrefuted,
    /// Not verified: no delta may continue it, a full snapshot must come first.
    Unverified(FullSnapshotReason),
}

/// `None` if the object has no event or is damaged.
fn skip_damaged(
    object: &SnapshotObject,
    read: Result<Option<BackupEvent>, LastEventError>,
) -> Result<Option<BackupEvent>, PlanError> {
    match read {
        Ok(witness) => Ok(witness),
        Err(error) if error.is_damage() => {
            error!(object_key = %object.key, error = %ErrorChain(&error), "newest object of the backup is damaged");
            Ok(None)
        }
        Err(error) => Err(to_plan_error("store", &error)),
    }
}

fn to_plan_error(class: &'static str, error: &(dyn std::error::Error + 'static)) -> PlanError {
    let reason = ErrorChain(error).to_string();
    PlanError::Failed { class, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_ahead_plan() -> StartPlan {
        StartPlan::StoreAhead {
            store: Revision(50_000),
            etcd: Revision(9),
        }
    }

    fn continue_plan() -> StartPlan {
        StartPlan::Continue {
            after: Revision(50_000),
            backfill_after: None,
            full: None,
        }
    }

    #[test]
    fn store_that_was_ahead_stays_refused_after_etcd_passes_it() {
        let mut context = SessionContext::default();
        let store = Revision(50_000);
        let refused = context.check_plan(store_ahead_plan(), store).unwrap_err();
        assert_eq!(refused.class(), "store-ahead");
        for _ in 0..2 {
            let refused = context.check_plan(continue_plan(), store).unwrap_err();
            assert_eq!(refused, StoreConflict::ForeignHistory { revision: store });
        }
    }

    #[test]
    fn emptied_store_is_accepted_as_new() {
        let mut context = SessionContext::default();
        context
            .check_plan(store_ahead_plan(), Revision(50_000))
            .unwrap_err();
        let fresh = StartPlan::FullFirst(FullSnapshotReason::NoFull);
        assert_eq!(context.check_plan(fresh.clone(), Revision(0)), Ok(fresh));
        // Everything stored after that belongs to this etcd.
        assert_eq!(
            context.check_plan(continue_plan(), Revision(50_000)),
            Ok(continue_plan())
        );
    }
}
