//! Plans which objects to copy and in which order, as a pure function of two listings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::{ChainInfo, list_chains};
use mainstay_archive::name::SnapshotName;

/// Limits of the backups to copy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopyLimits {
    /// Number of the newest backups; `None` for all.
    pub(super) count: Option<usize>,
    /// Backups need an object created at or after this time; `None` for any age.
    pub(super) not_before: Option<Timestamp>,
}

/// Returns the time `days` before `now`; `None` for a negative number, which means any age.
pub(super) fn age_cutoff(now: Timestamp, days: i64) -> Option<Timestamp> {
    let hours = days.checked_mul(24).filter(|_| days >= 0)?;
    let age = SignedDuration::from_hours(hours.min(i64::from(u32::MAX)));
    Some(now.checked_sub(age).unwrap_or(Timestamp::MIN))
}

/// An object to copy, and its name in the destination.
#[derive(Clone, Debug)]
pub(super) struct CopyTask {
    pub(super) object: SnapshotObject,
    pub(super) name: SnapshotName,
}

/// An object that the destination has with another size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DestinationConflict {
    pub(super) name: SnapshotName,
    source_bytes: u64,
    destination_bytes: u64,
}

impl fmt::Display for DestinationConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} has {} bytes in the destination but {} bytes in the source; not overwritten",
            self.name, self.destination_bytes, self.source_bytes
        )
    }
}

/// Objects to copy, in the order in which they become visible.
#[derive(Clone, Debug, Default)]
pub(super) struct CopyPlan {
    pub(super) tasks: Vec<CopyTask>,
    /// Objects that the destination already has.
    pub(super) already_present: usize,
    pub(super) conflicts: Vec<DestinationConflict>,
    /// Deltas older than every full snapshot.
    pub(super) deltas_without_base: usize,
}

impl CopyPlan {
    /// Plans the newest chain first; within a chain the base first, then its deltas by revision.
    pub(super) fn new(source: &Catalogue, destination: &Catalogue, limits: CopyLimits) -> Self {
        // Compared without `.final`, which a copy drops.
        let existing: BTreeMap<String, u64> = destination
            .fulls
            .iter()
            .chain(&destination.deltas)
            .map(|object| (strip_final_suffix(&object.name).to_string(), object.size))
            .collect();
        let mut plan = Self::default();
        let mut planned = BTreeSet::new();
        let all = list_chains(source);
        let backups = all.iter().filter(|chain| chain.base.is_some());
        plan.deltas_without_base = all
            .iter()
            .filter(|chain| chain.base.is_none())
            .map(|chain| chain.deltas.len())
            .sum();
        let young = |chain: &&ChainInfo| {
            limits
                .not_before
                .is_none_or(|oldest| chain.times.1 >= oldest)
        };
        let selected = backups
            .rev()
            .filter(young)
            .take(limits.count.unwrap_or(usize::MAX));
        for chain in selected {
            let mut deltas: Vec<&SnapshotObject> = chain.deltas.iter().collect();
            deltas.sort_by_key(|delta| (delta.name.start, delta.name.last, delta.name.created));
            for object in chain.base.iter().chain(deltas) {
                // The same name in both layouts of the source becomes one object of the destination.
                if planned.insert(strip_final_suffix(&object.name).to_string()) {
                    plan.add(object, &existing);
                }
            }
        }
        plan
    }

    fn add(&mut self, object: &SnapshotObject, existing: &BTreeMap<String, u64>) {
        let name = strip_final_suffix(&object.name);
        match existing.get(&name.to_string()) {
            None => self.tasks.push(CopyTask {
                object: object.clone(),
                name,
            }),
            // Objects are never changed: the same name and size means that it was copied before.
            Some(size) if *size == object.size => self.already_present += 1,
            Some(size) => self.conflicts.push(DestinationConflict {
                name,
                source_bytes: object.size,
                destination_bytes: *size,
            }),
        }
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.tasks.iter().map(|task| task.object.size).sum()
    }
}

/// Returns the name without the suffix `.final`.
fn strip_final_suffix(name: &SnapshotName) -> SnapshotName {
    SnapshotName {
        is_final: false,
        ..name.clone()
    }
}

#[cfg(test)]
mod tests {
    use mainstay_archive::catalogue::ListedObject;

    use super::*;

    fn catalogue(names: &[(&str, u64)]) -> Catalogue {
        let listed = names.iter().map(|(name, size)| ListedObject {
            key: format!("p/{name}"),
            size: *size,
            modified: Timestamp::UNIX_EPOCH,
        });
        Catalogue::from_listing("p", listed.collect())
    }

    fn names(plan: &CopyPlan) -> Vec<String> {
        plan.tasks
            .iter()
            .map(|task| task.name.to_string())
            .collect()
    }

    fn source() -> Catalogue {
        catalogue(&[
            ("v2/Incr-00000001-00000005-50.gz", 1),
            ("v1/Backup-100/Full-00000000-00000010-100.gz", 2),
            ("v1/Backup-100/Incr-00000011-00000020-110.gz", 3),
            ("v2/Full-00000000-00000020-200.gz.final", 4),
            ("v2/Incr-00000031-00000040-220.gz", 5),
            ("v2/Incr-00000021-00000030-210.gz", 6),
        ])
    }

    #[test]
    fn newest_chain_is_first_and_bases_precede_their_deltas() {
        let plan = CopyPlan::new(&source(), &Catalogue::default(), CopyLimits::default());
        let expected = [
            "Full-00000000-00000020-200.gz",
            "Incr-00000021-00000030-210.gz",
            "Incr-00000031-00000040-220.gz",
            "Full-00000000-00000010-100.gz",
            "Incr-00000011-00000020-110.gz",
        ];
        assert_eq!(names(&plan), expected);
        assert_eq!(
            (
                plan.deltas_without_base,
                plan.already_present,
                plan.total_bytes()
            ),
            (1, 0, 20)
        );
    }

    #[test]
    fn count_and_age_limits_exclude_the_oldest_backups() {
        let second = |second| Some(Timestamp::from_second(second).unwrap());
        let empty = Catalogue::default();
        let of = |count, not_before| {
            names(&CopyPlan::new(
                &source(),
                &empty,
                CopyLimits { count, not_before },
            ))
            .len()
        };
        assert_eq!(of(Some(0), None), 0);
        assert_eq!(of(Some(1), None), 3);
        assert_eq!(of(Some(9), None), 5);
        // The newest object of a backup decides: no object within the limit loses its full snapshot.
        assert_eq!(of(None, second(215)), 3);
        assert_eq!(of(None, second(110)), 5);
        assert_eq!(of(None, second(221)), 0);
    }

    #[test]
    fn existing_object_is_not_copied_and_a_size_conflict_not_replaced() {
        let there = catalogue(&[
            ("v2/Full-00000000-00000020-200.gz", 4),
            ("v2/Incr-00000021-00000030-210.gz", 7),
        ]);
        let plan = CopyPlan::new(
            &source(),
            &there,
            CopyLimits {
                count: Some(1),
                not_before: None,
            },
        );
        assert_eq!(names(&plan), ["Incr-00000031-00000040-220.gz"]);
        assert_eq!(plan.already_present, 1);
        let conflicts: Vec<String> = plan.conflicts.iter().map(ToString::to_string).collect();
        assert_eq!(conflicts.len(), 1);
        assert!(
            conflicts[0]
                .starts_with("Incr-00000021-00000030-210.gz has 7 bytes in the destination")
        );
    }

    #[test]
    fn name_in_both_layouts_is_copied_once() {
        let twice = catalogue(&[
            ("v1/Backup-100/Full-00000000-00000010-100.gz", 2),
            ("v2/Full-00000000-00000010-100.gz", 2),
        ]);
        let plan = CopyPlan::new(&twice, &Catalogue::default(), CopyLimits::default());
        assert_eq!(plan.tasks.len(), 1);
    }

    #[test]
    fn negative_age_is_unlimited_and_a_huge_one_does_not_overflow() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert_eq!(age_cutoff(now, -1), None);
        assert_eq!(
            age_cutoff(now, 1),
            Some(Timestamp::from_second(913_600).unwrap())
        );
        assert!(age_cutoff(now, i64::MAX / 24).is_some_and(|oldest| oldest < now));
    }
}
