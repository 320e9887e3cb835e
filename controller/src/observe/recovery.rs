//! Observes the coordination ConfigMap (lock and incident) and the Jobs that write volumes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use mainstay_coordination::incident;
use mainstay_coordination::{Lock, lock};
use mainstay_crds::Etcd;
use mainstay_manifests::Names;
use serde::de::DeserializeOwned;

use super::jobs;
use crate::caches::Stores;
use crate::caches::packed::{JOB_NAME_LABEL, find_all, get};
use crate::model::annotations::LOCK_HOLDER;
use crate::model::{ObservedLock, ObservedRecovery, Ordinal};

/// Reads the recovery state from the caches.
pub(crate) fn observe_recovery(
    stores: &Stores,
    etcd: &Etcd,
    ordinals: u32,
    is_down: bool,
) -> ObservedRecovery {
    let names = Names::new(etcd);
    let document = get(
        &stores.config_maps,
        &names.coordination_config_map(),
        names.namespace,
    );
    let jobs = (0..ordinals).filter_map(|n| {
        let job = get(&stores.jobs, &names.restore_job(n), names.namespace)?;
        Some((Ordinal(n), jobs::observe_job(&job, &stores.pods)))
    });
    let mut observed = ObservedRecovery {
        jobs: jobs.collect(),
        ..document.map(|map| parse_document(&map)).unwrap_or_default()
    };
    // Without a recovery there are no writers: skip the scan over the pods of all clusters.
    if is_down || !observed.jobs.is_empty() || observed.open_incident().is_some() {
        let jobs = (0..ordinals).map(|n| (names.restore_job(n), Ordinal(n)));
        observed.active_writers = find_active_writers(stores, names.namespace, &jobs.collect());
    }
    observed
}

/// Members whose volume a pod of one of these Jobs may still write.
fn find_active_writers(
    stores: &Stores,
    namespace: &str,
    jobs: &BTreeMap<String, Ordinal>,
) -> BTreeSet<Ordinal> {
    let job_of = |labels: Option<&BTreeMap<String, String>>| {
        let name = labels.and_then(|labels| labels.get(JOB_NAME_LABEL))?;
        jobs.get(name).copied()
    };
    let pods = find_all::<Pod>(&stores.pods, |pod| {
        pod.namespace.as_deref() == Some(namespace) && job_of(pod.labels.as_ref()).is_some()
    });
    let alive = pods.iter().filter(|pod| can_write(pod));
    alive.filter_map(|pod| job_of(Some(pod.labels()))).collect()
}

/// Whether a pod may still write. A pod that is being deleted writes until its containers have terminated.
fn can_write(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Parses the coordination ConfigMap.
fn parse_document(map: &ConfigMap) -> ObservedRecovery {
    let read = || {
        Ok::<_, serde_json::Error>((
            parse_entry::<Lock>(map, lock::ENTRY)?,
            parse_entry(map, incident::ENTRY)?,
        ))
    };
    match read() {
        Ok((lock, incident)) => ObservedRecovery {
            lock: lock.map(to_observed_lock).unwrap_or_default(),
            incident,
            ..ObservedRecovery::default()
        },
        Err(error) => ObservedRecovery {
            parse_error: Some(error.to_string()),
            ..ObservedRecovery::default()
        },
    }
}

fn parse_entry<T: DeserializeOwned>(
    map: &ConfigMap,
    key: &str,
) -> Result<Option<T>, serde_json::Error> {
    let text = map.data.as_ref().and_then(|data| data.get(key));
    text.map(|text| serde_json::from_str(text)).transpose()
}

fn to_observed_lock(lock: Lock) -> ObservedLock {
    if lock.released.is_some() {
        return ObservedLock::Free { epoch: lock.epoch };
    }
    if lock.holder == LOCK_HOLDER {
        return ObservedLock::HeldByUs {
            epoch: lock.epoch,
            renewed_at: lock.renewed,
        };
    }
    let duration = jiff::SignedDuration::try_from(lock.effective_ttl()).unwrap_or_default();
    ObservedLock::HeldByOther {
        expires_at: lock.renewed.checked_add(duration).unwrap_or(Timestamp::MAX),
        epoch: lock.epoch,
        holder: lock.holder,
        purpose: lock.purpose,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_coordination::Epoch;
    use serde_json::{Value, json};

    use super::*;

    fn lock_config_map(lock: &Value) -> ConfigMap {
        let data = BTreeMap::from([("lock".to_owned(), lock.to_string())]);
        ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        }
    }

    fn lock(holder: &str) -> Value {
        json!({ "holder": holder, "purpose": "restore", "epoch": 3, "acquired": "2026-11-16T12:00:00Z",
            "renewed": "2026-11-16T12:00:00Z", "ttl": "10m" })
    }

    #[test]
    fn lock_is_ours_whichever_controller_process_acquired_it() {
        let observed = parse_document(&lock_config_map(&lock(LOCK_HOLDER)));
        assert_eq!(observed.parse_error, None);
        assert!(
            matches!(
                observed.lock,
                ObservedLock::HeldByUs {
                    epoch: Epoch(3),
                    ..
                }
            ),
            "{observed:?}"
        );
        let others = parse_document(&lock_config_map(&lock("sidecar"))).lock;
        assert!(matches!(&others, ObservedLock::HeldByOther { holder, .. } if holder == "sidecar"));
        let mut released = lock(LOCK_HOLDER);
        released["released"] = "2026-11-16T12:01:00Z".into();
        assert_eq!(
            parse_document(&lock_config_map(&released)).lock,
            ObservedLock::Free { epoch: Epoch(3) }
        );
    }

    #[test]
    fn deleted_pod_can_write_until_it_has_ended() {
        let pod = |phase: Value| {
            let deleted = "2026-11-16T12:00:00Z";
            serde_json::from_value::<Pod>(
                json!({ "metadata": { "deletionTimestamp": deleted }, "status": { "phase": phase } }),
            )
            .unwrap()
        };
        for phase in [json!("Running"), json!("Pending"), Value::Null] {
            assert!(can_write(&pod(phase.clone())), "{phase}");
        }
        for phase in ["Succeeded", "Failed"] {
            assert!(!can_write(&pod(phase.into())), "{phase}");
        }
    }

    #[test]
    fn unreadable_document_is_not_treated_as_empty() {
        assert!(
            parse_document(&lock_config_map(&json!("mine")))
                .parse_error
                .is_some()
        );
        assert_eq!(
            parse_document(&ConfigMap::default()),
            ObservedRecovery::default()
        );
    }
}
