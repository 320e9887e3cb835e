//! Chains for display: each base with its deltas, gaps, sizes and restorable range.

use std::collections::BTreeSet;

use jiff::Timestamp;
use mainstay_ids::Revision;

use super::Ranges;
use super::cover::{Deltas, FirstGapPolicy, Goal};
use crate::catalogue::{Catalogue, SnapshotObject};
use crate::name::SnapshotName;

/// Revisions no object of a chain holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionGap {
    /// First missing revision.
    pub from: Revision,
    /// Last missing revision.
    pub to: Revision,
    /// Object before the gap.
    pub after: SnapshotName,
    /// Object after the gap.
    pub before: SnapshotName,
}

/// A base and the deltas up to the next base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    /// The full snapshot; `None` for deltas older than every base.
    pub base: Option<SnapshotObject>,
    /// The deltas that sort after this base and before the next.
    pub deltas: Vec<SnapshotObject>,
    /// First and last revision in the names of this chain (a base counts with its last).
    pub revisions: (Revision, Revision),
    /// First and last creation time.
    pub times: (Timestamp, Timestamp),
    /// Gaps inside the chain. The base itself may fill one directly after it.
    pub gaps: Vec<RevisionGap>,
    /// Sum of the object sizes in bytes, as stored.
    pub bytes: u64,
    /// Last revision reachable from this base without a gap, using the deltas of all chains; `None` without a base.
    pub last_reachable: Option<Revision>,
}

/// Returns all chains of a catalogue, oldest first.
///
/// A delta belongs to the newest base that sorts before it by (last revision, creation time).
pub fn list_chains(catalogue: &Catalogue) -> Vec<ChainInfo> {
    let all = Deltas::new(&catalogue.deltas, &BTreeSet::new());
    let mut rest = catalogue.deltas.as_slice();
    let mut result = Vec::new();
    let mut base: Option<&SnapshotObject> = None;
    for next in catalogue.fulls.iter().map(Some).chain([None]) {
        let own = next.map_or(rest.len(), |n| {
            rest.partition_point(|d| d.name.sort_key() < n.name.sort_key())
        });
        let (mine, others) = rest.split_at_checked(own).unwrap_or((rest, &[]));
        rest = others;
        if let Some(info) = build_chain_info(base, mine, &all) {
            result.push(info);
        }
        base = next;
    }
    result
}

/// Returns the restorable revisions, judged by names.
pub fn restorable_revisions(catalogue: &Catalogue) -> Ranges<Revision> {
    let starts: Vec<_> = catalogue
        .fulls
        .iter()
        .map(|base| base.name.sort_key())
        .collect();
    collect_restorable(catalogue, &starts, &BTreeSet::new()).revisions
}

/// Union of the ranges restorable from a set of bases.
pub(super) struct RestorableRanges {
    pub(super) revisions: Ranges<Revision>,
    pub(super) times: Ranges<Timestamp>,
}

/// Follows each base (its revision and creation time) to the end of its deltas and merges the ranges.
pub(super) fn collect_restorable(
    catalogue: &Catalogue,
    starts: &[(Revision, i64)],
    without: &BTreeSet<String>,
) -> RestorableRanges {
    let deltas = Deltas::new(&catalogue.deltas, without);
    let mut revisions: Vec<(Revision, Revision)> = Vec::new();
    let mut seconds: Vec<(i64, i64)> = Vec::new();
    for &(revision, created) in starts {
        let walk = deltas.walk((revision, created), Goal::Everything, FirstGapPolicy::Stop);
        revisions.push((revision, walk.reached));
        // A compacted base may be created after the deltas that follow it; then it proves no time range.
        let latest = walk
            .picked
            .last()
            .map_or(created, |(_, delta)| delta.name.created);
        if created <= latest {
            seconds.push((created, latest));
        }
    }
    let instant = |second| Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
    let times = merge_ranges(seconds, |to| to)
        .into_iter()
        .map(|(a, b)| (instant(a), instant(b)));
    RestorableRanges {
        revisions: Ranges(merge_ranges(revisions, Revision::next)),
        times: Ranges(times.collect()),
    }
}

/// Merges ranges that overlap, or that start no later than `adjoining` the end of another.
fn merge_ranges<T: Copy + Ord>(mut ranges: Vec<(T, T)>, adjoining: impl Fn(T) -> T) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut result: Vec<(T, T)> = Vec::new();
    for (from, to) in ranges {
        match result.last_mut() {
            Some(previous) if from <= adjoining(previous.1) => previous.1 = previous.1.max(to),
            _ => result.push((from, to)),
        }
    }
    result
}

fn build_chain_info(
    base: Option<&SnapshotObject>,
    deltas: &[SnapshotObject],
    all: &Deltas<'_>,
) -> Option<ChainInfo> {
    let members = || base.into_iter().chain(deltas);
    let first = base
        .map(|b| b.name.last)
        .or(deltas.iter().map(|d| d.name.start).min())?;
    let last = members().map(|o| o.name.last).max()?;
    let earliest = members().map(|o| o.name.created_at()).min()?;
    let latest = members().map(|o| o.name.created_at()).max()?;
    let last_reachable = base.map(|b| {
        all.walk(b.name.sort_key(), Goal::Everything, FirstGapPolicy::Stop)
            .reached
    });
    Some(ChainInfo {
        base: base.cloned(),
        deltas: deltas.to_vec(),
        revisions: (first, last),
        times: (earliest, latest),
        gaps: find_gaps(base, deltas),
        bytes: members().fold(0, |sum, o| sum.saturating_add(o.size)),
        last_reachable,
    })
}

fn find_gaps(base: Option<&SnapshotObject>, deltas: &[SnapshotObject]) -> Vec<RevisionGap> {
    let mut sorted: Vec<&SnapshotObject> = deltas.iter().collect();
    sorted.sort_by_key(|d| (d.name.start, d.name.last));
    let mut furthest = base.map(|b| &b.name);
    let mut found = Vec::new();
    for name in sorted.into_iter().map(|o| &o.name) {
        if let Some(after) = furthest
            && name.start > after.last.next()
        {
            found.push(RevisionGap {
                from: after.last.next(),
                to: name.start.previous(),
                after: after.clone(),
                before: name.clone(),
            });
        }
        if furthest.is_none_or(|f| f.last < name.last) {
            furthest = Some(name);
        }
    }
    found
}
