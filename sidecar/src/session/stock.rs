//! What is in the store, kept up to date without listing it again and again.

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, Listed, Object};
use mainstay_archive::chain::restorable;
use mainstay_archive::name::Kind;
use mainstay_ids::Revision;

use crate::metrics::Metrics;
use crate::state::{Board, Pile, Stored};

/// The newest objects, as listed at the beginning and as stored since.
#[derive(Default)]
pub(super) struct Stock {
    catalogue: Catalogue,
    prefix: String,
    /// When this session last stored a delta.
    delta_stored_at: Option<Timestamp>,
}

impl Stock {
    pub(super) fn new(prefix: &str, catalogue: Catalogue) -> Self {
        Self {
            catalogue,
            prefix: prefix.to_owned(),
            delta_stored_at: None,
        }
    }

    /// Adds an object this session stored.
    pub(super) fn add(&mut self, stored: &Stored) {
        if stored.name.kind == Kind::Delta {
            self.delta_stored_at = Some(Timestamp::now());
        }
        let listed = Listed {
            key: stored.key.clone(),
            size: stored.size,
            modified: stored.name.created_at(),
        };
        let one = Catalogue::from_listing(&self.prefix, vec![listed]);
        let Catalogue { fulls, deltas, .. } = one;
        merge(&mut self.catalogue.fulls, fulls);
        merge(&mut self.catalogue.deltas, deltas);
        self.forget_old();
    }

    /// Only the newest chain matters here; memory does not grow with the age of the cluster.
    fn forget_old(&mut self) {
        let Some(newest) = self.catalogue.fulls.last().map(|full| full.name.last) else {
            return;
        };
        let keep_from = self.catalogue.fulls.len().saturating_sub(2);
        self.catalogue.fulls.drain(..keep_from);
        let oldest = self.catalogue.fulls.first().map_or(newest, |f| f.name.last);
        self.catalogue
            .deltas
            .retain(|delta| delta.name.last > oldest);
    }

    /// The revisions before a full snapshot that nothing leads to, although something leads to those before them.
    pub(super) fn hole_before(&self, full: Revision) -> Option<(Revision, Revision)> {
        let ranges = restorable(&self.catalogue).0;
        let around = ranges.iter().position(|(from, _)| *from == full)?;
        let (_, end) = ranges.get(around.checked_sub(1)?)?;
        Some((end.next(), full.previous()))
    }

    /// Tells everyone what there is. Deltas pile up behind the newest full snapshot, also one somebody else stored.
    pub(super) fn publish(&self, folded: Option<Revision>, board: &Board, metrics: &Metrics) {
        let (full, delta) = (self.catalogue.fulls.last(), self.catalogue.deltas.last());
        let base = full.map(|full| full.name.last).max(folded);
        let base = base.unwrap_or_default();
        let since = self.catalogue.deltas.iter();
        let since: Vec<&Object> = since.filter(|delta| delta.name.last > base).collect();
        let revisions = since
            .iter()
            .map(|d| d.name.last.0 - d.name.start.0 + 1)
            .sum();
        let bytes = since.iter().map(|delta| delta.size).sum();
        let ranges = restorable(&self.catalogue).0;
        let oldest = ranges.first().map(|(from, _)| *from);
        let newest = ranges.last().map(|(_, to)| *to);
        metrics.restorable(oldest, newest, since.len(), revisions);
        let (full, delta) = (full.map(stored), delta.map(stored));
        for stored in full.iter().chain(&delta) {
            metrics.latest(stored);
            metrics.succeeded_at(stored.name.kind, stored.name.created_at());
        }
        board.send_modify(|state| {
            state.last_full = full;
            state.last_delta = delta;
            state.piled_up = Some(Pile { since: base, bytes });
            state.delta_checked_at = state.delta_checked_at.max(self.delta_stored_at);
        });
    }
}

fn merge(into: &mut Vec<Object>, from: Vec<Object>) {
    into.extend(from);
    into.sort_by_key(|object| (object.name.last, object.name.created));
    into.dedup_by(|a, b| a.key == b.key);
}

fn stored(object: &Object) -> Stored {
    debug_assert!(matches!(object.name.kind, Kind::Full | Kind::Delta));
    Stored {
        name: object.name.clone(),
        key: object.key.clone(),
        size: object.size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(names: &[&str]) -> Stock {
        let mut stock = Stock::new("p", Catalogue::default());
        for name in names {
            stock.add(&Stored {
                name: name.parse().unwrap(),
                key: format!("p/v2/{name}"),
                size: 1,
            });
        }
        stock
    }

    #[test]
    fn a_stored_delta_is_a_schedule_that_was_kept() {
        let (board, view) = tokio::sync::watch::channel(crate::state::State::default());
        let metrics = Metrics::new().unwrap();
        stock(&["Full-0-5-1"]).publish(None, &board, &metrics);
        assert_eq!(view.borrow().delta_checked_at, None);
        let begun = Timestamp::now();
        stock(&["Full-0-5-1", "Incr-6-9-2"]).publish(None, &board, &metrics);
        let checked = view.borrow().delta_checked_at;
        assert!(checked >= Some(begun), "also while writes never pause");
        let earlier = Stock::new("p", Catalogue::default());
        earlier.publish(None, &board, &metrics);
        assert_eq!(view.borrow().delta_checked_at, checked);
    }

    #[test]
    fn what_somebody_else_has_folded_does_not_pile_up() {
        let (board, view) = tokio::sync::watch::channel(crate::state::State::default());
        let metrics = Metrics::new().unwrap();
        let stock = stock(&["Full-0-5-1", "Incr-6-9-2", "Incr-10-20-3", "Incr-21-30-4"]);
        let piled_up = |folded: Option<i64>| {
            stock.publish(folded.map(Revision), &board, &metrics);
            view.borrow()
                .piled_up
                .map(|pile| (pile.since.0, pile.bytes))
        };
        assert_eq!(piled_up(None), Some((5, 3)));
        assert_eq!(piled_up(Some(4)), Some((5, 3)), "its own is newer");
        assert_eq!(piled_up(Some(20)), Some((20, 1)));
        assert_eq!(piled_up(Some(30)), Some((30, 0)));
    }

    #[test]
    fn a_hole_reaches_from_the_last_delta_to_the_full_snapshot_behind_it() {
        let stock = stock(&["Full-0-5-1", "Incr-6-9-2", "Full-0-20-3", "Incr-18-25-4"]);
        let hole = (Revision(10), Revision(19));
        assert_eq!(stock.hole_before(Revision(20)), Some(hole));
    }

    #[test]
    fn revisions_that_deltas_lead_to_are_no_hole() {
        let bridged = stock(&["Full-0-5-1", "Incr-6-20-2", "Full-0-20-3"]);
        assert_eq!(bridged.hole_before(Revision(20)), None);
        let next = stock(&["Full-0-5-1", "Full-0-6-3"]);
        assert_eq!(next.hole_before(Revision(6)), None);
        let first = stock(&["Full-0-20-3"]);
        assert_eq!(first.hole_before(Revision(20)), None);
    }
}
