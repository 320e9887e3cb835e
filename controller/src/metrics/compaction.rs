//! What is measured about the folding of deltas. Names and labels are etcd-druid's, by namespace: dashboards rely on
//! them. The series of a namespace go with the last Etcd in it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};

use super::register;
use crate::context::EtcdKey;
use crate::observe::{FailureClass, JobState};

/// Everything measured about the folding of deltas.
#[derive(Debug)]
pub(super) struct CompactionMetrics {
    jobs: IntCounterVec,
    fallback_snapshots: IntCounterVec,
    running: IntGaugeVec,
    job_seconds: HistogramVec,
    delta_events: IntGaugeVec,
    etcds: Mutex<DeltaEventsByEtcd>,
}

/// The Etcds there are, by namespace and name, with the changes since their last full snapshot where those are known.
type DeltaEventsByEtcd = BTreeMap<String, BTreeMap<String, Option<i64>>>;

const SUCCEEDED_VALUES: [&str; 2] = ["true", "false"];
/// In place of the reason of a failure.
const NO_FAILURE: &str = "none";

fn build_job_seconds() -> Result<HistogramVec, prometheus::Error> {
    let help = "Seconds Jobs took that folded deltas, by how they ended.";
    let opts = HistogramOpts::new("etcddruid_compaction_job_duration_seconds", help)
        .buckets(exponential_buckets(15.0, 2.0, 11)?);
    HistogramVec::new(opts, &["succeeded", "etcd_namespace"])
}

impl CompactionMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name: &str, help: &str| {
            let opts = Opts::new(name, help);
            register(registry, IntGaugeVec::new(opts, &["etcd_namespace"]))
        };
        Ok(Self {
            jobs: counters(
                "etcddruid_compaction_jobs_total",
                "Jobs that folded deltas into a full snapshot, by how they ended.",
                &["succeeded", "failureReason", "etcd_namespace"],
            )?,
            fallback_snapshots: counters(
                "etcddruid_compaction_full_snapshot_triggered_total",
                "Full snapshots asked for in place of a compaction.",
                &["succeeded", "etcd_namespace"],
            )?,
            running: gauges(
                "etcddruid_compaction_jobs_current",
                "Jobs that fold deltas now.",
            )?,
            job_seconds: register(registry, build_job_seconds())?,
            delta_events: gauges(
                "etcddruid_compaction_num_delta_events",
                "Changes since the last full snapshot, of the Etcd of a namespace that has most.",
            )?,
            etcds: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, DeltaEventsByEtcd> {
        // Nothing between two writes of it can panic.
        self.etcds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An Etcd is there.
    pub(super) fn add_etcd(&self, key: &EtcdKey) {
        let mut present = self.lock();
        let etcds = present.entry(key.namespace.clone()).or_default();
        etcds.entry(key.name.clone()).or_default();
    }

    pub(super) fn set_delta_events(&self, key: &EtcdKey, events: Option<i64>) {
        let mut present = self.lock();
        let etcds = present.entry(key.namespace.clone()).or_default();
        etcds.insert(key.name.clone(), events);
        self.update_max_events(&key.namespace, etcds);
    }

    /// The most of those that are known; no series where none is.
    fn update_max_events(&self, namespace: &str, etcds: &BTreeMap<String, Option<i64>>) {
        match etcds.values().flatten().max() {
            Some(most) => self.delta_events.with_label_values(&[namespace]).set(*most),
            None => drop(self.delta_events.remove_label_values(&[namespace])),
        }
    }

    pub(super) fn record_job_end(&self, key: &EtcdKey, state: &JobState, took: Option<Duration>) {
        let (succeeded, reason) = match state {
            JobState::Running => return,
            JobState::Succeeded { .. } => ("true", NO_FAILURE),
            JobState::Failed { failure, .. } => ("false", failure.class.label()),
        };
        self.add_etcd(key);
        let namespace = key.namespace.as_str();
        self.jobs
            .with_label_values(&[succeeded, reason, namespace])
            .inc();
        if let Some(took) = took {
            self.job_seconds
                .with_label_values(&[succeeded, namespace])
                .observe(took.as_secs_f64());
        }
    }

    pub(super) fn set_running(&self, key: &EtcdKey, jobs: usize) {
        self.add_etcd(key);
        self.running
            .with_label_values(&[key.namespace.as_str()])
            .set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    /// Not counted where the last Etcd went before the snapshot was there.
    pub(super) fn record_fallback_snapshot(&self, key: &EtcdKey, succeeded: bool) {
        let present = self.lock();
        if present.contains_key(&key.namespace) {
            let succeeded = if succeeded { "true" } else { "false" };
            self.fallback_snapshots
                .with_label_values(&[succeeded, &key.namespace])
                .inc();
        }
    }

    pub(super) fn remove_etcd(&self, key: &EtcdKey) {
        let namespace = key.namespace.as_str();
        let mut present = self.lock();
        let Some(etcds) = present.get_mut(namespace) else {
            return;
        };
        etcds.remove(&key.name);
        self.update_max_events(namespace, etcds);
        if etcds.is_empty() {
            present.remove(namespace);
            self.remove_namespace(namespace);
        }
    }

    fn remove_namespace(&self, namespace: &str) {
        self.running.remove_label_values(&[namespace]).ok();
        let failures = FailureClass::ALL.map(FailureClass::label);
        for succeeded in SUCCEEDED_VALUES {
            let labels = [succeeded, namespace];
            self.fallback_snapshots.remove_label_values(&labels).ok();
            self.job_seconds.remove_label_values(&labels).ok();
            for reason in failures.into_iter().chain([NO_FAILURE]) {
                let labels = [succeeded, reason, namespace];
                self.jobs.remove_label_values(&labels).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests;
