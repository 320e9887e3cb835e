//! The Jobs that look after the backup, and how much has piled up in it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use mainstay_coordination::annotation::{DELTA_BYTES, DELTA_BYTES_SINCE};
use mainstay_coordination::pin::{self, Pin};
use mainstay_crds::Etcd;
use mainstay_manifests::Names;

use super::jobs::{self, ObservedJob};
use crate::act::marks::LOCK_HOLDER;
use crate::caches::Stores;
use crate::caches::packed::get;

/// What is known about the upkeep of a backup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedUpkeep {
    /// The Job that folds deltas into a full snapshot.
    pub compaction: Option<ObservedJob>,
    /// The Job that rehearses a restore.
    pub drill: Option<ObservedJob>,
    /// Bytes of deltas behind a full snapshot; other sidecars do not say.
    pub delta_backlog: Option<DeltaBacklog>,
    /// The full snapshot that was asked for in place of a compaction.
    pub fallback: FallbackSnapshot,
    /// What keeps retention from the objects the Jobs read, by name.
    pub pins: BTreeMap<String, ObservedPin>,
}

/// The deltas behind a full snapshot, as the sidecar tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaBacklog {
    /// The revision of the newest full snapshot the sidecar knows of.
    pub since_revision: i64,
    /// Their bytes.
    pub bytes: u64,
}

/// A pin of this controller, in this process or an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedPin {
    /// This revision and what follows must stay.
    pub from_revision: i64,
    /// The last sign of life.
    pub renewed_at: Timestamp,
}

/// A full snapshot asked for in place of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FallbackSnapshot {
    /// None, as far as this process knows.
    #[default]
    None,
    /// It is on its way.
    Running,
    /// It was taken.
    Taken,
    /// It was not.
    Failed {
        /// Why, in words.
        reason: String,
    },
}

/// Looks into the stores.
pub(crate) fn observe_upkeep(stores: &Stores, etcd: &Etcd) -> ObservedUpkeep {
    let names = Names::new(etcd);
    let job = |name: &str| {
        let job = get(&stores.jobs, name, names.namespace)?;
        Some(jobs::observe_job(&job, &stores.pods))
    };
    let delta = get(
        &stores.leases,
        &names.delta_snapshot_lease(),
        names.namespace,
    );
    let document = get(&stores.config_maps, &names.coordination_config_map(), names.namespace);
    ObservedUpkeep {
        compaction: job(&names.compaction_job()),
        drill: job(&names.drill_job()),
        delta_backlog: delta.and_then(|lease| parse_delta_backlog(&lease)),
        fallback: FallbackSnapshot::None,
        pins: document.map(|map| parse_pins(&map)).unwrap_or_default(),
    }
}

/// What has piled up. Numbers that are none, and bytes behind nobody knows what, tell nothing.
fn parse_delta_backlog(lease: &Lease) -> Option<DeltaBacklog> {
    let said = lease.annotations();
    Some(DeltaBacklog {
        since_revision: said.get(DELTA_BYTES_SINCE)?.parse().ok()?,
        bytes: said.get(DELTA_BYTES)?.parse().ok()?,
    })
}

/// The pins a document has of ours. One that cannot be read is set again.
fn parse_pins(map: &ConfigMap) -> BTreeMap<String, ObservedPin> {
    let entries = map.data.iter().flatten();
    let read = |(entry, text): (&String, &String)| {
        let name = entry.strip_prefix(pin::PREFIX)?;
        let pin: Pin = serde_json::from_str(text).ok()?;
        let observed = ObservedPin {
            from_revision: pin.revisions?.first.0,
            renewed_at: pin.renewed,
        };
        (pin.holder == LOCK_HOLDER).then(|| (name.to_owned(), observed))
    };
    entries.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mainstay_coordination::lock::MAX_TTL;
    use mainstay_coordination::{Purpose, RevisionRange};
    use mainstay_ids::Revision;

    use super::*;

    #[test]
    fn bytes_count_only_with_what_they_are_behind() {
        let told = |said: &[(&str, &str)]| {
            let said = said
                .iter()
                .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
            let mut lease = Lease::default();
            lease.metadata.annotations = Some(said.collect());
            parse_delta_backlog(&lease).map(|pile| (pile.bytes, pile.since_revision))
        };
        assert_eq!(
            told(&[(DELTA_BYTES, "7"), (DELTA_BYTES_SINCE, "5")]),
            Some((7, 5))
        );
        assert_eq!(told(&[(DELTA_BYTES, "7")]), None);
        assert_eq!(told(&[(DELTA_BYTES_SINCE, "5")]), None);
        assert_eq!(told(&[(DELTA_BYTES, "-7"), (DELTA_BYTES_SINCE, "5")]), None);
    }

    #[test]
    fn only_pins_of_this_controller_are_kept_alive() {
        let pin = |holder: &str| {
            let pin = Pin {
                holder: holder.to_owned(),
                purpose: Purpose::Compact,
                keys: BTreeSet::new(),
                revisions: Some(RevisionRange {
                    first: Revision(7),
                    last: None,
                }),
                since: Timestamp::UNIX_EPOCH,
                renewed: Timestamp::UNIX_EPOCH,
                ttl: MAX_TTL,
                other: BTreeMap::new(),
            };
            serde_json::to_string(&pin).unwrap()
        };
        let entry = |name: &str| format!("{}{name}", pin::PREFIX);
        let map = ConfigMap {
            data: Some(BTreeMap::from([
                (entry("compaction"), pin(LOCK_HOLDER)),
                (entry("copy"), pin("somebody")),
                (entry("broken"), "{".to_owned()),
                ("lock".to_owned(), "{}".to_owned()),
            ])),
            ..ConfigMap::default()
        };
        let observed = parse_pins(&map);
        assert_eq!(observed.keys().collect::<Vec<_>>(), ["compaction"]);
        assert_eq!(observed["compaction"].from_revision, 7);
    }
}
