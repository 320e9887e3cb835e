//! Before a round: what the store holds, where etcd is, and whether the one is the past of the other.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, Object};
use mainstay_archive::name::Kind;
use mainstay_ids::Revision;
use mainstay_telemetry::Chain;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::begin::{Because, Begin, Terms, begin};
use super::handle::Ask;
use super::kinship::{Kinship, Witness, judge};
use super::lead::{LOOK_AGAIN, Leader};
use super::refusal::Refusal;
use super::stock::Stock;
use super::witness::{self, WitnessError};
use crate::bucket::{Bucket, BucketError};
use crate::state;
use crate::tail::newest;

/// How long etcd may take to send one value: it may be as large as its request limit.
const TESTIMONY: Duration = Duration::from_secs(30);

/// What a session has learnt, from round to round.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Why a full snapshot comes first, whatever the store says.
    pub(super) forced: Option<Because>,
    /// The store is the past of this etcd.
    is_own: bool,
    /// The store was ahead of etcd, and reached this far. As long as it does, etcd passing that revision heals nothing.
    ahead: Option<Revision>,
}

impl Course {
    /// Judges a plan by how the store was met before.
    fn recall(&mut self, plan: Begin, store: Revision) -> Result<Begin, Refusal> {
        match plan {
            Begin::StoreAhead { store, etcd } => {
                self.ahead = Some(store);
                Err(Refusal::StoreAhead { store, etcd })
            }
            _ if self.ahead == Some(store) => Err(Refusal::ForeignHistory { revision: store }),
            plan => {
                self.ahead = None;
                Ok(plan)
            }
        }
    }
}

/// Why there is no plan yet.
enum Obstacle {
    /// Something does not answer.
    Failed { class: &'static str, reason: String },
    /// The store is not ours to write.
    Refused(Refusal),
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Leader {
    /// Looks until that works, and decides how to begin. `None` when told to stop.
    pub(super) async fn plan(
        &self,
        bucket: &Bucket,
        course: &mut Course,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<Ask>,
    ) -> Option<(Begin, Stock)> {
        let mut attempts = 0u32;
        while !stop.is_cancelled() {
            // A store may be tried for minutes; being told to stop does not wait for that.
            let looking = stop.run_until_cancelled(self.look(bucket, course));
            let pause = match looking.await? {
                Ok((plan, catalogue)) => {
                    let stock = Stock::new(&bucket.config().prefix, catalogue);
                    self.publish(&stock);
                    return Some((plan, stock));
                }
                Err(Obstacle::Refused(refusal)) => {
                    self.refuse(refusal);
                    LOOK_AGAIN
                }
                Err(Obstacle::Failed { class, reason }) => {
                    self.failed(class, &reason);
                    attempts = attempts.saturating_add(1);
                    self.config.backoff.pause(attempts)
                }
            };
            self.pause(pause, stop, asks).await;
        }
        None
    }

    /// Tells everyone what is in the store.
    pub(super) fn publish(&self, stock: &Stock) {
        let folded = *self.full_told.borrow();
        stock.publish(folded, &self.board, &self.metrics);
    }

    async fn look(
        &self,
        bucket: &Bucket,
        course: &mut Course,
    ) -> Result<(Begin, Catalogue), Obstacle> {
        // etcd after the store: it only grows, so a store that looks ahead is ahead.
        let catalogue = bucket
            .list()
            .await
            .map_err(|error| self.store_failed(&error))?;
        let etcd = self.etcd.confirm(self.fence.patience).await;
        let etcd = etcd.map_err(|error| failed("etcd", &error))?;
        let plan = begin(&catalogue, etcd, &self.terms());
        let plan = course.recall(plan, newest(&catalogue))?;
        if !course.is_own {
            match self.kinship(bucket, &catalogue, etcd).await? {
                Met::Own => course.is_own = true,
                Met::InDoubt(because) => return Ok((Begin::FullFirst(because), catalogue)),
            }
        }
        let plan = course.forced.map_or(plan, Begin::FullFirst);
        Ok((plan, catalogue))
    }

    fn terms(&self) -> Terms<'_> {
        let period = self.config.tail.as_ref().and_then(|tail| tail.period);
        Terms {
            schedule: &self.config.schedule,
            delta_period: period.unwrap_or_default(),
            now: Timestamp::now(),
        }
    }

    /// Asks etcd about the last event of the newest delta, or of the newest full snapshot when there are no deltas.
    async fn kinship(
        &self,
        bucket: &Bucket,
        catalogue: &Catalogue,
        etcd: Revision,
    ) -> Result<Met, Obstacle> {
        let store = bucket.store().await;
        let store = store.map_err(|error| self.store_failed(&error))?;
        match (catalogue.deltas.last(), catalogue.fulls.last()) {
            (None, None) => Ok(Met::Own), // nothing contradicts it
            (Some(delta), _) => {
                let last = witness::last_event(&store, delta).await;
                let Some(witness) = sound(delta, last)? else {
                    return Ok(Met::InDoubt(Because::Broken));
                };
                self.met(&witness, Met::Own).await
            }
            (None, Some(full)) => {
                if self.config.tail.is_none() || full.name.last <= Revision::EMPTY {
                    return Ok(Met::Own); // nothing is written behind it; or nothing is in it
                }
                let unproven = Met::InDoubt(Because::Unproven);
                let last = witness::last_row(&store, full).await;
                let Some(witness) = sound(full, last)? else {
                    return Ok(unproven);
                };
                let store = witness.revision; // a full snapshot may be newer than its name
                if store > etcd {
                    return Err(Refusal::StoreAhead { store, etcd }.into());
                }
                // What it once held behind that, and has compacted, is not told of.
                let is_last = witness.revision >= full.name.last;
                match self.met(&witness, unproven).await? {
                    Met::Own if !is_last => Ok(unproven),
                    met => Ok(met),
                }
            }
        }
    }

    /// What etcd makes of a witness; `if_untold` when it cannot say.
    async fn met(&self, witness: &Witness, if_untold: Met) -> Result<Met, Obstacle> {
        let testimony = self.etcd.testify(witness, TESTIMONY).await;
        let testimony = testimony.map_err(|error| failed("etcd", &error))?;
        let revision = witness.revision;
        match judge(witness, &testimony) {
            Kinship::Own => Ok(Met::Own),
            Kinship::Unknown => {
                info!(revision = %revision, "etcd has compacted the end of the backup, so that nothing proves or disproves that it continues it");
                Ok(if_untold)
            }
            Kinship::Parted => {
                warn!(revision = %revision, "the backup in the store ends in another history than etcd's");
                Ok(Met::InDoubt(Because::Parted))
            }
            Kinship::Foreign => Err(Refusal::ForeignHistory { revision }.into()),
        }
    }

    fn store_failed(&self, error: &BucketError) -> Obstacle {
        if let Some(error) = error.store() {
            self.metrics.store_failed(error.class());
        }
        failed("store", error)
    }

    /// The store is not ours to write.
    fn refuse(&self, refusal: Refusal) {
        error!("{refusal}");
        let class = refusal.class();
        let trouble = self.board.borrow().trouble.clone();
        if trouble.is_none_or(|trouble| trouble.class != class) {
            self.metrics.gap(refusal.cause());
        }
        self.metrics.snapshotter_failed(class);
        self.metrics.snapshot_required(Kind::Full, true);
        state::trouble(&self.board, class, &refusal.to_string());
    }

    /// Said when it is tried again.
    pub(super) fn failed(&self, class: &'static str, reason: &str) {
        warn!(error = reason, "backups cannot begin, trying again");
        self.metrics.snapshotter_failed(class);
        state::trouble(&self.board, class, reason);
    }
}

/// What the store turned out to be.
#[derive(Clone, Copy)]
enum Met {
    /// The past of this etcd, as far as anyone can tell.
    Own,
    /// Nothing is to be written behind what is there, but for a full snapshot.
    InDoubt(Because),
}

/// The witness in an object; `None` when it has none, or is damaged.
fn sound(
    object: &Object,
    read: Result<Option<Witness>, WitnessError>,
) -> Result<Option<Witness>, Obstacle> {
    match read {
        Ok(witness) => Ok(witness),
        Err(error) if error.is_damage() => {
            error!(object_key = %object.key, error = %Chain(&error), "the newest object of the backup is damaged");
            Ok(None)
        }
        Err(error) => Err(failed("store", &error)),
    }
}

fn failed(class: &'static str, error: &(dyn std::error::Error + 'static)) -> Obstacle {
    let reason = Chain(error).to_string();
    Obstacle::Failed { class, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_ahead() -> Begin {
        Begin::StoreAhead {
            store: Revision(50_000),
            etcd: Revision(9),
        }
    }

    fn overtaken() -> Begin {
        Begin::Continue {
            after: Revision(50_000),
            deltas_end: None,
            full: None,
        }
    }

    #[test]
    fn a_store_that_was_ahead_stays_refused_after_etcd_has_passed_it() {
        let mut course = Course::default();
        let store = Revision(50_000);
        let refused = course.recall(store_ahead(), store).unwrap_err();
        assert_eq!(refused.class(), "store-ahead");
        for _ in 0..2 {
            let refused = course.recall(overtaken(), store).unwrap_err();
            assert_eq!(refused, Refusal::ForeignHistory { revision: store });
        }
    }

    #[test]
    fn a_store_that_was_emptied_is_a_new_one() {
        let mut course = Course::default();
        course.recall(store_ahead(), Revision(50_000)).unwrap_err();
        let fresh = Begin::FullFirst(Because::NoFull);
        assert_eq!(course.recall(fresh.clone(), Revision(0)), Ok(fresh));
        // Whatever it reaches later is its own.
        assert_eq!(
            course.recall(overtaken(), Revision(50_000)),
            Ok(overtaken())
        );
    }
}
