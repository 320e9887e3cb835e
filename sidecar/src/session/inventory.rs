//! The newest objects in the store, kept up to date without listing it again.

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, ListedObject, SnapshotObject};
use mainstay_archive::chain::restorable_revisions;
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;

use crate::metrics::SidecarMetrics;
use crate::state::{DeltasSinceFull, StateSender, StoredSnapshot};

/// Objects as listed when the round started, and as stored since.
#[derive(Default)]
pub(super) struct Inventory {
    catalogue: Catalogue,
    prefix: String,
    /// When this round last stored a delta.
    delta_stored_at: Option<Timestamp>,
}

impl Inventory {
    pub(super) fn new(prefix: &str, catalogue: Catalogue) -> Self {
        Self {
            catalogue,
            prefix: prefix.to_owned(),
            delta_stored_at: None,
        }
    }

    /// Adds an object that this session stored.
    pub(super) fn add(&mut self, stored: &StoredSnapshot) {
        if stored.name.kind == SnapshotKind::Delta {
            self.delta_stored_at = Some(Timestamp::now());
        }
        let listed = ListedObject {
            key: stored.key.clone(),
            size: stored.size,
            modified: stored.name.created_at(),
        };
        let one = Catalogue::from_listing(&self.prefix, vec![listed]);
        let Catalogue { fulls, deltas, .. } = one;
        merge(&mut self.catalogue.fulls, fulls);
        merge(&mut self.catalogue.deltas, deltas);
        self.prune();
    }

    /// Keeps only the two newest chains, so that memory does not grow with the age of the cluster.
    fn prune(&mut self) {
        let Some(newest) = self.catalogue.fulls.last().map(|full| full.name.last) else {
            return;
        };
        // The second newest full snapshot is needed to find a gap before the newest.
        let keep_from = self.catalogue.fulls.len().saturating_sub(2);
        self.catalogue.fulls.drain(..keep_from);
        let oldest = self.catalogue.fulls.first().map_or(newest, |f| f.name.last);
        self.catalogue
            .deltas
            .retain(|delta| delta.name.last > oldest);
    }

    /// Revisions before a full snapshot that cannot be restored, between restorable ones.
    pub(super) fn find_gap_before(&self, full: Revision) -> Option<(Revision, Revision)> {
        let ranges = restorable_revisions(&self.catalogue).0;
        let around = ranges.iter().position(|(from, _)| *from == full)?;
        let (_, end) = ranges.get(around.checked_sub(1)?)?;
        Some((end.next(), full.previous()))
    }

    /// Publishes the newest objects in the state and the metrics. Deltas are counted since the newest full snapshot,
    /// including one that a compaction Job stored up to `compacted`.
    pub(super) fn publish(
        &self,
        compacted: Option<Revision>,
        state_tx: &StateSender,
        metrics: &SidecarMetrics,
    ) {
        let (full, delta) = (self.catalogue.fulls.last(), self.catalogue.deltas.last());
        let base = full.map(|full| full.name.last).max(compacted);
        let base = base.unwrap_or_default();
        let since = self.catalogue.deltas.iter();
        let since: Vec<&SnapshotObject> = since.filter(|delta| delta.name.last > base).collect();
        let revisions = since
            .iter()
            .map(|d| d.name.last.0 - d.name.start.0 + 1)
            .sum();
        let bytes = since.iter().map(|delta| delta.size).sum();
        let ranges = restorable_revisions(&self.catalogue).0;
        let oldest = ranges.first().map(|(from, _)| *from);
        let newest = ranges.last().map(|(_, to)| *to);
        metrics.set_restorable(oldest, newest, since.len(), revisions);
        let (full, delta) = (full.map(to_stored_snapshot), delta.map(to_stored_snapshot));
        for stored in full.iter().chain(&delta) {
            metrics.set_latest(stored);
            metrics.record_success(stored.name.kind, stored.name.created_at());
        }
        state_tx.send_modify(|state| {
            state.last_full = full;
            state.last_delta = delta;
            state.deltas_since_full = Some(DeltasSinceFull { since: base, bytes });
            state.delta_checked_at = state.delta_checked_at.max(self.delta_stored_at);
        });
    }
}

fn merge(into: &mut Vec<SnapshotObject>, from: Vec<SnapshotObject>) {
    into.extend(from);
    into.sort_by_key(|object| (object.name.last, object.name.created));
    into.dedup_by(|a, b| a.key == b.key);
}

fn to_stored_snapshot(object: &SnapshotObject) -> StoredSnapshot {
    debug_assert!(matches!(
        object.name.kind,
        SnapshotKind::Full | SnapshotKind::Delta
    ));
    StoredSnapshot {
        name: object.name.clone(),
        key: object.key.clone(),
        size: object.size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory_of(names: &[&str]) -> Inventory {
        let mut stock = Inventory::new("p", Catalogue::default());
        for name in names {
            stock.add(&StoredSnapshot {
                name: name.parse().unwrap(),
                key: format!("p/v2/{name}"),
                size: 1,
            });
        }
        stock
    }

    #[test]
    fn stored_delta_updates_the_delta_check_time() {
        let (state_tx, view) = tokio::sync::watch::channel(crate::state::SidecarState::default());
        let metrics = SidecarMetrics::new().unwrap();
        inventory_of(&["Full-0-5-1"]).publish(None, &state_tx, &metrics);
        assert_eq!(view.borrow().delta_checked_at, None);
        let started = Timestamp::now();
        inventory_of(&["Full-0-5-1", "Incr-6-9-2"]).publish(None, &state_tx, &metrics);
        let checked = view.borrow().delta_checked_at;
        assert!(checked >= Some(started), "also under continuous writes");
        let earlier = Inventory::new("p", Catalogue::default());
        earlier.publish(None, &state_tx, &metrics);
        assert_eq!(view.borrow().delta_checked_at, checked);
    }

    #[test]
    fn deltas_compacted_elsewhere_are_not_counted_since_the_full() {
        let (state_tx, view) = tokio::sync::watch::channel(crate::state::SidecarState::default());
        let metrics = SidecarMetrics::new().unwrap();
        let stock = inventory_of(&["Full-0-5-1", "Incr-6-9-2", "Incr-10-20-3", "Incr-21-30-4"]);
        let deltas_since_full = |compacted: Option<i64>| {
            stock.publish(compacted.map(Revision), &state_tx, &metrics);
            view.borrow()
                .deltas_since_full
                .map(|deltas| (deltas.since.0, deltas.bytes))
        };
        assert_eq!(deltas_since_full(None), Some((5, 3)));
        assert_eq!(
            deltas_since_full(Some(4)),
            Some((5, 3)),
            "own full snapshot is newer"
        );
        assert_eq!(deltas_since_full(Some(20)), Some((20, 1)));
        assert_eq!(deltas_since_full(Some(30)), Some((30, 0)));
    }

    #[test]
    fn gap_reaches_from_the_last_delta_to_the_next_full_snapshot() {
        let stock = inventory_of(&["Full-0-5-1", "Incr-6-9-2", "Full-0-20-3", "Incr-18-25-4"]);
        let hole = (Revision(10), Revision(19));
        assert_eq!(stock.find_gap_before(Revision(20)), Some(hole));
    }

    #[test]
    fn revisions_covered_by_deltas_are_not_a_gap() {
        let bridged = inventory_of(&["Full-0-5-1", "Incr-6-20-2", "Full-0-20-3"]);
        assert_eq!(bridged.find_gap_before(Revision(20)), None);
        let next = inventory_of(&["Full-0-5-1", "Full-0-6-3"]);
        assert_eq!(next.find_gap_before(Revision(6)), None);
        let first = inventory_of(&["Full-0-20-3"]);
        assert_eq!(first.find_gap_before(Revision(20)), None);
    }
}
