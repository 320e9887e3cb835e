//! What the coordination document says, and the Jobs that work on volumes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use mainstay_coordination::incident::{self, Incident, RecoveryStage};
use mainstay_coordination::{Epoch, Lock, Purpose, lock};
use mainstay_crds::Etcd;
use mainstay_manifests::Names;
use serde::de::DeserializeOwned;

use super::Ordinal;
use super::jobs::{self, JobState, ObservedJob};
use super::progress::RestoreProgress;
use crate::act::marks::LOCK_HOLDER;
use crate::caches::Stores;
use crate::caches::packed::{JOB_NAME_LABEL, find_all, get};

/// A recovery of lost data, as far as it is written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedRecovery {
    /// Who may disrupt the cluster.
    pub lock: ObservedLock,
    /// The recovery that goes on, or the last one.
    pub incident: Option<Incident>,
    /// Jobs on volumes, by the member whose volume it is.
    pub jobs: BTreeMap<Ordinal, ObservedJob>,
    /// Members whose volume a pod of a Job may still write, whatever became of the Job.
    pub active_writers: BTreeSet<Ordinal>,
    /// How far the Job is that restores the data, if its log tells.
    pub progress: Option<RestoreProgress>,
    /// Why the document cannot be read. Then nothing is known, and nothing may be done.
    pub parse_error: Option<String>,
}

/// Who may disrupt the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedLock {
    /// Nobody has asked for it, or it was given back.
    Free {
        /// The last tenure.
        epoch: Epoch,
    },
    /// This controller, in this process or an earlier one.
    HeldByUs {
        /// This tenure.
        epoch: Epoch,
        /// The last sign of life.
        renewed_at: Timestamp,
    },
    /// Somebody else.
    HeldByOther {
        /// Who.
        holder: String,
        /// What for.
        purpose: Purpose,
        /// Their tenure.
        epoch: Epoch,
        /// When it may have expired, as far as clocks agree.
        expires_at: Timestamp,
    },
}

impl Default for ObservedLock {
    fn default() -> Self {
        Self::Free {
            epoch: Epoch::default(),
        }
    }
}

impl ObservedLock {
    /// The tenure that is, or was last.
    pub fn epoch(&self) -> Epoch {
        match self {
            Self::Free { epoch } | Self::HeldByUs { epoch, .. } | Self::HeldByOther { epoch, .. } => *epoch,
        }
    }
}

impl ObservedRecovery {
    /// The recovery that goes on.
    pub fn open_incident(&self) -> Option<&Incident> {
        self.incident.as_ref().filter(|incident| incident.is_open())
    }

    /// The Job that restores the data, while it runs.
    pub fn running_restore(&self) -> Option<&ObservedJob> {
        let incident = self.open_incident().filter(|open| open.stage == RecoveryStage::Restoring)?;
        let job = self.jobs.get(&Ordinal(incident.base))?;
        (job.belongs_to(incident) && !job.is_deleting && job.state == JobState::Running).then_some(job)
    }

    /// The last recovery, when it is over.
    pub fn finished_incident(&self) -> Option<&Incident> {
        self.incident
            .as_ref()
            .filter(|incident| !incident.is_open())
    }
}

/// Looks into the stores.
pub(crate) fn observe_recovery(stores: &Stores, etcd: &Etcd, ordinals: u32, is_down: bool) -> ObservedRecovery {
    let names = Names::new(etcd);
    let document = get(&stores.config_maps, &names.coordination_config_map(), names.namespace);
    let jobs = (0..ordinals).filter_map(|n| {
        let job = get(&stores.jobs, &names.restore_job(n), names.namespace)?;
        Some((Ordinal(n), jobs::observe_job(&job, &stores.pods)))
    });
    let mut observed = ObservedRecovery {
        jobs: jobs.collect(),
        ..document.map(|map| parse_document(&map)).unwrap_or_default()
    };
    // At rest nobody writes, and the pods of all clusters need not be looked through.
    if is_down || !observed.jobs.is_empty() || observed.open_incident().is_some() {
        let jobs = (0..ordinals).map(|n| (names.restore_job(n), Ordinal(n)));
        observed.active_writers = find_active_writers(stores, names.namespace, &jobs.collect());
    }
    observed
}

/// Whose volume a pod may write, by the names of Jobs.
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

/// Whether a pod has not come to its end.
fn can_write(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// What a document says.
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

fn parse_entry<T: DeserializeOwned>(map: &ConfigMap, key: &str) -> Result<Option<T>, serde_json::Error> {
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
    let lasts = jiff::SignedDuration::try_from(lock.effective_ttl()).unwrap_or_default();
    ObservedLock::HeldByOther {
        expires_at: lock.renewed.checked_add(lasts).unwrap_or(Timestamp::MAX),
        epoch: lock.epoch,
        holder: lock.holder,
        purpose: lock.purpose,
    }
}

#[cfg(test)]
mod tests {
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
    fn a_lock_is_ours_whichever_process_took_it() {
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
        let others = parse_document(&lock_config_map(&lock("somebody"))).lock;
        assert!(matches!(&others, ObservedLock::HeldByOther { holder, .. } if holder == "somebody"));
        let mut released = lock(LOCK_HOLDER);
        released["released"] = "2026-11-16T12:01:00Z".into();
        assert_eq!(
            parse_document(&lock_config_map(&released)).lock,
            ObservedLock::Free { epoch: Epoch(3) }
        );
    }

    #[test]
    fn a_pod_writes_until_it_has_ended_whoever_deletes_it() {
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
    fn a_document_nobody_can_read_is_not_an_empty_one() {
        assert!(parse_document(&lock_config_map(&json!("mine"))).parse_error.is_some());
        assert_eq!(parse_document(&ConfigMap::default()), ObservedRecovery::default());
    }
}
