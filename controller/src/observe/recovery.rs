//! What the coordination document says, and the Jobs that work on volumes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use mainstay_coordination::incident::{self, Incident, Stage};
use mainstay_coordination::{Epoch, Lock, Purpose, lock};
use mainstay_crds::Etcd;
use mainstay_manifests::Names;
use serde::de::DeserializeOwned;

use super::Ordinal;
use super::jobs::{self, JobState, SeenJob};
use super::progress::Progress;
use crate::act::marks::HOLDER;
use crate::caches::Stores;
use crate::caches::packed::{JOB_NAME, find_all, get};

/// A recovery of lost data, as far as it is written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenRecovery {
    /// Who may disrupt the cluster.
    pub lock: SeenLock,
    /// The recovery that goes on, or the last one.
    pub incident: Option<Incident>,
    /// Jobs on volumes, by the member whose volume it is.
    pub jobs: BTreeMap<Ordinal, SeenJob>,
    /// Members whose volume a pod of a Job may still write, whatever became of the Job.
    pub writers: BTreeSet<Ordinal>,
    /// How far the Job is that restores the data, if its log tells.
    pub progress: Option<Progress>,
    /// Why the document cannot be read. Then nothing is known, and nothing may be done.
    pub unreadable: Option<String>,
}

/// Who may disrupt the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenLock {
    /// Nobody has asked for it, or it was given back.
    Free {
        /// The last tenure.
        epoch: Epoch,
    },
    /// This controller, in this process or an earlier one.
    Ours {
        /// This tenure.
        epoch: Epoch,
        /// The last sign of life.
        renewed: Timestamp,
    },
    /// Somebody else.
    Others {
        /// Who.
        holder: String,
        /// What for.
        purpose: Purpose,
        /// Their tenure.
        epoch: Epoch,
        /// When it may have expired, as far as clocks agree.
        expires: Timestamp,
    },
}

impl Default for SeenLock {
    fn default() -> Self {
        Self::Free {
            epoch: Epoch::default(),
        }
    }
}

impl SeenLock {
    /// The tenure that is, or was last.
    pub fn epoch(&self) -> Epoch {
        match self {
            Self::Free { epoch } | Self::Ours { epoch, .. } | Self::Others { epoch, .. } => *epoch,
        }
    }
}

impl SeenRecovery {
    /// The recovery that goes on.
    pub fn open(&self) -> Option<&Incident> {
        self.incident.as_ref().filter(|incident| incident.is_open())
    }

    /// The Job that restores the data, while it runs.
    pub fn restoring(&self) -> Option<&SeenJob> {
        let incident = self.open().filter(|open| open.stage == Stage::Restoring)?;
        let job = self.jobs.get(&Ordinal(incident.base))?;
        (job.is_of(incident) && !job.is_deleting && job.state == JobState::Running).then_some(job)
    }

    /// The last recovery, when it is over.
    pub fn over(&self) -> Option<&Incident> {
        self.incident
            .as_ref()
            .filter(|incident| !incident.is_open())
    }
}

/// Looks into the stores.
pub(crate) fn seen(stores: &Stores, etcd: &Etcd, ordinals: u32, is_down: bool) -> SeenRecovery {
    let names = Names::of(etcd);
    let document = get(&stores.config_maps, &names.coordination(), names.namespace);
    let jobs = (0..ordinals).filter_map(|n| {
        let job = get(&stores.jobs, &names.restore_job(n), names.namespace)?;
        Some((Ordinal(n), jobs::seen(&job, &stores.pods)))
    });
    let mut seen = SeenRecovery {
        jobs: jobs.collect(),
        ..document.map(|map| read(&map)).unwrap_or_default()
    };
    // At rest nobody writes, and the pods of all clusters need not be looked through.
    if is_down || !seen.jobs.is_empty() || seen.open().is_some() {
        let jobs = (0..ordinals).map(|n| (names.restore_job(n), Ordinal(n)));
        seen.writers = writers(stores, names.namespace, &jobs.collect());
    }
    seen
}

/// Whose volume a pod may write, by the names of Jobs.
fn writers(
    stores: &Stores,
    namespace: &str,
    jobs: &BTreeMap<String, Ordinal>,
) -> BTreeSet<Ordinal> {
    let job_of = |labels: Option<&BTreeMap<String, String>>| {
        let name = labels.and_then(|labels| labels.get(JOB_NAME))?;
        jobs.get(name).copied()
    };
    let pods = find_all::<Pod>(&stores.pods, |pod| {
        pod.namespace.as_deref() == Some(namespace) && job_of(pod.labels.as_ref()).is_some()
    });
    let alive = pods.iter().filter(|pod| may_write(pod));
    alive.filter_map(|pod| job_of(Some(pod.labels()))).collect()
}

/// Whether a pod has not come to its end.
fn may_write(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// What a document says.
fn read(map: &ConfigMap) -> SeenRecovery {
    let read = || {
        Ok::<_, serde_json::Error>((
            entry::<Lock>(map, lock::ENTRY)?,
            entry(map, incident::ENTRY)?,
        ))
    };
    match read() {
        Ok((lock, incident)) => SeenRecovery {
            lock: lock.map(of_lock).unwrap_or_default(),
            incident,
            ..SeenRecovery::default()
        },
        Err(error) => SeenRecovery {
            unreadable: Some(error.to_string()),
            ..SeenRecovery::default()
        },
    }
}

fn entry<T: DeserializeOwned>(map: &ConfigMap, key: &str) -> Result<Option<T>, serde_json::Error> {
    let text = map.data.as_ref().and_then(|data| data.get(key));
    text.map(|text| serde_json::from_str(text)).transpose()
}

fn of_lock(lock: Lock) -> SeenLock {
    if lock.released.is_some() {
        return SeenLock::Free { epoch: lock.epoch };
    }
    if lock.holder == HOLDER {
        return SeenLock::Ours {
            epoch: lock.epoch,
            renewed: lock.renewed,
        };
    }
    let lasts = jiff::SignedDuration::try_from(lock.lasts()).unwrap_or_default();
    SeenLock::Others {
        expires: lock.renewed.checked_add(lasts).unwrap_or(Timestamp::MAX),
        epoch: lock.epoch,
        holder: lock.holder,
        purpose: lock.purpose,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn map(lock: &Value) -> ConfigMap {
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
        let seen = read(&map(&lock(HOLDER)));
        assert_eq!(seen.unreadable, None);
        assert!(
            matches!(
                seen.lock,
                SeenLock::Ours {
                    epoch: Epoch(3),
                    ..
                }
            ),
            "{seen:?}"
        );
        let others = read(&map(&lock("somebody"))).lock;
        assert!(matches!(&others, SeenLock::Others { holder, .. } if holder == "somebody"));
        let mut released = lock(HOLDER);
        released["released"] = "2026-11-16T12:01:00Z".into();
        assert_eq!(
            read(&map(&released)).lock,
            SeenLock::Free { epoch: Epoch(3) }
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
            assert!(may_write(&pod(phase.clone())), "{phase}");
        }
        for phase in ["Succeeded", "Failed"] {
            assert!(!may_write(&pod(phase.into())), "{phase}");
        }
    }

    #[test]
    fn a_document_nobody_can_read_is_not_an_empty_one() {
        assert!(read(&map(&json!("mine"))).unreadable.is_some());
        assert_eq!(read(&ConfigMap::default()), SeenRecovery::default());
    }
}
