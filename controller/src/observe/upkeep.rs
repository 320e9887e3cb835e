//! Observes the upkeep of the backup: compaction and drill Jobs, accumulated deltas, and pins.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use mainstay_coordination::annotations::{DELTA_BYTES, DELTA_BYTES_SINCE};
use mainstay_coordination::pin::{self, Pin};
use mainstay_crds::Etcd;
use mainstay_manifests::Names;

use super::jobs;
use crate::caches::Stores;
use crate::caches::packed::get;
use crate::model::annotations::LOCK_HOLDER;
use crate::model::{DeltaBacklog, FallbackSnapshot, ObservedPin, ObservedUpkeep};

/// Reads the upkeep state from the caches.
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
    let document = get(
        &stores.config_maps,
        &names.coordination_config_map(),
        names.namespace,
    );
    ObservedUpkeep {
        compaction: job(&names.compaction_job()),
        drill: job(&names.drill_job()),
        delta_backlog: delta.and_then(|lease| parse_delta_backlog(&lease)),
        fallback: FallbackSnapshot::None,
        pins: document.map(|map| parse_pins(&map)).unwrap_or_default(),
    }
}

/// Parses the delta annotations of the Lease; `None` unless both are valid, because bytes count only relative to a revision.
fn parse_delta_backlog(lease: &Lease) -> Option<DeltaBacklog> {
    let annotations = lease.annotations();
    Some(DeltaBacklog {
        since_revision: annotations.get(DELTA_BYTES_SINCE)?.parse().ok()?,
        bytes: annotations.get(DELTA_BYTES)?.parse().ok()?,
    })
}

/// The pins of this controller in the coordination ConfigMap.
fn parse_pins(map: &ConfigMap) -> BTreeMap<String, ObservedPin> {
    let entries = map.data.iter().flatten();
    let read = |(entry, text): (&String, &String)| {
        let name = entry.strip_prefix(pin::PREFIX)?;
        // An unreadable pin counts as missing, so it is created again.
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

    use jiff::Timestamp;
    use mainstay_coordination::lock::MAX_TTL;
    use mainstay_coordination::{Purpose, RevisionRange};
    use mainstay_ids::Revision;

    use super::*;

    #[test]
    fn delta_bytes_count_only_with_their_base_revision() {
        let parsed = |pairs: &[(&str, &str)]| {
            let annotations = pairs
                .iter()
                .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
            let mut lease = Lease::default();
            lease.metadata.annotations = Some(annotations.collect());
            parse_delta_backlog(&lease).map(|backlog| (backlog.bytes, backlog.since_revision))
        };
        assert_eq!(
            parsed(&[(DELTA_BYTES, "7"), (DELTA_BYTES_SINCE, "5")]),
            Some((7, 5))
        );
        assert_eq!(parsed(&[(DELTA_BYTES, "7")]), None);
        assert_eq!(parsed(&[(DELTA_BYTES_SINCE, "5")]), None);
        assert_eq!(
            parsed(&[(DELTA_BYTES, "-7"), (DELTA_BYTES_SINCE, "5")]),
            None
        );
    }

    #[test]
    fn only_pins_of_this_controller_are_renewed() {
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
                (entry("copy"), pin("sidecar")),
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
