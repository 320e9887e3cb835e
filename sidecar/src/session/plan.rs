//! Before a round: what the store holds, where etcd is, and whether the one is the past of the other.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_telemetry::ErrorChain;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::begin::{FullSnapshotReason, StartPlan, StartInputs, plan_start};
use super::handle::SessionRequest;
use super::kinship::{HistoryMatch, LastEvent, match_history};
use super::lead::{CONFLICT_RECHECK_INTERVAL, BackupLeader};
use super::refusal::StoreConflict;
use super::stock::Inventory;
use super::witness::{self, LastEventError};
use crate::bucket::{BackupStore, BackupStoreError};
use crate::state;
use crate::tail::newest_revision;

/// How long etcd may take to send one value: it may be as large as its request limit.
const KEY_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// What a session has learnt, from round to round.
#[derive(Debug, Default)]
pub(super) struct SessionContext {
    /// Why a full snapshot comes first, whatever the store says.
    pub(super) forced_full: Option<FullSnapshotReason>,
    /// The store is the past of this etcd.
    is_history_verified: bool,
    /// The store was ahead of etcd, and reached this far. As long as it does, etcd passing that revision heals nothing.
    store_ahead_at: Option<Revision>,
}

impl SessionContext {
    /// Judges a plan by how the store was met before.
    fn check_plan(&mut self, plan: StartPlan, store: Revision) -> Result<StartPlan, StoreConflict> {
        match plan {
            StartPlan::StoreAhead { store, etcd } => {
                self.store_ahead_at = Some(store);
                Err(StoreConflict::StoreAhead { store, etcd })
            }
            _ if self.store_ahead_at == Some(store) => Err(StoreConflict::ForeignHistory { revision: store }),
            plan => {
                self.store_ahead_at = None;
                Ok(plan)
            }
        }
    }
}

/// Why there is no plan yet.
enum PlanError {
    /// Something does not answer.
    Failed { class: &'static str, reason: String },
    /// The store is not ours to write.
    Refused(StoreConflict),
}

impl From<StoreConflict> for PlanError {
    fn from(refusal: StoreConflict) -> Self {
        Self::Refused(refusal)
    }
}

impl BackupLeader {
    /// Looks until that works, and decides how to begin. `None` when told to stop.
    pub(super) async fn plan_round(
        &self,
        bucket: &BackupStore,
        course: &mut SessionContext,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<SessionRequest>,
    ) -> Option<(StartPlan, Inventory)> {
        let mut attempts = 0u32;
        while !stop.is_cancelled() {
            // A store may be tried for minutes; being told to stop does not wait for that.
            let looking = stop.run_until_cancelled(self.check_store(bucket, course));
            let pause = match looking.await? {
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

    /// Tells everyone what is in the store.
    pub(super) fn publish(&self, stock: &Inventory) {
        let folded = *self.newest_full.borrow();
        stock.publish(folded, &self.state_tx, &self.metrics);
    }

    async fn check_store(
        &self,
        bucket: &BackupStore,
        course: &mut SessionContext,
    ) -> Result<(StartPlan, Catalogue), PlanError> {
        // etcd after the store: it only grows, so a store that looks ahead is ahead.
        let catalogue = bucket
            .list_snapshots()
            .await
            .map_err(|error| self.record_store_error(&error))?;
        let etcd = self.etcd.read_quorum_revision(self.fence.timeout).await;
        let etcd = etcd.map_err(|error| to_plan_error("etcd", &error))?;
        let plan = plan_start(&catalogue, etcd, &self.start_inputs());
        let plan = course.check_plan(plan, newest_revision(&catalogue))?;
        if !course.is_history_verified {
            match self.check_history(bucket, &catalogue, etcd).await? {
                HistoryCheck::Verified => course.is_history_verified = true,
                HistoryCheck::Unverified(because) => return Ok((StartPlan::FullFirst(because), catalogue)),
            }
        }
        let plan = course.forced_full.map_or(plan, StartPlan::FullFirst);
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

    /// Asks etcd about the last event of the newest delta, or of the newest full snapshot when there are no deltas.
    async fn check_history(
        &self,
        bucket: &BackupStore,
        catalogue: &Catalogue,
        etcd: Revision,
    ) -> Result<HistoryCheck, PlanError> {
        let store = bucket.open().await;
        let store = store.map_err(|error| self.record_store_error(&error))?;
        match (catalogue.deltas.last(), catalogue.fulls.last()) {
            (None, None) => Ok(HistoryCheck::Verified), // nothing contradicts it
            (Some(delta), _) => {
                let last = witness::read_last_event(&store, delta).await;
                let Some(witness) = skip_damaged(delta, last)? else {
                    return Ok(HistoryCheck::Unverified(FullSnapshotReason::MissingRevisions));
                };
                self.check_event(&witness, HistoryCheck::Verified).await
            }
            (None, Some(full)) => {
                if self.config.tail.is_none() || full.name.last <= Revision::EMPTY {
                    return Ok(HistoryCheck::Verified); // nothing is written behind it; or nothing is in it
                }
                let unproven = HistoryCheck::Unverified(FullSnapshotReason::UnverifiedHistory);
                let last = witness::read_last_row(&store, full).await;
                let Some(witness) = skip_damaged(full, last)? else {
                    return Ok(unproven);
                };
                let store = witness.revision; // a full snapshot may be newer than its name
                if store > etcd {
                    return Err(StoreConflict::StoreAhead { store, etcd }.into());
                }
                // What it once held behind that, and has compacted, is not told of.
                let is_last = witness.revision >= full.name.last;
                match self.check_event(&witness, unproven).await? {
                    HistoryCheck::Verified if !is_last => Ok(unproven),
                    met => Ok(met),
                }
            }
        }
    }

    /// What etcd makes of a witness; `if_untold` when it cannot say.
    async fn check_event(&self, witness: &LastEvent, if_untold: HistoryCheck) -> Result<HistoryCheck, PlanError> {
        let testimony = self.etcd.read_key_history(witness, KEY_READ_TIMEOUT).await;
        let testimony = testimony.map_err(|error| to_plan_error("etcd", &error))?;
        let revision = witness.revision;
        match match_history(witness, &testimony) {
            HistoryMatch::Same => Ok(HistoryCheck::Verified),
            HistoryMatch::Unknown => {
                info!(revision = %revision, "etcd has compacted the end of the backup, so that nothing proves or disproves that it continues it");
                Ok(if_untold)
            }
            HistoryMatch::Diverged => {
                warn!(revision = %revision, "the backup in the store ends in another history than etcd's");
                Ok(HistoryCheck::Unverified(FullSnapshotReason::DivergedHistory))
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

    /// The store is not ours to write.
    fn report_conflict(&self, refusal: StoreConflict) {
        error!("{refusal}");
        let class = refusal.class();
        let trouble = self.state_tx.borrow().failure.clone();
        if trouble.is_none_or(|trouble| trouble.class != class) {
            self.metrics.count_gap(refusal.gap_cause());
        }
        self.metrics.count_failure(class);
        self.metrics.set_required(SnapshotKind::Full, true);
        state::record_failure(&self.state_tx, class, &refusal.to_string());
    }

    /// Said when it is tried again.
    pub(super) fn report_failure(&self, class: &'static str, reason: &str) {
        warn!(error = reason, "backups cannot begin, trying again");
        self.metrics.count_failure(class);
        state::record_failure(&self.state_tx, class, reason);
    }
}

/// What the store turned out to be.
#[derive(Clone, Copy)]
enum HistoryCheck {
    /// The past of this etcd, as far as anyone can tell.
    Verified,
    /// Nothing is to be written behind what is there, but for a full snapshot.
    Unverified(FullSnapshotReason),
}

/// The witness in an object; `None` when it has none, or is damaged.
fn skip_damaged(
    object: &SnapshotObject,
    read: Result<Option<LastEvent>, LastEventError>,
) -> Result<Option<LastEvent>, PlanError> {
    match read {
        Ok(witness) => Ok(witness),
        Err(error) if error.is_damage() => {
            error!(object_key = %object.key, error = %ErrorChain(&error), "the newest object of the backup is damaged");
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
    fn a_store_that_was_ahead_stays_refused_after_etcd_has_passed_it() {
        let mut course = SessionContext::default();
        let store = Revision(50_000);
        let refused = course.check_plan(store_ahead_plan(), store).unwrap_err();
        assert_eq!(refused.class(), "store-ahead");
        for _ in 0..2 {
            let refused = course.check_plan(continue_plan(), store).unwrap_err();
            assert_eq!(refused, StoreConflict::ForeignHistory { revision: store });
        }
    }

    #[test]
    fn a_store_that_was_emptied_is_a_new_one() {
        let mut course = SessionContext::default();
        course.check_plan(store_ahead_plan(), Revision(50_000)).unwrap_err();
        let fresh = StartPlan::FullFirst(FullSnapshotReason::NoFull);
        assert_eq!(course.check_plan(fresh.clone(), Revision(0)), Ok(fresh));
        // Whatever it reaches later is its own.
        assert_eq!(
            course.check_plan(continue_plan(), Revision(50_000)),
            Ok(continue_plan())
        );
    }
}
